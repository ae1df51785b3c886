"""Export of translators to CTranslate2, and in packages for Argos Translate."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray

from nmt.checkpoint.reading import MANIFEST, Bundle
from nmt.exchange.opus_mt import Module, modules
from nmt.recipe import Model, Recipe
from nmt.system.device import check_room, host_memory
from nmt.system.errors import UserError
from nmt.system.files import whole_directory, whole_file
from nmt.text.language_codes import NAMES, Language
from nmt.text.tokenizer import SPM

Array = NDArray[np.float32]

MULTIPLE = 8  # CTranslate2 pads lengths to multiples of this on a GPU

ACTIVATIONS = {"relu": "RELU", "silu": "SWISH", "gelu": "GELU"}  # from our names to CTranslate2's


def export(bundle: Bundle, path: Path, quantization: str) -> None:
    """Export a translator as a directory for `ctranslate2.Translator`, with its SentencePiece models.

    `quantization` is float32 or int8. Raise UserError if CTranslate2 cannot express the model, the bundle is damaged,
    or the directory cannot be written or is not empty.
    """
    check_expressible(bundle)
    with whole_directory(path, None) as part:
        specification(bundle, positions_for(bundle.recipe), quantization).save(str(part))
        for name, content in bundle.tokenizer().merged_files().items():
            (part / name).write_bytes(content)


def check_expressible(bundle: Bundle) -> None:
    """Raise UserError if CTranslate2 is not installed or does not support the model."""
    bundle.check_task("translate")
    if not (bundle.path / MANIFEST).is_file():
        problem = f"{bundle.path}: is a model of transformers or Marian, and only bundles are converted for CTranslate2"
        raise UserError(problem, f"nmt average {bundle.path} --weights 1 --out NAME makes a bundle of it")
    model = bundle.recipe.model
    if model.positions == "words":
        raise _nothing_like(bundle, "positions", model.positions)
    if model.value_width != model.key_width:
        raise _nothing_like(bundle, "d_v", model.d_v)
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise UserError(f"CTranslate2 is not installed: {error}", "pip install ctranslate2") from None


def _nothing_like(bundle: Bundle, key: str, value: object) -> UserError:
    return UserError(f"{bundle.path}: CTranslate2 has nothing like model.{key} {value}", "use nmt itself")


def positions_for(recipe: Recipe) -> int:
    """Return the number of rows of the position encoding tables, for the longest source and output."""
    longest = recipe.decoding.max_source + recipe.decoding.max_extra
    if recipe.model.positions == "learned":
        longest = recipe.model.max_positions
    return -(-longest // MULTIPLE) * MULTIPLE


def specification(bundle: Bundle, positions: int, quantization: str) -> Any:
    """Convert a bundle's model to a `ctranslate2.specs.TransformerSpec`, ready to save, in float32 or int8.

    `positions` is the number of rows of the position encoding tables. The vocabularies are the pieces of the
    SentencePiece models; CTranslate2 itself adds `</s>` to sources and `<s>` to targets. Raise UserError if weights are
    damaged or the tables do not fit into memory.
    """
    import torch
    from ctranslate2.specs import transformer_spec as specs

    check_room(
        2 * 8 * positions * bundle.recipe.model.d_model,  # two tables, computed in float64
        host_memory(),
        f"decoding.max_source and max_extra: encodings of {positions:,} positions",
        "--set decoding.max_source=1024 --set decoding.max_extra=50",
    )
    config = bundle.recipe.model
    tokenizer = bundle.tokenizer()
    model = bundle.model(torch.device("cpu"))
    weights: dict[str, Array] = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    spec = specs.TransformerSpec.from_config(
        (config.layers, config.decoder_depth),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=specs.common_spec.Activation[ACTIVATIONS[config.activation]],
    )
    for module in modules(config):
        _fill(specs.model_spec.index_spec(spec, module.ctranslate2), module, weights)
    for layer in spec.encoder.layer:
        _scale_queries(layer.self_attention, config)
    for layer in spec.decoder.layer:
        _scale_queries(layer.self_attention, config)
        _scale_queries(layer.attention, config)
    _fill_embeddings(spec, weights, config)
    spec.encoder.position_encodings.encodings = _position_table(weights, "source", config, positions)
    spec.decoder.position_encodings.encodings = _position_table(weights, "target", config, positions)
    spec.register_source_vocabulary(tokenizer.source.listing())
    spec.register_target_vocabulary(tokenizer.target.listing())
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization)  # also stores tied weights once
    return spec


def _fill(part: Any, module: Module, weights: Mapping[str, Array]) -> None:
    """Give a part of a specification the weight and the bias of a module."""
    weight = weights[f"{module.name}.weight"]
    if module.name.endswith("norm"):
        part.gamma = weight
        part.beta = weights[f"{module.name}.bias"]
        return
    part.weight = weight
    if module.has_bias:
        part.bias = weights[f"{module.name}.bias"]


def _scale_queries(attention: Any, config: Model) -> None:
    attention.queries_scale = np.float32(config.key_width**-0.5)


def _fill_embeddings(spec: Any, weights: Mapping[str, Array], config: Model) -> None:
    """Give a specification its embeddings and its output projection, of which some may be one matrix."""
    source = weights["source_embedding.weight"]
    target = source
    if config.tie_embeddings != "all":
        target = weights["target_embedding.weight"]
    output = target
    if config.tie_embeddings == "none":
        output = weights["output_embedding.weight"]
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    spec.decoder.projection.weight = output
    if config.output_bias:
        spec.decoder.projection.bias = weights["output_bias"]


def _position_table(weights: Mapping[str, Array], side: str, config: Model, positions: int) -> Array:
    """Return a side's position encodings: (positions, d_model)."""
    from nmt.model.layers import sinusoids

    if config.positions != "learned":
        computed: Array = sinusoids(positions, config.d_model, kind=config.positions).numpy()
        return computed
    learned = weights[f"{side}_positions.table"]
    return np.pad(learned, ((0, positions - config.max_positions), (0, 0)))  # the zero rows are for padding tokens


# --- packages for Argos Translate and LibreTranslate ------------------------------------------------------------
#
# A package, `NAME.argosmodel`, is a zip of one folder: `metadata.json` with languages and version, `README.md`,
# `model/` for CTranslate2, and `sentencepiece.model`. The latter is the source's: it also decodes outputs, since pieces
# that it does not know are text. Every package has the same files, and its folder is named after the languages and the
# recipe, so that installing a newer one overwrites all of an older one. Argos Translate would use either of two.

ARGOS_SUFFIX = ".argosmodel"
ARGOS_LONGEST = 1024  # subwords at which Argos Translate cuts off an input


def export_package(bundle: Bundle, path: Path, quantization: str, licence: str | None) -> None:
    """Export a translator as an `.argosmodel`, whose version is today's date.

    `quantization` is float32 or int8; `licence`, if known, is named in its README.md. An existing file is replaced.
    Raise UserError if Argos Translate cannot express the model, the bundle is damaged, or the file cannot be written.
    """
    from nmt.exchange.huggingface import model_card

    check_packageable(bundle)
    recipe = bundle.recipe
    tokenizer = bundle.tokenizer()
    names = NAMES["names"]
    source = _argos_code(recipe.data.source)
    target = _argos_code(recipe.data.target)
    name = re.sub(r"[^\w.-]", "_", f"nmt-{source}_{target}-{recipe.name}")
    metadata = {
        "package_version": f"{date.today():%Y.%m.%d}",  # above the versions of official packages, which start at 1.0
        "argos_version": "1.9.0",
        "from_code": source,
        "from_name": names.get(source, source),
        "to_code": target,
        "to_name": names.get(target, target),
    }
    positions = max(positions_for(recipe), ARGOS_LONGEST)
    parameters = sum(each.numel() for each in bundle.weights().values())
    card = model_card(bundle, name, parameters, licence, "argos_card.md")
    sentencepiece = tokenizer.files()[SPM[0]] if tokenizer.lossy else tokenizer.source.serialized
    with TemporaryDirectory() as folder, whole_file(path) as stream, ZipFile(stream, "w", ZIP_DEFLATED) as package:
        specification(bundle, positions, quantization).save(folder)
        for file in sorted(Path(folder).iterdir()):
            if file.name == "shared_vocabulary.json":
                package.write(file, f"{name}/model/source_vocabulary.json")
                package.write(file, f"{name}/model/target_vocabulary.json")
            else:
                package.write(file, f"{name}/model/{file.name}")
        package.writestr(f"{name}/sentencepiece.model", sentencepiece)
        package.writestr(f"{name}/metadata.json", json.dumps(metadata, indent=2))
        package.writestr(f"{name}/README.md", card)


def _argos_code(code: str) -> str:
    """Return the code of a language in packages, such as pb for pt-BR, pt_BR and por_BR."""
    language = Language.of(code)
    tag = (language.tag if language.is_known else code).lower()
    return str(NAMES["codes"].get(tag, tag))


def check_packageable(bundle: Bundle) -> None:
    """Raise UserError if CTranslate2 is not installed, or it or Argos Translate does not support the model."""
    check_expressible(bundle)
    model = bundle.recipe.model
    tokenizer = bundle.tokenizer()
    if tokenizer.source.languages and not tokenizer.typed:
        problem = f"has several target languages, {', '.join(tokenizer.source.languages)}"
        hint = "--format ctranslate2 or huggingface takes it"
        raise UserError(f"{bundle.path}: {problem}, and Argos Translate's packages have one", hint)
    if model.positions == "learned" and model.max_positions < ARGOS_LONGEST:
        raise UserError(
            f"{bundle.path}: Argos Translate has inputs of up to {ARGOS_LONGEST:,} subwords, but model.max_positions "
            f"is {model.max_positions:,}",
            "--format ctranslate2 takes it; or train with model.positions: sinusoidal",
        )
