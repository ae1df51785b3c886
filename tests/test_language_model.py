"""A language model from recipe to score: a tiny language that is learned, and what is asked of the wrong model."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from reverse_task import assert_equal_to_the_bit, metrics, sets

from nmt.checkpoint.reading import Bundle, checkpoints, new_model
from nmt.checkpoint.writing import save_bundle
from nmt.data.corpus import NO_SOURCE, Corpus
from nmt.recipe import load
from nmt.system.console import Console
from nmt.system.device import World
from nmt.text.vocabulary import BOS, EOS
from nmt.training import selection as averaging
from nmt.training.distributed import Group
from nmt.training.start import train
from nmt.training.validation import DevScores

CPU = torch.device("cpu")
LETTERS = "abcdefgh"
RECIPE = """\
name: cycle
data:
  target: en
  train: [{target: train.en}]
  valid: [{target: valid.en}]
tokenizer: {vocab_size: 276}
model: {layers: 1, d_model: 32, d_ff: 64, heads: 4, dropout: 0.0}
training:
  updates: 80
  batch_tokens: 500
  warmup: 40
  learning_rate_scale: 0.5
  label_smoothing: 0.0
  checkpoint_updates: 20
  report: false
decoding: {average_last: 2}
"""


def cycle(start: int) -> str:
    """Ten letters, each the successor of the one before; after the first nothing is left to chance."""
    return " ".join(LETTERS[(start + n) % len(LETTERS)] for n in range(10))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a language model was trained into ckpts; its tests must not change it."""
    folder = tmp_path_factory.mktemp("cycle")
    draw = random.Random(1)
    lines = [cycle(draw.randrange(len(LETTERS))) for _ in range(400)]
    (folder / "train.en").write_text("".join(f"{line}\n" for line in [*lines[:200], "", " ", *lines[200:]]))
    (folder / "valid.en").write_text("".join(f"{cycle(n)}\n" for n in range(len(LETTERS))))
    (folder / "recipe.yaml").write_text(RECIPE)
    with chdir(folder), ExitStack() as held:
        train(load("recipe.yaml"), Path("ckpts"), Console(quiet=True), Group(World(), 1.0), 1, None, held)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That directory, to change, as the working directory."""
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def translator(run: Path, tmp_path: Path) -> Path:
    """A bundle of a translator that was never trained, with the language model's tokenizer."""
    source = ["data.source=de", "data.train=[{source: a, target: b}]", "data.valid=[]"]
    recipe, tokenizer = load(run / "recipe.yaml", source), checkpoints(run / "ckpts")[-1].tokenizer()
    model = new_model(recipe, tokenizer)
    info = {"run": "x", "step": 1, "data": "x"}
    save_bundle(tmp_path / "translator", dict(model.named_parameters()), recipe, tokenizer, info)
    return tmp_path / "translator"


# --- data ---------------------------------------------------------------------------------------------------


def test_prepared_data_has_the_lines_alone(run: Path) -> None:
    corpus = Corpus(run / "data/cycle/train.arrow")
    report = json.loads((run / "data/cycle/report.json").read_text())["train"]
    assert (report["read"], report["kept"], report["dropped as empty"]) == (402, 400, 2)
    assert report["lines also in valid or test"] == 400
    assert not [name for name in report if "source" in name or "pairs" in name]
    lengths = corpus.target_lengths
    assert report["mean length of targets"] == pytest.approx(float(lengths.mean()), abs=0.006)
    assert (corpus.has_source, set(corpus.source_lengths)) == (False, {NO_SOURCE})
    assert corpus.longest() == lengths.max()
    assert sorted(path.name for path in (run / "data/cycle").glob("*.model")) == ["tokenizer.model"]


# --- training -----------------------------------------------------------------------------------------------


def test_a_deterministic_language_is_learned(run: Path) -> None:
    """All that is left to chance is the first letter, one of eight: 8 ** (1 / subwords) is the least there can be."""
    rows = [row["valid_perplexity"] for row in metrics(run / "ckpts") if "valid_perplexity" in row]
    subwords = float(Corpus(run / "data/cycle/valid.arrow").target_lengths.mean()) + 1
    assert rows[0] > 1.5 * rows[-1]
    assert 0.99 * 8 ** (1 / subwords) < rows[-1] < 1.3 * 8 ** (1 / subwords)
    newest = checkpoints(run / "ckpts")[-1]
    assert newest.scores == {"perplexity": newest.dev_score} == {"perplexity": rows[-1]}
    assert newest.info["task"] == "language_model"
    padding = [row["padding"] for row in metrics(run / "ckpts") if "padding" in row]
    assert all(0 <= share < 0.2 for share in padding)


def test_a_resumed_run_is_the_unbroken_one_to_the_bit(nmt: Callable[..., Any], copy: Path) -> None:
    settings = sets("model.dropout=0.1", "training.device_tokens=250")

    def go(out: str, updates: int) -> str:
        arguments = ("--device", "cpu", "--out", out, *settings, *sets(f"training.updates={updates}"))
        done = nmt("train", "recipe.yaml", *arguments)
        assert done.code == 0, done.err
        return str(done.err)

    go("whole", 6)
    go("parts", 3)
    assert "resuming at update 3: 0.02 M parameters, 400 lines" in go("parts", 6)
    assert_equal_to_the_bit(copy / "whole", copy / "parts")


def test_fine_tuning_starts_from_a_language_model_and_from_no_translator(
    nmt: Callable[..., Any], copy: Path, translator: Path
) -> None:
    def tune(base: Path) -> Any:
        more = sets(f"training.init_from={base}", "training.updates=1", "training.warmup=40000", "data.name=tuned")
        return nmt("train", "recipe.yaml", "--device", "cpu", "--out", "tuned", *more)

    done = tune(copy / "ckpts/step-00000080")
    assert done.code == 0, done.err
    tuned, base = (checkpoints(copy / out)[-1].dev_score for out in ("tuned", "ckpts"))
    assert tuned == pytest.approx(base, rel=0.01)
    shutil.rmtree(copy / "tuned")
    done = tune(translator)
    assert done.code == 1
    assert f"error: {translator}: is a translator, but a language model is needed\n" in done.err


# --- averages -----------------------------------------------------------------------------------------------


def test_auto_takes_the_number_of_the_lowest_perplexity(
    nmt: Callable[..., Any], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [DevScores({"perplexity": perplexity}, {"perplexity": "x"}) for perplexity in (4.0, 1.5, 2.0, 9.0)]
    validation = Mock(side_effect=scores, notes=[], info=lambda dev: {"scores": dev.scores})
    monkeypatch.setattr(averaging.Validation, "of", lambda *_: validation)
    said = nmt("average", "ckpts", "--last", "auto").err.splitlines()
    assert said[:3] == ["averaged  dev ppl  updates", "       1     4.00  80 to 80", "       2     1.50  60 to 80"]
    assert said[-1] == "averaged 2 checkpoints, updates 60 to 80, dev ppl 1.50: ckpts/averaged"
    assert [point["perplexity"] for point in Bundle.read(copy / "ckpts/averaged").info["curve"]] == [4, 1.5, 2, 9]


# --- scores -------------------------------------------------------------------------------------------------

LINES = [cycle(3), "a b c", "h g f e d c b a", "", "Zebra é"]


@torch.no_grad()
def plain(bundle: Bundle, line: str) -> tuple[float, int]:
    """Log-probability and number of subwords, by a softmax of its own for each prefix."""
    model = bundle.model(CPU).double()
    ids = [*bundle.tokenizer().target.encode(line), EOS]
    rows = [model(None, torch.tensor([[BOS, *ids[:n]]]))[0, -1].log_softmax(-1) for n in range(len(ids))]
    return sum(float(row[symbol]) for row, symbol in zip(rows, ids, strict=True)), len(ids)


def test_the_score_is_the_perplexity_that_a_softmax_for_each_prefix_gives(
    nmt: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in LINES))
    newest = checkpoints(run / "ckpts")[-1]
    expected = [plain(newest, line) for line in LINES]
    total, subwords = (sum(column) for column in zip(*expected, strict=True))
    done = nmt("score", "--model", newest.path, tmp_path / "ref", "--json", "--device", "cpu")
    assert done.err == f"model: {newest.path}\n"
    found = json.loads(done.out)["perplexity"]
    assert found["score"] == pytest.approx(math.exp(-total / subwords), rel=1e-4)
    assert [(one["subwords"], one["log_probability"]) for one in found["lines"]] == [
        (count, pytest.approx(value, rel=1e-4)) for value, count in expected
    ]
    assert expected[0][0] > -4 > expected[2][0]  # the language, and the same letters in another order
    done = nmt("score", "--model", newest.path, tmp_path / "ref", "--metric", "logprob", "--device", "cpu")
    assert [float(line.split(b"\t")[0]) for line in done.out.splitlines()] == pytest.approx(
        [value for value, _ in expected], abs=1e-3
    )


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        (
            "score {lm} {ref} --source {ref}",
            "{lm}: is a language model, but a translator is needed",
            "nmt score --model",
        ),
        ("score {other} {ref}", "{other}: is a translator, which scores REF given its source", "add --source FILE"),
        ("translate {lm}", "{lm}: is a language model, but a translator is needed", "nmt score --model {lm} runs it"),
        ("parse {other}", "{other}: is a translator, but a parser is needed", "nmt translate --model {other} runs it"),
        ("parse {lm}", "{lm}: is a language model, but a parser is needed", "nmt score --model {lm} runs it"),
        ("score {lm} {empty}", "nothing to score: the reference has no lines", ""),
    ],
)
def test_what_a_model_is_not_for_is_refused_in_one_line(
    nmt: Callable[..., Any], run: Path, translator: Path, tmp_path: Path, command: str, message: str, hint: str
) -> None:
    (tmp_path / "empty").touch()
    names = {"lm": run / "ckpts/step-00000080", "other": translator, "ref": run / "valid.en"}
    names["empty"] = tmp_path / "empty"
    name, model, *rest = (word.format(**names) for word in command.split())
    done = nmt(name, "--model", model, *rest, stdin=b"x\n")
    assert (done.code, done.out) == (1, b"")
    *_, error = [line for line in done.err.splitlines() if line.startswith("error:")]
    assert error == f"error: {message.format(**names)}"
    assert f"hint: {hint.format(**names)}" in done.err or not hint
