"""A group of equal processes, one per device: started by torchrun, Slurm or `nmt train` itself, or this one alone.

Gradients are exchanged by DistributedDataParallel (NCCL on GPUs, gloo on CPUs). Joint decisions and the few numbers
that are summed use gloo on the host, so that they do not wait for a GPU's queue.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Self, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, which its default arguments would hold for ever
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from nmt.system.device import World, device_error, memory_error
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PORT, PORTS = 20_000, 20_000  # where the tasks of a Slurm job meet, by the job's number
CPU = torch.device("cpu")
LOOK = 0.1  # seconds between two looks into the store
BEAT = 1.0  # seconds between two looks at the launcher
FIRST = "first"  # key of the store: the result of what rank 0 did while the others waited
FAILED = "failed"  # key of the store: how many ranks have failed
GPU_FAILED = "gpu-failed"  # key of the store: there if a GPU has failed, so that the group is to start again
ORPHANED = 20.0  # seconds for which a rank without a launcher waits for others
INTERFACES = (
    "if a host's name means 127.0.1.1 on that host, name its network interface, such as eth0 (see ip addr), in "
    "GLOO_SOCKET_IFNAME and, with GPUs, NCCL_SOCKET_IFNAME"
)

Result = TypeVar("Result")


def slurm_meeting_point(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port where the tasks of a Slurm step meet: its first node, a port from the job's number."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)  # of node7,node9 or node[003-017,020],login1 or r[1-2]n[1-8]-ib
    host = re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0] if first else "")
    if not host:
        raise UserError(
            "Slurm names no nodes in SLURM_STEP_NODELIST",
            "set MASTER_ADDR to the name of the first host, and MASTER_PORT",
        )
    return host, FIRST_PORT + int(environment.get("SLURM_JOB_ID", 0)) % PORTS


class Group:
    """The processes that train together, as one of them sees it. In a group of one, everything here costs nothing.

    As a context manager it meets the others on entry, and leaves them on exit.
    """

    def __init__(self, world: World, timeout_minutes: float, device: torch.device = CPU) -> None:
        self.rank, self.size, self.local_size = world.rank, world.size, world.local_size
        self.device = device
        self._timeout = timedelta(minutes=timeout_minutes)
        self._parent, self._left = os.getppid(), False
        self._interfaces = INTERFACES if self.size > self.local_size else ""
        self._waiting_since: float | None = None  # the time since when the main thread has waited for others
        self._store: Any = None
        self._parallel: DistributedDataParallel | None = None

    def __enter__(self) -> Self:
        """Meet the others; raise GroupError if they do not come."""
        if self.size > 1:
            if "MASTER_ADDR" not in os.environ:
                host, port = slurm_meeting_point(os.environ)
                os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
            os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.size))
            Thread(target=self._end_as_orphan, name="orphan", daemon=True).start()
            with self.guard("meeting the others", self._interfaces):
                store, _, _ = next(rendezvous("env://", timeout=self._timeout))
                self._store = self._private_store(store)
        return self

    def _private_store(self, store: Any) -> PrefixStore:
        """Return the part of a store that only the ranks of this attempt use; wait until all of them are there.

        torchrun keeps one store for all attempts, and nothing names an attempt on every host:
        TORCHELASTIC_RESTART_COUNT is counted by each host for itself. So each rank writes a fresh token, and rank 0
        publishes the list of all tokens whenever it changes. Tokens of an earlier attempt may be among them, but no
        rank is left to confirm such a list. Raise GroupError if some rank does not come in time, or if the launcher of
        this one is gone.
        """
        token, deadline = uuid4().hex, time.monotonic() + self._timeout.total_seconds()
        tokens = [f"nmt/token/{number}" for number in range(self.size)]
        store.set(tokens[self.rank], token)
        published = confirmed = ""
        while time.monotonic() < deadline:
            if self.leads and store.check(tokens):
                found = " ".join(value.decode() for value in store.multi_get(tokens))
                if found != published:
                    store.set("nmt/attempt", published := found)
            if store.check(["nmt/attempt"]):
                listed = store.get("nmt/attempt").decode()
                attempt = "nmt/" + hashlib.sha256(listed.encode()).hexdigest()
                members = listed.split()
                if len(members) == self.size and members[self.rank] == token:
                    confirmations = store.add(f"{attempt}/confirmations", int(listed != confirmed))
                    confirmed = listed
                    if confirmations == self.size:
                        return PrefixStore(attempt, store)
            if self.is_orphaned():  # else it might be taken for a rank of the next attempt
                raise GroupError(f"rank {self.rank}: its launcher is gone")
            time.sleep(LOOK)
        minutes = self._timeout.total_seconds() / 60
        raise GroupError(f"rank {self.rank} waited {minutes:g} minutes for the other {self.size - 1} to start")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave the group; the first rank that fails raises its error, and the others a silent GroupError.

        The signal by which a launcher ends those that outlive a failure becomes silent as well. If this rank's GPU
        failed, its error becomes a GroupError, since the group may go on from the last checkpoint.
        """
        fault = device_error(error)
        is_failure = isinstance(error, Exception) and not isinstance(error, GroupError)
        is_stopped = isinstance(error, Interrupted)
        reported = self._has(FAILED) if is_stopped else is_failure and not self.fail(gpu_failed=fault is not None)
        self._left = True
        together = error is None or (is_stopped and not reported)  # otherwise this would wait for the others
        if self.size > 1 and together and dist.is_initialized():
            self._disconnect()
        if reported:
            raise self._failed_elsewhere() from error
        if fault is not None and self.size > 1:
            raise GroupError(f"rank {self.rank} on {os.uname().nodename}: {fault.message}") from error

    @property
    def leads(self) -> bool:
        """Tell whether this is rank 0, which reports and writes for all."""
        return self.rank == 0

    def first(self, work: Callable[[], Result]) -> Result:
        """Let rank 0 do some work while the others wait, however long it takes; all ranks return its result.

        The result is a plain value that JSON can hold. If the work fails, the others raise GroupError. A group does
        this once.
        """
        if self.leads:
            result = work()
            if self.size > 1:
                with self.guard("telling the others to go on"):
                    self._store.set(FIRST, json.dumps(result))
            return result
        with self.guard("waiting for rank 0"):
            while not self._store.check([FIRST]):  # instead of one long wait: rank 0 may fail meanwhile
                self.check()
                time.sleep(LOOK)
            answer: Result = json.loads(self._store.get(FIRST))
            return answer

    def check(self) -> None:
        """Raise GroupError if a rank has failed or this one has left, since then there is nothing to wait for."""
        if self.size > 1:
            with self.guard("asking for the others"):
                if self._left or self._store.check([FAILED]):
                    raise self._failed_elsewhere()

    def connect(self) -> None:
        """Open the channels between all ranks."""
        if self.size == 1:
            return
        on_gpu = self.device.type == "cuda"
        with self.guard("connecting", self._interfaces):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                store=PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
                device_id=self.device if on_gpu else None,
            )
        if on_gpu:  # NCCL ends a process that waits too long: later than gloo, whose error names the rank to look at
            world: Any = dist.group.WORLD
            with suppress(AttributeError):  # of a group that TORCH_DISTRIBUTED_DEBUG wraps
                world._get_backend(self.device)._set_default_timeout(self._timeout + timedelta(minutes=1))

    def _disconnect(self) -> None:
        """Close the channels.

        The reducer of gradients, which an error may keep in its traceback, must not be the last to hold them: it would
        wait for their threads with the interpreter's lock, and these may be waiting for that lock.
        """
        if self._parallel is not None:
            del self._parallel.reducer, self._parallel.logger, self._parallel.process_group
        dist.destroy_process_group()

    def parallel(self, module: nn.Module) -> DistributedDataParallel | None:
        """Wrap a module so that its gradients are averaged over all ranks; return None in a group of one."""
        if self.size == 1:
            return None
        with warnings.catch_warnings(), self.guard("comparing models"):
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames what 2.11 calls broadcast_buffers
            # Buffers are tables of positions, which every rank grows as its own batches need it.
            self._parallel = DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)
        return self._parallel

    def fail(self, gpu_failed: bool = False) -> bool:
        """Tell the others that this rank has failed, and whether only its GPU has.

        Return whether it is the first, which alone reports the cause.
        """
        if self.size > 1:
            with suppress(RuntimeError):  # the store is lost with the host that held it
                if gpu_failed:
                    self._store.set(GPU_FAILED, "")
                return bool(self._store.add(FAILED, 1) == 1)
        return True

    def is_orphaned(self) -> bool:
        """Tell whether the launcher of this process is gone, so that nothing would stop or restart it."""
        return self.size > 1 and os.getppid() != self._parent

    def _end_as_orphan(self) -> None:
        """End this process if its launcher is gone while it waits for others; signals cannot end PyTorch's waits."""
        launched = time.monotonic()  # when its launcher was last there
        while not self._left:
            time.sleep(BEAT)
            if not self.is_orphaned():
                launched = time.monotonic()
            since = self._waiting_since
            if since is not None and time.monotonic() - max(since, launched) > ORPHANED:
                os._exit(TRY_AGAIN)

    def largest(self, *values: int) -> list[int]:
        """Return the largest of each value over all ranks, which is how they agree."""
        return list(values) if self.size == 1 else self._reduce(values, torch.int64, dist.ReduceOp.MAX)

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks."""
        return list(values) if self.size == 1 else self._reduce(values, torch.float64, dist.ReduceOp.SUM)

    def gather(self, texts: Sequence[str]) -> list[list[str]]:
        """Return every rank's texts, by rank."""
        if self.size == 1:
            return [list(texts)]
        gathered: list[Any] = [None] * self.size
        with self.guard("gathering"):
            dist.all_gather_object(gathered, list(texts))
        return gathered

    def check_same(self, state: str) -> None:
        """Raise UserError, which names the ranks, unless `state` is the same text on all of them."""
        ranks: dict[str, list[str]] = {}
        for rank, (text,) in enumerate(self.gather([state])):
            ranks.setdefault(text, []).append(str(rank))
        if len(ranks) > 1:
            each = (f"rank{'s' * (len(those) > 1)} {', '.join(those)} at {text}" for text, those in ranks.items())
            raise UserError(
                f"the ranks do not start from the same state: {'; '.join(each)}",
                "run the same command again once all hosts see the same files in --out and data/",
            )

    @contextmanager
    def guard(self, doing: str, hint: str = "") -> Iterator[None]:
        """Turn PyTorch's error about a broken group into a GroupError.

        Errors of this rank's own GPU stay as they are.
        """
        is_outermost = self._waiting_since is None and current_thread() is main_thread()
        if is_outermost:
            self._waiting_since = time.monotonic()
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self.size == 1 or memory_error(error) is not None or device_error(error) is not None:
                raise
            if self._has(FAILED):
                raise self._failed_elsewhere() from error
            reason = re.sub(r"^\[.*?\] ?", "", str(error).strip().split("\n")[0]).partition(". This is typically")[0]
            raise GroupError(f"rank {self.rank} lost the others while {doing}: {reason}", hint=hint) from error
        finally:
            if is_outermost:
                self._waiting_since = None

    def _has(self, key: str) -> bool:
        """Tell whether a rank has set a key of the store."""
        with suppress(RuntimeError):  # the store is lost with the host that held it
            return self._store is not None and bool(self._store.check([key]))
        return False

    def _failed_elsewhere(self) -> GroupError:
        """Return a silent error: another rank has reported the cause. To be retried if only a GPU failed."""
        return GroupError("", retry=self._has(GPU_FAILED))

    def _reduce(self, values: Sequence[Any], kind: torch.dtype, how: Any) -> list[Any]:
        """Combine each value over all ranks."""
        tensor = torch.tensor(values, dtype=kind)
        with self.guard("agreeing"):
            dist.all_reduce(tensor, how)
        return tensor.tolist()


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
