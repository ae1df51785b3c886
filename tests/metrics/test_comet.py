"""COMET: scores are those of the package unbabel-comet 2.2.7, and nothing pickled is read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.metrics import comet
from nmt.metrics.comet import CONVERT, Comet, load, sparsemax
from nmt.system.errors import UserError

CPU = torch.device("cpu")
MARKS = ["<s>", "<pad>", "</s>", "<unk>"]
KNOWN = ["the", "cat", "dog", "sleeps", "barks", "die", "Katze", "der", "Hund", "schläft", "bellt"]
WORDS = [*MARKS, "▁", *(f"▁{word}" for word in KNOWN), *"abcdes"]
WIDTH = 8
SHAPE = {
    "model_type": "xlm-roberta",
    "vocab_size": len(WORDS) + 1,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 24,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-5,
}
SOURCE = ["the cat sleeps", "the dog barks", "the dog sleeps abcde cab bad", "the cat", "the cat sleeps"]
REFERENCE = ["die Katze schläft", "der Hund bellt", "der Hund schläft abcde cab bad", "die Katze", "die Katze schläft"]
OUTPUT = ["die Katze schläft", "der Hund schläft", "der <pad> Hund", "", "die Hund " + "abcde " * 9]


def weights(features: int) -> dict[str, torch.Tensor]:
    """Random weights with the names and shapes of COMET's."""
    random = np.random.default_rng(7)
    inner = SHAPE["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (SHAPE["vocab_size"], WIDTH),
        "embeddings.position_embeddings.weight": (SHAPE["max_position_embeddings"], WIDTH),
        "embeddings.token_type_embeddings.weight": (1, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for layer in range(2):
        for name, rows, columns in (
            *((f"attention.self.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", inner, WIDTH),
            ("output.dense", WIDTH, inner),
        ):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (rows,)
        for name in ("attention.output", "output"):
            shapes[f"encoder.layer.{layer}.{name}.LayerNorm.weight"] = (WIDTH,)
            shapes[f"encoder.layer.{layer}.{name}.LayerNorm.bias"] = (WIDTH,)
    shapes = {f"encoder.model.{name}": shape for name, shape in shapes.items()}
    shapes |= {f"layerwise_attention.scalar_parameters.{layer}": (1,) for layer in range(3)}
    shapes |= {"layerwise_attention.gamma": (1,)}
    for number, rows, columns in ((0, 6, features * WIDTH), (3, 4, 6), (6, 1, 4)):
        shapes |= {f"estimator.ff.{number}.weight": (rows, columns), f"estimator.ff.{number}.bias": (rows,)}
    return {name: torch.tensor(random.normal(0, 0.5, shape), dtype=torch.float32) for name, shape in shapes.items()}


def write_model(folder: Path, kind: str = "regression_metric", **parameters: Any) -> Path:
    """Write a small model in COMET's layout, whose weights are safetensors; transformers' tokenizer beside it."""
    (folder / "checkpoints").mkdir(parents=True)
    given = {"class_identifier": kind, "hidden_sizes": [6, 4], **parameters}
    (folder / "hparams.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in given.items()))
    save_file(weights(6 if kind == "regression_metric" else 4), folder / "checkpoints/model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    marks = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "cls": "<s>", "pad": "<pad>", "mask": "<mask>"}
    marks = {f"{name}_token": mark for name, mark in marks.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer", **marks}))
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = [(word, -1.0 - number / 10) for number, word in enumerate(WORDS)] + [("<mask>", 0.0)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, 3))
    parts = [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(parts)
    tokenizer.add_special_tokens([*MARKS, "<mask>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def scores(model: comet.CometModel, order: int = 1) -> list[float]:
    reference = REFERENCE[::order] if model.needs_reference else None
    metric = Comet(model, SOURCE[::order], reference, [OUTPUT[::order]])
    metric.read(lambda more, *_: None)
    return metric.line_scores(OUTPUT[::order])[::order]


def needs_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: COMET has no encoder")


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("regression_metric", {"layer_transformation": "sparsemax"}),
        ("regression_metric", {"layer_norm": False, "pool": "max", "final_activation": "Sigmoid"}),
        ("referenceless_regression_metric", {"pool": "cls", "layer": 1}),
        ("referenceless_regression_metric", {"pool": "default", "activations": "Sigmoid"}),
    ],
)
def test_scores_depend_neither_on_batches_nor_on_order(
    kind: str, parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_transformers()
    model = load(write_model(tmp_path / "model", kind, **parameters), CPU)
    alone = scores(model)
    assert np.std(alone) > 1e-4
    for tokens, order in ((1, 1), (2048, -1)):
        monkeypatch.setitem(comet.TOKENS_AT_ONCE, "cpu", tokens)
        assert scores(model, order) == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("regression_metric", [-0.291104, -0.293868, -0.300335, -0.298628, -0.293234]),
        ("referenceless_regression_metric", [-0.538269, -0.535617, -0.538386, -0.542919, -0.534756]),
    ],
)
def test_scores_are_those_of_comets_package(kind: str, expected: list[float], tmp_path: Path) -> None:
    """Those that unbabel-comet 2.2.7 computes with the same weights."""
    needs_transformers()
    model = load(write_model(tmp_path / "model", kind, layer_transformation="sparsemax"), CPU)
    assert scores(model) == pytest.approx(expected, abs=1e-5)


def test_sparsemax_is_the_nearest_distribution() -> None:
    assert sparsemax(torch.tensor([0.5, 0.1, -2.0]), 0).tolist() == pytest.approx([0.7, 0.3, 0.0])
    assert sparsemax(torch.zeros(4), 0).tolist() == pytest.approx([0.25] * 4)


def bare(folder: Path, **parameters: Any) -> Path:
    """A folder with hparams.yaml alone."""
    folder.mkdir()
    given = {"class_identifier": "regression_metric", **parameters}
    (folder / "hparams.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in given.items()))
    return folder


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"class_identifier": "unified_metric"}, "is a model of another kind: its class_identifier is unified_metric"),
        ({"encoder_model": "MiniLM"}, "is a model of another kind: its encoder_model is MiniLM"),
        ({"final_activation": "Softmax"}, "is a model of another kind: its final_activation is softmax"),
        ({"pool": "median"}, "hparams.yaml"),
        ({}, "has no weights"),
    ],
)
def test_another_kind_of_model_is_named(parameters: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem) as error:
        load(bare(tmp_path / "model", **parameters), CPU)
    assert "--comet hf:Unbabel/wmt22-comet-da" in error.value.hint


def test_pickled_weights_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    folder = bare(tmp_path / "a model")
    pickled = folder / "checkpoints/model.ckpt"
    pickled.parent.mkdir()
    torch.save({"state_dict": {"a": torch.ones(2)}, "hyper_parameters": {"pool": "avg"}}, pickled)
    for path in (folder, pickled):
        with pytest.raises(UserError, match="its weights are pickled, in model") as error:
            load(path, CPU)
        command = error.value.hint.partition("unbabel-comet: ")[2]
        assert command.startswith(CONVERT)
    python, *rest = shlex.split(command)
    assert python == "python"
    subprocess.run([sys.executable, *rest], check=True)
    assert load_file(pickled.with_suffix(".safetensors"))["a"].tolist() == [1.0, 1.0]


def test_without_transformers_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bare(tmp_path / "model")
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="transformers is not installed") as error:
        load(folder, CPU)
    assert error.value.hint == "pip install transformers"


def test_damaged_weights_and_those_of_other_models_are_named(tmp_path: Path) -> None:
    needs_transformers()
    folder = write_model(tmp_path / "model")
    file = folder / "checkpoints/model.safetensors"
    whole = load_file(file)
    for lacking in (
        "encoder.model.encoder.layer.1.output.dense.bias",
        "layerwise_attention.gamma",
        "estimator.ff.3.bias",
    ):
        save_file({name: value for name, value in whole.items() if name != lacking}, file)
        with pytest.raises(UserError, match=f"lacks .*{lacking.removeprefix('encoder.model.')}"):
            load(folder, CPU)
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged, or not of the model"):
        load(folder, CPU)


@pytest.mark.parametrize(
    ("named", "may"), [("FacebookAI/xlm-roberta-large", True), ("somebody/model; true", False), ("../other", False)]
)
def test_hparams_yaml_does_not_decide_what_is_downloaded(
    named: str, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_transformers()
    import transformers

    tried = []

    def try_to_read(origin: str, **_: Any) -> None:
        tried.append(origin)
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", try_to_read)
    folder = write_model(tmp_path / "model", pretrained_model=named)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="which cannot be read" if may else "a file names it") as error:
        load(folder, CPU)
    assert tried == ([named] if may else [])
    assert f"hf download {shlex.quote(named)} config.json" in error.value.hint


def test_a_models_own_code_is_refused_and_not_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs_transformers()
    folder = write_model(tmp_path / "model")
    own = {**SHAPE, "model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(own))
    (folder / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(UserError, match="which cannot be read"):
        load(folder, CPU)
    assert "[y/N]" not in capfd.readouterr().out


def test_what_is_not_in_the_cache_needs_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="cannot be downloaded") as error:
        load(Path("hf:Unbabel/wmt22-comet-da"), CPU)
    assert "hf download Unbabel/wmt22-comet-da" in error.value.hint
