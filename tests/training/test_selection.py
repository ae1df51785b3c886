"""Averages and ways of splitting lines: what is tried, how it is compared, what is written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from reverse_task import reseal

from nmt.checkpoint.reading import Bundle, checkpoints, read_tensors
from nmt.checkpoint.writing import add_info, average
from nmt.metrics.significance import Comparison, Estimate
from nmt.recipe import Training
from nmt.system import integrity
from nmt.system.console import Console
from nmt.training import selection
from nmt.training.budget import Budget
from nmt.training.selection import (
    measure_robustness,
    numbers_to_try,
    write_best_average,
    write_default_average,
    write_final_average,
)
from nmt.training.validation import DevScores, Validation

CPU = torch.device("cpu")


@pytest.fixture
def ckpts(runs: Path) -> Path:
    """The checkpoints of a run that a test may change, beside the run's data; of the working directory."""
    shutil.rmtree("a/averaged")
    return Path("a").rename("ckpts")


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces validation by scores and perplexities that a test gives, for one model after another."""

    def given(*scores: tuple[float, float]) -> None:
        coming: Iterator[tuple[float, float]] = iter(scores)

        def validation(model: object) -> DevScores:
            score, perplexity = next(coming)
            return DevScores({"chrf": score, "bleu": score, "perplexity": perplexity}, {"chrf": "made up"})

        def of(*_: object) -> Mock:
            return Mock(side_effect=validation, notes=[], info=lambda dev: {"scores": dev.scores, "confidence": None})

        monkeypatch.setattr(selection.Validation, "of", of)

    return given


@pytest.mark.parametrize(
    ("most", "numbers"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (8, [1, 2, 3, 5, 8]), (20, [1, 2, 3, 5, 8, 13, 20])],
)
def test_numbers_grow_as_those_of_fibonacci_up_to_all(most: int, numbers: list[int]) -> None:
    assert numbers_to_try(most) == numbers


def test_the_best_average_is_written_with_the_curve(nmt: Callable[..., Any], ckpts: Path) -> None:
    """Validated by the model as it is: the first is the newest checkpoint, which training has scored."""
    before = {path: path.read_bytes() for path in ckpts.glob("step-*/*")}
    done = nmt("average", ckpts, "--last", "auto")
    assert done.code == 0, done.err
    assert done.out == b""
    note, header, *rows, last = done.err.splitlines()
    assert note == "dev lines whose reference equals their source do not count in dev chrF2 and BLEU: 1 of 50"
    assert header == "averaged  dev chrF2  dev BLEU  dev ppl  updates"
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"]
    result = Bundle.read(ckpts / "averaged")
    curve = result.info.curve
    assert [[f"{point[name]:.2f}" for name in ("chrf", "bleu")] for point in curve] == [r.split()[1:3] for r in rows]
    newest = checkpoints(ckpts)[-1]
    assert curve[0]["chrf"] == newest.scores["chrf"]
    assert curve[0]["perplexity"] == pytest.approx(newest.scores["perplexity"], rel=1e-6)
    best = max(curve, key=lambda point: (point["chrf"], -point["perplexity"]))
    assert result.scores == {name: best[name] for name in ("chrf", "bleu", "perplexity")}
    assert result.signatures == newest.signatures
    assert len(result.info.steps) == best["last"]
    assert result.info.interval is not None
    low, high = result.info.interval
    assert low - 0.01 < best["chrf"] < high + 0.01
    assert last.endswith(f", dev chrF2 {best['chrf']:.2f} ({low:.2f}–{high:.2f}): ckpts/averaged")
    assert {path: path.read_bytes() for path in ckpts.glob("step-*/*")} == before


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(10, 9), (30, 9), (20, 2), (20, 2)], 2),
        ([(10, 9), (30, 9), (30, 8), (20, 2)], 3),  # of equals that with the lower perplexity
        ([(30, 9), (30, 9), (20, 9), (30, 9)], 1),  # and the fewest
    ],
)
def test_what_is_written_is_what_last_gives(ckpts: Path, scored, scores: list[tuple[float, float]], best: int) -> None:
    scored(*scores)
    auto = write_best_average(ckpts, Path("auto"), CPU, Console(quiet=True))
    given = average(ckpts, last=best, out=Path("given"))
    weights, same = (read_tensors(bundle.path / "model.safetensors") for bundle in (auto, given))
    assert [name for name in weights if not torch.equal(weights[name], same[name])] == []
    assert auto.info.steps == given.info.steps
    assert [(point["chrf"], point["perplexity"]) for point in auto.info.curve] == scores
    assert {key: auto.written[key] for key in ("run", "step", "data", "cost")} == {
        key: given.written[key] for key in ("run", "step", "data", "cost")
    }


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(("scores", "helped"), [([(30, 9), (20, 9)], 1), ([(10, 9), (30, 9)], 2)])
def test_once_the_rate_has_fallen_to_zero_only_checkpoints_that_help_are_averaged(
    ckpts: Path, scored, monkeypatch, scores: list[tuple[float, float]], helped: int, is_last: bool
) -> None:
    """The newest one alone was scored in training, unless it was not the last one."""
    monkeypatch.setattr(Training, "falls", True)
    (chrf, perplexity), other = scores
    if is_last:
        made_up = {"chrf": chrf, "bleu": chrf, "perplexity": perplexity}
        add_info(ckpts / "step-00000800", {"scores": made_up, "interval": [1.0, 99.0], "confidence": None})
    else:
        newest = integrity.read_manifest(ckpts / "step-00000800/bundle.json")
        del newest["interval"]
        integrity.replace_manifest(ckpts / "step-00000800/bundle.json", newest)
    scored(*([other] if is_last else scores))
    found = write_default_average(ckpts, None, CPU, Console(quiet=True))
    assert (len(found.info.steps), len(found.info.curve)) == (helped, len(scores))


@pytest.mark.parametrize(
    ("falls", "newest", "best", "verdicts"),
    [
        (True, 50.0, 50.0, ["newest checkpoint alone, update 800: dev chrF2 50.00, which is better: --last 1"]),
        (True, 30.0, 30.0, ["newest checkpoint alone, update 800: dev chrF2 30.00"]),
        (False, None, 20.0, ["newest checkpoint alone, update 800: dev chrF2 45.00, which is better: --last 1"]),
        (
            *(False, 30.0, 50.0),
            [
                "newest checkpoint alone, update 800: dev chrF2 30.00",
                "best checkpoint alone, update 600: dev chrF2 50.00, which is better: --best 1",
            ],
        ),
    ],
)
def test_one_checkpoint_stands_beside_an_average_that_was_asked_for(
    nmt: Callable[..., Any],
    ckpts: Path,
    scored: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    falls: bool,
    newest: float | None,
    best: float,
    verdicts: list[str],
) -> None:
    monkeypatch.setattr(selection, "choose_split", lambda average, *_: average)
    monkeypatch.setattr(Training, "falls", falls)
    for step, chrf in ((200, 10.0), (400, 10.0), (600, best), (800, newest)):
        add_info(ckpts / f"step-{step:08d}", {"scores": {"chrf": chrf, "perplexity": 5.0} if chrf else {}})
    scored((40.0, 4.0), (45.0, 4.0))
    done = nmt("average", "ckpts", "--last", "3")
    assert done.code == 0, done.err
    early = ["from before the last tenth of the falling learning rate: 400 to 600"] if falls else []
    said = [
        f"  {line}".replace("--", "nmt average ckpts --") for line in [*early, *(f"the {each}" for each in verdicts)]
    ]
    assert done.err.splitlines() == [
        "averaged 3 checkpoints, updates 400 to 800, dev chrF2 40.00: ckpts/averaged",
        *said,
    ]
    assert Bundle.read(ckpts / "averaged").info.steps == [400, 600, 800]


def test_without_the_development_set_the_last_of_a_falling_rate_stays_alone(
    nmt: Callable[..., Any], ckpts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "falls", True)
    Path("data").unlink()
    (ckpts / "run.json").unlink()  # which says where else the data may be
    assert "without dev scores, the newest checkpoint is kept alone" in nmt("average", "ckpts").err
    assert Bundle.read(ckpts / "averaged").info.steps == [800]
    *_, early, better = nmt("average", "ckpts", "--best", "2", "--out", "two").err.splitlines()
    assert early.startswith("  from before the last tenth of the falling learning rate: ")
    assert better == "  the newest checkpoint alone is usually better then: nmt average ckpts --last 1 --out two"
    shutil.rmtree(ckpts / "step-00000800")  # as if the run were under way
    nmt("average", "ckpts")
    assert Bundle.read(ckpts / "averaged").info.steps == [400, 600]


def test_ways_of_splitting_are_compared_on_the_lines_that_they_cut_differently(ckpts: Path) -> None:
    newest = checkpoints(ckpts)[-1]
    validation = Validation.of(newest)
    assert newest.lengths is not None
    validation._lengths = newest.lengths.model_copy(update={"sentences": 2, "source": 50, "longest_source": 50})
    validation.sources = ["A b c."] * 3 + ["A b c d e f g. H i j."] * 4
    validation.references = ["c b A"] * 7
    validation._rows = [0, 1, 2, 3, 4, 5, 6]
    assert validation.unlike_splits() == [3, 4, 5, 6]
    found = validation.compare_splits(newest.model(CPU), [3, 4])
    assert found.system.score != found.baseline.score  # auto leaves two sentences together


@pytest.mark.parametrize(
    ("lines", "ours", "p_value", "best"),
    [(20, 3.0, 0.01, "sentences"), (20, 3.0, 0.1, "auto"), (20, 1.0, 0.01, "auto"), (19, 3.0, 0.01, "auto")],
)
def test_an_average_splits_lines_in_the_way_that_is_significantly_better(
    nmt: Callable[..., Any],
    ckpts: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: int,
    ours: float,
    p_value: float,
    best: str,
) -> None:
    plain = average(ckpts, out=Path("plain"))
    one, other = (Estimate(score, score, 0.1) for score in (ours, 2.0))
    monkeypatch.setattr(Validation, "unlike_splits", lambda *_: list(range(lines)))
    monkeypatch.setattr(Validation, "compare_splits", lambda *_: Comparison(one, other, p_value, 1.0))
    assert nmt("average", ckpts).code == 0
    chosen = Bundle.read(ckpts / "averaged")
    assert chosen.recipe.decoding.split == best
    scored = dict.fromkeys(("recipe.yaml", "confidence"))  # plain is not
    assert chosen.content() | scored == plain.content() | scored
    shutil.rmtree(ckpts / "averaged")
    for path in ckpts.glob("step-*"):
        text = (path / "recipe.yaml").read_text()
        (path / "recipe.yaml").write_text(text.replace("split: auto", "split: none"))
        reseal(path)
    assert nmt("average", ckpts).code == 0
    assert Bundle.read(ckpts / "averaged").recipe.decoding.split == "none"  # as the recipe asks


@pytest.mark.parametrize(("score", "steps"), [(9.0, [600]), (60.0, [600, 800])])
def test_the_best_checkpoint_replaces_an_average_that_is_worse(
    ckpts: Path, scored: Callable[..., None], monkeypatch: pytest.MonkeyPatch, score: float, steps: list[int]
) -> None:
    monkeypatch.setattr(selection, "choose_split", lambda average, *_: average)
    for step, chrf in ((200, 1.0), (400, 2.0), (600, 50.0), (800, 20.0)):
        add_info(ckpts / f"step-{step:08d}", {"scores": {"chrf": chrf, "perplexity": 5.0}})
    scored((score, 4.0), (50.0, 4.0))
    write_final_average(ckpts, CPU, Console(quiet=True))
    written = Bundle.read(ckpts / "averaged")
    assert written.info.steps == steps
    assert written.dev_score == max(score, 50.0)
    assert "confidence" in written.written  # of a copy, too, though training gives it to the last checkpoint alone
    write_final_average(ckpts, CPU, Console(quiet=True))  # does nothing: there is no further score


def test_the_report_of_an_average_has_its_scores_of_changed_lines(nmt: Callable[..., Any], ckpts: Path) -> None:
    assert nmt("average", ckpts).code == 0
    assert Bundle.read(ckpts / "averaged").info.robustness == {}  # without a report, nothing is translated for it
    (ckpts / "report.html").touch()
    assert nmt("average", ckpts).code == 0
    written = Bundle.read(ckpts / "averaged")
    found = written.info.robustness
    assert found.keys() == {"lines", "plain", "capitals", "title_case"}  # its words are letters, without punctuation
    assert found["lines"] == 49  # one more is its own reverse
    assert found["plain"] == pytest.approx(written.scores["chrf"])
    assert found["capitals"] < 0.5 * found["plain"]
    shown = " ".join(re.sub(r"<[^>]+>", " ", (ckpts / "report.html").read_text()).split())
    assert f"of 49 lines, as they are and changed Source chrF2 Share plain {found['plain']:.2f} 1.000" in shown


@pytest.mark.parametrize(("scoring", "spent"), [(1.0, 0.0), (0.1, 59.9)])
def test_changed_lines_are_translated_only_where_time_is_left(
    ckpts: Path, capsys: pytest.CaptureFixture[str], scoring: float, spent: float
) -> None:
    """And where it takes no more than a few per cent of the minutes."""
    average(ckpts)
    add_info(ckpts / "averaged", {"scores": {"chrf": 60.0, "perplexity": 2.0}})
    for budget in (Budget(1.0, lambda: 0.0, spent), Budget(10.0, lambda: 0.0)):
        assert Bundle.read(ckpts / "averaged").info.robustness == {}
        budget.scoring = scoring
        measure_robustness(ckpts, CPU, Console(), budget)
    assert Bundle.read(ckpts / "averaged").info.robustness.keys() >= {"plain", "capitals"}
    (said,) = capsys.readouterr().err.splitlines()
    assert said == "  capitals and typos are not tried for the report: training.minutes leaves no time for it"


def test_without_the_development_set_one_error_says_so(nmt: Callable[..., Any], ckpts: Path) -> None:
    newest = ckpts / "step-00000800"
    add_info(newest, {"data": "another", "dev_set": "another"})
    assert (
        f"data/reverse: was prepared from other data or settings, but the development set of {newest} is"
        in nmt("average", ckpts, "--last", "auto").err
    )
    Path("data").unlink()
    (ckpts / "run.json").unlink()  # which says where else the data may be
    done = nmt("average", ckpts, "--last", "auto")
    assert (done.code, done.err.splitlines()) == (
        1,
        [
            f"error: data/reverse: holds no prepared data, but the development set of {newest} is needed",
            f"hint: run this where the model was trained, or prepare the data: nmt preprocess {newest}/recipe.yaml",
        ],
    )
