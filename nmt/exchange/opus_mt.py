"""Read-only bundles from models of transformers: directories in OPUS-MT's layout, with a `MarianMTModel`.

`nmt average --format huggingface` writes the same layout, with a Pegasus model if it is pre-norm. Recipe and weights
are converted on reading. Weights are read from safetensors only, never unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from nmt.text.marian import NO_ID, origins_of
from nmt.text.tokenizer import M2M, SPM, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

M2M_100 = "m2m_100"  # `model_type` of M2M-100 and NLLB-200
CONFIG, GENERATION = "config.json", "generation_config.json"
NORMS = {"marian": "post", "pegasus": "pre", M2M_100: "pre"}  # the recipe's model.norm by `model_type`
ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
SIZES = {"d_model": "d_model", "encoder_layers": "layers", "decoder_layers": "decoder_layers"}
SIZES |= {f"{side}_attention_heads": "heads" for side in ("encoder", "decoder")}
SIZES |= {f"{side}_ffn_dim": "d_ff" for side in ("encoder", "decoder")}
DROPOUTS = {name: name for name in ("dropout", "attention_dropout")} | {"activation_dropout": "feed_forward_dropout"}
"""Keys of the recipe's model section by those of config.json"""
REFUSED = dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), True)
REFUSED |= {"static_position_embeddings": False}
"""Unsupported values in a post-norm model's config.json"""
HEAD, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"
TIED = "tie_word_embeddings"
BIAS = re.compile(r"_attn\.[qvo]\w*_proj\.bias$|^" + OUTPUT_BIAS)
MARIANS_EPSILON = 1e-5  # LayerNorm's ε in Marian models, whatever config.json says; that of our exports is right
LONGEST = 512  # maximum source length in subwords: the models are trained on single sentences
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
        if (kind := config.get("model_type")) not in list(NORMS):  # a list: `kind` may be unhashable
            problem = f"{path}: is a model of transformers of the type {kind}, and nmt reads {', '.join(NORMS)}"
            hint = "use one of the OPUS-MT collection, such as hf:Helsinki-NLP/opus-mt-en-de, or NLLB-200 or M2M-100"
            raise UserError(problem, hint)
        if not (path / WEIGHTS).is_file():
            raise explain_path(path) or UserError(f"{path}: lacks {WEIGHTS}", remedy(path / WEIGHTS))
        if config.get("quantization_config"):
            hint = "use the model from before; or in transformers: model.dequantize(), and save it again"
            raise UserError(f"{path}: is quantised, by the quantization_config of {CONFIG}", hint)
        wrong = [key for key, value in REFUSED.items() if NORMS[kind] == "post" and config.get(key) is value]
        if config.get("activation_function") not in list(ACTIVATIONS):
            wrong.append("activation_function")
        if not config.get("scale_embedding"):
            wrong.append("scale_embedding")
        sides = ("attention_heads", "ffn_dim")
        wrong += [f"decoder_{key}" for key in sides if config.get(f"decoder_{key}") != config.get(f"encoder_{key}")]
        if wrong:
            problem = f"{path / CONFIG}: nmt has no model with {wrong[0]} {config.get(wrong[0], False)}"
            raise UserError(problem, "use another model, or run this one by transformers")
        return cls(path, {"format": FORMAT, "task": "translate", "run": _name(path), "step": 0, "data": "unknown"})

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe that describes the model; its training data is unknown."""
        config, tokenizer = self._config, self._tokenizer
        positions = config.get("max_position_embeddings", LONGEST)
        size = max(LEAST_VOCABULARY, len(tokenizer.source), len(tokenizer.target))
        known = _optional(self.path / TOKENIZER)  # OPUS-MT names the languages here
        values = {
            "name": _name(self.path),
            "data": {
                "name": _name(self.path),
                **{side: str(known.get(f"{side}_lang") or side) for side in ("source", "target")},
                "train": [{"source": "unknown", "target": "unknown"}],
            },
            "tokenizer": {"vocab_size": size, "shared": tokenizer.shared},
            "model": self._shape(),
            "decoding": {
                "beam": config.get("num_beams", 1),
                "alpha": config.get("length_penalty", 1.0),
                "max_source": min(positions, LONGEST) if type(positions) is int else positions,
            },
        }
        return validated(values, str(self.path / CONFIG))

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
        config, start = self.recipe.model, self._config.get("decoder_start_token_id")
        source, target = origins_of(self._tokenizer.source), origins_of(self._tokenizer.target)
        if type(start) is not int or not 0 <= start < len(target):
            problem = f"{self.path / CONFIG}: decoder_start_token_id {start} is no symbol of the target"
            raise UserError(problem, remedy(self.path / CONFIG))
        theirs = _Tensors(self.path / WEIGHTS)
        found = _embeddings(theirs, config, source, target, start)
        for module in modules(config):
            found |= _weights(theirs, module, config)
        theirs.check_rest(config)
        return {name: weight.float().contiguous() for name, weight in found.items()}

    @cached_property
    def _config(self) -> dict[str, Any]:
        """Merged contents of config.json and, if it exists, generation_config.json, without nulls."""
        values = read_manifest(self.path / CONFIG) | _optional(self.path / GENERATION)
        return {key: value for key, value in values.items() if value is not None}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        config = self._config
        if config["model_type"] == M2M_100 and not (self.path / M2M).is_file():
            hint = "copy it from the model that this one was trained from, such as facebook/nllb-200-distilled-600M"
            raise UserError(f"{self.path}: lacks {M2M}, which the newest transformers do not save", hint)
        if config["model_type"] != M2M_100 and not (self.path / SPM[0]).is_file():
            hint = f"copy {', '.join(SPM)} and {VOCAB[0]} from the model that this one was trained from"
            raise UserError(f"{self.path}: lacks {SPM[0]}", hint)
        tokenizer = Tokenizer.load(self.path)
        source = config.get("vocab_size")
        sizes = source, source if tokenizer.shared else config.get("decoder_vocab_size")
        for side, size in zip((tokenizer.source, tokenizer.target), sizes, strict=True):
            found = sorted(set(origins_of(side)) - {NO_ID})
            if found != list(range(len(found))):
                gap = next(number for number, index in enumerate(found) if number != index)
                hint = f"take {VOCAB[0]} and the rest of the tokenizer from where the model comes from"
                raise UserError(f"{self.path}: its vocabulary has no symbol with the id {gap:,}, but later ones", hint)
            if size != len(found):
                raise self._other_size(len(found), size)
        return tokenizer

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
        shared = config.get("share_encoder_decoder_embeddings", True)
        tied = config.get(TIED, True)
        biased = self._biased()
        return {
            **{ours: config.get(theirs) for theirs, ours in SIZES.items()},
            **{ours: config.get(theirs, 0.1 if theirs == "dropout" else 0.0) for theirs, ours in DROPOUTS.items()},
            "activation": ACTIVATIONS[config["activation_function"]],
            "norm": NORMS[config["model_type"]],
            "positions": "fairseq" if config["model_type"] == M2M_100 else "sinusoidal",
            "norm_epsilon": MARIANS_EPSILON if self._tokenizer.lossy else config.get("layer_norm_eps", MARIANS_EPSILON),
            "tie_embeddings": "none" if not tied else "all" if shared else "target",
            "attention_bias": bool(biased - {OUTPUT_BIAS}),
            "output_bias": self._tokenizer.lossy or OUTPUT_BIAS in biased,
        }

    def _biased(self) -> set[str]:
        """Return the names of nonzero attention and output biases; our exports write zeros for missing ones."""
        from safetensors import safe_open

        with tensors_of(self.path / WEIGHTS) as path, safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if BIAS.search(name)]  # noqa: SIM118  # it is no mapping
            return {name for name in names if bool(file.get_tensor(name).any())}


def _optional(path: Path) -> dict[str, Any]:
    """Read a JSON object; return {} if there is no file."""
    return read_manifest(path) if path.is_file() else {}


def _name(folder: Path) -> str:
    """Return a run name: the directory's or, in the hub's cache, the model's."""
    cached = re.search(r"models--.+?--([^/]+)/snapshots/", f"{folder.absolute()}/")
    return re.sub(r"[^A-Za-z0-9._-]", "-", cached[1] if cached else folder.absolute().name).lstrip("._-") or "marian"


# --- weights ----------------------------------------------------------------------------------------------------
#
# The conversion preserves the logits:
# - In transformers, positional encodings have all sines before all cosines; ours alternate. Weights that read or write
#   the residual stream are permuted along d_model.
# - Outputs of transformers begin with `<pad>` or another configured symbol. Our `<s>` gets a copy of its embedding, and
#   an output bias so low that it is never generated.

ROUNDED = 0.01  # beyond rounding, of position encodings in fp16
NEVER = -100.0  # output bias of a symbol that must not be generated: e^-100 is negligible in fp32


class _Tensors:
    """Tensors of a file, each to be taken once."""

    def __init__(self, path: Path) -> None:
        self._path, self._tensors = path, read_tensors(path)
        if adapters := [name for name in self._tensors if ".lora_" in name]:
            problem = f"{path}: holds {adapters[0]}, a matrix of LoRA that is not merged"
            raise UserError(problem, "with peft: model.merge_and_unload(), and save what that returns")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """Pop a tensor in its stored dtype; raise UserError if it is missing or misshapen."""
        if name not in self._tensors:
            raise UserError(f"{self._path}: lacks the weight {name}", remedy(self._path))
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            problem = f"{self._path}: weight {name} has shape {list(tensor.shape)}, but {list(shape)} by config.json"
            raise UserError(problem, "take both files from the same copy of the model")
        return tensor

    def take_one(self, names: Sequence[str], *shape: int) -> Tensor:
        """Pop a tied matrix stored under one or more of `names`; raise UserError if its copies differ."""
        stored = [name for name in names if name in self] or [names[0]]
        matrix, *others = [self.take(name, *shape) for name in stored]
        for name, other in zip(stored[1:], others, strict=True):
            if not bool((matrix == other).all()):
                problem = f"{self._path}: {stored[0]} and {name} differ, but are one matrix by {CONFIG}"
                hint = "versions of transformers read them differently: run it by the one that trained it"
                if name == HEAD:
                    hint = (
                        f'transformers 4 reads the first alone; to read both as 5 does, set "{TIED}": false in {CONFIG}'
                    )
                raise UserError(problem, hint)
        return matrix

    def check_rest(self, config: Model) -> None:
        """Raise UserError if tensors are left, except for tables of the position encodings that are computed."""
        for name, tensor in self._tensors.items():
            if ".embed_positions.weight" not in name:
                problem = f"{self._path}: holds {name}, which is not as in Marian's models"
                raise UserError(problem, "use one of the OPUS-MT collection")
            # transformers computes M2M-100's tables on loading, and reads Marian's.
            if config.positions != "fairseq" and not _are_sinusoids(tensor, config.d_model):
                problem = f"{self._path}: {name} holds other position encodings than the sinusoids of Marian's models"
                raise UserError(problem, "run this model by the program that trained it")


def sines_first(width: int) -> Tensor:
    """Return our dimensions (width,) in the order of transformers, which has all sines of a position first."""
    import torch

    return torch.arange(width).view(-1, 2).T.flatten()  # 0 2 4 … 1 3 5 …


def _are_sinusoids(table: Tensor, width: int) -> bool:
    """Return whether a table (positions, width) has the sines of each position before its cosines, perhaps in fp16."""
    from nmt.model.layers import sinusoids

    expected = sinusoids(len(table), width)[:, sines_first(width)]
    return table.shape == expected.shape and bool((table.float() - expected).abs().max() < ROUNDED)


def _ordered(weight: Tensor, config: Model, dim: int) -> Tensor:
    """Permute a state of transformers, along dimension `dim`, to ours, unless the positions are already the same."""
    import torch

    if config.positions == "fairseq":
        return weight
    return weight.index_select(dim, torch.arange(config.d_model).view(2, -1).T.flatten())


def _embeddings(
    theirs: _Tensors, config: Model, source: Sequence[int], target: Sequence[int], start: int
) -> dict[str, Tensor]:
    """Return the source, target and output embeddings and the output bias.

    `source` and `target` hold the Marian row for each of our ids, or NO_ID; `start` is the start symbol's row.
    """
    both, softmax, width, tied = "model.shared.weight", HEAD, config.d_model, config.tie_embeddings
    encoder, decoder = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    rows = [sum(origin != NO_ID for origin in side) for side in (source, target)]
    if tied == "all" or both in theirs:
        sources = targets = theirs.take_one([both, encoder, decoder, *[softmax] * (tied == "all")], rows[0], width)
    else:
        sources = theirs.take_one([encoder], rows[0], width)
        targets = theirs.take_one([decoder, *[softmax] * (tied == "target")], rows[1], width)
    found = {"source_embedding.weight": _select(sources, source, start, config)}
    if tied != "all":
        found["target_embedding.weight"] = _select(targets, target, start, config)
    if tied == "none":
        found["output_embedding.weight"] = _select(theirs.take(softmax, rows[1], width), target, start, config)
    bias = (theirs.take(OUTPUT_BIAS, 1, rows[1])[0] if OUTPUT_BIAS in theirs else targets.new_zeros(rows[1])).float()
    if config.output_bias:
        added = bias.new_tensor([NEVER if origin == NO_ID else 0.0 for origin in target])
        found["output_bias"] = bias[_rows(target, start)] + added
    return found


def _rows(origins: Sequence[int], start: int) -> list[int]:
    """Return Marian's embedding row for each of our ids, `start` where it is NO_ID."""
    return [start if origin == NO_ID else origin for origin in origins]


def _select(matrix: Tensor, origins: Sequence[int], start: int, config: Model) -> Tensor:
    """Return an embedding matrix in the order of our ids and states."""
    return _ordered(matrix[_rows(origins, min(start, len(matrix) - 1))], config, 1)


def _weights(theirs: _Tensors, module: Module, config: Model) -> dict[str, Tensor]:
    """Return a module's weight and bias, concatenated from the corresponding modules of transformers."""
    import torch

    rows = module.shape[0] // len(module.transformers)
    weights = [theirs.take(f"{name}.weight", rows, *module.shape[1:]) for name in module.transformers]
    biases = [theirs.take(f"{name}.bias", rows) for name in module.transformers]
    # A single matrix stays mapped.
    weight, bias = (torch.cat(each) if len(each) > 1 else each[0] for each in (weights, biases))
    if module.reads:
        weight = _ordered(weight, config, 1)
    else:
        weight, bias = _ordered(weight, config, 0), _ordered(bias, config, 0)
    return {f"{module.name}.weight": weight, **({f"{module.name}.bias": bias} if module.has_bias else {})}


# --- our modules and their names in transformers and CTranslate2 ---------------------------------------------------

LAYER = (  # for each module of a layer: the modules of transformers that form its rows, and its scope in CTranslate2
    ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attention/linear_0"),
    ("attention.out", ("self_attn.out_proj",), "self_attention/linear_1"),
    ("attention_residual.norm", ("self_attn_layer_norm",), "self_attention/layer_norm"),
    ("cross.query", ("encoder_attn.q_proj",), "attention/linear_0"),
    ("cross.key_value", ("encoder_attn.k_proj", "encoder_attn.v_proj"), "attention/linear_1"),
    ("cross.out", ("encoder_attn.out_proj",), "attention/linear_2"),
    ("cross_residual.norm", ("encoder_attn_layer_norm",), "attention/layer_norm"),
    ("feed_forward.inner", ("fc1",), "ffn/linear_0"),
    ("feed_forward.outer", ("fc2",), "ffn/linear_1"),
    ("feed_forward_residual.norm", ("final_layer_norm",), "ffn/layer_norm"),
)


class Module(NamedTuple):
    """A module of the encoder or decoder."""

    name: str
    transformers: list[str]
    """Names of the modules in Hugging Face transformers whose weights, stacked by rows, form this module's"""
    ctranslate2: str
    """Scope in a CTranslate2 specification"""
    shape: tuple[int, ...]
    """Shape of the weight; the bias has its first dimension"""
    reads: bool
    """True if its weight's columns read the residual stream, False if its rows write it"""
    has_bias: bool


def modules(config: Model) -> Iterator[Module]:
    """Yield the modules of encoder and decoder."""
    width, keys, values = config.d_model, config.heads * config.key_width, config.heads * config.value_width
    rows = {"qkv": 2 * keys + values, "query": keys, "key_value": keys + values, "inner": config.d_ff}
    shapes: dict[str, tuple[int, ...]] = {kind: (count, width) for kind, count in rows.items()}
    shapes |= {"out": (width, values), "outer": (width, config.d_ff), "norm": (width,)}
    for side, depth in (("encoder", config.layers), ("decoder", config.decoder_depth)):
        for index in range(depth):
            for name, theirs, scope in LAYER:
                if side == "decoder" or not name.startswith("cross"):
                    paths = [f"model.{side}.layers.{index}.{each}" for each in theirs]
                    has_bias = config.attention_bias or name.endswith("norm") or name.startswith("feed_forward")
                    kind, place = name.rpartition(".")[2], f"{side}/layer_{index}/{scope}"
                    yield Module(f"{side}.{index}.{name}", paths, place, shapes[kind], kind in rows, has_bias)
        if config.norm == "pre":
            yield Module(f"{side}_norm", [f"model.{side}.layer_norm"], f"{side}/layer_norm", (width,), False, True)
