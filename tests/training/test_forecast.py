"""Forecasts: the dev chrF that a run will end with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from reverse_task import small

from nmt.recipe import Training
from nmt.training.forecast import Amount, DevCurve, DevPoint, forecast, forecast_before, known_curves, run_so_far

SMALL = small("updates: 16, log_updates: 4, checkpoint_updates: 2, valid_beam: 1")
SHARES = [n / 8 for n in range(1, 9)]


def curve(family: str, steep: float, best: float, warmup: float = 0.1) -> DevCurve:
    """A run whose chrF rises evenly."""
    return DevCurve(warmup, [DevPoint(share, best - steep * (1 - share)) for share in SHARES], family)


CURVES = [curve(family, steep, best) for family in "abc" for steep, best in ((30, 60), (20, 70), (10, 50))]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.875])
def test_a_run_that_rises_as_others_do_is_forecast_exactly(share: float) -> None:
    whole = curve("d", 25, 66)
    so_far = whole._replace(scores=[score for score in whole.scores if score.share <= share])
    found = forecast(so_far, CURVES)
    assert found is not None
    assert found.chrf == pytest.approx(66)
    assert found.margin == pytest.approx(0, abs=1e-9)
    assert str(found) == "about 66 (66–66) at the end"


def test_the_margin_is_what_another_kind_of_data_would_be_off() -> None:
    other = curve("c", 20, 70)
    curves = [*CURVES[:6], other._replace(scores=[*other.scores[:-1], DevPoint(1.0, 76)])]
    whole = curve("d", 25, 66)
    found = forecast(whole._replace(scores=whole.scores[:6]), curves)
    assert found is not None
    assert found.margin == pytest.approx(1.28 * 6 / math.sqrt(7), rel=0.2)
    assert found.chrf > 66


def ended(family: str, words: float, tokens: float, more: float = 0.0) -> DevCurve:
    """A run that ends with 2 more for twice the words and 3 more for twice the tokens."""
    chrf = 2 * math.log2(words) + 3 * math.log2(tokens) + more - 50
    return DevCurve(0.1, [DevPoint(1.0, chrf)], family, Amount(words, tokens))


ENDED = [ended(family, *amount) for family in "abc" for amount in ((1e5, 1e6), (3e5, 1e6), (1e6, 4e6), (1e4, 5e5))]


def test_before_the_start_the_score_follows_from_how_much_there_is_to_learn() -> None:
    expected = ended("d", 2e5, 3e6)
    found = forecast_before(Amount(2e5, 3e6), [*ENDED, *CURVES])
    assert found.chrf == pytest.approx(expected.scores[-1].chrf)
    assert found.margin == pytest.approx(0, abs=1e-6)
    harder = [ended("e", 1e5, 1e6, more=-8), ended("e", 1e6, 1e6, more=-8)]
    assert 4 < forecast_before(Amount(2e5, 3e6), [*ENDED, *harder]).margin < 8
    assert forecast_before(Amount(1e9, 1e12), ENDED).chrf == 100
    assert forecast_before(Amount(1, 1), ENDED).chrf == 0


def test_nothing_is_said_while_the_scores_do_not_tell() -> None:
    whole = curve("d", 25, 66)
    half = whole._replace(scores=whole.scores[:4])
    assert forecast(half, CURVES) is not None
    assert forecast(half._replace(scores=[]), CURVES) is None
    assert forecast(half._replace(scores=whole.scores[2:4]), CURVES) is None  # none is old enough
    assert forecast(half._replace(warmup=0.3), CURVES) is None
    assert forecast(half, CURVES[:3]) is None
    assert forecast(half, [each._replace(warmup=0.3) for each in CURVES]) is None
    assert forecast(whole, CURVES) is None  # it is at its end


def test_the_scores_so_far_are_those_on_the_present_development_set(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"step": 100, "valid_chrf": 99.0},
        {"step": 200, "valid_chrf": 30.0, "new_dev_set": True},
        {"step": 300, "loss": 1.0},
        {"step": 400, "valid_chrf": None},
        {"step": 400, "valid_chrf": 40.0},
    ]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run_so_far(tmp_path / "log", 400, 0.5, Training(warmup=160))
    assert found == DevCurve(0.2, [DevPoint(0.25, 30.0), DevPoint(0.5, 40.0)])
    assert run_so_far(tmp_path / "log", 400, 0.5, Training(warmup=160, minutes=9, schedule="linear")).warmup == 0.1


def test_the_curves_of_the_package_are_whole() -> None:
    curves = known_curves()
    assert len({each.family for each in curves}) >= 4
    assert len(curves) >= 10
    for each in curves:
        assert each.amount is not None
        assert each.amount.words > 1000
        shares = [score.share for score in each.scores]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert each.scores[-1].chrf >= each.scores[0].chrf


def test_lines_of_checkpoints_say_it_where_the_learning_rate_falls_to_zero(
    train: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.training.run.known_curves", lambda: CURVES)
    assert " at the end" not in train("training.schedule=linear", "training.warmup=1", out="short")
    monkeypatch.setattr("nmt.training.run.SHORTEST", 0)
    said = [line for line in train("training.schedule=linear", "training.warmup=1").splitlines() if "  saved " in line]
    assert [" at the end" in line for line in said] == [False] + [True] * 6 + [False]
    assert " at the end" not in train("training.warmup=1", out="other")
