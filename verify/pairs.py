"""Pairs of commands on one directory, in every order of start.

The second begins at the same instant as the first; while the first prepares data, starts, makes updates, validates,
writes a checkpoint, a plan, a block or the output, or ends, which is stopped meanwhile so that this is sure; or right
after the first was killed. It must be refused by one error with a hint, wait, or do its part. The first must end as if
it were alone; where it is killed, the same command must end well after both.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from contents import damaged
from jobs import JOBS, UPDATES, copy_of, preparing, reference
from processes import Running, problem_of

HELD = 6.0  # seconds that the first is stopped at most, for the second to come where it is refused or waits
AT_ONCE, KILLED = "the same instant", ("SIGKILL", "SIGTERM")
WHILE_TRAINING = ("update", "validation", "checkpoint", "plan", "end")
GOING = " and on"  # the first is not stopped until the second has come


class Order(NamedTuple):
    """A pair, and when the second begins."""

    first: str
    """The name of a job"""
    second: str
    """A command; empty if it is the first once more"""
    when: str

    def __str__(self) -> str:
        return f"{self.first}, then {self.second or 'the same'} at {self.when}"


ORDERS = [
    Order(first, second, when)
    for first, second, times in (
        ("train", "", ("preparing", *WHILE_TRAINING, AT_ONCE, *KILLED)),
        ("train on 2 ranks", "", ("preparing", *WHILE_TRAINING, AT_ONCE, *KILLED)),
        ("train", "average run", ("update", "validation", "checkpoint", "update" + GOING, "checkpoint" + GOING)),
        ("train", "preprocess recipe.yaml", ("preparing", "update", AT_ONCE)),
        ("train", "preprocess recipe.yaml --set data.max_length=30", ("update", "validation", "checkpoint", "plan")),
        ("translate", "", ("block", "joining", AT_ONCE, *KILLED)),
        ("preprocess", "", ("preparing", AT_ONCE, *KILLED)),
    )
    for when in times
]


class Done(NamedTuple):
    """What became of an order."""

    order: Order
    second: str
    """Whether it was refused"""
    findings: list[str]


def pairs(begun: Path, seed: int) -> Iterator[Done]:
    """All orders, each in a folder of its own."""
    for number, order in enumerate(ORDERS, 1):
        draw = random.Random(f"{seed} {number}")
        from_nothing = order.when in ("preparing", AT_ONCE) or order.first == "preprocess"
        folder = copy_of(begun, f"pair-{number}", prepared=not from_nothing)
        yield _done(order, begun, folder, draw)
        shutil.rmtree(folder)


def _done(order: Order, begun: Path, folder: Path, draw: random.Random) -> Done:
    job, least = JOBS[order.first], draw.randint(0, 8)
    if order.when == "preparing" or order.first == "preprocess":
        job = replace(job, look=preparing)
    first = Running(job, folder)
    if order.when != AT_ONCE and not first.stops_when(lambda doing: _is_time(order, doing, least)):
        return Done(order, "missed", [f"the first ends before with {first.end()}"])
    if order.when in KILLED:
        first.process.send_signal(signal.Signals[order.when])
        first.let_go()
    second = Running(job, folder, order.second)
    if order.when not in (AT_ONCE, *KILLED):
        until = time.monotonic() + (0 if order.when.endswith(GOING) else HELD)
        while second.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        first.let_go()
    return _judged(order, begun, first, second)


def _is_time(order: Order, doing: dict[str, int], least: int) -> bool:
    """Whether the first is to be stopped, or killed."""
    if order.when == "end":
        return UPDATES in doing.values()
    if order.when in KILLED:
        return any(doing.get(usual, -1) >= least for usual in ("update", "block", "preparing"))
    return order.when.removesuffix(GOING) in doing


def _judged(order: Order, begun: Path, first: Running, second: Running) -> Done:
    """What is wrong with the ends of both, and with what they leave."""
    (code, said), (other, told) = first.end(), second.end()
    number = signal.Signals[order.when] if order.when in KILLED else 0
    findings = [
        f"{which} {problem}"
        for which, problem in (
            ("the first", problem_of(code, said, {-number, 128 + number})),
            ("the second", problem_of(other, told, set())),
        )
        if problem
    ]
    if code == 1 and (order.when != AT_ONCE or other == 1):
        findings.append(f"the first ends with an error: {said.strip()[-500:]}")
    again, text = Running(first.job, first.folder).end()
    if again:
        findings.append(f"the same command then ends with {again}: {text.strip()[-500:]}")
    outcome, expected = first.job.outcome(first.folder), reference(begun, first.job.name)
    findings += [f"{name} differs" for name in expected if outcome.get(name) != expected[name]]
    became = "refused" if other else "the first refused" if code == 1 else "ended well"
    return Done(order, became, [*findings, *damaged(first.folder)])
