"""Export of translators to Hugging Face's `transformers`, in the layout of OPUS-MT.

A post-norm model becomes a `MarianMTModel`, a pre-norm one a `PegasusForConditionalGeneration`, both with a
`MarianTokenizer`. They are equivalent to ours, except that LayerNorm's ε is always 1e-5. Their position encodings have
all sines before all cosines, where ours alternate, so weights that read or write the residual stream are permuted along
d_model. Biases that our model lacks are zero.

One fine-tuned from M2M-100 or NLLB-200 becomes a `M2M100ForConditionalGeneration` again, with its tokenizer's files.
A model fine-tuned from OPUS-MT keeps the original tokenizer files and ids. Its outputs again begin with `<pad>`,
which gets the embedding of our `<s>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt import __version__
from nmt.checkpoint.reading import WEIGHTS, Bundle
from nmt.checkpoint.writing import save_tensors
from nmt.exchange.model_index import dataset_names, model_index
from nmt.exchange.opus_mt import DROPOUTS, M2M_100, SIZES, USUAL_LENGTH, Module, modules, sines_first
from nmt.recipe import Dataset, Decoding, Recipe
from nmt.recipe.yaml_files import dump
from nmt.system.errors import UserError
from nmt.system.files import whole_directory, write_json
from nmt.text.added_tokens import CONFIG as TOKENIZER_CONFIG
from nmt.text.added_tokens import VOCAB
from nmt.text.marian import NO_ID, M2MVocabulary, origins_of
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, PAD, TargetVocabulary, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_EPSILON = 1e-5  # LayerNorm's ε in transformers; replacing a smaller one makes almost no difference


def export(bundle: Bundle, path: Path, licence: str | None = None) -> None:
    """Export a translator as a directory for `transformers`; `licence`, if known, is named in the model card.

    Raise UserError if `transformers` cannot express the model, the bundle is damaged, or the directory cannot be
    written or is not empty.
    """
    import torch

    check_expressible(bundle)
    recipe = bundle.recipe
    tokenizer = bundle.tokenizer()
    weights = dict(bundle.model(torch.device("cpu")).named_parameters())
    parameters = sum(weight.numel() for weight in weights.values())
    card = model_card(bundle, path.resolve().name, parameters, licence)
    with torch.no_grad(), whole_directory(path, None) as part:
        save_tensors(part / WEIGHTS, dict(_tensors(weights, recipe, tokenizer)), path)
        write_json(part / "config.json", _model_config(recipe, tokenizer))
        write_json(part / "generation_config.json", generation_config(recipe.decoding, tokenizer))
        for name, content in _tokenizer_files(recipe, tokenizer).items():
            (part / name).write_bytes(content)
        (part / "README.md").write_text(card, encoding="utf-8")


def check_expressible(bundle: Bundle) -> None:
    """Raise UserError naming the recipe's key if `transformers` does not support the model."""
    bundle.check_task("translate")
    model = bundle.recipe.model
    needed = "fairseq" if bundle.tokenizer().forced else "sinusoidal"
    width = model.d_model / model.heads
    lacking = {
        "positions": model.positions != needed,
        "d_k": model.key_width != width,
        "d_v": model.value_width != width,
        "norm_epsilon": model.norm_epsilon > LARGEST_EPSILON,
        "tie_embeddings": model.norm == "pre" and model.tie_embeddings != "all",
    }
    for key, lacks in lacking.items():
        if lacks:
            where = " with model.norm pre" if key == "tie_embeddings" else ""
            problem = f"{bundle.path}: transformers has nothing like model.{key} {getattr(model, key)}{where}"
            raise UserError(problem, "--format ctranslate2 takes most models; or use nmt itself")


# --- weights ---------------------------------------------------------------------------------------------------


def _tensors(weights: Mapping[str, Tensor], recipe: Recipe, tokenizer: Tokenizer) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight with its name in transformers; tied weights once."""
    import torch

    from nmt.model.layers import sinusoids

    config = recipe.model
    order = sines_first(config.d_model)
    if tokenizer.forced:
        order = torch.arange(config.d_model)  # M2M-100 keeps our order: sines first already
    for module in modules(config):
        for name, (weight, bias) in zip(module.transformers, parts_of(module, weights, order), strict=True):
            yield f"{name}.weight", weight
            yield f"{name}.bias", bias
    if config.norm == "pre" and not tokenizer.forced:  # Marian and M2M-100 compute their tables on loading
        table = sinusoids(_longest(recipe.decoding), config.d_model)[:, order]  # (positions, d_model)
        yield "model.encoder.embed_positions.weight", table
        yield "model.decoder.embed_positions.weight", table.clone()
    source = "model.shared" if config.tie_embeddings == "all" else "model.encoder.embed_tokens"
    names = {"source": source, "target": "model.decoder.embed_tokens", "output": "lm_head"}
    for ours, name in names.items():
        if f"{ours}_embedding.weight" in weights:
            found = rows(tokenizer.source if ours == "source" else tokenizer.target, start=True)
            yield f"{name}.weight", weights[f"{ours}_embedding.weight"][found][:, order]  # (vocabulary, d_model)
    if tokenizer.forced:  # only `<s>` of ours has a bias, and it is not exported
        return
    bias = weights.get("output_bias", torch.zeros(len(tokenizer.target)))
    yield "final_logits_bias", bias[rows(tokenizer.target)][None]  # (1, vocabulary)


def parts_of(module: Module, weights: Mapping[str, Tensor], order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weight and bias of each part of a module that transformers and Marian have for it, such as q, k and v.

    Columns of a weight that reads the residual stream, or rows of one that writes to it, are put into `order`.
    """
    weight = weights[f"{module.name}.weight"]
    bias = weights.get(f"{module.name}.bias", weight.new_zeros(len(weight)))
    if module.reads:
        weight = weight[:, order]
    else:
        weight = weight[order]
        bias = bias[order]
    count = len(module.transformers)
    yield from zip(weight.chunk(count), bias.chunk(count), strict=True)


def rows(side: TargetVocabulary, start: bool = False) -> list[int]:
    """Return our ids in the order of transformers' ids, which reorders our embedding rows.

    With `start`, the row of `<pad>`, with which Marian's outputs begin, is that of our `<s>`.
    """
    origins = origins_of(side)
    ids = [index for index, origin in enumerate(origins) if origin != NO_ID]
    ids.sort(key=origins.__getitem__)
    is_marian = origins[BOS] == NO_ID and not isinstance(side, M2MVocabulary)
    if start and is_marian:
        return [BOS if index == PAD else index for index in ids]
    return ids


def _ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of control symbols, which config.json and generation_config.json share."""
    pad, _, begin, end = origins_of(tokenizer.target)[: EOS + 1]
    bos = None if begin == NO_ID else begin
    start = pad if bos is None else bos
    if tokenizer.forced:
        start = end
    return {
        "pad_token_id": min(pad, origins_of(tokenizer.source)[PAD]),  # both sides share it in transformers
        "bos_token_id": bos,
        "eos_token_id": end,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,
    }


# --- settings --------------------------------------------------------------------------------------------------


def _model_config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of config.json with all keys, since the defaults suit other models."""
    model = recipe.model
    target: dict[str, Any] = {}
    kind = "pegasus"
    name = "PegasusForConditionalGeneration"
    if model.norm == "post":
        kind = "marian"
        name = "MarianMTModel"
        target["decoder_vocab_size"] = len(rows(tokenizer.target))
        target["share_encoder_decoder_embeddings"] = model.tie_embeddings == "all"
    if tokenizer.forced:
        kind = M2M_100
        name = "M2M100ForConditionalGeneration"
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": len(rows(tokenizer.source)),
        **target,
        "tie_word_embeddings": model.tie_embeddings != "none",
        **{theirs: getattr(model, ours) for theirs, ours in SIZES.items()},
        "decoder_layers": model.decoder_depth,
        "activation_function": model.activation,
        "layer_norm_eps": model.norm_epsilon,  # informative: transformers always uses 1e-5 in these models
        "scale_embedding": True,
        "max_position_embeddings": _longest(recipe.decoding),
        **{theirs: getattr(model, ours) for theirs, ours in DROPOUTS.items()},
        "is_encoder_decoder": True,
        **_ids(tokenizer),
    }


def generation_config(decoding: Decoding, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of generation_config.json that best approximate our search."""
    # `<pad>`, `<unk>` and `<s>`, the symbols before `</s>`
    suppressed = [origin for origin in origins_of(tokenizer.target)[:EOS] if origin != NO_ID]
    if tokenizer.shared and not tokenizer.lossy:
        suppressed += tokenizer.source.languages.values()
    config: dict[str, Any] = {
        "num_beams": decoding.beam,
        "max_length": _longest(decoding),
        "min_length": decoding.min_length + 1,  # transformers' min_length includes the start symbol
        "no_repeat_ngram_size": decoding.no_repeat or 0,
        "suppress_tokens": suppressed,
        **_ids(tokenizer),
    }
    if decoding.beam > 1:  # transformers warns about these in greedy search
        # With this power, (length)^p and our (5 + length)^α grow at the same rate at USUAL_LENGTH.
        config["length_penalty"] = round(decoding.alpha * USUAL_LENGTH / (USUAL_LENGTH + 5), 3)
        config["early_stopping"] = False  # "never" is several times slower and finds the same outputs
    return config


def _longest(decoding: Decoding) -> int:
    """Return the maximum output length, including `<s>`; inputs are shorter."""
    return decoding.max_source + decoding.max_extra + 1


def _tokenizer_files(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the contents of the files of transformers' tokenizer by name."""
    if tokenizer.forced:
        config = _config_of_forced(tokenizer)
        return tokenizer.merged_files() | {TOKENIZER_CONFIG: json.dumps(config).encode()}
    if tokenizer.lossy:
        return tokenizer.files()  # those of the original Marian model
    assert isinstance(tokenizer.target, Vocabulary)
    marians = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": recipe.data.source,
        "target_lang": recipe.data.target,
        "separate_vocabs": not tokenizer.shared,
        "model_max_length": recipe.decoding.max_source + 1,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "source.spm": tokenizer.source.serialized,
        "target.spm": tokenizer.target.serialized,
        TOKENIZER_CONFIG: _indented(marians),
        VOCAB[0]: _indented(_ids_of_pieces(tokenizer.source)),
    }
    if not tokenizer.shared:
        files[VOCAB[1]] = _indented(_ids_of_pieces(tokenizer.target))
    return files


def _config_of_forced(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer's configuration of a model that is forced to begin with a language, M2M-100 or NLLB-200."""
    source = tokenizer.source
    assert isinstance(source, M2MVocabulary)
    tokens = {str(index): {"content": name, "special": True} for name, index in source.added.items()}
    if VOCAB[0] not in tokenizer.merged_files():
        return {
            "tokenizer_class": "NllbTokenizer",
            "added_tokens_decoder": tokens,
            "additional_special_tokens": list(source.languages),
        }
    config: dict[str, Any] = {"tokenizer_class": "M2M100Tokenizer"}
    new = {f"__{code}__" for code in tokenizer.new_languages}
    if new:  # it has all others itself
        config["added_tokens_decoder"] = {index: each for index, each in tokens.items() if each["content"] in new}
    return config


def _ids_of_pieces(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(vocabulary.listing())}


def _indented(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, indent=1).encode()


SECTIONS = ("tokenizer", "model", "training", "decoding")  # recipe sections to publish; `data` names local directories
BAR = "\\|"  # escaped: a bare `|` would end the table cell


def model_card(bundle: Bundle, name: str, parameters: int, licence: str | None, template: str = "model_card.md") -> str:
    """Return the README.md of a translator called `name` with `parameters` parameters.

    `template` is a file beside this module. Without a known `licence`, none is named.
    """
    recipe = bundle.recipe
    figures = list(_figures(bundle))
    if licence:
        figures.append(("licence", licence))
    sources, targets = zip(*recipe.data.directions, strict=True)
    rows = []
    for fact, value in figures:
        escaped = value.replace("|", BAR)
        rows.append(f"| {fact} | {escaped} |")
    published = recipe.model_dump(mode="json", include=set(SECTIONS))
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return text.format(
        metadata=dump(_metadata(bundle, name, licence)),
        name=name,
        parameters=parameters,
        source=" and ".join(dict.fromkeys(sources)),
        target=" and ".join(dict.fromkeys(targets)),
        **_usage(bundle),
        version=__version__,
        figures="\n".join(rows),
        epsilon=recipe.model.norm_epsilon,
        recipe=dump(published),
    )


def _usage(bundle: Bundle) -> dict[str, str]:
    """Return how the model card's code names the languages of a model that has several."""
    tokenizer = bundle.tokenizer()
    source, target = bundle.recipe.data.directions[0]
    piece = None
    if target in tokenizer.source.languages:
        piece = tokenizer.source.pieces([tokenizer.source.languages[target]])[0]
    if tokenizer.forced:
        forced = f', forced_bos_token_id=tokenizer.convert_tokens_to_ids("{piece or target}")'
        return {"text": "…", "own": f', src_lang="{source}"', "forced": forced}
    return {"text": f"{piece} …" if piece else "…", "own": "", "forced": ""}


def _metadata(bundle: Bundle, name: str, licence: str | None) -> dict[str, Any]:
    """Return what the Hugging Face hub reads in the YAML at the beginning of a model card."""
    data = bundle.recipe.data
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "translation", "tags": ["translation"]}
    languages = [language for language in data.languages if language.isalpha() and len(language) in (2, 3)]
    if languages:
        metadata["language"] = languages
    if licence:
        metadata["license"] = licence
    scores = model_index(bundle, name)
    if scores:
        metadata["model-index"] = scores
    return metadata


def _figures(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield the model card's known facts about data, scores and cost, as pairs of name and value."""
    for split, datasets in bundle.recipe.data.splits.items():
        if datasets:
            yield f"{split} data", "; ".join(map(_described, datasets))
    yield "updates", f"{bundle.step:,}"
    steps = bundle.info.steps
    if steps:
        listed = ", ".join(f"{step:,}" for step in steps)
        yield "average of the checkpoints after", f"{listed} updates"
    for score, value in bundle.scores.items():
        signature = bundle.signatures.get(score)
        note = "" if signature is None else f" ({signature})"
        yield f"dev {score}", f"{value:.2f}{note}"
    cost = bundle.cost
    if "seconds" in cost:
        devices = ", ".join(cost.get("devices", ())) or "?"
        yield "training time", f"{cost['seconds'] / 3600:.1f} hours on {devices}"
    if "tokens" in cost:
        yield "target tokens", f"{cost['tokens']:,}"
    if "flops" in cost:
        yield "FLOPs, counted", f"{cost['flops']:.1e}"


def _described(dataset: Dataset) -> str:
    """Describe a data set by its file, corpus or hub names, and its weight unless it is 1."""
    names = dataset_names(dataset)
    if dataset.take is not None:
        return names[0]
    described = ", ".join(f"`{name}`" for name in names)
    if dataset.weight != 1:
        described += f" × {dataset.weight:g}"
    return described
