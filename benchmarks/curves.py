"""The whole runs that forecasts of `nmt train` follow from, and how far forecasts are off.

    python benchmarks/selection.py TRIALS.toml --out OUT --scores 16
    python benchmarks/curves.py OUT/results.jsonl ... [--write]

A trial's name begins with its kind of data, such as `captions-5k`: to forecast a run, only runs on other kinds are used
here. The data that trials have prepared tells how many words there are.
`--write` replaces nmt/training/curves.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from nmt.data.corpus import TARGET_WORDS
from nmt.data.data_report import training_figures
from nmt.recipe.loading import load
from nmt.training import forecast
from nmt.training.forecast import Amount, DevCurve, DevPoint, SoFar

PLACE = Path(forecast.__file__).with_name("curves.json")
NEAR = 0.005
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)


def read(path: Path) -> list[DevCurve]:
    """Return the curves of the trials in a file of results; of short ones, only their ends."""
    curves = []
    for row in map(json.loads, path.read_text().splitlines()):
        updates = row["step"]
        scored = [*row["curve"], row] if updates >= forecast.SHORTEST else [row]
        scores = [DevPoint(round(each["step"] / updates, 3), each["valid_chrf"]) for each in scored]
        data = load(path.parent / row["name"] / "run" / "recipe.yaml").data
        words = training_figures(path.parent / "data" / (data.name or ""))[TARGET_WORDS]
        amount = Amount(words, row["tokens"])
        curves.append(DevCurve(scores, row["name"].partition("-")[0], amount))
    return curves


def show(when: str, errors: list[float], inside: int) -> None:
    """Print how far forecasts of that time are off, and how many runs end inside their margins."""
    middle, worst = statistics.median(errors), max(errors)
    print(f"{when}: off by {middle:.2f} in the median, {worst:.2f} at most; {inside} of {len(errors)} end inside")


def main() -> None:
    """Print the errors of forecasts by the share of a run that is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="results.jsonl")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    curves = [curve for path in options.results for curve in read(path)]
    errors, inside = list[float](), 0
    for curve in curves:
        others = [other for other in curves if other.family != curve.family]
        before = forecast.forecast_before(curve.amount, others)
        errors.append(abs(before.chrf - curve.scores[-1].chrf))
        inside += errors[-1] <= before.margin
    show("before the start", errors, inside)
    for share in SHARES:
        errors, inside = list[float](), 0
        for curve in curves:
            others = [other for other in curves if other.family != curve.family]
            so_far = [score for score in curve.scores if score.share <= share + NEAR]
            found = forecast.forecast(SoFar(0.0, so_far), curve.amount.words, others)
            if found is not None and abs(so_far[-1].share - share) < NEAR:
                errors.append(abs(found.chrf - curve.scores[-1].chrf))
                inside += errors[-1] <= found.margin
        if errors:
            show(f"after {share:6.1%}", errors, inside)
    if options.write:
        rows = [
            {
                "family": curve.family,
                "amount": curve.amount,
                "scores": [[score.share, round(score.chrf, 2)] for score in curve.scores],
            }
            for curve in curves
        ]
        PLACE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
