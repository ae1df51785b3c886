"""The process group of a run: one process per device, started by torchrun, Slurm or `nmt train`, or a lone process.

DistributedDataParallel averages gradients, with NCCL on GPUs and gloo on CPUs. Joint decisions and small sums use gloo
on the host, so they never wait for GPU work.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # import before a group exists: its default arguments would keep the group alive
import xxhash
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from nmt.system import torch_internals
from nmt.system.device import device_error, memory_error
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError
from nmt.system.launchers import World, meeting_point
from nmt.system.processes import STOPS
from nmt.training.meeting import LOOK, Meeting, by_rank
from nmt.training.optimizer import Optimizer

CPU = torch.device("cpu")
BEAT = 1.0  # seconds between checks of the launcher
MILLION = 1_000_000  # all of training.minutes in `Requests.spent`, which ranks exchange as whole numbers
FIRST = "first"  # store keys: results of rank 0's work in `Group.first`, by number
DEVICE = "device"  # store keys: kinds of device, by rank
FAILED = "failed"  # store key: number of failed ranks
LEFT = "left"  # store key: number of ranks that have left because of an error
GPU_FAILED = "gpu-failed"  # store key: set if a GPU has failed, so the group should restart
OUTLIVE = 5.0  # seconds for which the store stays after an error for ranks that have not left
ORPHANED = 20.0  # seconds after which a waiting rank exits if its launcher has died
INTERFACES = (
    "if a host's name means 127.0.1.1 on that host, name its network interface, such as eth0 (see ip addr), in "
    "GLOO_SOCKET_IFNAME and, with GPUs, NCCL_SOCKET_IFNAME"
)

Result = TypeVar("Result")


class Group:
    """The processes that train together, as seen by this rank; a group of one never communicates.

    Entering the context joins the group, exiting leaves it.
    """

    def __init__(
        self,
        world: World,
        timeout_minutes: float,
        device: torch.device = CPU,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Configure a rank; it will `say` for which others it waits."""
        self.rank = world.rank
        self.size = world.size
        self.local_size = world.local_size
        self.device = device
        self._world = world
        self._say = say
        self._firsts = 0  # results of `first` so far
        self._timeout = timedelta(minutes=timeout_minutes)
        self._parent = os.getppid()
        self._serves = False  # the store, which otherwise is the launcher's
        self._left = False
        self._interfaces = INTERFACES if self.size > self.local_size else ""  # a hint
        self._waiting_since: float | None = None  # when the main thread began to wait for other ranks
        self._store: Any = None
        self._parallel: DistributedDataParallel | None = None

    def __enter__(self) -> Self:
        """Rendezvous with the other ranks.

        Raise GroupError if they do not arrive, and UserError if they have nowhere to meet.
        """
        if self.size > 1:
            meeting = Meeting(self._world, self._timeout, self._say, self.is_orphaned)
            Thread(target=self._end_as_orphan, name="orphan", daemon=True).start()
            with self.guard("meeting the others", self._interfaces):
                place = meeting_point(os.environ)
                self._store = meeting.store(place)
            self._serves = self.leads and not place.is_served
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave the group; the first rank to fail raises its own error, all others a silent GroupError.

        A launcher's signal to the survivors of a failure is silenced too. A failure of this rank's GPU becomes a
        GroupError, because the group can resume from the last checkpoint.
        """
        fault = device_error(error)
        is_failure = isinstance(error, Exception) and not isinstance(error, GroupError)
        is_stopped = isinstance(error, Interrupted)
        reported = False
        if is_stopped:
            reported = self._has(FAILED)
        elif is_failure:
            reported = not self.fail(gpu_failed=fault is not None)
        self._left = True
        if self.size > 1 and isinstance(error, Exception):
            self._part()
        together = error is None or (is_stopped and not reported)  # otherwise disconnecting would wait for other ranks
        if self.size > 1 and together and dist.is_initialized():
            self._disconnect()
        if reported:
            raise self._failed_elsewhere() from error
        if fault is not None and self.size > 1:
            raise GroupError(f"rank {self.rank} on {os.uname().nodename}: {fault.message}") from error

    def _part(self) -> None:
        """Tell the others that this rank leaves because of an error; keep their store until all have."""
        with suppress(RuntimeError):
            self._store.add(LEFT, 1)
        if self._serves:
            atexit.register(self._outlive)  # by then the error is reported

    def _outlive(self) -> None:
        """Wait for ranks that would take an end of their store for a loss of the others, and report that, too."""
        end = time.monotonic() + OUTLIVE
        while self._store.add(LEFT, 0) < self.size and time.monotonic() < end:
            time.sleep(LOOK)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which reports and writes for all ranks."""
        return self.rank == 0

    @property
    def place(self) -> str:
        """Where the group trains, as messages call it."""
        if self.size == 1:
            return str(self.device)
        return f"{self.size} devices, {self.device.type}"

    @property
    def copies(self) -> float:
        """Number of copies of weights, gradients and moments in the memory of this rank's device."""
        return self.local_size if self.device.type == "cpu" else 1

    @property
    def escalates(self) -> bool:
        """Whether a second signal ends this process at once; one Ctrl-C may reach launched ranks twice."""
        return self.size == 1

    def first(self, work: Callable[[], Result]) -> Result:
        """Run `work` on rank 0 while the others wait without a timeout; return its result on every rank.

        The result must be JSON-serialisable. If `work` fails, the other ranks raise GroupError.
        """
        self._firsts += 1
        key = f"{FIRST}/{self._firsts}"
        if self.leads:
            result = work()
            if self.size > 1:
                with self.guard("telling the others to go on"):
                    self._store.set(key, json.dumps(result))
            return result
        with self.guard("waiting for rank 0"):
            self._await([key])
            answer: Result = json.loads(self._store.get(key))
            return answer

    def use(self, device: torch.device, timeout_minutes: float) -> None:
        """Train on `device`, with another timeout.

        Raise UserError, or a silent error if another rank does, unless all ranks have a device of one kind.
        """
        self.device = device
        self._timeout = timedelta(minutes=timeout_minutes)
        if self.size == 1:
            return
        keys = [f"{DEVICE}/{rank}" for rank in range(self.size)]
        with self.guard("comparing devices"):
            self._store.set(keys[self.rank], device.type)
            self._await(keys)
            difference = by_rank([kind.decode() for kind in self._store.multi_get(keys)])
        if difference:
            problem = f"ranks on unlike devices cannot exchange gradients: {difference}"
            hint = "use --device cpu on all hosts, or see why PyTorch finds no GPU on some: nvidia-smi"
            raise UserError(problem, hint)

    def _await(self, keys: Sequence[str]) -> None:
        """Wait until other ranks have set `keys` in the store; raise GroupError if one of them fails meanwhile."""
        while not self._store.check(keys):
            self.check()
            time.sleep(LOOK)

    def check(self) -> None:
        """Raise GroupError if any rank has failed or this one has left the group."""
        if self.size > 1:
            with self.guard("asking for the others"):
                if self._left or self._store.check([FAILED]):
                    raise self._failed_elsewhere()

    def connect(self) -> None:
        """Initialise PyTorch's process group."""
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
        if on_gpu:
            # NCCL kills a process that times out. Let gloo time out first: its error names the rank at fault.
            world: Any = dist.group.WORLD
            with suppress(AttributeError):  # TORCH_DISTRIBUTED_DEBUG wraps the group
                world._get_backend(self.device)._set_default_timeout(self._timeout + timedelta(minutes=1))

    def _disconnect(self) -> None:
        """Destroy PyTorch's process group.

        DistributedDataParallel's reducer, which an error's traceback may keep alive, must not hold the last reference:
        its destructor would join threads while holding the GIL, which those threads may need.
        """
        if self._parallel is not None:
            del self._parallel.reducer
            del self._parallel.logger
            del self._parallel.process_group
        dist.destroy_process_group()

    def parallel(self, module: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Return a module whose backward passes average gradients over all ranks, or `module` if that is not needed."""
        if self.size == 1:
            return module
        with warnings.catch_warnings(), self.guard("comparing models"):
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 deprecates `broadcast_buffers`
            # The only buffers are position tables, which each rank grows to fit its own batches.
            self._parallel = DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)
        return self._parallel

    @property
    def exchanges_backward(self) -> bool:
        """Whether a backward pass exchanges gradients with other ranks, unless it is within `without_exchange`."""
        return self._parallel is not None

    def exchange(self, loss: Tensor, tokens: int) -> None:
        """Perform the backward pass in which ranks exchange gradients; a message needs the batch's target `tokens`."""
        try:
            with self.guard("adding up gradients"):
                loss.backward()
        except torch.OutOfMemoryError:  # the other ranks are already exchanging gradients
            hint = f"--set training.device_tokens={max(1, tokens // 2)}"
            raise UserError(f"{self.device}: out of memory", hint) from None

    def add_up(self) -> None:
        """Sum gradients over all ranks, unless the backward pass has; a group without shared weights needs nothing."""

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm () of all gradients, given that of those to which this rank applies the optimizer."""
        return own

    def wait(self) -> None:
        """Wait until all ranks have applied the optimizer, if they share the weights."""

    def without_exchange(self) -> AbstractContextManager[None]:
        """Suspend the exchange of gradients during the block."""
        if self._parallel is None:
            return nullcontext()
        return self._parallel.no_sync()

    def agree_on_order(self) -> None:
        """Let rank 0 broadcast the order of gradients, which it does once, before the second update."""
        if self._parallel is not None:
            with self.guard("agreeing on the order of gradients"):
                if torch_internals.find("torch.distributed:Reducer._rebuild_buckets"):
                    self._parallel.reducer._rebuild_buckets()

    def fail(self, gpu_failed: bool = False) -> bool:
        """Record that this rank has failed, because of its GPU if `gpu_failed`.

        Return whether this is the first rank to fail, which alone reports the cause.
        """
        if self.size > 1:
            with suppress(RuntimeError):  # the store dies with the host that serves it
                if gpu_failed:
                    self._store.set(GPU_FAILED, "")
                return bool(self._store.add(FAILED, 1) == 1)
        return True

    def is_orphaned(self) -> bool:
        """Return whether this process's launcher has died."""
        return self.size > 1 and os.getppid() != self._parent

    def _end_as_orphan(self) -> None:
        """Exit if the launcher dies while the main thread waits for other ranks, which signals cannot interrupt."""
        launched = time.monotonic()  # when the launcher was last seen alive
        while not self._left:
            time.sleep(BEAT)
            if not self.is_orphaned():
                launched = time.monotonic()
            since = self._waiting_since
            if since is not None and time.monotonic() - max(since, launched) > ORPHANED:
                os._exit(TRY_AGAIN)

    def largest(self, *values: int) -> list[int]:
        """Return each value's maximum over all ranks."""
        return self._reduce(values, torch.int64, dist.ReduceOp.MAX)

    def agree(self, requests: Requests) -> Requests:
        """Return what the ranks do together: whatever any of them requests."""
        stop, checkpoint, spent, ran_out = self.largest(*requests)
        return Requests(stop, bool(checkpoint), spent, bool(ran_out))

    def total(self, *values: float) -> list[float]:
        """Return each value's sum over all ranks."""
        return self._reduce(values, torch.float64, dist.ReduceOp.SUM)

    def gather(self, values: Sequence[Result]) -> list[list[Result]]:
        """Return each rank's values, which can be pickled, in rank order."""
        if self.size == 1:
            return [list(values)]
        gathered: list[Any] = [None] * self.size
        with self.guard("gathering"):
            dist.all_gather_object(gathered, list(values))
        return gathered

    def check_same(self, *values: str, hint: str) -> None:
        """Raise UserError, naming the ranks, unless each of the values is the same on all of them."""
        for those in zip(*self.gather(values), strict=True):
            difference = by_rank(those)
            if difference:
                raise UserError(f"the ranks do not start from the same state: {difference}", hint)

    def equalise(self, tensors: Sequence[Tensor]) -> bool:
        """Copy the values of rank 0 into those tensors that differ between ranks; return whether any did."""
        if self.size == 1:
            return False
        # Ranks differ where the largest hash is not the smallest, which is the negative of the largest negative.
        hashes = [xxhash.xxh3_64_intdigest(content(tensor)) >> 1 for tensor in tensors]  # 63 bits fit int64
        extremes = self.largest(*hashes, *(-each for each in hashes))
        highest = extremes[: len(tensors)]
        lowest = [-each for each in extremes[len(tensors) :]]
        with self.guard("sending weights"):
            for tensor, high, low in zip(tensors, highest, lowest, strict=True):
                if high != low:
                    dist.broadcast(tensor.detach(), src=0)
        return highest != lowest

    @contextmanager
    def guard(self, doing: str, hint: str = "") -> Iterator[None]:
        """Convert PyTorch's communication errors to GroupError, except errors of this rank's own GPU."""
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
            first_line = str(error).strip().split("\n")[0]
            reason, _, _ = re.sub(r"^\[.*?\] ?", "", first_line).partition(". This is typically")
            raise GroupError(f"rank {self.rank} lost the others while {doing}: {reason}", hint=hint) from error
        finally:
            if is_outermost:
                self._waiting_since = None

    def _has(self, key: str) -> bool:
        """Return whether any rank has set `key` in the store."""
        with suppress(RuntimeError):  # the store dies with the host that serves it
            return self._store is not None and bool(self._store.check([key]))
        return False

    def _failed_elsewhere(self) -> GroupError:
        """Return a silent error: another rank has reported the cause. Allow a retry if a GPU failed."""
        return GroupError("", retry=self._has(GPU_FAILED))

    def _reduce(self, values: Sequence[Any], dtype: torch.dtype, operation: Any) -> list[Any]:
        """All-reduce each value with `operation`, unless this rank is alone."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=dtype)
        with self.guard("agreeing"):
            dist.all_reduce(tensor, operation)
        return tensor.tolist()


def content(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, copied from its device."""
    return tensor.detach().cpu().flatten().view(torch.uint8).numpy().data


class Requests(NamedTuple):
    """Requests amid an update: one rank's, or those that all have agreed on."""

    stop: int = 0  # signal number; 0 to continue
    checkpoint: bool = False
    spent: int = 0  # millionths of training.minutes that are used up; at `MILLION`, the update is the last
    ran_out: bool = False  # of memory, so that the update must be done again

    @property
    def finish(self) -> bool:
        """Whether training.minutes are used up."""
        return self.spent >= MILLION


@contextmanager
def stop_requests(escalate: bool) -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP during the block, so that the current update can finish.

    With `escalate`, a second signal has its usual effect. Launched workers must not escalate, because one Ctrl-C may
    reach them twice, from the launcher and from the terminal; once stopped, they ignore further signals even after the
    block, since srun terminates the rank that reports as soon as another one has ended. Ignored signals, such as SIGHUP
    under nohup, stay ignored.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if escalate:
            signal.signal(number, before[number])

    before = dict[int, Any]()
    for number in map(int, STOPS):
        handler = signal.getsignal(number)
        if handler is not signal.SIG_IGN:
            before[number] = handler
    is_stopped = False
    try:
        for number in before:
            signal.signal(number, note)
        yield requests
    except Interrupted:
        is_stopped = True
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_stopped and not escalate else handler)
