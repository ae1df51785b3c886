"""Weights of a bundle as a CTranslate2 model; imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.bundle import Bundle, check_numbers
from nmt.errors import UserError
from nmt.files import remedy
from nmt.integrity import intact
from nmt.recipe import Model

Array = NDArray[np.float32]

KINDS = ("F32", "F16", "F64")  # of weights, as safetensors calls them; of those that torch has, numpy lacks bfloat16
LAYER_NORM_EPSILON = 1e-6  # as in nmt.model.layers, which needs torch


def specification(bundle: Bundle, positions: int) -> Any:
    """A bundle's model as a `ctranslate2.specs.TransformerSpec` that can be saved, its weights in float32.

    `positions` are the rows of the tables of position encodings. Its symbols are the pieces of the SentencePiece
    models; it adds `</s>` to a source and `<s>` to a target itself. Raises UserError where weights are damaged.
    """
    config, tokenizer, read = bundle.recipe.model, bundle.tokenizer(), _Reader(bundle.path / "model.safetensors")
    d_model, d_ff = config.d_model, config.d_ff

    def norm(spec: Any, name: str) -> None:
        spec.gamma, spec.beta = read(f"{name}.weight", d_model), read(f"{name}.bias", d_model)

    def attention(spec: Any, name: str, norm_name: str) -> None:
        *projections, out = spec.linear
        key, value = config.key_width, config.value_width
        parts = (
            [("qkv", (key, key, value))] if len(projections) == 1 else [("query", (key,)), ("key_value", (key, value))]
        )
        for projection, (matrix, widths) in zip(projections, parts, strict=True):
            weight = read(f"{name}.{matrix}.weight", config.heads * sum(widths), d_model)
            projection.weight = _equal_heads(weight, config, widths)
        out.weight = _equal_heads(
            read(f"{name}.out.weight", d_model, config.heads * value).T, config, (value,)
        ).T.copy()
        spec.queries_scale = np.float32(key**-0.5)
        norm(spec.layer_norm, norm_name)

    def feed_forward(spec: Any, layer: str) -> None:
        for linear, name, outputs, inputs in (
            (spec.linear_0, "inner", d_ff, d_model),
            (spec.linear_1, "outer", d_model, d_ff),
        ):
            linear.weight = read(f"{layer}.feed_forward.{name}.weight", outputs, inputs)
            linear.bias = read(f"{layer}.feed_forward.{name}.bias", outputs)
        norm(spec.layer_norm, f"{layer}.feed_forward_residual.norm")

    def table(side: str) -> Array:
        if config.positions == "sinusoidal":
            return sinusoids(positions, d_model)
        learned = read(f"{side}_positions.table", config.max_positions, d_model)
        return np.pad(learned, ((0, positions - config.max_positions), (0, 0)))  # zeros for padding, which none sees

    spec = _transformer_spec().TransformerSpec.from_config(
        (config.layers, config.decoder_depth), config.heads, pre_norm=config.norm == "pre"
    )
    encoder, decoder = spec.encoder, spec.decoder
    for index, layer in enumerate(encoder.layer):
        attention(layer.self_attention, f"encoder.{index}.attention", f"encoder.{index}.attention_residual.norm")
        feed_forward(layer.ffn, f"encoder.{index}")
    for index, layer in enumerate(decoder.layer):
        attention(layer.self_attention, f"decoder.{index}.attention", f"decoder.{index}.attention_residual.norm")
        attention(layer.attention, f"decoder.{index}.cross", f"decoder.{index}.cross_residual.norm")
        feed_forward(layer.ffn, f"decoder.{index}")
    if config.norm == "pre":
        norm(encoder.layer_norm, "encoder_norm")
        norm(decoder.layer_norm, "decoder_norm")

    tied, target_size = config.tie_embeddings, len(tokenizer.target)
    source = read("source_embedding.weight", len(tokenizer.source), d_model)
    target = source if tied == "all" else read("target_embedding.weight", target_size, d_model)
    encoder.embeddings[0].weight, decoder.embeddings.weight = source, target
    decoder.projection.weight = read("output_embedding.weight", target_size, d_model) if tied == "none" else target
    encoder.position_encodings.encodings, decoder.position_encodings.encodings = table("source"), table("target")
    spec.register_source_vocabulary(tokenizer.source.listing())
    spec.register_target_vocabulary(tokenizer.target.listing())
    spec.config.add_source_eos, spec.config.layer_norm_epsilon = True, LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize()  # a tensor that stands there twice is stored once
    return spec


def sinusoids(length: int, d_model: int) -> Array:
    """(length, d_model): `nmt.model.layers.sinusoids` without torch."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(length, d_model).astype(np.float32)


def _equal_heads(weight: Array, config: Model, widths: tuple[int, ...]) -> Array:
    """Projections (Σ heads · width, d_model) with every head as wide as the wider of d_k and d_v.

    CTranslate2 has one width for both. Filled up with zeros, the products and so the results are the same.
    """
    wide, heads = max(config.key_width, config.value_width), config.heads
    parts = np.split(weight, np.cumsum([heads * width for width in widths])[:-1])
    split = [part.reshape(heads, width, -1) for part, width in zip(parts, widths, strict=True)]
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1]), (0, 0))) for part in split]
    return np.concatenate([part.reshape(heads * wide, -1) for part in padded])


class _Reader:
    """The weights of a bundle, by name."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._path = path
        try:
            self._file: Any = safe_open(intact(path), framework="numpy")
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path}: damaged or not readable: {error}", remedy(path)) from None

    def __call__(self, name: str, *shape: int) -> Array:
        """One of them, in float32; raises UserError where it is missing, of another shape, or holds no weights."""
        found = self._file.get_slice(name) if name in self._file.keys() else None  # noqa: SIM118  # it is no mapping
        if found is None or tuple(found.get_shape()) != shape:
            there = "is missing" if found is None else f"has shape {found.get_shape()}, but {list(shape)} by the recipe"
            raise UserError(
                f"{self._path}: weight {name} {there}",
                "give the recipe.yaml beside it the model section that these weights were trained with",
            )
        check_numbers(self._path, name, found.get_dtype(), KINDS, ())
        values: NDArray[Any] = self._file.get_tensor(name)
        check_numbers(self._path, name, found.get_dtype(), KINDS, (values.min(), values.max()))
        return values.astype(np.float32, copy=False)


def _transformer_spec() -> Any:
    """`ctranslate2.specs.transformer_spec`, kept from importing torch, seconds of work for weights it does not hold."""
    hide = "torch" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes its `import torch` fail, as where there is none
    try:
        from ctranslate2.specs import transformer_spec
    finally:
        if hide:
            del sys.modules["torch"]
    return transformer_spec
