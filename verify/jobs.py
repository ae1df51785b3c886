"""The jobs whose commands `kills.py` kills and `pairs.py` pairs: what is seen of them, and what they must leave."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from contents import contents, is_temporary
from processes import TREE, Job, Running
from scenarios import write_corpus

from nmt.checkpoint.reading import checkpoint_folders, checkpoint_path

SITE = """
import faulthandler
import os
import signal
from pathlib import Path

import nmt.commands.resume as blocks

faulthandler.register(signal.SIGUSR1)
blocks.BLOCK_LINES = 10
if "RANK" in os.environ:
    Path("ranks", f"{os.getppid()}-{os.environ['RANK']}-{os.getpid()}").touch()
"""
"""Runs in each command before it begins: stacks on demand, small blocks, and a file that names a rank's process."""
UPDATES, EVERY = 48, 4  # updates of a run, and from one checkpoint to the next
TRAIN = "train recipe.yaml --device cpu --threads 1 --out run --set training.report=false " + " ".join(
    f"--set training.{key}={value}"
    for key, value in {"updates": UPDATES, "checkpoint_updates": EVERY, "batch_tokens": 400, "warmup": 60}.items()
)
LOGGED = re.compile(r"^update ([0-9]+)/[0-9]+  loss", re.MULTILINE)
FIGURES = re.compile(rb'^\{"step": ([0-9]+), .*"loss": ', re.MULTILINE)
TRANSLATE = "translate --model model --device cpu --threads 1 --input in --output out.de --resume"


def _training(running: Running) -> dict[str, int]:
    """What a run does: several of these at once, since threads write checkpoints and plans."""
    out = running.folder / "run"
    checkpoints = checkpoint_folders(out) if out.is_dir() else []
    if not checkpoints:
        return {}  # nothing is asked of a run before its first checkpoint
    names, logged = os.listdir(out), LOGGED.findall(running.said)
    if not logged:
        return {"start": running.milliseconds}
    doing = {"plan"} if any(name.startswith("..epoch-") for name in names) else set()
    if any(name.startswith(".step-") for name in names) or any(checkpoints[-1].glob(".*.tmp")):
        doing.add("checkpoint")
    kept = f'{{"step": {logged[-1]}, '.encode() in _content(out / "dev.jsonl")
    if int(logged[-1]) % EVERY == 0 and not kept:
        doing.add("validation")  # the update is logged, and the outputs of the model are not kept yet
    return dict.fromkeys(doing or {"update"}, len(logged))


def _trained(folder: Path) -> dict[str, object]:
    """Final weights and moments, whether each update has been logged once, and what should have been removed."""
    out = folder / "run"
    last = checkpoint_path(out, UPDATES)
    return {
        **{name: _content(last / name) for name in ("model.safetensors", "training.safetensors")},
        "updates logged": FIGURES.findall(_content(out / "metrics.jsonl")),
        "left": [name for name in contents(out) if is_temporary(name) or name.startswith(".epoch-")],
    }


def _translating(running: Running) -> dict[str, int]:
    """What `nmt translate --resume` does once a block is finished."""
    files = [path.name for path in (running.folder / "out.de.parts").glob("0*") if is_newer(path, running.began)]
    if not any((running.folder / "out.de.parts").glob("0*.json")):
        return {}
    if any(is_newer(path, running.began) for path in running.folder.glob(".out.de@*")):
        return {"joining": 0}
    return {"block": sum(name.endswith(".json") for name in files)} if files else {"start": running.milliseconds}


def _translated(folder: Path) -> dict[str, object]:
    return {"out.de": _content(folder / "out.de"), "left": [path.name for path in folder.glob("*out.de?*")]}


def preparing(running: Running) -> dict[str, int]:
    """Whether data is being prepared."""
    parts = running.folder.glob("data/.faults@*.tmp")
    moment = "preparing" if any(is_newer(path, running.began) for path in parts) else "start"
    return {moment: running.milliseconds}


def _prepared(folder: Path) -> dict[str, object]:
    return dict(contents(folder / "data"))


def is_newer(path: Path, seconds: float) -> bool:
    """Whether a file was written after a time."""
    with suppress(OSError):
        return path.stat().st_mtime > seconds
    return False


def _content(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


OF_A_RUN = ("run/**/*", "data/**/*")
TRAINING = {"start": 400, "update": 8, "validation": 8, "checkpoint": 8, "plan": 8}
TRANSLATING = {"start": 200, "block": 8, "joining": 0}
JOBS = {
    job.name: job
    for job in (
        Job("train", TRAIN, _training, TRAINING, ("process",), _trained, OF_A_RUN),
        Job(
            "train on 2 ranks",
            f"{TRAIN} --devices 2",
            _training,
            {**TRAINING, "start": 2000},
            ("launcher", "rank 0", "rank 1"),
            _trained,
            OF_A_RUN,
        ),
        Job(
            "translate",
            f"{TRANSLATE} --devices 2",
            _translating,
            TRANSLATING,
            ("process", "worker 1", "worker 2"),
            _translated,
            ("out.de.parts/*",),
        ),
        Job(
            "preprocess",
            "preprocess recipe.yaml --threads 2",
            preparing,
            {"start": 50, "preparing": 200},
            ("process",),
            _prepared,
        ),
    )
}


def begin(folder: Path) -> Path:
    """Starts the process from which all commands are forked, and fills a folder `begun` with what they begin with."""
    os.environ["OMP_NUM_THREADS"] = "1"  # which the server of forks must have as well
    sys.path.insert(0, str(TREE / "tests" / "support"))
    import fork_server

    fork_server.serve_subprocess(fork_server.server)
    fork_server.become_subreaper()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    begun = folder / "begun"
    begun.mkdir()
    (begun / "ranks").mkdir()
    write_corpus(begun)
    (begun / "in").write_text((begun / "train.en").read_text() + (begun / "test.en").read_text())
    for command in ("preprocess recipe.yaml", TRAIN.replace("--out run", "--out model")):
        code, said = Running(JOBS["train"], begun, command).end()
        if code:
            raise SystemExit(said)
    return begun


def copy_of(begun: Path, name: str, prepared: bool = True) -> Path:
    """A folder beside `begun` with the same files, but for the prepared data if it is to be without."""
    folder = begun.with_name(name)
    shutil.copytree(begun, folder)
    if not prepared:
        shutil.rmtree(folder / "data")
    return folder


@cache
def reference(begun: Path, name: str) -> Mapping[str, object]:
    """What a job leaves that nobody disturbs."""
    job, folder = JOBS[name], copy_of(begun, "reference", prepared=name != "preprocess")
    code, said = Running(job, folder).end()
    if code:
        raise SystemExit(f"{job.command} ends with {code} undisturbed: {said}")
    found = job.outcome(folder)
    shutil.rmtree(folder)
    return found
