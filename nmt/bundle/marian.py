"""Models of transformers as bundles: folders in the layout of OPUS-MT, with a `MarianMTModel` and its tokenizer.

`nmt average --format huggingface` writes such folders, too; those of pre-norm models are for Pegasus. Nothing is
written here: recipe and weights are made when they are read. Nothing is unpickled: weights come from safetensors only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.bundle.folder import FORMAT, WEIGHTS, Bundle, tensors_of
from nmt.errors import UserError
from nmt.files import read_json, remedy
from nmt.recipe import Recipe, validated
from nmt.text.marian import ABSENT, SPM, origins_of
from nmt.text.marian import CONFIG as TOKENIZER
from nmt.text.symbols import EOS
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, GENERATION = "config.json", "generation_config.json"
NORMS = {"marian": "post", "pegasus": "pre"}
"""What the type of a model means for model.norm."""
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
"""What a recipe must have at least as tokenizer.vocab_size."""


def is_marian(folder: Path) -> bool:
    """Tell whether a folder holds a model of transformers."""
    return (folder / CONFIG).is_file() and "model_type" in _json(folder / CONFIG)


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
        config = _json(path / CONFIG)
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
        for name in SPM:
            if not (path / name).is_file():
                raise UserError(f"{path}: lacks {name}, one of its tokenizer's files", remedy(path / name))
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
        config = _json(self.path / CONFIG)
        generation = self._generation
        values = {
            "name": _name(self.path),
            "data": {
                "name": _name(self.path),
                **self._languages(),
                "train": [{"source": "unknown", "target": "unknown"}],
            },
            "tokenizer": {
                "vocab_size": max(LEAST_VOCABULARY, *map(len, (self._tokenizer.source, self._tokenizer.target))),
                "shared": self._tokenizer.shared,
            },
            "model": self._shape(config),
            "decoding": {
                "beam": _first("num_beams", generation, config, default=1),
                "alpha": _bounded(_first("length_penalty", generation, config, default=1.0), 0.0, 5.0),
                "max_source": _bounded(config.get("max_position_embeddings", LONGEST), 1, LONGEST),
            },
        }
        return validated(values, str(self.path / CONFIG))

    @property
    def lossy(self) -> bool:
        """See `Bundle`."""
        return self._tokenizer.lossy

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; raises UserError if it is missing or damaged, or has other symbols than the model."""
        return self._tokenizer

    def weights(self) -> dict[str, Tensor]:
        """Read the weights and return ours, by name; raises UserError as `convert` does."""
        from nmt.bundle.marian_weights import convert

        origins = origins_of(self._tokenizer.source), origins_of(self._tokenizer.target)
        scaled = bool(_json(self.path / CONFIG).get("scale_embedding", False))
        return convert(self.path / WEIGHTS, self.recipe.model, origins, self._start, scaled)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer, config = Tokenizer.load(self.path), _json(self.path / CONFIG)
        source = config.get("vocab_size")
        sizes = source, source if tokenizer.shared else config.get("decoder_vocab_size")
        for side, size in zip((tokenizer.source, tokenizer.target), sizes, strict=True):
            found = sorted(set(origins_of(side)) - {ABSENT})
            if size != len(found) or found != list(range(len(found))):
                raise UserError(
                    f"{self.path}: its vocabulary has {len(found):,} symbols, but the model {size} by {CONFIG}",
                    "in transformers: model.resize_token_embeddings(len(tokenizer)), and save both again",
                )
        end = origins_of(tokenizer.target)[EOS]
        if config.get("eos_token_id", end) != end:
            raise UserError(
                f"{self.path / CONFIG}: eos_token_id is {config['eos_token_id']}, but </s> has the id {end}",
                "take all files from the same copy of the model",
            )
        return tokenizer

    @property
    def _start(self) -> int:
        """The row of the target's embedding with which outputs begin."""
        start = _first("decoder_start_token_id", self._generation, _json(self.path / CONFIG), default=None)
        if type(start) is not int or not 0 <= start < len(origins_of(self._tokenizer.target)):
            raise UserError(
                f"{self.path / CONFIG}: decoder_start_token_id {start} is no symbol of the target",
                remedy(self.path / CONFIG),
            )
        return start

    @property
    def _generation(self) -> Mapping[str, Any]:
        return _json(self.path / GENERATION) if (self.path / GENERATION).is_file() else {}

    def _languages(self) -> dict[str, str]:
        """The languages of source and target; the tokenizer of OPUS-MT's models tells them."""
        known = _json(self.path / TOKENIZER) if (self.path / TOKENIZER).is_file() else {}
        return {side: str(known.get(f"{side}_lang") or side) for side in ("source", "target")}

    def _shape(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The section model of the recipe."""
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
        """The biases of attention and softmax that are not zero; those of models that nmt has exported are."""
        from safetensors import safe_open

        with tensors_of(self.path / WEIGHTS) as path, safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if BIAS.search(name)]  # noqa: SIM118  # it is no mapping
            return {name for name in names if bool(file.get_tensor(name).any())}


def _first(key: str, *files: Mapping[str, Any], default: Any) -> Any:
    """The value of a key in the first file that has one."""
    return next((file[key] for file in files if file.get(key) is not None), default)


def _bounded(value: Any, least: float, most: float) -> Any:
    """The number that is nearest to a value within bounds; another value as it is, for `validated` to refuse."""
    return max(least, min(most, value)) if type(value) in (int, float) else value


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError if it is missing or damaged."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: damaged: is not a JSON object", remedy(path))
    return values


def _name(folder: Path) -> str:
    """A name for a run: that of the folder, or in the hub's cache that of the model."""
    cached = re.search(r"models--.+?--([^/]+)/snapshots/", f"{folder.absolute()}/")
    return re.sub(r"[^A-Za-z0-9._-]", "-", cached[1] if cached else folder.absolute().name).lstrip("._-") or "marian"
