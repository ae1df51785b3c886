"""A process for each target: its memory, what becomes of one that dies, and what its inputs have reached."""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import forked, wait
from trials import ENGINES, Board, TimeIsUp, Trial, save

if TYPE_CHECKING:
    from target import Target

MEMORY = 1 << 30  # bytes that an input may take beyond what the process has
HANGS = 120.0  # seconds after which a process is ended that is at one input: it waits, or C code does not return
DEATHS = 3  # processes of a target that may die


def run_all(given: argparse.Namespace) -> None:
    """Try all targets by one engine; writes the figures. What they cover is imported as the engine needs it."""
    measured = given.engine == "hypothesis"
    targets = _import_measured(given.scratch) if measured else _import_instrumented()
    results = {}
    for target in targets:
        if not given.only or target.name in given.only:
            figures = try_target(target, given)
            reached = _reached(target, given.scratch) if measured else {}
            results[target.name] = {**figures, "reached": reached}
            print(f"{given.engine}: {target.name}: {figures['inputs']:,} inputs", flush=True)
    (given.scratch / f"{given.engine}.json").write_text(json.dumps(results))


def _import_instrumented() -> tuple[Target, ...]:
    import atheris

    with atheris.instrument_imports(include=["nmt"], enable_loader_override=False):
        return _import_targets()


def _import_measured(scratch: Path) -> tuple[Target, ...]:
    coverage = _coverage(scratch / "imports")
    coverage.start()
    targets = _import_targets()
    coverage.stop()
    coverage.save()
    return targets


def _import_targets() -> tuple[Target, ...]:
    found: tuple[Target, ...] = import_module("targets").TARGETS
    for module in {module for target in found for module in target.covers}:
        import_module(module)
    import_module("torch").set_num_threads(1)
    return found


def try_target(target: Target, given: argparse.Namespace) -> dict[str, Any]:
    """Try a target in forks of this process, of which one that dies is replaced, until its time is up."""
    inputs = accepted = deaths = 0
    used, folder = 0.0, given.scratch / f"{given.engine}-found" / target.name
    while used < given.seconds and deaths < DEATHS:
        board = Board()
        pid = forked(partial(_try, target, board, given.seconds - used, folder, given, deaths))
        ending, seconds = wait(pid, partial(_hangs, board))
        counted, good, _, newest = board.read()
        inputs, accepted, used = inputs + counted, accepted + good, used + seconds
        if ending == 0:
            break
        deaths += 1
        save(target, newest, f"the process ends with {ending}", "", folder)
    found = _findings(folder, given.findings)
    return {"inputs": inputs, "accepted": accepted, "cpu_seconds": used, "findings": found}


def _try(target: Target, board: Board, seconds: float, folder: Path, given: argparse.Namespace, number: int) -> None:
    """Try a target in this process, with little memory, until its time is up."""
    trial, name = Trial(target, board, seconds, folder), target.name
    coverage = _coverage(given.scratch / f"{name}.{number}") if given.engine == "hypothesis" else None
    with open("/proc/self/statm") as statistics:
        size = int(statistics.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if coverage is not None:
        coverage.start()
    with suppress(TimeIsUp):
        ENGINES[given.engine](trial, given.seed * 1_000_000 + number * 1000, given.scratch / "corpus" / name)
        raise RuntimeError("an engine ends before its time is up")
    if coverage is not None:
        coverage.stop()
        coverage.save()


def _hangs(board: Board) -> bool:
    """Whether the process that this board is of is at one input for too long."""
    _, _, began, _ = board.read()
    return bool(began) and time.monotonic() > began + HANGS


def _findings(found: Path, kept: Path) -> list[dict[str, str]]:
    """Move findings to where they are kept; returns what is wrong, by file."""
    findings = []
    for problem in sorted(found.glob("*.problem")):
        kept.mkdir(parents=True, exist_ok=True)
        for path in (problem, problem.with_suffix(".input")):
            shutil.copy(path, kept / path.name)
        findings.append({"file": str(kept / problem.with_suffix(".input").name), "problem": problem.read_text()})
    return findings


# --- what was reached --------------------------------------------------------------------------------------------


def _coverage(data: Path) -> Any:
    from coverage import Coverage

    return Coverage(data_file=str(data), branch=True, include=["*/nmt/*"], config_file=False)


def _reached(target: Target, scratch: Path) -> dict[str, float]:
    """The share of lines and branches of each module that a target covers which it, or importing, has reached."""
    from coverage.exceptions import CoverageException

    coverage, report = _coverage(scratch / f"{target.name}.all"), scratch / f"{target.name}.report"
    data = [scratch / "imports", *scratch.glob(f"{target.name}.[0-9]")]
    shares = {}
    coverage.combine(map(str, data), keep=True)
    for name in target.covers:
        file = import_module(name).__file__
        try:
            coverage.json_report(morfs=[file], outfile=str(report))
            shares[name] = round(json.loads(report.read_text())["totals"]["percent_covered"], 1)
        except CoverageException:
            shares[name] = 0.0
    return shares
