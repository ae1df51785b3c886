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
from nmt.exchange.opus_mt import DROPOUTS, M2M_100, SIZES, modules, sines_first
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
USUAL_LENGTH = 25  # output length in subwords at which the length penalty of transformers matches ours


def export(bundle: Bundle, path: Path, licence: str | None = None) -> None:
    """Export a translator as a directory for `transformers`; `licence`, if known, is named in the model card.

    Raise UserError if `transformers` cannot express the model, the bundle is damaged, or the directory cannot be
    written or is not empty.
    """
    import torch

    check_expressible(bundle)
    tokenizer, recipe = bundle.tokenizer(), bundle.recipe
    weights = dict(bundle.model(torch.device("cpu")).named_parameters())
    card = model_card(bundle, path.resolve().name, sum(weight.numel() for weight in weights.values()), licence)
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
    model, forced = bundle.recipe.model, bundle.tokenizer().forced
    width = model.d_model / model.heads
    lacking = {
        "positions": model.positions != ("fairseq" if forced else "sinusoidal"),
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
    order = torch.arange(config.d_model) if tokenizer.forced else sines_first(config.d_model)
    for module in modules(config):
        weight = weights[f"{module.name}.weight"]
        bias = weights.get(f"{module.name}.bias", weight.new_zeros(len(weight)))
        both = (weight[:, order], bias) if module.reads else (weight[order], bias[order])
        for kind, tensor in zip(("weight", "bias"), both, strict=True):
            for name, part in zip(module.transformers, tensor.chunk(len(module.transformers)), strict=True):
                yield f"{name}.{kind}", part
    # Marian and M2M-100 compute their tables on loading.
    for side in ("encoder", "decoder") if config.norm == "pre" and not tokenizer.forced else ():
        yield f"model.{side}.embed_positions.weight", sinusoids(_longest(recipe.decoding), config.d_model)[:, order]
    names = {"source": "model.encoder.embed_tokens", "target": "model.decoder.embed_tokens", "output": "lm_head"}
    if config.tie_embeddings == "all":
        names["source"] = "model.shared"
    for ours, name in names.items():
        if f"{ours}_embedding.weight" in weights:
            rows = _rows(tokenizer.source if ours == "source" else tokenizer.target, start=True)
            yield f"{name}.weight", weights[f"{ours}_embedding.weight"][rows][:, order]
    bias = weights.get("output_bias", torch.zeros(len(tokenizer.target)))
    if tokenizer.forced:  # only `<s>` of ours has a bias, and it is not exported
        return
    yield "final_logits_bias", bias[_rows(tokenizer.target, start=False)][None]


def _rows(side: TargetVocabulary, start: bool) -> list[int]:
    """Return our id for each id of transformers; with `start`, `<s>` for the `<pad>` that begins Marian's outputs."""
    origins = origins_of(side)
    rows = sorted((origin, index) for index, origin in enumerate(origins) if origin != NO_ID)
    is_marian = origins[BOS] == NO_ID and not isinstance(side, M2MVocabulary)
    replaced = {PAD: BOS} if start and is_marian else {}
    return [replaced.get(index, index) for _, index in rows]


def _ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of control symbols, which config.json and generation_config.json share."""
    pad, _, begin, end = origins_of(tokenizer.target)[: EOS + 1]
    start = end if tokenizer.forced else pad if begin == NO_ID else begin
    return {
        "pad_token_id": min(pad, origins_of(tokenizer.source)[PAD]),  # both sides share it in transformers
        "bos_token_id": None if begin == NO_ID else begin,
        "eos_token_id": end,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,
    }


# --- settings --------------------------------------------------------------------------------------------------


def _model_config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of config.json with all keys, since the defaults suit other models."""
    model, post, tied = recipe.model, recipe.model.norm == "post", recipe.model.tie_embeddings
    kind, name = ("marian", "MarianMTModel") if post else ("pegasus", "PegasusForConditionalGeneration")
    if tokenizer.forced:
        kind, name = M2M_100, "M2M100ForConditionalGeneration"
    target_size = len(_rows(tokenizer.target, start=False))
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": len(_rows(tokenizer.source, start=False)),
        **({"decoder_vocab_size": target_size, "share_encoder_decoder_embeddings": tied == "all"} if post else {}),
        "tie_word_embeddings": tied != "none",
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
    config: dict[str, Any] = {
        "num_beams": decoding.beam,
        "max_length": _longest(decoding),
        "min_length": decoding.min_length + 1,  # transformers' min_length includes the start symbol
        "no_repeat_ngram_size": decoding.no_repeat or 0,
        "suppress_tokens": [origin for origin in origins_of(tokenizer.target)[:EOS] if origin != NO_ID]
        + [*tokenizer.source.languages.values()] * (tokenizer.shared and not tokenizer.lossy),
        **_ids(tokenizer),
    }
    if decoding.beam > 1:  # transformers warns about these in greedy search
        config["length_penalty"] = round(decoding.alpha * USUAL_LENGTH / (USUAL_LENGTH + 5), 3)
        config["early_stopping"] = False  # "never" is several times slower and finds the same outputs
    return config


def _longest(decoding: Decoding) -> int:
    """Return the maximum output length, including `<s>`; inputs are shorter."""
    return decoding.max_source + decoding.max_extra + 1


def _tokenizer_files(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the contents of `MarianTokenizer`'s files by name."""
    if tokenizer.forced:
        assert isinstance(tokenizer.source, M2MVocabulary)
        tokens = {str(index): {"content": name, "special": True} for name, index in tokenizer.source.added.items()}
        kind: dict[str, Any] = {"tokenizer_class": "M2M100Tokenizer"}
        if VOCAB[0] not in tokenizer.merged_files():
            kind = {"tokenizer_class": "NllbTokenizer", "added_tokens_decoder": tokens}
            kind |= {"additional_special_tokens": list(tokenizer.source.languages)}
        elif new := {f"__{code}__" for code in tokenizer.new_languages}:  # it has all others itself
            kind["added_tokens_decoder"] = {index: each for index, each in tokens.items() if each["content"] in new}
        return tokenizer.merged_files() | {TOKENIZER_CONFIG: json.dumps(kind).encode()}
    if tokenizer.lossy:
        return tokenizer.files()  # those of the original Marian model
    config = {
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
    assert isinstance(tokenizer.target, Vocabulary)
    sides = [tokenizer.source] if tokenizer.shared else [tokenizer.source, tokenizer.target]
    ids = {name: {piece: i for i, piece in enumerate(side.listing())} for name, side in zip(VOCAB, sides, strict=False)}
    files = {"tokenizer_config.json": config, **ids}
    return {
        "source.spm": tokenizer.source.serialized,
        "target.spm": tokenizer.target.serialized,
        **{name: json.dumps(values, ensure_ascii=False, indent=1).encode() for name, values in files.items()},
    }


SECTIONS = ("tokenizer", "model", "training", "decoding")  # recipe sections to publish; `data` names local directories
BAR = "\\|"  # escaped: a bare `|` would end the table cell


def model_card(bundle: Bundle, name: str, parameters: int, licence: str | None, template: str = "model_card.md") -> str:
    """Return the README.md of a translator called `name` with `parameters` parameters.

    `template` is a file beside this module. Without a known `licence`, none is named.
    """
    recipe = bundle.recipe
    figures = [*_figures(bundle), *([("licence", licence)] if licence else [])]
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return text.format(
        metadata=dump(_metadata(bundle, name, licence)),
        name=name,
        parameters=parameters,
        source=" and ".join(dict.fromkeys(source for source, _ in recipe.data.directions)),
        target=" and ".join(dict.fromkeys(target for _, target in recipe.data.directions)),
        **_usage(bundle),
        version=__version__,
        figures="\n".join(f"| {name} | {value.replace('|', BAR)} |" for name, value in figures),
        epsilon=recipe.model.norm_epsilon,
        recipe=dump(recipe.model_dump(mode="json", include=set(SECTIONS))),
    )


def _usage(bundle: Bundle) -> dict[str, str]:
    """Return how the model card's code names the languages of a model that has several."""
    tokenizer, (source, target) = bundle.tokenizer(), bundle.recipe.data.directions[0]
    pieces = {language: tokenizer.source.pieces([index])[0] for language, index in tokenizer.source.languages.items()}
    if not tokenizer.forced:
        return {"text": f"{pieces[target]} …" if target in pieces else "…", "own": "", "forced": ""}
    forced = f', forced_bos_token_id=tokenizer.convert_tokens_to_ids("{pieces.get(target, target)}")'
    return {"text": "…", "own": f', src_lang="{source}"', "forced": forced}


def _metadata(bundle: Bundle, name: str, licence: str | None) -> dict[str, Any]:
    """Return what the Hugging Face hub reads in the YAML at the beginning of a model card."""
    data = bundle.recipe.data
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "translation", "tags": ["translation"]}
    if languages := [language for language in data.languages if language.isalpha() and len(language) in (2, 3)]:
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
    if steps := bundle.info.get("steps"):
        yield "average of the checkpoints after", f"{', '.join(f'{step:,}' for step in steps)} updates"
    signatures = bundle.signatures
    for score, value in bundle.scores.items():
        yield f"dev {score}", f"{value:.2f}" + (f" ({signatures[score]})" if score in signatures else "")
    cost = bundle.cost
    if "seconds" in cost:
        yield "training time", f"{cost['seconds'] / 3600:.1f} hours on {', '.join(cost.get('devices', ())) or '?'}"
    if "tokens" in cost:
        yield "target tokens", f"{cost['tokens']:,}"
    if "flops" in cost:
        yield "FLOPs, counted", f"{cost['flops']:.1e}"


def _described(dataset: Dataset) -> str:
    """Describe a data set by its file, corpus or hub names, and its weight unless it is 1."""
    names = dataset_names(dataset)
    if dataset.take is not None:
        return names[0]
    return ", ".join(f"`{name}`" for name in names) + (f" × {dataset.weight:g}" if dataset.weight != 1 else "")
