"""Pages about runs, as text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_run import just_begun, synthetic_run

from nmt.checkpoint.reading import Bundle
from nmt.report import page as overview
from nmt.report.page import write_page
from nmt.report.record import About, RunRecord


def html(tmp_path: Path, *records: RunRecord) -> str:
    write_page(records, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def text(page: str) -> str:
    """What is read on the page, in one line."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of one translator."""
    return html(tmp_path_factory.mktemp("page"), synthetic_run("demo"))


def test_the_first_screen_tells_what_is_trained_and_how_far(demo: str) -> None:
    shown = text(demo)
    assert "A translator from en to de: a Transformer of 2 + 2 layers, d_model 128, d_ff 512, 4 heads" in shown
    assert "1.32 million parameters" in shown
    assert "update 3,200 of 4,000" in shown
    assert "36.64 best dev chrF2, at update 3,200" in shown
    assert "Time taken 17m Time left about 4m Trained on 28,950 pairs" in shown
    assert "Dev BLEU: nrefs:1|case:mixed" in shown


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([1600, 3200], "dev chrF2 of the average of 2 checkpoints"),
        ([1600], "dev chrF2 of update 1,600"),
    ],
)
def test_the_headline_is_the_model_that_translates(tmp_path: Path, steps: list[int], told: str) -> None:
    info = {
        "format": 1,
        "run": "r",
        "data": "d",
        "task": "translate",
        "step": 3200,
        "steps": steps,
        "scores": {"chrf": 37.25, "bleu": 11.5},
        "interval": [36.1, 38.4],
    }
    run = replace(
        synthetic_run("demo"), average=Bundle(Path("averaged"), info), about=About(command="nmt train '<x>.yaml'")
    )
    shown = text(html(tmp_path, run))
    assert f"37.25 {told} 95% interval 36.10 to 38.40; BLEU 11.50; best checkpoint: 36.64, update 3,200" in shown
    assert "nmt train &#39;&lt;x&gt;.yaml&#39;" in shown


def test_a_parser_has_a_page(tmp_path: Path) -> None:
    shown = text(html(tmp_path, synthetic_run("demo", "parse")))
    assert "A parser of en" in shown
    assert "Dev F1" in shown


def test_several_runs_are_tabulated_and_told_apart(tmp_path: Path) -> None:
    one, other = synthetic_run("demo"), replace(synthetic_run("demo", logged=100), path=Path("elsewhere"))
    shown = text(html(tmp_path, one, other))
    assert "2 runs compared" in shown
    assert "elsewhere – chrF2 36.64" in shown  # by their paths, as the names are the same
    assert "runs/demo – chrF2 36.64" in shown


def test_text_is_escaped_wherever_it_stands(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    runs = [replace(synthetic_run("demo"), path=Path(evil), signatures={"bleu": evil}) for _ in range(2)]
    page = html(tmp_path, *runs)
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")


def test_only_the_scripts_of_the_page_may_run(demo: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', demo)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe-eval" not in policy
    assert policy.count("sha256-") == len(re.findall(r"<script>", demo))
    assert not re.search(r'(src|href)="(?!#)', re.sub(r"<script>.*?</script>", "", demo, flags=re.S))


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    size = len(html(tmp_path, synthetic_run("long", logged=100_000, validations=20)).encode())
    assert size < 800_000  # without thinning there were 20 MB


def test_time_left_follows_the_newest_speed() -> None:
    record = synthetic_run("demo", logged=200)  # 800 updates of 0.31 s are to come
    assert overview.seconds_left(record) == pytest.approx(800 * 0.31)
    slower = record.logged["seconds"].copy()
    slower[-overview.RECENT :] += np.arange(overview.RECENT) * 16  # a second more per update
    record = replace(record, logged={**record.logged, "seconds": slower})
    assert overview.seconds_left(record) == pytest.approx(800 * 1.31)
    assert overview.seconds_left(just_begun(record)) is None


@pytest.mark.parametrize(
    ("minutes", "goal", "share", "left"),
    [
        (20, "in 17m of 20m", 992 / 1200, 1200 - 992),
        (200, "in 17m of 3h20m", 0.8, 800 * 0.31),  # updates come first
        (10, "in 17m of 10m", 1.0, 0),
    ],
)
def test_minutes_that_will_end_a_run_measure_how_far_it_is(
    tmp_path: Path, minutes: float, goal: str, share: float, left: float
) -> None:
    record = synthetic_run("demo")
    training = record.recipe.training.model_copy(update={"minutes": minutes})
    record = replace(record, recipe=record.recipe.model_copy(update={"training": training}))
    assert overview.seconds_left(record) == pytest.approx(left)
    page = html(tmp_path, record)
    assert f"update 3,200 {goal}" in text(page)
    assert float(re.search(r'<progress max="1" value="([0-9.]+)"', page)[1]) == pytest.approx(share)  # type: ignore[index]


def test_a_page_shows_a_run_beside_a_bundle_without_its_run(nmt: Callable[..., Any], runs: Path) -> None:
    (runs / "a" / "averaged").rename("alone")
    shutil.copytree("a", "b")
    done = nmt("score", "--runs", "a", "alone", "b", "--html", "page.html")
    assert done.code == 0, done.err
    assert done.out.decode().startswith("model")
    assert "alone: is a bundle and no run: the page has its dev score and cost, but no curves" in done.err
    assert "page: page.html" in done.err
    page = Path("page.html").read_text(encoding="utf-8")
    assert "3 runs compared" in page
    assert "<h3>b compared with a</h3>" in page
    assert "Words of the source that training of b has not seen" in page
    assert "Of alone there are no figures of training here" in page
    assert "Loss as a table" in page
