"""Export of translators to Marian: a folder with model.npz, vocabularies and decoder.yml, as marian-decoder runs it.

Marian computes our post-norm models with `model.positions: marian`. Biases that a model lacks are zero there. Its
outputs begin with an embedding of zeros, where ours have that of `<s>`: this is taken from the embeddings of all
symbols, which changes no probability, and the biases of the first layers give it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmt import __version__
from nmt.checkpoint.reading import Bundle
from nmt.exchange.from_marian import DECODER, EPSILON, KNOWN, MODEL, SETTINGS, SIZES, ids_of, weight_names
from nmt.exchange.huggingface import parts_of, rows
from nmt.exchange.npz import write_npz
from nmt.exchange.opus_mt import SIZES as SIZES_OF_RECIPE
from nmt.exchange.opus_mt import USUAL_LENGTH, modules, sines_first
from nmt.recipe import Decoding, Model
from nmt.recipe.yaml_files import dump
from nmt.system.errors import UserError
from nmt.system.files import whole_directory
from nmt.text.tokenizer import SPM, Tokenizer
from nmt.text.vocabulary import BOS

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = "vocab.spm"  # of both sides
ACTIVATIONS = {"relu": "relu", "silu": "swish"}  # from our names to Marian's


def export(bundle: Bundle, path: Path) -> None:
    """Export a translator as a directory for Marian.

    Raise UserError if Marian cannot express the model, the bundle is damaged, or the directory cannot be written or is
    not empty.
    """
    import torch

    check_expressible(bundle)
    recipe = bundle.recipe
    tokenizer = bundle.tokenizer()
    weights = dict(bundle.model(torch.device("cpu")).named_parameters())
    source, target = _vocabularies(tokenizer)
    files = {VOCABULARY: source} if source == target else {SPM[0]: source, SPM[1]: target}
    with torch.no_grad(), whole_directory(path, None) as part:
        tensors = dict(_tensors(weights, recipe.model, tokenizer))
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        settings = dump(_settings(recipe.model, tokenizer)).encode() + b"\0"
        with (part / MODEL).open("wb") as stream:
            write_npz(stream, {**arrays, SETTINGS: np.frombuffer(settings, np.int8)})
        for name, content in files.items():
            (part / name).write_bytes(content)
        (part / DECODER).write_text(dump(decoder_settings(recipe.decoding, 2 * list(files))), encoding="utf-8")


def check_expressible(bundle: Bundle) -> None:
    """Raise UserError naming what Marian has nothing like: a key of the recipe, or several target languages."""
    bundle.check_task("translate")
    model = bundle.recipe.model
    width = model.d_model / model.heads
    lacking = {
        "positions": model.positions != "marian",
        "norm": model.norm != "post",
        "d_k": model.key_width != width,
        "d_v": model.value_width != width,
        "norm_epsilon": model.norm_epsilon > EPSILON,
        "activation": model.activation not in ACTIVATIONS,
    }
    for key, lacks in lacking.items():
        if lacks:
            hint = "--format ctranslate2 takes most models; or use nmt itself"
            if key == "positions":
                hint = "train with model.positions: marian, anew or from this model by training.init_from"
            if key == "norm":
                hint = (
                    "marian-decoder computes another function than it trains with pre-norm; train with model.norm: post"
                )
            raise UserError(f"{bundle.path}: Marian has nothing like model.{key} {getattr(model, key)}", hint)
    tokenizer = bundle.tokenizer()
    if tokenizer.source.languages and not tokenizer.typed:
        problem = (
            f"has symbols of target languages, {', '.join(tokenizer.source.languages)}, which Marian cannot be told"
        )
        raise UserError(f"{bundle.path}: {problem}", "--format ctranslate2 or huggingface takes it")
    for side, spm in zip((tokenizer.source, tokenizer.target), _vocabularies(tokenizer), strict=True):
        pieces = side.pieces(rows(side))
        if pieces != list(ids_of(spm, str(bundle.path))):
            problem = "has pieces and their numbers in different files, which marian-decoder does not read"
            raise UserError(f"{bundle.path}: {problem}", "--format ctranslate2 takes it")


def _tensors(weights: Mapping[str, Tensor], model: Model, tokenizer: Tokenizer) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight of Marian with its name."""
    import torch

    weights = _without_start(weights, model)
    order = sines_first(model.d_model)
    for module in modules(model):
        for stem, (weight, bias) in zip(module.marian, parts_of(module, weights, order), strict=True):
            names = weight_names(stem, model)
            yield names[0], weight.T if weight.dim() > 1 else weight[None]
            yield names[1], bias[None]
    source = "Wemb" if model.tie_embeddings == "all" else "encoder_Wemb"
    embeddings = {"source": source, "target": "decoder_Wemb", "output": "decoder_ff_logit_out_Wt"}
    for ours, name in embeddings.items():
        if f"{ours}_embedding.weight" in weights:
            found = rows(tokenizer.source if ours == "source" else tokenizer.target)
            yield name, weights[f"{ours}_embedding.weight"][found][:, order]
    bias = weights.get("output_bias", torch.zeros(len(tokenizer.target)))
    yield "decoder_ff_logit_out_b", bias[rows(tokenizer.target)][None]


def _without_start(weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Return the weights of a post-norm model with the same probabilities, whose embedding of `<s>` is zero.

    Inputs x of a first layer become x - s. It gives s back: W (x - s) + (b + W s) = W x + b, and the residual sum
    (x - s) + (y + s) = x + y. If one matrix also serves the softmax, all its logits change by the same.
    """
    changed = dict(weights)
    sides = ["decoder"]
    name = "target_embedding.weight"
    if model.tie_embeddings == "all":
        sides.append("encoder")
        name = "source_embedding.weight"
    start = weights[name][BOS]  # (d_model,)
    if not start.any():
        return changed
    changed[name] = weights[name] - start
    given_back = start * math.sqrt(model.d_model)
    for side in sides:
        attention = f"{side}.0.attention"
        inner = weights[f"{attention}.qkv.weight"] @ given_back
        for part, more in (("qkv", inner), ("out", given_back)):
            key = f"{attention}.{part}.bias"
            changed[key] = weights.get(key, 0.0) + more
    return changed


def _settings(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings of a model that Marian writes beside its weights."""
    return {
        **KNOWN["written"],
        **{key: getattr(model, SIZES_OF_RECIPE[theirs]) for theirs, key in SIZES.items()},
        "dec-depth": model.decoder_depth,
        "dim-vocabs": [len(rows(tokenizer.source)), len(rows(tokenizer.target))],
        "tied-embeddings": model.tie_embeddings == "target",
        "tied-embeddings-all": model.tie_embeddings == "all",
        "transformer-ffn-activation": ACTIVATIONS[model.activation],
        "version": f"v1.12.0, written by nmt {__version__}",
    }


def decoder_settings(decoding: Decoding, vocabularies: list[str]) -> dict[str, Any]:
    """Return the contents of decoder.yml that best approximate our search."""
    return {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": vocabularies[:2],
        "beam-size": decoding.beam,
        "normalize": round(decoding.alpha * USUAL_LENGTH / (USUAL_LENGTH + 5), 3),
        "word-penalty": 0,
    }


def _vocabularies(tokenizer: Tokenizer) -> list[bytes]:
    """Return the SentencePiece models of source and target, whose ids are those of the exported rows."""
    if tokenizer.lossy:
        return [tokenizer.files()[name] for name in SPM]
    return [tokenizer.source.serialized, tokenizer.target.serialized]
