"""Systems beside each other: which is the best by a metric, which are not worse, and what the differences mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmt.metrics.agreement import SOURCE, agreement
from nmt.metrics.metric import Metric
from nmt.metrics.significance import SAMPLES, SIGNIFICANT, TRIALS, Comparison, Estimate, Sampled
from nmt.metrics.words import Lines

UNKNOWN = "–"
EXPLAINED = (
    f"95% interval: mean ± half of it over {SAMPLES:,} bootstrap samples of the lines; p: how often two equally good "
    f"systems would differ as much, by approximate randomisation in {TRIALS:,} trials"
)
MEANING = f"people: how often they prefer the system that scores higher by so much, 50% is chance ({SOURCE})"


@dataclass(frozen=True)
class Standing:
    """A system's score by a metric, and its comparison with the best system or the baseline."""

    name: str
    metric: Metric
    estimate: Estimate
    verdict: str
    comparison: Comparison | None = None  # None for the one that others are compared with

    @property
    def people(self) -> float | None:
        """`nmt.metrics.agreement.agreement` about the difference"""
        if self.comparison is None:
            return None
        return agreement(self.metric.studied_as, self.comparison.difference * self.metric.points)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        found = {"system": self.name, **vars(self.estimate), "verdict": self.verdict}
        if self.comparison:
            found["difference"] = self.comparison.difference
            found["p_value"] = self.comparison.p_value
            found["p_bootstrap"] = self.comparison.p_bootstrap
            found["people"] = self.people
        return found

    def cells(self) -> dict[str, str]:
        """Return the cells of the system's row in a table, by heading."""
        write = self.metric.written
        difference = UNKNOWN
        p_value = UNKNOWN
        if self.comparison:
            difference = f"{self.comparison.difference:+.{self.metric.decimals}f}"
            p_value = f"{self.comparison.p_value:.4f}"
        people = UNKNOWN if self.people is None else f"{self.people:.0f}%"
        return {
            self.metric.label: self.name,
            "score": write(self.estimate.score),
            "95% interval": f"{write(self.estimate.mean)} ± {write(self.estimate.ci)}",
            "difference": difference,
            "p": p_value,
            "people": people,
            "": self.verdict,
        }


def standings(metric: Metric, systems: Mapping[str, Lines], baseline: str | None = None) -> list[Standing]:
    """Compare systems, by name, with the baseline or else with the best of them; return them with the best first."""
    sampled = {name: Sampled(metric, lines) for name, lines in systems.items()}
    by_rank = sorted(sampled, key=lambda name: sampled[name].score, reverse=not metric.lower_is_better)
    yardstick = baseline or by_rank[0]
    found = []
    for name in by_rank:
        one = sampled[name]
        if name == yardstick:
            found.append(Standing(name, metric, one.estimate, "baseline" if baseline else "best"))
            continue
        comparison = one.compared(sampled[yardstick])
        verdict = "worse"
        if comparison.p_value >= SIGNIFICANT:
            verdict = "no clear difference"
        elif (comparison.difference < 0) == metric.lower_is_better:
            verdict = "better"
        found.append(Standing(name, metric, one.estimate, verdict, comparison))
    return found
