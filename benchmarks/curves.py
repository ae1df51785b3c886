"""The whole runs that forecasts of `nmt train` follow from, and how far forecasts are off.

    python benchmarks/selection.py TRIALS.toml --out OUT --scores 16
    python benchmarks/curves.py OUT/results.jsonl ... [--write]

A trial's name begins with its kind of data, such as `captions-5k`: to forecast a run, only runs on other kinds are used
here. `training.warmup` is that of the recipe laptop. `--write` replaces nmt/training/curves.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from nmt.recipe.loading import load
from nmt.recipe.yaml_files import shipped_recipes
from nmt.training import forecast
from nmt.training.forecast import DevCurve, DevPoint

PLACE = Path(forecast.__file__).with_name("curves.json")
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)


def read(path: Path, warmup: int) -> list[DevCurve]:
    """Return the curves of the trials in a file of results."""
    curves = []
    for row in map(json.loads, path.read_text().splitlines()):
        updates = row["step"]
        if updates < forecast.SHORTEST:
            continue
        scores = [DevPoint(each["step"] / updates, each["valid_chrf"]) for each in (*row["curve"], row)]
        curves.append(DevCurve(warmup / updates, scores, row["name"].partition("-")[0]))
    return curves


def main() -> None:
    """Print the errors of forecasts by the share of a run that is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="results.jsonl")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warmup = load(shipped_recipes()["laptop"]).training.warmup
    curves = [curve for path in options.results for curve in read(path, warmup)]
    for share in SHARES:
        errors, inside = list[float](), 0
        for curve in curves:
            others = [other for other in curves if other.family != curve.family]
            so_far = [score for score in curve.scores if score.share <= share + 1e-6]
            found = forecast.forecast(curve._replace(scores=so_far), others)
            if found is not None and abs(so_far[-1].share - share) < 1e-3:
                errors.append(abs(found.chrf - curve.scores[-1].chrf))
                inside += errors[-1] <= found.margin
        if errors:
            middle, worst = statistics.median(errors), max(errors)
            held = f"{inside} of {len(errors)} end inside"
            print(f"after {share:6.1%}: off by {middle:.2f} in the median, {worst:.2f} at most; {held}")
    if options.write:
        rows = [
            {
                "family": curve.family,
                "warmup": round(curve.warmup, 4),
                "scores": [[round(score.share, 4), round(score.chrf, 2)] for score in curve.scores],
            }
            for curve in curves
        ]
        PLACE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
