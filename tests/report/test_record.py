"""What is read of a run's directory: figures, recipe and base, outputs, averages; of damaged and moved runs too."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reverse_task import sets

from nmt.checkpoint.reading import checkpoints
from nmt.recipe import TASKS
from nmt.report.record import LOGGED, choose, read_figures, read_run
from nmt.system.errors import UserError


def lines(*rows: Mapping[str, Any] | str) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def logged(step: int, **figures: Any) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "seconds": step / 2, "learning_rate": 1e-3, "loss": 5, **figures}


# --- figures ------------------------------------------------------------------------------------------------


def test_figures_are_columns_by_kind_of_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    dev = {"seconds": 1.5, "tokens": 70}
    path.write_text(
        lines(
            logged(1, flops_per_second=0.25),
            logged(3, loss=None, tokens=70),
            {"step": 3, **dev, "valid_chrf": 30, "valid_bleu": 20, "valid_perplexity": 9.5},
            {"step": 4, **dev},
            {"step": 6, **dev, "valid_chrf": 31, "valid_bleu": 21.5, "valid_perplexity": None},
            {"step": 7, **dev, "valid_chrf": 32, "valid_bleu": 22, "valid_perplexity": math.exp(700)},  # not measured
        )
    )
    figures, validated = read_figures(path, TASKS["translate"])
    assert set(LOGGED) == set(figures)  # FLOP/s are shown nowhere
    assert {column.dtype for column in (*figures.values(), *validated.values())} == {np.dtype(np.float64)}
    np.testing.assert_equal(figures["step"], [1.0, 3.0])
    np.testing.assert_equal(figures["loss"], [5.0, math.nan])
    np.testing.assert_equal(figures["tokens"], [math.nan, 70.0])
    np.testing.assert_equal(figures["padding"], [math.nan, math.nan])
    expected = {
        "step": [3, 6, 7],
        "seconds": [1.5, 1.5, 1.5],
        "tokens": [70, 70, 70],
        "score": [30, 31, 32],
        "perplexity": [9.5, math.nan, math.nan],
        "bleu": [20, 21.5, 22],
    }
    assert validated.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_equal(validated[name], values)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[1]",
        '{"step": "x"}',
        '{"step": 4, "loss": {}}',
        '{"step": 4, "lo',
        '"\x00"',
        "null",
        '{"learning_rate": 1}',
        '{"step": 4, "step": "x"}',
        '{"step": 1e999, "learning_rate": 1}',
        '{"step": 4, "\udcff": 0.5, "seconds": "x"}',
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_damaged_lines_are_left_out(tmp_path: Path, damage: str, before: int) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = [logged(1), logged(2)]
    content = (
        lines(*whole[:before], damage, *whole[before:]) + '{"step": 3, "learning_rate": 0.1'
    )  # of a killed process
    path.write_text(content, errors="surrogateescape")
    figures, _ = read_figures(path, TASKS["translate"])
    np.testing.assert_equal(figures["step"], [1.0, 2.0])


# --- which outputs are read ---------------------------------------------------------------------------------


def test_of_many_checkpoints_the_first_the_best_and_the_last_are_among_the_shown() -> None:
    sizes = dict.fromkeys(range(100, 10_100, 100), 50)
    shown = choose(sizes, 4_200)
    assert len(shown) == 20
    assert {100, 4_200, 10_000} <= set(shown)
    assert shown == sorted(shown)
    assert max(np.diff(shown)) < 1_000
    assert choose(dict.fromkeys((1, 2), 50), 2) == [1, 2]
    assert choose(dict.fromkeys(range(1, 8), 1_000_000), 3) == [1, 3, 7]
    assert choose({}, 0) == []


# --- a run --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(nmt: Any, task: Path) -> Path:
    """A short run whose recipe extends another."""
    (task / "recipe.yaml").rename(task / "base.yaml")
    (task / "recipe.yaml").write_text("extends: base.yaml\nname: other\ntraining: {warmup: 30}\n")
    short = sets("model.d_model=16", "training.updates=6", "training.log_updates=2", "training.checkpoint_updates=3")
    done = nmt("train", "recipe.yaml", *short, "--device", "cpu")
    assert done.code == 0, done.err
    return task / "ckpts"


def test_all_is_known_of_a_run_wherever_it_was_moved(run: Path, nmt: Any, tmp_path: Path) -> None:
    (run / "report.html").write_text("of the time before there were averages")
    done = nmt("average", "ckpts", "--last", "auto", "--device", "cpu")
    assert (done.code, "was not updated" in done.err) == (0, False), done.err
    assert "Dev chrF2 by the number" in (run / "report.html").read_text(encoding="utf-8")
    shutil.move(run, tmp_path / "moved")
    shutil.rmtree("data")
    record = read_run(tmp_path / "moved")
    assert record.step == 6
    assert record.recipe.name == "other"
    assert record.base_name == "reverse"
    expected = {"model.d_model": 64, "training.updates": 800, "training.warmup": 200}
    assert record.base == expected | {"training.checkpoint_updates": 200, "training.log_updates": 50}
    assert record.about.parameters == sum(weight.numel() for weight in checkpoints(record.path)[-1].weights().values())
    np.testing.assert_equal(record.logged["step"], [1.0, 2.0, 4.0, 6.0])
    assert (np.diff(record.logged["tokens"]) > 0).all()
    np.testing.assert_equal(record.validated["step"], [3.0, 6.0])
    assert record.validated["tokens"][-1] == record.logged["tokens"][-1] == record.cost["tokens"]
    assert [len(outputs.scores) for outputs in record.dev_outputs] == [50, 50]
    assert len(record.sources) == len(record.references) == 50
    assert record.about.data["train"].kept == 5000
    assert "tok:13a" in record.signatures["bleu"]
    assert [last for last, _ in record.averages] == [1, 2]
    assert record.averages[0][1] == record.validated["score"][-1]


def test_a_run_that_has_only_begun_or_whose_description_is_damaged_can_be_read(run: Path) -> None:
    for path in (*run.glob("step-*"), *run.glob("*.jsonl")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    record = read_run(run)
    assert (record.step, len(record.validated["step"]), record.dev_outputs, record.signatures) == (0, 0, [], {})
    assert record.about.parameters is not None
    (run / "metrics.jsonl").write_text("")
    for damaged in ("", "[]", '{"base": 3, "parameters": "x", "data": []}'):
        (run / "run.json").write_text(damaged)
        record = read_run(run)
        assert (record.about.parameters, record.base_name, record.about.data) == (None, None, {})
        assert record.base["training.updates"] == 100_000  # which is the default
        assert "training.seed" not in record.base


def test_a_directory_without_a_run_is_refused(tmp_path: Path, run: Path) -> None:
    for path, problem in (
        (tmp_path / "none", "no such directory"),
        (tmp_path, "holds no run"),
        (run / "step-00000006", "is a bundle and no run"),
    ):
        with pytest.raises(UserError, match=problem) as refused:
            read_run(path)
        assert "name the directory of a run" in refused.value.hint
