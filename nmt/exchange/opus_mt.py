"""Models of transformers as bundles: folders in the layout of OPUS-MT, with a `MarianMTModel` and its tokenizer.

`nmt average --format huggingface` writes such folders, too; those of pre-norm models are for Pegasus. Nothing is
written here: recipe and weights are made when they are read. Nothing is unpickled: weights come from safetensors only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt.checkpoint.reading import FORMAT, WEIGHTS, Bundle, read_tensors, tensors_of
from nmt.recipe import Model, Recipe, validated
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import read_manifest
from nmt.text.opus_mt_tokenizer import ABSENT, origins_of
from nmt.text.opus_mt_tokenizer import CONFIG as TOKENIZER
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, GENERATION = "config.json", "generation_config.json"
NORMS = {"marian": "post", "pegasus": "pre"}
"""The value of model.norm by the type of a model"""
ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
REFUSED = {
    "normalize_before": True,
    "normalize_embedding": True,
    "add_final_layer_norm": True,
    "static_position_embeddings": False,
}
"""Values in the config.json of a post-norm model that it cannot have here."""
OUTPUT_BIAS = "final_logits_bias"
BIAS = re.compile(r"_attn\.[qvo]\w*_proj\.bias$|^" + OUTPUT_BIAS)
MARIANS_EPSILON = 1e-5
"""ε of LayerNorm, which Marian's models have whatever their config.json says; a model of ours says what it had."""
LONGEST = 512
"""Subwords of an input; the models are trained on single sentences."""
LEAST_VOCABULARY = 261
"""The least tokenizer.vocab_size of a recipe"""


def is_marian(folder: Path) -> bool:
    """Tell whether a folder holds a model of transformers."""
    return (folder / CONFIG).is_file() and "model_type" in read_manifest(folder / CONFIG)


def converting(model: str, out: str) -> str:
    """Return the line by which transformers, and not nmt, writes a model as safetensors."""
    return (
        f'python -c "from transformers import MarianMTModel as M, MarianTokenizer as T; '
        f"[kind.from_pretrained('{model}').save_pretrained('{out}') for kind in (M, T)]\", and then name {out}"
    )


@dataclass(frozen=True)
class MarianBundle(Bundle):
    """A model of transformers in its folder."""

    @classmethod
    def read(cls, path: Path) -> MarianBundle:
        """Read the metadata; raises UserError if a file is missing, or the model is unlike any of ours."""
        config = read_manifest(path / CONFIG)
        if (kind := config.get("model_type")) not in list(NORMS):  # it may be of any kind
            raise UserError(
                f"{path}: is a model of transformers of the type {kind}, and nmt reads those of the type marian",
                "use one of the OPUS-MT collection, such as hf:Helsinki-NLP/opus-mt-en-de",
            )
        if not (path / WEIGHTS).is_file():
            raise UserError(
                f"{path}: lacks {WEIGHTS}, and nmt unpickles no pytorch_model.bin",
                converting(str(path), f"{path.name}-safetensors"),
            )
        wrong = [key for key, value in REFUSED.items() if NORMS[kind] == "post" and config.get(key) is value]
        if config.get("activation_function") not in list(ACTIVATIONS):
            wrong.append("activation_function")
        sides = ("attention_heads", "ffn_dim")
        wrong += [f"decoder_{key}" for key in sides if config.get(f"decoder_{key}") != config.get(f"encoder_{key}")]
        if wrong:
            raise UserError(
                f"{path / CONFIG}: nmt has no model with {wrong[0]} {config.get(wrong[0])}",
                "use another model, or run this one by transformers",
            )
        return cls(path, {"format": FORMAT, "task": "translate", "run": _name(path), "step": 0, "data": "unknown"})

    @cached_property
    def recipe(self) -> Recipe:
        """A recipe for such a model; what this one was trained on is not known."""
        config, tokenizer = self._config, self._tokenizer
        positions = config.get("max_position_embeddings", LONGEST)
        known = _optional(self.path / TOKENIZER)  # the tokenizer of OPUS-MT's models tells the languages
        values = {
            "name": _name(self.path),
            "data": {
                "name": _name(self.path),
                **{side: str(known.get(f"{side}_lang") or side) for side in ("source", "target")},
                "train": [{"source": "unknown", "target": "unknown"}],
            },
            "tokenizer": {
                "vocab_size": max(LEAST_VOCABULARY, len(tokenizer.source), len(tokenizer.target)),
                "shared": tokenizer.shared,
            },
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
        """Whether the tokenizer cannot spell every text; it is always so with Marian's own."""
        return self._tokenizer.lossy

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; raises UserError if it is missing or damaged, or has other symbols than the model."""
        return self._tokenizer

    def weights(self) -> dict[str, Tensor]:
        """Map the weights of the `MarianMTModel` into memory and return ours, by name, in fp32.

        Raises UserError if a weight is missing, has another shape or cannot be one, or if there are others.
        """
        config, start = self.recipe.model, self._start
        theirs = _Tensors(self.path / WEIGHTS)
        source, target = origins_of(self._tokenizer.source), origins_of(self._tokenizer.target)
        found = _embeddings(theirs, config, source, target, start)
        for module in modules(config):
            found |= _weights(theirs, module, config)
        if not self._config.get("scale_embedding", False):
            _unscale(found, config)
        theirs.check_rest()
        return {name: weight.float().contiguous() for name, weight in found.items()}

    @cached_property
    def _config(self) -> dict[str, Any]:
        """What config.json says, and generation_config.json if there is one."""
        values = read_manifest(self.path / CONFIG) | _optional(self.path / GENERATION)
        return {key: value for key, value in values.items() if value is not None}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer, config = Tokenizer.load(self.path), self._config
        source = config.get("vocab_size")
        sizes = source, source if tokenizer.shared else config.get("decoder_vocab_size")
        for side, size in zip((tokenizer.source, tokenizer.target), sizes, strict=True):
            found = sorted(set(origins_of(side)) - {ABSENT})
            if size != len(found) or found != list(range(len(found))):
                raise UserError(
                    f"{self.path}: its vocabulary has {len(found):,} symbols, but the model {size} by {CONFIG}",
                    "in transformers: model.resize_token_embeddings(len(tokenizer)), and save both again",
                )
        return tokenizer

    @property
    def _start(self) -> int:
        """The row of the target's embedding with which outputs begin."""
        start = self._config.get("decoder_start_token_id")
        if type(start) is not int or not 0 <= start < len(origins_of(self._tokenizer.target)):
            raise UserError(
                f"{self.path / CONFIG}: decoder_start_token_id {start} is no symbol of the target",
                remedy(self.path / CONFIG),
            )
        return start

    def _shape(self) -> dict[str, Any]:
        """Return the section `model` of the recipe."""
        config = self._config
        shared = config.get("share_encoder_decoder_embeddings", True)
        tied = config.get("tie_word_embeddings", True)
        biased = self._biased()
        return {
            "layers": config.get("encoder_layers"),
            "decoder_layers": config.get("decoder_layers"),
            "d_model": config.get("d_model"),
            "d_ff": config.get("encoder_ffn_dim"),
            "heads": config.get("encoder_attention_heads"),
            "dropout": config.get("dropout", 0.1),
            "attention_dropout": config.get("attention_dropout", 0.0),
            "feed_forward_dropout": config.get("activation_dropout", 0.0),
            "activation": ACTIVATIONS[config["activation_function"]],
            "norm": NORMS[config["model_type"]],
            "norm_epsilon": MARIANS_EPSILON if self._tokenizer.lossy else config.get("layer_norm_eps", MARIANS_EPSILON),
            "tie_embeddings": "none" if not tied else "all" if shared else "target",
            "attention_bias": bool(biased - {OUTPUT_BIAS}),
            "output_bias": self._tokenizer.lossy or OUTPUT_BIAS in biased,
        }

    def _biased(self) -> set[str]:
        """Return the names of the nonzero biases of attention and softmax; exports of nmt may have zeros."""
        from safetensors import safe_open

        with tensors_of(self.path / WEIGHTS) as path, safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if BIAS.search(name)]  # noqa: SIM118  # it is no mapping
            return {name for name in names if bool(file.get_tensor(name).any())}


def _optional(path: Path) -> dict[str, Any]:
    """Read a JSON object, which is empty if there is no file."""
    return read_manifest(path) if path.is_file() else {}


def _name(folder: Path) -> str:
    """Return a name for a run: that of the folder, or in the hub's cache that of the model."""
    cached = re.search(r"models--.+?--([^/]+)/snapshots/", f"{folder.absolute()}/")
    return re.sub(r"[^A-Za-z0-9._-]", "-", cached[1] if cached else folder.absolute().name).lstrip("._-") or "marian"


# --- weights ----------------------------------------------------------------------------------------------------
#
# Both compute the same logits:
# - Their sinusoids are all sines, then all cosines; ours alternate. So all that reads or writes the residual stream is
#   permuted.
# - They begin outputs with the row of `<pad>`, or of another symbol that the configuration names. Our `<s>` gets a copy
#   of that row, and an output bias so low that it never comes.
# - Without `scale_embedding`, embeddings are divided by √d_model, by which ours are multiplied, and if they are the
#   softmax matrix as well, the states that it reads are multiplied by it.

NEVER = -100.0
"""The output bias of a symbol that must not occur: e^-100 vanishes in fp32"""


class _Tensors:
    """The tensors of a file, each of which is taken once."""

    def __init__(self, path: Path) -> None:
        self._path, self._tensors = path, read_tensors(path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in its own type; raises UserError if it is missing or has another shape."""
        if name not in self._tensors:
            raise UserError(f"{self._path}: lacks the weight {name}", remedy(self._path))
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{self._path}: weight {name} has shape {list(tensor.shape)}, but {list(shape)} by config.json",
                "take both files from the same copy of the model",
            )
        return tensor

    def take_one(self, names: Sequence[str], *shape: int) -> Tensor:
        """Return a matrix that is stored under one or more of these names, of which the first counts."""
        stored = [name for name in names if name in self] or [names[0]]
        matrix, *_ = [self.take(name, *shape) for name in stored]
        return matrix

    def check_rest(self) -> None:
        """Raise UserError if there are tensors left, except for the sinusoids of positions."""
        if rest := [name for name in self._tensors if not name.endswith(".embed_positions.weight")]:
            problem = f"{self._path}: holds {rest[0]}, which is not as in Marian's models"
            raise UserError(problem, "use one of the OPUS-MT collection")


def _order(d_model: int) -> Tensor:
    """Return where each number of a state of ours, a sine or a cosine in turn, stands in theirs: (d_model,)."""
    import torch

    return torch.arange(d_model).view(2, -1).T.flatten()


def _embeddings(
    theirs: _Tensors, config: Model, source: Sequence[int], target: Sequence[int], start: int
) -> dict[str, Tensor]:
    """Return the matrices of source, target and softmax, and the bias of the softmax.

    `source` and `target` are the rows of theirs for our ids, `ABSENT` if there is none; `start` is the row that outputs
    begin with.
    """
    both, softmax, width, tied = "model.shared.weight", "lm_head.weight", config.d_model, config.tie_embeddings
    encoder, decoder = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    rows = [sum(origin != ABSENT for origin in side) for side in (source, target)]
    if tied == "all" or both in theirs:
        sources = targets = theirs.take_one([both, encoder, decoder, *[softmax] * (tied == "all")], rows[0], width)
    else:
        sources = theirs.take_one([encoder], rows[0], width)
        targets = theirs.take_one([decoder, *[softmax] * (tied == "target")], rows[1], width)
    found = {"source_embedding.weight": _select(sources, source, start)}
    if tied != "all":
        found["target_embedding.weight"] = _select(targets, target, start)
    if tied == "none":
        found["output_embedding.weight"] = _select(theirs.take(softmax, rows[1], width), target, start)
    name = "final_logits_bias"
    bias = theirs.take(name, 1, rows[1])[0].float() if name in theirs else targets.new_zeros(rows[1]).float()
    if config.output_bias:
        added = bias.new_tensor([NEVER if origin == ABSENT else 0.0 for origin in target])
        found["output_bias"] = bias[_rows(target, start)] + added
    return found


def _rows(origins: Sequence[int], start: int) -> Tensor:
    """Return the row of Marian's embedding for each of our ids, `start` for an id that has none."""
    import torch

    return torch.tensor([start if origin == ABSENT else origin for origin in origins])


def _select(matrix: Tensor, origins: Sequence[int], start: int) -> Tensor:
    """Return the rows of our ids, with the numbers of a state in our order."""
    index = _rows(origins, min(start, len(matrix) - 1))
    return matrix[index].index_select(1, _order(matrix.size(1)))


def _weights(theirs: _Tensors, module: Module, config: Model) -> dict[str, Tensor]:
    """Return the weight and bias of a module, from the modules of transformers that hold its rows."""
    import torch

    order, reads, is_norm = _order(config.d_model), module.reads, module.name.endswith("norm")
    shape: tuple[int, ...] = (config.d_ff if "feed_forward." in module.name else config.d_model, config.d_model)
    if not reads:
        shape = (config.d_model,) if is_norm else shape[::-1]
    weight = torch.cat([theirs.take(f"{name}.weight", *shape) for name in module.transformers])
    bias = torch.cat([theirs.take(f"{name}.bias", shape[0]) for name in module.transformers])
    found = {f"{module.name}.weight": weight[:, order] if reads else weight[order]}
    if module.has_bias:
        found[f"{module.name}.bias"] = bias if reads else bias[order]
    return found


def _unscale(found: dict[str, Tensor], config: Model) -> None:
    """Let embeddings that our model multiplies by √d_model be as large as those that theirs takes as they are."""
    scale = math.sqrt(config.d_model)
    for name in ("source_embedding.weight", "target_embedding.weight"):
        if name in found:
            found[name] = found[name] / scale
    if config.tie_embeddings != "none":  # the softmax reads nothing but what this norm writes
        last = f"decoder.{config.decoder_depth - 1}.feed_forward_residual.norm"
        last = last if config.norm == "post" else "decoder_norm"
        for name in (f"{last}.weight", f"{last}.bias"):
            found[name] = found[name].double() * scale


# --- modules of our stacks, with their names in transformers and in CTranslate2 ------------------------------------

LAYER = (  # of one layer: the modules of transformers that hold the rows of ours in turn, and the scope in CTranslate2
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
READING = ("attention.qkv", "cross.query", "cross.key_value", "feed_forward.inner")


class Module(NamedTuple):
    """A module of a stack."""

    name: str
    transformers: list[str]
    """Modules that hold its rows in turn"""
    ctranslate2: str
    """Scope in a specification"""
    reads: bool
    """Whether it reads states, so that the columns of its weight are in their order; else it writes them by rows"""
    has_bias: bool


def modules(config: Model) -> Iterator[Module]:
    """Yield the modules of both stacks."""
    for side, depth in (("encoder", config.layers), ("decoder", config.decoder_depth)):
        for index in range(depth):
            for name, theirs, scope in LAYER:
                if side == "decoder" or not name.startswith("cross"):
                    paths = [f"model.{side}.layers.{index}.{each}" for each in theirs]
                    has_bias = config.attention_bias or name.endswith("norm") or name.startswith("feed_forward")
                    place = f"{side}/layer_{index}/{scope}"
                    yield Module(f"{side}.{index}.{name}", paths, place, name in READING, has_bias)
        if config.norm == "pre":
            yield Module(f"{side}_norm", [f"model.{side}.layer_norm"], f"{side}/layer_norm", False, True)
