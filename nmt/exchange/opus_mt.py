"""Read-only bundles from models of transformers: directories in OPUS-MT's layout, with a `MarianMTModel`.

`nmt average --format huggingface` writes the same layout, with a Pegasus model if it is pre-norm. Recipe and weights
are converted on reading. Weights are read from safetensors only, never unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt.checkpoint.reading import FORMAT, WEIGHTS, Bundle, read_tensors, tensors_of
from nmt.exchange.foreign import explain_path
from nmt.recipe import Model, Recipe, validated
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import read_manifest
from nmt.text.added_tokens import CONFIG as TOKENIZER
from nmt.text.added_tokens import VOCAB
from nmt.text.language_codes import UNKNOWN_LANGUAGES
from nmt.text.marian import NO_ID, origins_of
from nmt.text.tokenizer import M2M, SPM, Tokenizer
from nmt.text.vocabulary import TargetVocabulary

if TYPE_CHECKING:
    from torch import Tensor

M2M_100 = "m2m_100"  # `model_type` of M2M-100 and NLLB-200
CONFIG = "config.json"
GENERATION = "generation_config.json"
NORM_BY_TYPE = {"marian": "post", "pegasus": "pre", M2M_100: "pre"}  # the recipe's model.norm by `model_type`
ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
SIZES = {
    "d_model": "d_model",
    "encoder_layers": "layers",
    "decoder_layers": "decoder_layers",
    "encoder_attention_heads": "heads",
    "decoder_attention_heads": "heads",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
}
DROPOUTS = {
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "feed_forward_dropout",
}
"""Keys of the recipe's model section by those of config.json"""
REFUSED = {
    "normalize_before": True,
    "normalize_embedding": True,
    "add_final_layer_norm": True,
    "static_position_embeddings": False,
}
"""Unsupported values in a post-norm model's config.json"""
HEAD = "lm_head.weight"
OUTPUT_BIAS = "final_logits_bias"
TIED = "tie_word_embeddings"
BIAS = re.compile(r"_attn\.[qvo]\w*_proj\.bias$|^" + OUTPUT_BIAS)
MARIANS_EPSILON = 1e-5  # LayerNorm's ε in Marian models, whatever config.json says; that of our exports is right
LONGEST = 512  # maximum source length in subwords: the models are trained on single sentences
USUAL_LENGTH = 25  # output length in subwords at which the length penalty of other programs matches ours
LEAST_VOCABULARY = 261  # minimum of the recipe's tokenizer.vocab_size


def is_marian(folder: Path) -> bool:
    """Return whether a directory holds a model of transformers."""
    return (folder / CONFIG).is_file() and "model_type" in read_manifest(folder / CONFIG)


@dataclass(frozen=True)
class MarianBundle(Bundle):
    """A model directory of transformers, read as a bundle."""

    @classmethod
    def read(cls, path: Path) -> MarianBundle:
        """Read the metadata; raise UserError if a file is missing or the model is not supported."""
        config = read_manifest(path / CONFIG)
        kind = config.get("model_type")
        if kind not in list(NORM_BY_TYPE):  # a list: `kind` may be unhashable
            known = ", ".join(NORM_BY_TYPE)
            problem = f"{path}: is a model of transformers of the type {kind}, and nmt reads {known}"
            hint = "use one of the OPUS-MT collection, such as hf:Helsinki-NLP/opus-mt-en-de, or NLLB-200 or M2M-100"
            raise UserError(problem, hint)
        if not (path / WEIGHTS).is_file():
            raise explain_path(path) or UserError(f"{path}: lacks {WEIGHTS}", remedy(path / WEIGHTS))
        if config.get("quantization_config"):
            hint = "use the model from before; or in transformers: model.dequantize(), and save it again"
            raise UserError(f"{path}: is quantised, by the quantization_config of {CONFIG}", hint)
        wrong = _unsupported(config)
        if wrong is not None:
            problem = f"{path / CONFIG}: nmt has no model with {wrong} {config.get(wrong, False)}"
            raise UserError(problem, "use another model, or run this one by transformers")
        return cls(path, {"format": FORMAT, "task": "translate", "run": name_of(path), "step": 0, "data": "unknown"})

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe that describes the model; its training data is unknown."""
        config = self._config
        tokenizer = self._tokenizer
        longest = config.get("max_position_embeddings", LONGEST)
        if type(longest) is int:
            longest = min(longest, LONGEST)
        size = max(LEAST_VOCABULARY, len(tokenizer.source), len(tokenizer.target))
        known = _optional(self.path / TOKENIZER)  # OPUS-MT names the languages here
        values = {
            "name": self.info.run,
            "data": {
                "name": self.info.run,
                "source": str(known.get("source_lang") or UNKNOWN_LANGUAGES[0]),
                "target": str(known.get("target_lang") or UNKNOWN_LANGUAGES[1]),
                "train": [{"source": "unknown", "target": "unknown"}],
            },
            "tokenizer": {"vocab_size": size, "shared": tokenizer.shared},
            "model": self._shape(),
            "decoding": {
                "beam": config.get("num_beams", 1),
                "alpha": config.get("length_penalty", 1.0),
                "max_source": longest,
            },
        }
        return validated(values, self._described_in)

    @property
    def _described_in(self) -> str:
        """Where the recipe's values come from, for errors."""
        return str(self.path / CONFIG)

    @property
    def lossy(self) -> bool:
        """Whether the tokenizer cannot represent every text; always true for Marian's models."""
        return self._tokenizer.lossy

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; raise UserError if it is missing, damaged or does not fit the model."""
        return self._tokenizer

    def weights(self) -> dict[str, Tensor]:
        """Memory-map the weights and convert them to fp32 with our names and layout.

        Raise UserError if weights are missing, misshapen, invalid or unexpected.
        """
        config = self.recipe.model
        source = origins_of(self._tokenizer.source)
        target = origins_of(self._tokenizer.target)
        start = self._config.get("decoder_start_token_id")
        if type(start) is not int or not 0 <= start < len(target):
            problem = f"{self.path / CONFIG}: decoder_start_token_id {start} is no symbol of the target"
            raise UserError(problem, remedy(self.path / CONFIG))
        theirs = self._tensors(config)
        found = _embeddings(theirs, config, source, target, start)
        for module in modules(config):
            found |= _weights(theirs, module, config)
        _check_rest(theirs, config)
        return {name: weight.float().contiguous() for name, weight in found.items()}

    def _tensors(self, model: Model) -> Tensors:
        """Return the weights; raise UserError if there are matrices of LoRA among them."""
        path = self.path / WEIGHTS
        tensors = read_tensors(path)
        for name in tensors:
            if ".lora_" in name:
                problem = f"{path}: holds {name}, a matrix of LoRA that is not merged"
                raise UserError(problem, "with peft: model.merge_and_unload(), and save what that returns")
        return Tensors(path, tensors, CONFIG)

    @cached_property
    def _config(self) -> dict[str, Any]:
        """Merged contents of config.json and, if it exists, generation_config.json, without nulls."""
        values = read_manifest(self.path / CONFIG) | _optional(self.path / GENERATION)
        return {key: value for key, value in values.items() if value is not None}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        config = self._config
        is_m2m = config["model_type"] == M2M_100
        if is_m2m and not (self.path / M2M).is_file():
            hint = "copy it from the model that this one was trained from, such as facebook/nllb-200-distilled-600M"
            raise UserError(f"{self.path}: lacks {M2M}, which the newest transformers do not save", hint)
        if not is_m2m and not (self.path / SPM[0]).is_file():
            hint = f"copy {', '.join(SPM)} and {VOCAB[0]} from the model that this one was trained from"
            raise UserError(f"{self.path}: lacks {SPM[0]}", hint)
        tokenizer = Tokenizer.load(self.path)
        source_rows = config.get("vocab_size")
        target_rows = source_rows if tokenizer.shared else config.get("decoder_vocab_size")
        self._check_size(tokenizer.source, source_rows)
        self._check_size(tokenizer.target, target_rows)
        return tokenizer

    def _check_size(self, side: TargetVocabulary, rows: object) -> None:
        """Raise UserError unless the ids of a vocabulary have no gap, and its embeddings as many rows."""
        found = sorted(set(origins_of(side)) - {NO_ID})
        for number, index in enumerate(found):
            if number != index:
                hint = f"take {VOCAB[0]} and the rest of the tokenizer from where the model comes from"
                problem = f"its vocabulary has no symbol with the id {number:,}, but later ones"
                raise UserError(f"{self.path}: {problem}", hint)
        if rows != len(found):
            raise self._other_size(len(found), rows)

    def _other_size(self, symbols: int, rows: object) -> UserError:
        """Return an error about a model whose matrix of embeddings is not of the size of its vocabulary."""
        problem = f"{self.path}: its vocabulary has {symbols:,} symbols, but the model {rows} by {CONFIG}"
        if isinstance(rows, int) and rows > symbols:
            dropping = f"model.resize_token_embeddings({symbols}) of transformers drops them"
            hint = f"if these rows only pad it, {dropping}; save it again. nmt has no rows for added tokens"
            return UserError(f"{problem}, {rows - symbols:,} more", hint)
        return UserError(problem, f"take {CONFIG}, {WEIGHTS} and the tokenizer from one copy of the model")

    def _shape(self) -> dict[str, Any]:
        """Return the recipe's `model` section."""
        config = self._config
        is_m2m = config["model_type"] == M2M_100
        epsilon = MARIANS_EPSILON
        if not self._tokenizer.lossy:
            epsilon = config.get("layer_norm_eps", MARIANS_EPSILON)
        tied = "target"
        if not config.get(TIED, True):
            tied = "none"
        elif config.get("share_encoder_decoder_embeddings", True):
            tied = "all"
        usual = {"dropout": 0.1}  # default in transformers, where that of the others is 0
        biased = self._biased()
        return {
            **{ours: config.get(theirs) for theirs, ours in SIZES.items()},
            **{ours: config.get(theirs, usual.get(theirs, 0.0)) for theirs, ours in DROPOUTS.items()},
            "activation": ACTIVATIONS[config["activation_function"]],
            "norm": NORM_BY_TYPE[config["model_type"]],
            "positions": "fairseq" if is_m2m else "sinusoidal",
            "norm_epsilon": epsilon,
            "tie_embeddings": tied,
            "attention_bias": bool(biased - {OUTPUT_BIAS}),
            "output_bias": self._tokenizer.lossy or OUTPUT_BIAS in biased,
        }

    def _biased(self) -> set[str]:
        """Return the names of nonzero attention and output biases; our exports write zeros for missing ones."""
        from safetensors import safe_open

        found: set[str] = set()
        with tensors_of(self.path / WEIGHTS) as path, safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                if BIAS.search(name) and bool(file.get_tensor(name).any()):
                    found.add(name)
        return found


def _unsupported(config: Mapping[str, Any]) -> str | None:
    """Return the first key of config.json whose value nmt has no model for; None if there is none."""
    if NORM_BY_TYPE[config["model_type"]] == "post":
        for key, value in REFUSED.items():
            if config.get(key) is value:
                return key
    if config.get("activation_function") not in list(ACTIVATIONS):
        return "activation_function"
    if not config.get("scale_embedding"):
        return "scale_embedding"
    for key in ("attention_heads", "ffn_dim"):
        if config.get(f"decoder_{key}") != config.get(f"encoder_{key}"):
            return f"decoder_{key}"
    return None


def _optional(path: Path) -> dict[str, Any]:
    """Read a JSON object; return {} if there is no file."""
    return read_manifest(path) if path.is_file() else {}


def name_of(folder: Path) -> str:
    """Return a run name: the directory's or, in the hub's cache, the model's."""
    name = folder.absolute().name
    cached = re.search(r"models--.+?--([^/]+)/snapshots/", f"{folder.absolute()}/")
    if cached:
        name = cached[1]
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-") or "marian"


# --- weights ----------------------------------------------------------------------------------------------------
#
# The conversion preserves the logits:
# - In transformers, positional encodings have all sines before all cosines; ours alternate. Weights that read or write
#   the residual stream are permuted along d_model.
# - Outputs of transformers begin with `<pad>` or another configured symbol. Our `<s>` gets a copy of its embedding, and
#   an output bias so low that it is never generated.

ROUNDED = 0.01  # beyond rounding, of position encodings in fp16
NEVER = -100.0  # output bias of a symbol that must not be generated: e^-100 is negligible in fp32


class Tensors:
    """Tensors of a file, each to be popped once."""

    def __init__(
        self, path: Path, tensors: dict[str, Tensor], described: str, names: Mapping[str, str] | None = None
    ) -> None:
        """Hold `tensors` of the file at `path`.

        Errors cite `described`, which says their shapes, and the `names` that some have in the file.
        """
        self.path = path
        self.rest = tensors
        """Those that are left"""
        self._described = described
        self._names = names or {}

    def __contains__(self, name: str) -> bool:
        return name in self.rest

    def pop(self, name: str, *shape: int) -> Tensor:
        """Pop a tensor in its stored dtype; raise UserError if it is missing or misshapen."""
        if name not in self.rest:
            raise UserError(f"{self.path}: lacks the weight {self._names.get(name, name)}", remedy(self.path))
        tensor = self.rest.pop(name)
        if tuple(tensor.shape) != shape:
            shapes = f"{list(tensor.shape)}, but {list(shape)} by {self._described}"
            problem = f"{self.path}: weight {self._names.get(name, name)} has shape {shapes}"
            raise UserError(problem, "take all from one copy of the model")
        return tensor

    def pop_tied(self, names: Sequence[str], *shape: int) -> Tensor:
        """Pop a tied matrix stored under one or more of `names`; raise UserError if its copies differ."""
        first, *others = [name for name in names if name in self] or [names[0]]  # `pop` reports it as missing
        matrix = self.pop(first, *shape)
        for name in others:
            if not bool((matrix == self.pop(name, *shape)).all()):
                problem = f"{self.path}: {first} and {name} differ, but are one matrix by {CONFIG}"
                hint = "versions of transformers read them differently: run it by the one that trained it"
                if name == HEAD:
                    setting = f'set "{TIED}": false in {CONFIG}'
                    hint = f"transformers 4 reads the first alone; to read both as 5 does, {setting}"
                raise UserError(problem, hint)
        return matrix


def _check_rest(theirs: Tensors, config: Model) -> None:
    """Raise UserError if tensors are left, except for tables of the position encodings that are computed."""
    for name, tensor in theirs.rest.items():
        if ".embed_positions.weight" not in name:
            problem = f"{theirs.path}: holds {name}, which is not as in Marian's models"
            raise UserError(problem, "use one of the OPUS-MT collection")
        # transformers computes M2M-100's tables on loading, and reads Marian's.
        if config.positions != "fairseq" and not _are_sinusoids(tensor, config.d_model):
            problem = f"{theirs.path}: {name} holds other position encodings than the sinusoids of Marian's models"
            raise UserError(problem, "run this model by the program that trained it")


def sines_first(width: int) -> Tensor:
    """Return our dimensions (width,) in the order of transformers, which has all sines of a position first."""
    import torch

    return torch.arange(width).view(-1, 2).T.flatten()  # 0 2 4 … 1 3 5 …


def _are_sinusoids(table: Tensor, width: int) -> bool:
    """Return whether a table (positions, width) has the sines of each position before its cosines, perhaps in fp16."""
    from nmt.model.layers import sinusoids

    expected = sinusoids(len(table), width)[:, sines_first(width)]
    if table.shape != expected.shape:
        return False
    difference = (table.float() - expected).abs().max()
    return bool(difference < ROUNDED)


def _ordered(weight: Tensor, config: Model, dim: int) -> Tensor:
    """Permute a state of transformers, along dimension `dim`, to ours, unless the positions are already the same."""
    import torch

    if config.positions == "fairseq":
        return weight
    order = torch.arange(config.d_model).view(2, -1).T.flatten()
    return weight.index_select(dim, order)


def _embeddings(
    theirs: Tensors, config: Model, source: Sequence[int], target: Sequence[int], start: int
) -> dict[str, Tensor]:
    """Return the source, target and output embeddings and the output bias.

    `source` and `target` hold the Marian row for each of our ids, or NO_ID; `start` is the start symbol's row.
    """
    width = config.d_model
    tied = config.tie_embeddings
    source_rows = sum(origin != NO_ID for origin in source)
    target_rows = sum(origin != NO_ID for origin in target)
    both = "model.shared.weight"
    encoder = "model.encoder.embed_tokens.weight"
    decoder = "model.decoder.embed_tokens.weight"
    if tied == "all":
        sources = theirs.pop_tied([both, encoder, decoder, HEAD], source_rows, width)
        targets = sources
    elif both in theirs:
        sources = theirs.pop_tied([both, encoder, decoder], source_rows, width)
        targets = sources
    else:
        sources = theirs.pop_tied([encoder], source_rows, width)
        targets = theirs.pop_tied([decoder, HEAD] if tied == "target" else [decoder], target_rows, width)
    found = {"source_embedding.weight": _select(sources, source, start, config)}
    if tied != "all":
        found["target_embedding.weight"] = _select(targets, target, start, config)
    if tied == "none":
        outputs = theirs.pop(HEAD, target_rows, width)
        found["output_embedding.weight"] = _select(outputs, target, start, config)
    if OUTPUT_BIAS in theirs:
        bias = theirs.pop(OUTPUT_BIAS, 1, target_rows)[0].float()
    else:
        bias = targets.new_zeros(target_rows).float()
    if config.output_bias:
        added = bias.new_tensor([NEVER if origin == NO_ID else 0.0 for origin in target])
        found["output_bias"] = bias[_rows(target, start)] + added
    return found


def _rows(origins: Sequence[int], start: int) -> list[int]:
    """Return Marian's embedding row for each of our ids, `start` where it is NO_ID."""
    return [start if origin == NO_ID else origin for origin in origins]


def _select(matrix: Tensor, origins: Sequence[int], start: int, config: Model) -> Tensor:
    """Return an embedding matrix in the order of our ids and states."""
    # The source may lack the start symbol's row; any will do, since no source has `<s>`.
    rows = _rows(origins, min(start, len(matrix) - 1))
    return _ordered(matrix[rows], config, 1)


def _weights(theirs: Tensors, module: Module, config: Model) -> dict[str, Tensor]:
    """Return a module's weight and bias, concatenated from the corresponding modules of transformers."""
    rows = module.shape[0] // len(module.transformers)
    weight = _joined([theirs.pop(f"{name}.weight", rows, *module.shape[1:]) for name in module.transformers])
    bias = _joined([theirs.pop(f"{name}.bias", rows) for name in module.transformers])
    if module.reads:
        weight = _ordered(weight, config, 1)
    else:
        weight = _ordered(weight, config, 0)
        bias = _ordered(bias, config, 0)
    found = {f"{module.name}.weight": weight}
    if module.has_bias:
        found[f"{module.name}.bias"] = bias
    return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors by rows; a single one stays mapped."""
    import torch

    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


# --- our modules and their names in transformers, Marian and CTranslate2 -------------------------------------------

LAYER = (
    # for each module of a layer: the modules of transformers that form its rows, the weights of Marian that do, and its
    # scope in CTranslate2
    (
        "attention.qkv",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_Wq", "self_Wk", "self_Wv"),
        "self_attention/linear_0",
    ),
    ("attention.out", ("self_attn.out_proj",), ("self_Wo",), "self_attention/linear_1"),
    ("attention_residual.norm", ("self_attn_layer_norm",), ("self_Wo_ln",), "self_attention/layer_norm"),
    ("cross.query", ("encoder_attn.q_proj",), ("context_Wq",), "attention/linear_0"),
    (
        "cross.key_value",
        ("encoder_attn.k_proj", "encoder_attn.v_proj"),
        ("context_Wk", "context_Wv"),
        "attention/linear_1",
    ),
    ("cross.out", ("encoder_attn.out_proj",), ("context_Wo",), "attention/linear_2"),
    ("cross_residual.norm", ("encoder_attn_layer_norm",), ("context_Wo_ln",), "attention/layer_norm"),
    ("feed_forward.inner", ("fc1",), ("ffn_W1",), "ffn/linear_0"),
    ("feed_forward.outer", ("fc2",), ("ffn_W2",), "ffn/linear_1"),
    ("feed_forward_residual.norm", ("final_layer_norm",), ("ffn_ffn_ln",), "ffn/layer_norm"),
)


READERS = ("qkv", "query", "key_value", "inner")  # modules of a layer whose columns read the residual stream


class Module(NamedTuple):
    """A module of the encoder or decoder."""

    name: str
    transformers: list[str]
    """Names of the modules in Hugging Face transformers whose weights, stacked by rows, form this module's"""
    marian: list[str]
    """Names of weights in Marian that, transposed and stacked by rows, form this module's; how those of a norm begin"""
    ctranslate2: str
    """Scope in a CTranslate2 specification"""
    shape: tuple[int, ...]
    """Shape of the weight; the bias has its first dimension"""
    reads: bool
    """True if its weight's columns read the residual stream, False if its rows write it"""
    has_bias: bool


def modules(config: Model) -> Iterator[Module]:
    """Yield the modules of encoder and decoder."""
    width = config.d_model
    keys = config.heads * config.key_width
    values = config.heads * config.value_width
    shapes: dict[str, tuple[int, ...]] = {
        "qkv": (2 * keys + values, width),
        "query": (keys, width),
        "key_value": (keys + values, width),
        "out": (width, values),
        "inner": (config.d_ff, width),
        "outer": (width, config.d_ff),
        "norm": (width,),
    }
    for side, depth in (("encoder", config.layers), ("decoder", config.decoder_depth)):
        for index in range(depth):
            for name, theirs, marians, scope in LAYER:
                if side == "encoder" and name.startswith("cross"):
                    continue
                kind = name.rpartition(".")[2]
                yield Module(
                    f"{side}.{index}.{name}",
                    [f"model.{side}.layers.{index}.{each}" for each in theirs],
                    [f"{side}_l{index + 1}_{each}" for each in marians],
                    f"{side}/layer_{index}/{scope}",
                    shapes[kind],
                    reads=kind in READERS,
                    has_bias=config.attention_bias or kind == "norm" or name.startswith("feed_forward"),
                )
        if config.norm == "pre":
            last = f"model.{side}.layer_norm"
            yield Module(
                f"{side}_norm", [last], [f"{side}_top_ln"], f"{side}/layer_norm", (width,), reads=False, has_bias=True
            )
