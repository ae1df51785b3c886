"""What is drawn, told and tabulated of a run's figures."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_run import just_begun, synthetic_run

from nmt.report.charts import CHARTS, POINTS, Chart, Curve, curve_of, smoothed, summary, table, thinned

BY_NAME = {chart.name: chart for chart in CHARTS}


def found(chart: Chart, part: str = "training", **wanted: int) -> Curve:
    result = curve_of(synthetic_run(**wanted), 0, chart, part)
    assert result is not None
    return result


def test_thinning_keeps_every_spike_and_both_ends() -> None:
    values = np.sin(np.arange(100_000) / 9_000)
    spikes = [0, 777, 50_001, 99_998]
    values[spikes] = [40, -30, 90, 7]
    rows = thinned(values)
    assert len(rows) <= POINTS + 2
    assert {*spikes, 99_999} <= set(rows)
    assert (np.diff(rows) > 0).all()


def test_a_smoothed_curve_is_the_mean_of_the_window() -> None:
    values = np.random.default_rng(1).normal(size=400)  # the window is 11
    values[200] = np.nan
    result = smoothed(values)
    assert result[100] == pytest.approx(values[95:106].mean())
    assert result[0] == pytest.approx(values[:6].mean())
    assert result[203] == pytest.approx(np.nanmean(values[198:209]))


def test_only_long_noisy_curves_are_smoothed() -> None:
    assert found(BY_NAME["loss"], logged=500).is_smoothed
    assert not found(BY_NAME["loss"], logged=50).is_smoothed
    assert not found(BY_NAME["learning_rate"], logged=500).is_smoothed
    assert not found(BY_NAME["perplexity"], "dev", logged=500, validations=200).is_smoothed


def test_a_summary_tells_the_first_the_best_and_the_last_value() -> None:
    score = found(BY_NAME["score"], "dev")
    assert summary(score, BY_NAME["score"]) == "10.77 at update 320, highest and last 36.64 at 3,200"
    one = found(BY_NAME["score"], "dev", validations=1)
    assert summary(one, BY_NAME["score"]) == "10.77 at update 3,200"


def test_a_table_has_the_figures_of_the_checkpoints() -> None:
    rows = table([found(BY_NAME["loss"]), found(BY_NAME["score"], "dev")], BY_NAME["score"])
    assert [row[0] for row in rows][:2] == ["320", "640"]
    assert rows[0][2] == "10.77"
    assert len(table([found(BY_NAME["loss"], logged=5000)], BY_NAME["loss"])) == 30


def test_a_figure_without_finite_values_has_no_curve() -> None:
    run = synthetic_run()
    run.validated["score"][:] = np.nan
    assert curve_of(run, 0, BY_NAME["score"], "dev") is None
    assert curve_of(just_begun(run), 0, BY_NAME["loss"], "training") is None
