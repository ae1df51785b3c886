"""Commands killed at moments drawn by seed, which then go on: is the end bit-equal to that of one never stopped?

    python verify/kills.py [--kills 200] [--seed 1] [--only train ...] [--no-pairs] [--report FILE]

SIGKILL, SIGTERM or SIGHUP goes to the process that a user has started, to a rank of `nmt train --devices 2` or to a
worker of `nmt translate --devices 2`, after a first checkpoint or block: while it starts, makes updates, validates, or
writes a checkpoint, the plan of an epoch, a block, the output or prepared data. Some kills are followed by the removal
or damage of one file of the run. Then the same command goes on, up to the next kill or its end. The end must be that
of the command never stopped: weights and moments to the bit, outputs, and nothing temporary.

After these come pairs of commands on one directory, see `pairs.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jobs import JOBS, OF_A_RUN, begin, copy_of, reference
from pairs import Done, pairs
from processes import Job, Running, problem_of, write_report

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
SHARES = {"train": 8, "train on 2 ranks": 8, "translate": 3, "preprocess": 1}
MOST = 6  # kills of one run
DAMAGED = 0.3  # share of the stops after which a file is damaged
USUAL, FAR = ("update", "block"), 24  # what commands do most of the time, and how often from their start
TRIES = 5  # to end a run that nobody kills


class Kill(NamedTuple):
    """A signal that was sent."""

    job: str
    signal: str
    target: str
    moments: tuple[str, ...]
    """What the command was doing, provably."""

    def __str__(self) -> str:
        return f"{self.signal} of {self.target} in {'+'.join(self.moments)}"


class Damage(NamedTuple):
    """A file that was removed or damaged, and what it held."""

    path: Path
    how: str
    content: bytes


@dataclass
class Trial:
    """A run of a job in its folder, killed a few times."""

    job: Job
    folder: Path
    draw: random.Random
    kills: list[Kill] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    refused: int = 0
    """Damages after which the command did not go on, but said which file to replace."""
    findings: list[str] = field(default_factory=list)
    _damaged: list[Damage] = field(default_factory=list)
    """Those that a command may not have met yet."""
    _excused: bool = False
    """Whether the command may end with an error since one of its processes was killed."""

    def __str__(self) -> str:
        damages = [f"{damage.path.relative_to(self.folder)} {damage.how}" for damage in self.damages]
        told = ", ".join([*map(str, self.kills), *damages])
        return f"{self.folder.name}, {self.job.name}: {told}: {self.findings or 'equal'}"

    def run(self, kills: int, reference: Mapping[str, object]) -> None:
        """Kills the run so many times, unless it ends before, lets it end, and compares the end with a reference."""
        running: Running | None = Running(self.job, self.folder)
        while running is not None and len(self.kills) < kills:
            running = self._kill(running)
        for _ in range(TRIES):
            if running is None:
                break
            running = self._next(running)
        else:
            self.findings.append("does not end")
        outcome = self.job.outcome(self.folder)
        if any(damage.path.name == "metrics.jsonl" for damage in self.damages):
            outcome = {**outcome, "updates logged": reference["updates logged"]}  # which updates it held is lost
        self.findings += [f"{name} differs" for name in reference if outcome.get(name) != reference[name]]

    def _kill(self, running: Running) -> Running | None:
        """Sends the next signal, if the run comes so far; gives what runs then, or None if the run is at its end."""
        moment = self.draw.choice(list(self.job.moments))
        number, target = self.draw.choice(SIGNALS), self.draw.choice(self.job.targets)
        least = self.draw.randint(0, self.job.moments[moment])
        # A moment may have been missed: a command that has come far is killed in whatever it does.
        if not running.stops_when(
            lambda doing: doing.get(moment, -1) >= least or max(doing.get(usual, 0) for usual in USUAL) >= FAR
        ):
            return self._next(running)
        processes, restarts = running.processes(), running.restarts
        if there := target in processes:  # a worker may not have been started yet
            os.kill(processes[target], number)
            self.kills.append(Kill(self.job.name, number.name, target, tuple(sorted(running.doing()))))
            self._excused |= target != self.job.targets[0]
        running.let_go()
        if target == self.job.targets[0]:
            return self._next(running, number)
        if there and target.startswith("rank"):  # the launcher ends all ranks, and starts others or ends too
            while running.process.poll() is None and running.restarts == restarts:
                time.sleep(0.005)
        return running

    def _next(self, running: Running, number: int = 0) -> Running | None:
        """Waits for the end of a command and starts the next; None if the run is at its end.

        `number` is the signal that the command was sent, if it was.
        """
        code, said = running.end()
        stopped = self._endings(number) if number else {128 + each for each in SIGNALS if self._excused}
        problem = problem_of(code, said, stopped)
        if not problem and code == 1 and self._damaged and not self._excused:
            problem = self._repair(said)
        elif not problem and code == 1 and not self._excused:
            problem = f"ends with an error: {said.strip()[-500:]}"
        self.findings += [problem] if problem else []
        self._excused = False
        if code == 0:
            return None
        if self.draw.random() < DAMAGED:
            self._damage()
        return Running(self.job, self.folder)

    def _endings(self, number: int) -> set[int]:
        """How a command may end that was sent a signal: by its own handling, if it had begun to handle signals."""
        may_die = number == signal.SIGKILL or "start" in self.kills[-1].moments
        return {128 + number, -number} if may_die else {128 + number}

    def _damage(self) -> None:
        """Removes or damages a file of the run."""
        files = sorted({path for pattern in self.job.files for path in self.folder.glob(pattern) if path.is_file()})
        if not files:
            return
        path, how = self.draw.choice(files), self.draw.choice(("removed", "emptied", "cut", "flipped"))
        damage = Damage(path, how, path.read_bytes())
        self.damages.append(damage)
        self._damaged.append(damage)
        content = bytearray(damage.content)
        if how == "removed" or not content:
            path.unlink()
            return
        place = self.draw.randrange(len(content))
        if how == "flipped":
            content[place] ^= 1 << self.draw.randrange(8)
        path.write_bytes(b"" if how == "emptied" else content[:place] if how == "cut" else content)

    def _repair(self, said: str) -> str:
        """Does what a hint says, or takes copies of damaged files; what is wrong with the error, if anything is."""
        self.refused += 1
        error, hint = (
            next(line for line in said.splitlines() if line.startswith(start)) for start in ("error", "hint")
        )
        if found := re.match(r"hint: remove (data/\w+|out\.de\.parts)\b", hint):
            shutil.rmtree(self.folder / found[1])
        for damage in self._damaged:
            if damage.path.parent.is_dir():  # not of a checkpoint that has been pruned since
                damage.path.write_bytes(damage.content)
        if self.job.files == OF_A_RUN and "step-" in error and "all checkpoints are damaged" not in error:
            return f"does not go on from another checkpoint: {error}"
        names = {path.name for damage in self._damaged for path in (damage.path, *damage.path.parents[:2])}
        self._damaged = []
        return "" if any(name in error for name in names) else f"names none of {', '.join(names)}: {error}"


def trials(begun: Path, kills: int, seed: int, names: list[str]) -> Iterator[Trial]:
    """Trials, until there have been so many kills."""
    done, number = 0, 0
    while done < kills:
        number += 1
        draw = random.Random(f"{seed} {number}")
        job = JOBS[draw.choices(names, [SHARES[name] for name in names])[0]]
        trial = Trial(job, copy_of(begun, f"trial-{number}", prepared=job.name != "preprocess"), draw)
        trial.run(min(draw.randint(2, MOST), kills - done), reference(begun, job.name))
        done += len(trial.kills)
        yield trial
        shutil.rmtree(trial.folder)


def figures(done: list[Trial], both: list[Done]) -> dict[str, Any]:
    """What there was, counted."""
    kills, damages = [kill for trial in done for kill in trial.kills], [d for trial in done for d in trial.damages]
    return {
        "kills": len(kills),
        "runs": len(done),
        "equal": sum(not trial.findings for trial in done),
        "by job": Counter(kill.job for kill in kills),
        "by signal": Counter(kill.signal for kill in kills),
        "by target": Counter(kill.target for kill in kills),
        "by moment": Counter(moment for kill in kills for moment in kill.moments),
        "files damaged": Counter(damage.how for damage in damages),
        "refused": sum(trial.refused for trial in done),
        "pairs": Counter(pair.second for pair in both),
        "pairs equal": sum(not pair.findings for pair in both),
        "findings": [f"{trial.folder.name}: {finding}" for trial in done for finding in trial.findings]
        + [f"{pair.order}: {finding}" for pair in both for finding in pair.findings],
    }


def main() -> None:
    """Prints a line for each run and each pair, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS), help="kills of these jobs alone")
    parser.add_argument("--no-pairs", action="store_true")
    parser.add_argument("--report", type=Path, help="write counts and findings as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        begun, done, both = begin(Path(name)), [], []
        for pair in () if given.no_pairs else pairs(begun, given.seed):
            both.append(pair)
            print(f"{pair.order}: {pair.second}, {pair.findings or 'equal'}", flush=True)
        for trial in trials(begun, given.kills, given.seed, given.only):
            done.append(trial)
            print(trial, flush=True)
    found = figures(done, both)
    print(json.dumps(found, indent=2))
    write_report(given.report, found)
    raise SystemExit(1 if found["findings"] else 0)


if __name__ == "__main__":
    main()
