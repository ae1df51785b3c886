"""Faults injected into commands: the n-th write, fsync, rename, open or mmap fails, or ends the process there.

    python verify/faults.py [--first 50] [--drawn 100] [--seed 1] [--jobs 2] [--minutes N] [--only translate ...]
                             [--report FILE]

Each command runs on a small corpus, first undisturbed, which gives the reference and how often it makes each call;
then once for each fault, on a copy of what it began with. Opening a file to read it and creating one are two kinds.

- Every place up to the 50th of each kind gets two faults: the end of the process, in the midst of a write, and an error
  drawn by seed from those that this call can have. A full disk stays full for the rest of the command.
- 100 more are drawn by seed from the later places of all kinds together, each with the end or an error.

After each fault

- what the command writes is whole, old or new, and files that it does not write are as they were;
- it has ended by itself: with 0, or with 1 and exactly one `error:` and one `hint:`, or by the injected SIGKILL;
- unless a process was killed, no temporary file is left;
- the same command then succeeds, writes what the reference holds, and leaves no temporary file of the first. The
  weights, moments and outputs are equal to the last bit; only times and what follows from them may differ.

Findings are printed with the line that repeats them. `--only NAME --fault KIND:N:ERROR` repeats one.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from commands import prepare, run, warm_up
from contents import contents, damaged, is_temporary
from injecting import KILL, POSSIBLE, Fault, Plan, has_shim, under_the_shim
from processes import Ended, problem_of, write_report
from scenarios import BLOCK_LINES, SCENARIOS, Scenario, write_corpus

SKIPPED = "; skipped: "  # what is said where a checkpoint cannot be read, and another one is taken
SET_ASIDE = "damaged checkpoint: "  # what a resumed run says of one that it cannot read, and goes on from another
KEPT = re.compile(r"ckpts/(damaged-step-.*|step-00000002/recipe\.yaml)")
"""What is there then: that checkpoint, and another in its place, by the recipe of now."""
REPORT = "ckpts/report.html"  # stays as it is if a run that is finished is started again
WITHOUT = re.compile("goes on|is not refreshed")  # said of a file that a command can do without


class Trials:
    """The trials of one scenario in a folder."""

    def __init__(self, scenario: Scenario, folder: Path, write: Callable[[Path], None] = write_corpus) -> None:
        """`write` writes what is there before any command."""
        self.scenario, self._work, self._start = scenario, folder / "work", folder / "start"
        write(_emptied(self._work))
        self._plan = Plan(folder / "plan", self._work)
        (self._work / "tmp").mkdir()
        for command in scenario.before:
            _succeed(command, self._work)
        shutil.copytree(self._work, self._start)
        self.before = contents(self._start)
        references = []
        for _ in range(2):
            shutil.copytree(self._start, _emptied(self._work), dirs_exist_ok=True)
            self._plan.set(None)
            _succeed(scenario.command, self._work, self._plan)
            references.append(contents(self._work))
        warm_up(self._work / "ckpts")
        self.counts, self.reference = self._plan.counts(), references[0]
        self._repeatable = run(scenario.command, self._work).code == 0  # a folder for transformers is not replaced
        if differences := [name for name, _ in references[0].items() ^ references[1].items()]:
            raise SystemExit(f"{scenario.command}: {differences[0]} differs between two undisturbed runs")

    def move(self, folder: Path) -> None:
        """Goes on in another folder, as several processes do at once."""
        self._work = folder / "work"
        self._plan = Plan(_emptied(folder) / "plan", self._work)

    def faults(self, first: int, drawn: int, draw: random.Random) -> Iterator[Fault]:
        """Two at the first calls of each kind, and as many as are `drawn` at later ones."""
        for kind, calls in self.counts.items():
            for nth in range(1, min(first, calls) + 1):
                yield Fault(kind, nth, KILL)
                yield Fault(kind, nth, draw.choice(POSSIBLE[kind]))
        later = [(kind, nth) for kind, calls in self.counts.items() for nth in range(first + 1, calls + 1)]
        for kind, nth in sorted(draw.sample(later, min(drawn, len(later)))):
            yield Fault(kind, nth, draw.choice((KILL, *POSSIBLE[kind])))

    def attempt(self, fault: Fault) -> tuple[bool, list[str]]:
        """Whether a fault came, and what is wrong after it, and after the next run.

        It may not come where processes or threads that run at once make their calls in another order.
        """
        shutil.copytree(self._start, _emptied(self._work), dirs_exist_ok=True)
        self._plan.set(fault)
        ended = run(self.scenario.command, self._work, self._plan)
        return self._plan.struck(), self._findings(fault, ended)

    def _findings(self, fault: Fault, ended: Ended) -> list[str]:
        found = [*self._ending(ended, fault), *damaged(self._work)]
        if SKIPPED not in ended.said:
            found += [text for text in self._differences(ended) if not self._gone(text)]
        if fault.error != KILL:
            found += [f"{name} is left" for name in contents(self._work) if is_temporary(name) and not self._gone(name)]
        if not self._repeatable and not list(self._differences(ended._replace(code=0))):
            return found  # it had done its work
        again = run(self.scenario.command, self._work)
        if again.code != 0:
            return [*found, f"the next run ends with {again.code}: {again.said.strip()[-300:]}"]
        if re.search(self.scenario.never, again.said):
            found.append(f"the next run begins anew: {again.said.strip()[:300]}")
        if ended.code == 0 and SKIPPED in ended.said:
            return found  # it has made the output of another checkpoint, and said so
        left = self._differences(ended._replace(code=0))  # but for what the first went on without
        found += [f"after the next run: {text}" for text in left if text != f"{REPORT} is missing"]
        if fault.kind == "open" and fault.error != KILL:
            # An old checkpoint that cannot be read when it is to be removed stays, since it may be worth repairing.
            found = [text for text in found if not re.search(r"ckpts/step-00000001/\S+ is left$", text)]
        return found

    def _gone(self, name: str) -> bool:
        """Whether a text is about a file that could not be removed: of what was set aside, and is replaced or done."""
        if name.startswith("ckpts/.epoch-"):  # which every run removes, even one that has nothing left to do
            return True
        removed = re.match(r"(.*/)?\.([^/]+)@(old|gone)\.tmp/", name)
        if removed is None:
            return False
        return removed[3] == "gone" or (self._work / (removed[1] or "") / removed[2]).exists()

    def _ending(self, ended: Ended, fault: Fault) -> Iterator[str]:
        allowed = {-signal.SIGKILL} if fault.error == KILL else set()
        if problem := problem_of(*ended, allowed):
            yield problem
        elif ended.code != 1 and re.search("^(error|hint):", ended.said, re.MULTILINE):
            yield f"ends with {ended.code}, and says: {ended.said.strip()[-300:]}"

    def _differences(self, ended: Ended) -> Iterator[str]:
        """Files that are neither as before nor as in the reference; once finished, all must be as in the latter.

        Apart from those of which the command said that it goes on without them.
        """
        finished = ended.code == 0
        now = {name: content for name, content in contents(self._work).items() if finished or not is_temporary(name)}
        without = [line for line in ended.said.splitlines() if WITHOUT.search(line)]
        for name in sorted({*now, *self.reference}) if finished else now:
            if any(name in line for line in without) or (SET_ASIDE in ended.said and KEPT.fullmatch(name)):
                continue
            if not finished and re.fullmatch(self.scenario.unfinished, name):
                continue
            if name not in now:
                yield f"{name} is missing"
            elif finished and name not in self.reference:
                yield f"{name} is left"
            elif now[name] not in (self.reference.get(name), None if finished else self.before.get(name)):
                yield f"{name} has another content"


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _succeed(command: str, folder: Path, plan: Plan | None = None) -> None:
    ended = run(command, folder, plan)
    if ended.code != 0:
        raise SystemExit(f"{command} ends with {ended.code} undisturbed: {ended.said}")


# --- the command ---------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=50, help="every call of a kind up to this one fails in turn")
    parser.add_argument("--drawn", type=int, default=100, help="and so many of the later ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial of a command after that")
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--fault", metavar="KIND:N:ERROR", type=Fault.of, help="one fault alone, as findings name it")
    parser.add_argument("--report", type=Path, help="write counts and findings as JSON")
    return parser.parse_args()


def try_all(scenario: Scenario, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Runs the trials of a scenario, prints findings, and gives its part of the report."""
    began, trials = time.monotonic(), Trials(scenario, folder)
    draw = random.Random(f"{given.seed} {scenario.name}")
    faults = [given.fault] if given.fault else list(trials.faults(given.first, given.drawn, draw))
    draw.shuffle(faults)  # so that those of a limited time are a sample
    found, tried, missed = {}, 0, 0
    initial = trials, folder, began + 60 * given.minutes
    with ProcessPoolExecutor(given.jobs, get_context("fork"), _take_trials, initial) as pool:
        for fault, outcome in zip(faults, pool.map(_attempt, faults), strict=True):
            if outcome is None:
                continue
            struck, problems = outcome
            tried, missed = tried + 1, missed + (not struck)
            if problems:
                found[str(fault)] = problems
                print(f"{scenario.name} {fault}", *problems, sep="\n    ", flush=True)
    calls = ", ".join(f"{count} × {kind}" for kind, count in trials.counts.items())
    print(
        f"{scenario.name}: {tried} of {len(faults)} faults, {missed} did not come, {len(found)} with findings, "
        f"in {time.monotonic() - began:.0f} s ({calls})",
        flush=True,
    )
    return {"calls": trials.counts, "faults": len(faults), "tried": tried, "missed": missed, "findings": found}


def _take_trials(trials: Trials, folder: Path, until: float) -> None:
    """Gives this process trials of its own, for a time."""
    global _trials, _until
    _trials, _until = trials, until
    _trials.move(folder / str(os.getpid()))


def _attempt(fault: Fault) -> tuple[bool, list[str]] | None:
    return _trials.attempt(fault) if time.monotonic() < _until else None


_trials: Trials  # of a process that makes some of them
_until: float


def main() -> None:
    given = arguments()
    under_the_shim()
    print("faults come", "in faults.c, below all libraries" if has_shim() else "in Python's own calls: no C compiler")
    prepare()
    blocks: Any = import_module("nmt.commands.resume")
    blocks.BLOCK_LINES = BLOCK_LINES
    with tempfile.TemporaryDirectory() as folder:
        chosen = [scenario for scenario in SCENARIOS if not given.only or scenario.name in given.only]
        results = {}
        for scenario in chosen:
            results[scenario.name] = try_all(scenario, Path(folder, scenario.name), given)
            write_report(given.report, results)
    raise SystemExit(1 if any(result["findings"] for result in results.values()) else 0)


if __name__ == "__main__":
    main()
