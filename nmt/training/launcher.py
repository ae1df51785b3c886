"""Signals that stop a run, and several workers on this host: started, and restarted when one dies."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from uuid import uuid4

import torch

from nmt.bundle import checkpoint_folders
from nmt.console import Console
from nmt.errors import TRY_AGAIN, GroupError, Interrupted, UserError

RESTARTS = 3  # in a row, of a group in which a worker died before there was another checkpoint
OUTLIVED = (128 + signal.SIGTERM, -signal.SIGTERM)  # ends of workers that are sent SIGTERM since another has ended
TO_SAVE = 300  # seconds that workers have to save a checkpoint after a signal; PyTorch gives them 30
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def count_workers(device: str, devices: int | None) -> int:
    """Number of workers on this host that `--device` and `--devices` ask for; by default one per visible GPU."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if devices is None:
        return max(1, torch.cuda.device_count()) if on_gpu and ":" not in device else 1
    if devices > 1 and ":" in device:
        raise UserError(f"--devices {devices}: --device {device} is one device", "use --device cuda, or no --devices")
    if on_gpu and devices > torch.cuda.device_count():
        raise UserError(
            f"--devices {devices}: this machine has {torch.cuda.device_count()} CUDA devices",
            f"use --devices {torch.cuda.device_count()}" if torch.cuda.device_count() else "use --device cpu",
        )
    return devices


def launch(workers: int, arguments: Sequence[str], out: Path, console: Console) -> None:
    """Runs `nmt ARGUMENTS`, which trains into `out`, as several workers on this host, by PyTorch's elastic launcher.

    When a worker dies, or the others give it up, the group is restarted and resumes from its last checkpoint. Restarts
    are counted anew whenever there is another one. Raises Interrupted after a signal, which the workers receive too,
    and GroupError where a restart would not help; the workers have said why.
    """
    restart, newest = 0, checkpoint_folders(out)[-1:]
    while ends := _run_group(workers, arguments):
        codes = {code for code in ends.values() if code not in OUTLIVED} or {max(ends.values())}
        stops = [number for number in STOPS if 128 + number in codes]
        if any(code > 0 and code != TRY_AGAIN and code - 128 not in stops for code in codes):
            raise GroupError("", retry=False)
        if stops:
            raise Interrupted("", stops[0])  # a signal that only the workers received
        before, newest = newest, checkpoint_folders(out)[-1:]
        restart = 1 if newest > before else restart + 1
        died = _describe(ends)
        if restart > RESTARTS:
            raise UserError(
                f"{died}, after {RESTARTS} restarts without another checkpoint",
                "if memory ran out, lower training.device_tokens; then run the same command again, which resumes",
            )
        console.say(f"{died}: restart {restart} of {RESTARTS}, from the last checkpoint")


def _run_group(workers: int, arguments: Sequence[str]) -> dict[int, int]:
    """Runs the workers until they end; the exit codes of those that failed, by rank.

    Raises Interrupted after a signal to this process.
    """
    os.environ.setdefault("LOGLEVEL", "CRITICAL")  # PyTorch's own banners about workers that end, some read this
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(TO_SAVE))  # PyTorch 2.11 does not read it
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # without it PyTorch warns; workers set their threads themselves
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,  # PyTorch would also repeat what can only fail again
    )
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup, where PyTorch would handle it all the same
        config.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"
    try:
        with TemporaryDirectory() as logs:  # one that PyTorch chose would be left behind
            config.logs_specs = DefaultLogsSpecs(log_dir=logs)
            elastic_launch(config, sys.executable)("-m", "nmt", *arguments)
    except SignalException as stop:
        raise Interrupted("", int(stop.sigval)) from None
    except ChildFailedError as failed:
        return {rank: failure.exitcode for rank, failure in failed.failures.items()}
    return {}


def _describe(ends: Mapping[int, int]) -> str:
    """Which workers were killed. A SIGTERM is the launcher's own, sent to those that outlive another."""
    killed = {rank: signal.Signals(-code) for rank, code in ends.items() if code < 0 and -code != signal.SIGTERM}
    return ", ".join(f"rank {rank} was killed by {by.name}" for rank, by in killed.items()) or "the group broke"


@contextmanager
def stop_requests(escalate: bool) -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, so that the current update can be finished.

    With `escalate` a second signal acts as if nobody collected it. Workers of a launcher may receive a signal twice,
    from it and from the terminal, and take both as one. A signal that is ignored, as SIGHUP under nohup, stays so.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if escalate:
            signal.signal(number, before[number])

    handlers = {int(number): signal.getsignal(number) for number in STOPS}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, note)
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
