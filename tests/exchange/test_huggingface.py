"""Folders for transformers: what is in them, that their weights give our logits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from marian import logits
from random_bundle import random_bundle, sentence
from reverse_task import reseal

from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import add_info
from nmt.exchange.huggingface import export
from nmt.model.batch import pad_ids
from nmt.recipe import Decoding, validated
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS

POST, PRE = {"norm_epsilon": 1e-5}, {"norm": "pre", "norm_epsilon": 1e-5}
TASKS = [
    POST,
    PRE,
    {"shared": False, "tie_embeddings": "target", "decoder_layers": 1, **POST},
    {"tie_embeddings": "none", "heads": 4, "layers": 3, "decoder_layers": 1, **POST},
    {"shared": False, "tie_embeddings": "none", "activation": "gelu", **POST},
    {"attention_bias": True, "output_bias": True, "activation": "silu", **POST},
    {"attention_bias": True, "output_bias": True, **PRE},
]


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle and what it was exported to; tests must not change it."""
    folder = tmp_path_factory.mktemp("exported")
    decoding = Decoding(beam=5, alpha=1.2, max_source=70, max_extra=9, min_length=2, no_repeat=3)
    export(random_bundle(folder / "bundle", decoding=decoding, dropout=0.3), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("kind", TASKS)
def test_its_weights_give_our_logits(tmp_path: Path, kind: dict[str, Any]) -> None:
    """As transformers computes them: in another order of d_model, with biases, and each matrix by itself."""
    bundle = random_bundle(tmp_path / "bundle", **kind)
    export(bundle, tmp_path / "out")
    tokenizer, model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
    source = pad_ids([[*tokenizer.source.encode(sentence(seed)), EOS] for seed in range(50)])
    target = pad_ids([[BOS, *tokenizer.target.encode(sentence(seed + 1).upper())] for seed in range(50)])
    assert (source == 0).any()
    ours, theirs = model(source, target), logits(tmp_path / "out", source, target)
    words = target != 0
    torch.testing.assert_close(theirs[words], ours[words], rtol=0, atol=2e-5)


def test_config_names_everything_in_which_transformers_has_other_defaults(exported: Path) -> None:
    assert read(exported, "config") == {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": 320,
        "decoder_vocab_size": 320,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "d_model": 32,
        **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
        "activation_function": "relu",
        "layer_norm_eps": 1e-6,
        "scale_embedding": True,
        "max_position_embeddings": 80,
        "dropout": 0.3,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }


def test_the_hub_reads_languages_and_licence_of_the_card(tmp_path: Path) -> None:
    info = {"scores": {"bleu": 33.254, "perplexity": float("inf")}, "signatures": {"bleu": "a|b"}, "steps": [10, 30]}
    info |= {"cost": {"seconds": 7200, "tokens": 1234567, "flops": 3.2e15, "devices": {"2 × NVIDIA H100": 7200}}}
    bundle = random_bundle(tmp_path / "bundle", info=info)
    export(bundle, tmp_path / "a: b", "cc-by-4.0")
    data = ModelCard.load(tmp_path / "a: b" / "README.md").data
    assert (data.language, data.license, data.library_name) == (["en", "de"], "cc-by-4.0", "transformers")
    card = (tmp_path / "a: b" / "README.md").read_text(encoding="utf-8")
    for row in ("dev bleu | 33.25 (a\\|b)", "training time | 2.0 hours on 2 × NVIDIA H100", "FLOPs, counted | 3.2e+15"):
        assert f"\n| {row} |\n" in card
    export(bundle, tmp_path / "unlicensed")
    assert ModelCard.load(tmp_path / "unlicensed" / "README.md").data.license is None


@pytest.mark.parametrize(
    ("valid", "dataset"),
    [
        ([{"source": "x/dev.en", "target": "x/dev.de"}], ("fuzz", "dev.en, dev.de", None, None)),
        ({"take": 500}, ("fuzz", "500 sources set aside from the training data", None, None)),
        ([{"hub": "wmt/wmt14", "config": "de-en", "split": "validation"}],
         ("wmt/wmt14", "wmt/wmt14, de-en", "de-en", "validation")),
    ],
)  # fmt: skip
def test_the_hub_reads_the_measured_scores_of_the_card(tmp_path: Path, valid: Any, dataset: tuple[Any, ...]) -> None:
    info = {"scores": {"chrf": 61.238, "chrf en-de": 60.0, "bleu": 33.254, "perplexity": float("inf")}}
    bundle = random_bundle(tmp_path / "bundle", info=info | {"signatures": {"bleu": "BLEU|nrefs:1"}})
    values = bundle.recipe.model_dump()
    values["data"]["valid"] = valid
    values["data"]["name"] = "fuzz"
    (bundle.path / "recipe.yaml").write_text(validated(values, "recipe.yaml").to_yaml())
    reseal(bundle.path)
    export(Bundle.read(bundle.path), tmp_path / "model")
    data = ModelCard.load(tmp_path / "model" / "README.md").data
    assert data.model_name == "model"
    found = [(each.metric_type, each.metric_name, each.metric_value, each.metric_args) for each in data.eval_results]
    assert found == [
        ("chrf", "chrF2", 61.24, None),
        ("chrf", "chrF2 en-de", 60.0, None),
        ("bleu", "BLEU", 33.25, {"signature": "BLEU|nrefs:1"}),
    ]
    one = data.eval_results[0]
    assert (one.task_type, one.task_name) == ("translation", "Translation en-de")
    assert (one.dataset_type, one.dataset_name, one.dataset_config, one.dataset_split) == dataset


def test_a_card_without_scores_has_no_index(exported: Path) -> None:
    assert "model-index" not in (exported / "README.md").read_text(encoding="utf-8")


def test_generation_is_the_nearest_to_our_search(exported: Path) -> None:
    config = read(exported, "generation_config")
    assert (config["num_beams"], config["max_length"], config["suppress_tokens"]) == (5, 80, [0, 1, 2])
    assert (config["min_length"], config["no_repeat_ngram_size"]) == (3, 3)  # `<s>` counts
    assert (config["decoder_start_token_id"], config["forced_eos_token_id"]) == (2, None)
    lengths = torch.tensor([24.0, 26.0])  # how a longer output is favoured where most sentences are
    ours, theirs = ((5 + lengths) / 6) ** 1.2, lengths ** config["length_penalty"]
    assert theirs[1] / theirs[0] == pytest.approx(float(ours[1] / ours[0]), rel=1e-3)
    assert config["length_penalty"] == 1.0  # 1.2 · 25 / (25 + 5)


@pytest.mark.parametrize("shared", [True, False])
def test_the_tokenizer_is_ours(tmp_path: Path, shared: bool) -> None:
    bundle = random_bundle(tmp_path / "bundle", shared=shared, tie_embeddings="target")
    export(bundle, tmp_path / "out")
    tokenizer, config = bundle.tokenizer(), read(tmp_path / "out", "tokenizer_config")
    assert (tmp_path / "out/source.spm").read_bytes() == tokenizer.source.serialized
    assert (tmp_path / "out/target.spm").read_bytes() == tokenizer.target.serialized
    assert list(read(tmp_path / "out", "vocab")) == tokenizer.source.listing()
    assert list(read(tmp_path / "out", "vocab").values()) == list(range(320))
    assert (tmp_path / "out/target_vocab.json").exists() is config["separate_vocabs"] is not shared
    if not shared:
        assert list(read(tmp_path / "out", "target_vocab")) == tokenizer.target.listing()
    pieces = [config[f"{name}_token"] for name in ("pad", "unk", "bos", "eos")]
    assert pieces == tokenizer.source.listing()[:4]
    assert config["model_max_length"] == bundle.recipe.decoding.max_source + 1  # with `</s>`
    assert config["tokenizer_class"] == "MarianTokenizer"
    assert (config["split_special_tokens"], config["clean_up_tokenization_spaces"]) == (True, False)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"positions": "learned"}, "model.positions learned"),
        ({"d_k": 8}, "model.d_k 8"),
        ({"d_v": 24}, "model.d_v 24"),
        ({"heads": 3, "d_k": 16, "d_v": 16}, "model.d_k 16"),
        ({"norm_epsilon": 1e-3}, "model.norm_epsilon 0.001"),
        ({"norm": "pre", "tie_embeddings": "target"}, "model.tie_embeddings target with model.norm pre"),
    ],
)
def test_what_transformers_lacks_is_refused_by_name(tmp_path: Path, model: dict[str, Any], named: str) -> None:
    bundle = random_bundle(tmp_path / "bundle", **model)
    with pytest.raises(UserError, match=f"transformers has nothing like {named}\n") as caught:
        export(bundle, tmp_path / "out")
    assert "--format ctranslate2" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_other_models_than_translators_are_refused(tmp_path: Path) -> None:
    add_info(random_bundle(tmp_path / "bundle").path, {"task": "parse"})
    with pytest.raises(UserError, match="is a parser, but a translator is needed"):
        export(Bundle.read(tmp_path / "bundle"), tmp_path / "out")
