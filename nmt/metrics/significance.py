"""How sure scores and their differences are: bootstrap samples of the lines, and approximate randomisation.

The figures are those of sacreBLEU's `PairedTest` (Koehn, 2004; Riezler and Maxwell, 2005), for any `Metric`, but that
equal differences count: of one line that differs, sacreBLEU is sure. Samples are drawn a few at a time, because all of
them together would take thousands of times the memory of the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.metrics.metric import Counts, Metric
from nmt.metrics.words import Lines

SAMPLES = 1000  # of the bootstrap; sacreBLEU's default
TRIALS = 10_000  # of the randomisation; likewise
SEED = 12345  # likewise
AT_ONCE = 32  # trials: NumPy draws as many bits at once, so figures do not depend on drawing in parts
SIGNIFICANT = 0.05  # p-values below it
ROUNDING = 1e-9  # the share by which equal differences may differ, since sums of lines are of another order


@dataclass(frozen=True)
class Estimate:
    """A corpus score and its distribution over bootstrap samples of the lines."""

    score: float
    mean: float  # over the samples
    ci: float  # half-width of the 95% confidence interval


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same lines. The p-values are 1 if their scores are equal."""

    system: Estimate
    baseline: Estimate
    p_value: float  # by randomisation: how often two equally good systems would differ as much
    p_bootstrap: float  # the same by the paired bootstrap

    @property
    def difference(self) -> float:
        """System's score less the baseline's"""
        return self.system.score - self.baseline.score


class Sampled:
    """A system's counts by a metric, its score, and its scores over bootstrap samples."""

    def __init__(self, metric: Metric, hypotheses: Lines) -> None:
        self.metric = metric
        self.counts = np.array(metric.counts(hypotheses), dtype=np.float64)
        self.score = metric.score(self.counts.sum(0).tolist())
        self.scores = bootstrap(self.counts, metric.score)

    @property
    def estimate(self) -> Estimate:
        """Score with its interval"""
        ordered = np.sort(self.scores)
        outside = SAMPLES // 40  # 2.5% on each side
        ci = (ordered[-outside - 1] - ordered[outside]) / 2
        return Estimate(self.score, float(ordered.mean()), float(ci))

    def compared(self, baseline: Sampled) -> Comparison:
        """Test the difference from another system, which has translated the same lines."""
        p_value = 1.0  # of equal scores
        p_bootstrap = 1.0
        difference = abs(self.score - baseline.score)
        if difference:
            p_value = self._by_randomisation(baseline, difference)
            # How far samples are from their mean difference, as if the systems were equally good
            apart = np.abs(self.scores - baseline.scores)
            p_bootstrap = _share_from(apart - apart.mean(), difference)
        return Comparison(self.estimate, baseline.estimate, p_value, p_bootstrap)

    def _by_randomisation(self, baseline: Sampled, difference: float) -> float:
        """Return the p-value of a difference over trials in which random lines change places."""
        random = np.random.default_rng(SEED)
        moved = baseline.counts - self.counts  # (lines, n)
        sums = self.counts.sum(0)
        both = sums + baseline.counts.sum(0)
        differences = []
        for start in range(0, TRIALS, AT_ONCE):
            size = (min(AT_ONCE, TRIALS - start), len(moved))
            changes = random.integers(2, size=size, dtype=np.bool_)  # (trials, lines)
            ours = sums + changes @ moved  # (trials, n)
            for one, other in zip(ours.tolist(), (both - ours).tolist(), strict=True):
                differences.append(abs(self.metric.score(one) - self.metric.score(other)))
        return _share_from(np.array(differences), difference)


def _share_from(differences: NDArray[np.float64], difference: float) -> float:
    """Return a p-value: the share of differences at least as large as one, which counts itself."""
    as_large = differences > difference * (1 - ROUNDING)
    return (int(as_large.sum()) + 1) / (len(differences) + 1)


def bootstrap(counts: Counts | NDArray[np.float64], score: Callable[[Sequence[float]], float]) -> NDArray[np.float64]:
    """Return scores, (samples,), of random samples of the lines. Two systems have samples of the same lines.

    `score` maps sums, (n,), to a score.
    """
    of_lines = np.asarray(counts, dtype=np.float64)
    random = np.random.default_rng(SEED)
    scores = np.empty(SAMPLES)
    for number in range(SAMPLES):
        lines = random.integers(len(of_lines), size=len(of_lines))
        scores[number] = score(of_lines[lines].sum(0).tolist())
    return scores


def interval(counts: Counts, score: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Return the bounds of a score's 95% confidence interval over bootstrap samples of the lines."""
    low, high = np.percentile(bootstrap(counts, score), (2.5, 97.5))
    return float(low), float(high)
