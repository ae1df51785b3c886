"""Faults injected into commands: the n-th write, fsync, rename, open or mmap fails, or ends the process there.

    python verify/faults.py [--first 50] [--drawn 100] [--seed 1] [--only translate ...] [--report FILE]

Each command runs on a small corpus, first undisturbed, which gives the reference and how often it does each of these;
then once for each place and each fault, on a copy of what it began with. Afterwards

- what it writes is whole, old or new, and files that it does not write are as they were;
- it has ended by itself: with 0, or with 1 and exactly one `error:` and one `hint:`, or by the injected SIGKILL;
- unless it was killed, no temporary file is left;
- the same command then succeeds, writes what the reference holds, and leaves no temporary file of the first.

Findings are printed with the line that repeats them. Commands run in forks of one process that has imported all they
need, with `faults.c` under them.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
KINDS = ("write", "fsync", "rename", "open", "mmap")
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EMFILE": errno.EMFILE, "kill": 0}
PLAN = struct.Struct(f"={len(KINDS)}qqqqq4096s")  # of faults.c: counts, struck, kind, nth, error, root
IMPORTED = ("torch", "datasets", "nmt.cli", "nmt.api", "nmt.data.prepare", "nmt.training.run", "nmt.terminal.searching")
SKIPPED = "; skipped: "  # what is said where a checkpoint cannot be read, and another one is taken
PATIENCE = 120  # seconds that a command may take


class Fault(NamedTuple):
    """The nth call of a kind, and what becomes of it."""

    kind: str
    nth: int
    error: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.nth}:{self.error}"


@dataclass(frozen=True)
class Scenario:
    """A command, and those that prepare the folder in which it runs."""

    name: str
    before: Sequence[str]
    command: str
    varying: str = r"$^"
    """Files whose content differs between two undisturbed runs, a regular expression"""


TRAIN = "train recipe.yaml --device cpu --threads 1 --out ckpts"
SCENARIOS = [
    Scenario("preprocess", [], "preprocess recipe.yaml --threads 1"),
    Scenario("train", ["preprocess recipe.yaml"], TRAIN, r"ckpts/.*"),
    Scenario("resume", [f"{TRAIN} --set training.updates=4"], TRAIN, r"ckpts/.*"),
    Scenario("average", [TRAIN], "average ckpts", r"ckpts/averaged/bundle.json"),
    Scenario("export", [TRAIN, "average ckpts"], "average ckpts/averaged --format huggingface --out hf"),
    Scenario("translate", [TRAIN], "translate --model ckpts --device cpu --threads 1 --input test.en --output out.de"),
    Scenario(
        "translate-resume",
        [TRAIN],
        "translate --model ckpts --device cpu --threads 1 --input test.en --output out.de --resume",
    ),
]
WORDS = {"a": "ein", "dog": "Hund", "cat": "Kater", "sees": "sieht", "the": "den", "old": "alten", "man": "Mann"}
RECIPE = """
name: faults
data:
  source: en
  target: de
  train: [{source: train.en, target: train.de}]
  valid: [{source: valid.en, target: valid.de}]
  max_length: 50
tokenizer: {vocab_size: 280}
model: {layers: 1, d_model: 16, d_ff: 32, heads: 2, dropout: 0.1}
training: {updates: 6, batch_tokens: 200, warmup: 4, checkpoint_updates: 2, keep_last: 2, log_updates: 1, valid_beam: 1}
decoding: {beam: 2, max_extra: 3}
"""


def write_corpus(folder: Path) -> None:
    """A recipe and a corpus of 120 pairs of its own."""
    draw = random.Random(3)
    lines = [" ".join(draw.choices(list(WORDS), k=draw.randint(2, 7))) for _ in range(130)]
    parts = {"train": lines[:100], "valid": lines[100:106], "test": lines[106:]}
    (folder / "recipe.yaml").write_text(RECIPE)
    for name, part in parts.items():
        (folder / f"{name}.en").write_text("".join(f"{line}.\n" for line in part))
        (folder / f"{name}.de").write_text("".join(" ".join(WORDS[w] for w in line.split()) + ".\n" for line in part))


class Plan:
    """The plan that `faults.c` follows, in a file that all processes map."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self._root = path, os.fsencode(root.resolve())
        path.write_bytes(bytes(PLAN.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PLAN.size)

    def set(self, fault: Fault | None) -> None:
        """Begins to count anew; without a fault it only counts."""
        kind, nth, error = (-1, 0, 0) if fault is None else (KINDS.index(fault.kind), fault.nth, ERRORS[fault.error])
        self._map[:] = PLAN.pack(*[0] * len(KINDS), 0, kind, nth, error, self._root)

    def counts(self) -> dict[str, int]:
        """Calls of each kind since then."""
        return dict(zip(KINDS, PLAN.unpack(self._map[:]), strict=False))

    def struck(self) -> bool:
        """Whether the fault has come."""
        return bool(PLAN.unpack(self._map[:])[len(KINDS)])


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code, or minus the signal"""
    stderr: str


def run(command: str, folder: Path, plan: Path | None = None) -> Ended:
    """Runs a command in a fork of this process, which has imported what it needs, under a plan if there is one."""
    said = folder.parent / "stderr"
    pid = os.fork()
    if pid == 0:
        _become(command, folder, said, plan)
    deadline = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return Ended(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"))
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(-signal.SIGALRM, f"did not end within {PATIENCE} s\n")
        time.sleep(0.002)


def _become(command: str, folder: Path, said: Path, plan: Path | None) -> None:
    """Turns this fork into the command."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, os.devnull, os.O_WRONLY),
            (2, said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            os.dup2(os.open(path, flags, 0o644), descriptor)
        sys.argv = ["nmt", *command.split()]
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        from nmt.__main__ import main

        if plan is not None:
            ctypes.CDLL(None).faults_follow(os.fsencode(plan))
        main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException as error:
        os.write(2, f"not an ending of a command: {error!r}\n".encode())
    finally:
        ctypes.CDLL(None).faults_follow(None)
        os._exit(code)


# --- what is left --------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of its content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


def is_temporary(name: str) -> bool:
    """Whether a file, named from the folder of the command, is one that the command removes."""
    return name.startswith("tmp/") or any(
        re.fullmatch(r"\..*(@.*\.tmp|\.tmp)|.*\.tmp", part) for part in name.split("/")
    )


def damaged(folder: Path) -> Iterator[str]:
    """Directories of ours in which a file is not as their manifest says, and directories without one."""
    from nmt.errors import UserError
    from nmt.integrity import MANIFESTS, hash_file, read_manifest

    for manifest in (path for name in MANIFESTS for path in folder.rglob(name)):
        if is_temporary(str(manifest.relative_to(folder))):
            continue
        try:
            hashes = read_manifest(manifest)["hashes"]
        except (UserError, KeyError) as error:
            yield f"{manifest.relative_to(folder)}: {error}"
            continue
        for name, expected in hashes.items():
            file = manifest.with_name(name)
            if file != manifest and (not file.is_file() or hash_file(file) != expected):
                yield f"{file.relative_to(folder)} is damaged or missing"


class Trials:
    """The trials of one scenario in a folder."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self._work, self._start = scenario, folder / "work", folder / "start"
        write_corpus(_emptied(self._work))
        self._plan = Plan(folder / "plan", self._work)
        (self._work / "tmp").mkdir()
        for command in scenario.before:
            _succeed(command, self._work)
        shutil.rmtree(self._start, ignore_errors=True)
        shutil.copytree(self._work, self._start)
        self.before = contents(self._start)
        self._plan.set(None)
        _succeed(scenario.command, self._work, self._plan.path)
        self.counts = self._plan.counts()
        self.reference = contents(self._work)

    def places(self, first: int, drawn: int, draw: random.Random) -> Iterator[Fault]:
        """Faults at the first calls of each kind, and at some drawn from the later ones."""
        for kind, calls in self.counts.items():
            later = range(first + 1, calls + 1)
            chosen = [*range(1, min(first, calls) + 1), *sorted(draw.sample(later, min(drawn, len(later))))]
            yield from (Fault(kind, nth, error) for nth in chosen for error in ERRORS)

    def findings(self, fault: Fault) -> list[str]:
        """What is wrong after a fault, and after the next run."""
        shutil.copytree(self._start, _emptied(self._work), dirs_exist_ok=True)
        self._plan.set(fault)
        ended = run(self.scenario.command, self._work, self._plan.path)
        found = [*self._ending(ended, fault), *damaged(self._work)]
        if SKIPPED not in ended.stderr:
            found += self._differences(finished=ended.code == 0)
        if fault.error != "kill":
            found += [f"{name} is left" for name in contents(self._work) if is_temporary(name)]
        again = run(self.scenario.command, self._work)
        if again.code != 0:
            return [*found, f"the next run ends with {again.code}: {again.stderr.strip()[-300:]}"]
        return found + [f"after the next run: {text}" for text in self._differences(finished=True)]

    def _ending(self, ended: Ended, fault: Fault) -> Iterator[str]:
        allowed = {0, 1, -signal.SIGKILL} if fault.error == "kill" else {0, 1}
        starts = Counter(line.split(":")[0] for line in ended.stderr.splitlines())
        if ended.code not in allowed or "Traceback" in ended.stderr or "a bug of nmt" in ended.stderr:
            yield f"ends with {ended.code}: {ended.stderr.strip()[-300:]}"
        elif ended.code == 1 and (starts["error"], starts["hint"]) != (1, 1):
            yield f"says {starts['error']} errors and {starts['hint']} hints: {ended.stderr.strip()[-300:]}"

    def _differences(self, finished: bool) -> Iterator[str]:
        """Files that are neither as before nor as in the reference; once finished, all must be as in the latter."""
        now = {name: content for name, content in contents(self._work).items() if finished or not is_temporary(name)}
        for name in sorted({*now, *self.reference}) if finished else now:
            varies = re.fullmatch(self.scenario.varying, name) is not None
            if name not in now:
                yield f"{name} is missing"
            elif finished and name not in self.reference:
                yield f"{name} is left"
            elif not varies and now[name] not in (
                self.reference.get(name),
                None if finished else self.before.get(name),
            ):
                yield f"{name} has another content"


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _succeed(command: str, folder: Path, plan: Path | None = None) -> None:
    ended = run(command, folder, plan)
    if ended.code != 0:
        raise SystemExit(f"{command} ends with {ended.code} undisturbed: {ended.stderr}")


# --- the command ---------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=50, help="every call up to this one fails in turn")
    parser.add_argument("--drawn", type=int, default=100, help="and so many of the later ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--fault", metavar="KIND:N:ERROR", help="one fault alone, as findings name it")
    parser.add_argument("--report", type=Path, help="write counts and findings as JSON")
    return parser.parse_args()


def under_the_shim() -> None:
    """Begins this script once more with `faults.c` below it, unless that has been done; needs a C compiler."""
    if hasattr(ctypes.CDLL(None), "faults_follow"):
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "faults.so")
        subprocess.run(["cc", "-O2", "-Wall", "-fPIC", "-shared", "-o", library, HERE / "faults.c", "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        raise SystemExit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


def main() -> None:
    given = arguments()
    under_the_shim()
    for module in IMPORTED:
        import_module(module)
    draw, results = random.Random(given.seed), {}
    with tempfile.TemporaryDirectory() as folder:
        for scenario in SCENARIOS:
            if given.only and scenario.name not in given.only:
                continue
            trials = Trials(scenario, Path(folder, scenario.name))
            faults = list(trials.places(given.first, given.drawn, draw))
            if given.fault:
                kind, nth, error = given.fault.split(":")
                faults = [Fault(kind, int(nth), error)]
            found = {}
            for fault in faults:
                if problems := trials.findings(fault):
                    found[str(fault)] = problems
                    print(f"{scenario.name} {fault}", *problems, sep="\n    ", flush=True)
            calls = ", ".join(f"{count} × {kind}" for kind, count in trials.counts.items())
            print(f"{scenario.name}: {len(faults)} faults injected, {len(found)} with findings ({calls})", flush=True)
            results[scenario.name] = {"calls": trials.counts, "faults": len(faults), "findings": found}
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(results, indent=2))
    raise SystemExit(1 if any(result["findings"] for result in results.values()) else 0)


if __name__ == "__main__":
    main()
