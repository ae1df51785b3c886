"""Forecasts: the dev chrF that a run will end with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from reverse_task import small

from nmt.recipe import Training
from nmt.training.forecast import Amount, DevCurve, DevPoint, SoFar, forecast, forecast_before, known_curves, run_so_far

SMALL = small("updates: 16, log_updates: 4, checkpoint_updates: 2, valid_beam: 1")
SHARES = [n / 8 for n in range(1, 9)]
AMOUNTS = [(1e5, 1e6), (3e5, 1e6), (1e6, 4e6), (1e4, 5e5)]


def curve(family: str, words: float, tokens: float, more: float = 1.0) -> DevCurve:
    """A run whose score lacks a tenth less for twice the words, and a fifth for twice the tokens, and so on its way."""
    lacking = more * 40 * 0.9 ** math.log2(words / 1e5) * 0.8 ** math.log2(tokens / 1e6)
    early = 100 * (lacking / 100) ** 0.5 * 1.05 ** math.log2(words / 1e5)
    scores = [DevPoint(share, 100 - early ** (1 - share) * lacking**share) for share in SHARES]
    return DevCurve(scores, family, Amount(words, tokens))


CURVES = [curve(family, *amount) for family in "abc" for amount in AMOUNTS]


def so_far(whole: DevCurve, share: float, warmup: float = 0.1) -> SoFar:
    return SoFar(warmup, [score for score in whole.scores if score.share <= share])


@pytest.mark.parametrize("share", [0.125, 0.5, 0.875])
def test_a_run_that_rises_as_others_do_is_forecast_exactly(share: float) -> None:
    whole = curve("d", 2e5, 3e6)
    found = forecast(so_far(whole, share), 2e5, CURVES)
    assert found is not None
    end = whole.scores[-1].chrf
    assert found.chrf == pytest.approx(end)
    assert found.margin == pytest.approx(0, abs=1e-6)
    assert str(found) == f"about {end:.0f} ({end:.0f}–{end:.0f}) at the end"


def test_the_margin_is_what_another_kind_of_data_would_be_off() -> None:
    rising = [each._replace(scores=[*each.scores[:-1], DevPoint(1.0, each.scores[-1].chrf + 6)]) for each in CURVES[:4]]
    found = forecast(so_far(curve("d", 2e5, 3e6), 0.5), 2e5, [*rising, *CURVES[4:]])
    assert found is not None
    assert 1.28 * 2 < found.margin < 1.28 * 8


def test_before_the_start_the_score_follows_from_how_much_there_is_to_learn() -> None:
    found = forecast_before(Amount(2e5, 3e6), CURVES)
    assert found.chrf == pytest.approx(curve("d", 2e5, 3e6).scores[-1].chrf)
    assert found.margin == pytest.approx(0, abs=1e-6)
    longer = forecast_before(Amount(2e5, 6e6), CURVES)
    assert 100 - longer.chrf == pytest.approx(0.8 * (100 - found.chrf))
    harder = [curve("e", 1e5, 1e6, more=1.2), curve("e", 1e6, 1e6, more=1.2)]
    assert 3 < forecast_before(Amount(2e5, 3e6), [*CURVES, *harder]).margin < 8
    assert 99 < forecast_before(Amount(1e9, 1e12), CURVES).chrf < 100
    assert forecast_before(Amount(1, 1), CURVES).chrf == 0


def test_nothing_is_said_while_the_scores_do_not_tell() -> None:
    whole = curve("d", 2e5, 3e6)
    assert forecast(so_far(whole, 0.5), 2e5, CURVES) is not None
    assert forecast(SoFar(0.1, []), 2e5, CURVES) is None
    assert forecast(so_far(whole, 0.5, warmup=0.6), 2e5, CURVES) is None
    assert forecast(SoFar(0.01, [DevPoint(0.05, 20.0)]), 2e5, CURVES) is None
    assert forecast(so_far(whole, 0.5), 2e5, CURVES[:4]) is None
    ends = [each._replace(scores=each.scores[-1:]) for each in CURVES]
    assert forecast(so_far(whole, 0.5), 2e5, ends) is None  # of others at that share
    assert forecast(so_far(whole, 1.0), 2e5, CURVES) is None  # it is at its end


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
    assert found == SoFar(0.2, [DevPoint(0.25, 30.0), DevPoint(0.5, 40.0)])
    assert run_so_far(tmp_path / "log", 400, 0.5, Training(warmup=160, minutes=9, schedule="linear")).warmup == 0.1


def test_the_curves_of_the_package_are_whole() -> None:
    curves = known_curves()
    assert len({each.family for each in curves}) >= 4
    assert len(curves) >= 10
    for each in curves:
        assert each.amount.words > 1000
        shares = [score.share for score in each.scores]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert each.scores[-1].chrf >= each.scores[0].chrf


def test_lines_of_checkpoints_say_it_where_the_learning_rate_falls_to_zero(
    train: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.training.run.known_curves", lambda: CURVES)
    monkeypatch.setattr("nmt.training.forecast.WIDTH", 16)
    assert " at the end" not in train("training.schedule=linear", "training.warmup=1", out="short")
    monkeypatch.setattr("nmt.training.run.SHORTEST", 0)
    said = [line for line in train("training.schedule=linear", "training.warmup=1").splitlines() if "  saved " in line]
    assert [" at the end" in line for line in said] == [True] * 7 + [False]
    assert " at the end" not in train("training.warmup=1", out="other")
    monkeypatch.setattr("nmt.training.forecast.WIDTH", 128)
    assert " at the end" not in train("training.schedule=linear", "training.warmup=1", out="wider")
