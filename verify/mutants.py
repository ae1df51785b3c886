"""Mutants of the code that must not be wrong: one operator, number or keyword is changed; does a test fail?

    python verify/mutants.py [--count 300] [--seed 1] [--jobs 2] [--seconds 40] [--measured FOLDER] [--report FILE]
    python verify/mutants.py --again REPORT        # only the mutants that are left there, and not explained

cosmic-ray finds the places that it can change, and makes the mutants. Each group of modules gets its share of them by
its number of places, but at least a fifteenth of all. In a group, places are drawn by seed, and one mutant of each.
Not drawn are

- annotations, and what stands below `if TYPE_CHECKING`: nothing runs them;
- `==` in the place of `is` and the reverse: for None, for small numbers and for interned strings they are the same;
- `strict=True` of `zip`, which only says what is so;
- calls of `os.kill`: a mutant could end processes of others;
- what does not compile, or compiles to the same.

Quick tests run first, under coverage, so that it is known which tests run a line. A mutant is killed by the first of
these that fails. Tests beside the module come before others, and quick ones before slow ones. Last come others of the
same files, as they may use what one test has made for all. In all they may take `--seconds`, by the time that they took
before. A test that takes far longer than that fails.
Controls run in the same way without a change, and must pass.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import warm_pytest
import yaml
from mutating import GROUPS, ROOT, Mutant, difference, draw, modules
from tests_by_line import Tests, measure

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
NOT_COPIED = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis", "build", "data", "runs"}


@dataclass
class Trial:
    """What has become of a mutant."""

    mutant: Mutant
    was: str
    now: str
    outcome: str
    """killed, timeout or survived"""
    by: str
    tests: int
    seconds: float


class World:
    """A folder with a copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self._folder, self._tree, self._shared = folder, folder / "tree", shared
        shutil.copytree(ROOT, self._tree, ignore=lambda at, names: NOT_COPIED if Path(at) == ROOT else ())
        self._changes = 0

    def start(self, mutant: Mutant, tests: Tests, seconds: float, control: bool) -> int:
        """Starts the tests of a mutant; gives the process that keeps them. A control is left as it is."""
        self.mutant, self.control, self._begun = mutant, control, time.monotonic()
        path, self._changes = self._tree / mutant.module, self._changes + 1
        self._source, self._state = path.read_text(), path.stat()
        changed = mutant.apply(self._source)
        assert changed is not None
        self._was, self._now = difference(self._source, changed)
        if not control:
            path.write_text(changed)
            later = self._state.st_mtime + self._changes  # never that of compiled code
            os.utime(path, (later, later))
        shutil.rmtree(self._folder / "shared", ignore_errors=True)
        shutil.copytree(self._shared, self._folder / "shared")
        stages = tests.stages(mutant.module, mutant.line, self._source, seconds)
        return warm_pytest.start(self._tree, self._folder, self._folder / "shared/gw0", stages)

    def end(self) -> Trial:
        """What has become of the mutant. Takes the change back."""
        path = self._tree / self.mutant.module
        path.write_text(self._source)
        os.utime(path, (self._state.st_atime, self._state.st_mtime))
        ended = warm_pytest.ended(self._folder)
        outcome = "survived" if ended.passed else "killed" if ended.in_time else "timeout"
        seconds = round(time.monotonic() - self._begun, 1)
        return Trial(self.mutant, self._was, self._now, outcome, ended.failed, ended.tests, seconds)


def run(
    chosen: Iterable[tuple[Mutant, bool]], places: list[World], tests: Tests, seconds: float
) -> Iterator[tuple[Trial, bool]]:
    """Tries mutants, and controls, several at a time."""
    waiting, idle = list(chosen)[::-1], list(places)
    running: dict[int, World] = {}
    while waiting or running:
        while waiting and idle:
            place, (mutant, control) = idle.pop(), waiting.pop()
            running[place.start(mutant, tests, seconds, control)] = place
        place = running.pop(os.wait()[0])
        yield place.end(), place.control
        idle.append(place)


# --- the report ----------------------------------------------------------------------------------------------------


def wilson(killed: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a rate."""
    if not count:
        return 0.0, 1.0
    rate, spread = killed / count, z * z / count
    middle = rate + spread / 2
    half = z * math.sqrt((rate * (1 - rate) + spread / 4) / count)
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def explained() -> dict[tuple[str, str, str], str]:
    """Why a mutant is no other program: by module, line and changed line."""
    known = yaml.safe_load(EQUIVALENT.read_text())
    return {(one["module"], one["was"], one["now"]): one["why"] for one in known}


def summary(trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """Counts of each group, and of all."""
    known, found = explained(), {}
    for group in (*GROUPS, "all"):
        ours = [trial for trial in trials if group in (trial.mutant.group, "all")]
        outcomes = Counter(trial.outcome for trial in ours)
        left = [trial for trial in ours if trial.outcome == "survived"]
        low, high = wilson(len(ours) - len(left), len(ours))
        found[group] = {
            "mutants": len(ours),
            "killed": outcomes["killed"] + outcomes["timeout"],
            "by timeout": outcomes["timeout"],
            "left": len(left),
            "equivalent": sum((trial.mutant.module, trial.was, trial.now) in known for trial in left),
            "rate": round((len(ours) - len(left)) / max(len(ours), 1), 4),
            "low": round(low, 4),
            "high": round(high, 4),
        }
    return found


def left(trials: Sequence[dict[str, Any]]) -> Iterator[Mutant]:
    """The mutants of a report that have survived and are not explained."""
    known = explained()
    for trial in trials:
        mutant = Mutant(**trial["mutant"])
        if trial["outcome"] not in ("killed", "timeout") and (mutant.module, trial["was"], trial["now"]) not in known:
            yield mutant


def told(trials: Sequence[Trial]) -> dict[str, Any]:
    """What the report tells of them."""
    return {"groups": summary(trials), "trials": [asdict(trial) for trial in trials]}


def write(path: Path, report: dict[str, Any]) -> None:
    """Writes the report so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--controls", type=int, default=20, help="mutants whose tests run once more without the change")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("--seconds", type=float, default=40, help="what the tests of a mutant may take")
    parser.add_argument("--again", type=Path, metavar="REPORT", help="try those that are left, instead of drawing")
    parser.add_argument("--measured", type=Path, help="where the tests of each line are kept; default: measured anew")
    parser.add_argument("--report", type=Path, help="write counts and mutants as JSON")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.again is None:
        drawn = draw(given.count, given.seed)
    else:
        drawn = list(left(json.loads(given.again.read_text())["trials"]))
    controls = drawn[: given.controls] if given.again is None else []
    warm_pytest.warm_up()
    with tempfile.TemporaryDirectory() as temporary:
        measured = given.measured or Path(temporary, "measured")
        if not measured.exists():
            measure(ROOT, list(modules()), measured, given.jobs)
        tests = Tests(measured)
        places = [World(Path(temporary, str(number)), measured / "shared") for number in range(given.jobs)]
        jobs = [*((mutant, False) for mutant in drawn), *((mutant, True) for mutant in controls)]
        trials: list[Trial] = []
        failed = 0
        for trial, control in run(jobs, places, tests, given.seconds):
            what = "control" if control else f"{trial.was}  →  {trial.now}"
            where = f"{trial.mutant.module}:{trial.mutant.line}"
            print(f"{trial.outcome}: {where}: {what} [{trial.tests} tests, {trial.seconds} s] {trial.by}", flush=True)
            if control:
                failed += trial.outcome != "survived"
            else:
                trials.append(trial)
            if given.report is not None:
                options = {name: getattr(given, name) for name in ("count", "seed", "seconds")}
                write(given.report, {"options": options, "controls failed": failed, **told(trials)})
    for group, counts in told(trials)["groups"].items():
        print(f"{group}: {counts}")


if __name__ == "__main__":
    main()
