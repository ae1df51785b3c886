"""Which process of a group this is, where the others are, and what a group says of itself."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

from nmt.recipe import Training
from nmt.system.errors import GroupError, Interrupted, UserError
from nmt.system.launchers import World
from nmt.training import distributed, meeting
from nmt.training.distributed import Group
from nmt.training.meeting import Meeting
from nmt.training.optimizer import Optimizer

# --- groups -------------------------------------------------------------------------------------------------


def start_attempt(store: dist.Store, size: int, last: int = 0) -> list[Group]:
    """Have the ranks of an attempt meet, of which one comes after the others; all in this process."""
    groups = [Group(World(rank, size, rank, size), 1) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        met = {rank: pool.submit(groups[rank].__enter__) for rank in range(size) if rank != last}
        assert not wait(met.values(), timeout=0.3).done
        met[last] = pool.submit(groups[last].__enter__)
        return [met[rank].result() for rank in range(size)]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[Group, Group]:
    """Two ranks of a group that have met and are not yet connected; both in this process."""
    store = dist.HashStore()
    monkeypatch.setattr(Meeting, "_find_store", lambda meeting, place: store)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    lead, other = start_attempt(store, 2)
    return lead, other


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("size", [2, 3])
def test_an_attempt_reads_nothing_of_the_one_before(pair: tuple[Group, Group], last: int, size: int) -> None:
    """torchrun keeps one store for all attempts, in which ranks of a dead one have left what they told one another."""
    lead, other = pair
    lead.first(lambda: "update 5")
    assert other.fail()
    again = start_attempt(lead._store.underlying_store, size, last)
    assert [group.first(lambda: "update 7") for group in again] == size * ["update 7"]
    again[1].check()
    assert again[1].fail()  # the first of this attempt


def within(group: Group) -> ExitStack:
    """A block at whose end a group is left that was entered before."""
    stack = ExitStack()
    stack.push(group)
    return stack


@contextmanager
def silent(retry: bool = False) -> Iterator[None]:
    """Expects the error of a rank that leaves it to others to say why."""
    with pytest.raises(GroupError) as error:
        yield
    assert (error.value.message, error.value.retry) == ("", retry)


def test_others_wait_until_rank_0_is_done(pair: tuple[Group, Group], monkeypatch: pytest.MonkeyPatch) -> None:
    lead, other = pair
    waiting, order = threading.Event(), []
    monkeypatch.setattr(distributed.time, "sleep", lambda seconds: waiting.set())
    thread = threading.Thread(target=lambda: (other.first(lambda: order.append("other")), order.append("goes on")))
    thread.start()
    assert waiting.wait(60)
    lead.first(lambda: order.append("lead"))
    thread.join(60)
    assert order == ["lead", "goes on"]


def test_rank_0_tells_the_others_one_thing_after_another(pair: tuple[Group, Group]) -> None:
    lead, other = pair
    told = ["update 5", "update 7"]
    assert [lead.first(lambda each=each: each) for each in told] == told
    assert [other.first(refuse) for _ in told] == told


def test_others_end_silently_where_rank_0_has_failed(pair: tuple[Group, Group]) -> None:
    lead, other = pair
    with pytest.raises(UserError):
        lead.first(refuse)
    assert lead.fail()
    for ask in (lambda: other.first(refuse), other.check):
        with silent():
            ask()
    with silent(), other.guard("agreeing"):
        raise RuntimeError("connection closed by peer")


def refuse() -> None:
    raise UserError("no", "yes")


def test_leaving_a_group_tells_the_error_of_the_first_rank_alone(pair: tuple[Group, Group]) -> None:
    lead, other = pair
    with pytest.raises(UserError, match="no"), within(lead):
        refuse()
    with silent(), within(other):
        refuse()


def test_the_store_outlives_an_error_until_the_others_know_it(
    pair: tuple[Group, Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would report that they have lost the others, and the job would be started again."""
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(distributed.atexit, "register", at_exit.append)
    lead, other = pair
    with pytest.raises(UserError), within(lead):
        refuse()
    (wait_for_others,) = at_exit
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(wait_for_others)
        assert wait([ended], timeout=0.3).not_done
        with silent(), within(other):
            other.check()
        ended.result(distributed.OUTLIVE / 2)
    assert len(at_exit) == 1  # no other rank serves the store


@pytest.mark.parametrize("is_stopped", [True, False])  # a run may have made its last update before it would stop
@pytest.mark.parametrize("escalates", [True, False])
def test_a_stopped_rank_is_not_stopped_again_while_it_reports(escalates: bool, is_stopped: bool) -> None:
    """As by srun, once another rank has ended."""
    after = signal.SIG_IGN if is_stopped and not escalates else signal.default_int_handler
    try:
        with suppress(Interrupted), distributed.stop_requests(escalates) as requests:
            assert requests == []
            signal.raise_signal(signal.SIGINT)
            assert requests == [signal.SIGINT]
            if is_stopped:
                raise Interrupted("stopped", signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is after
    finally:
        for number in distributed.STOPS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def test_the_signal_that_ends_those_who_outlive_a_failure_says_nothing(pair: tuple[Group, Group]) -> None:
    lead, other = pair
    assert other.fail()
    with silent(), within(lead):
        raise Interrupted("terminated", 15)


@pytest.mark.parametrize("error", [None, Interrupted("stopped", 15), GroupError("lost")])
def test_what_ends_all_ranks_alike_is_no_failure_of_one(
    pair: tuple[Group, Group], error: Interrupted | GroupError | None
) -> None:
    lead, other = pair
    with pytest.raises(type(error)) if error else nullcontext(), within(lead):
        if error:
            raise error
    assert other.fail()  # the first


def has_threads_of_gloo() -> bool:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            names.append(Path(task, "comm").read_text().strip())
    return "pt_gloo_runloop" in names


def wait_until_threads_of_gloo(are_there: bool) -> None:
    """They name themselves some time after their start, and are listed some time after their end."""
    deadline = time.monotonic() + 60
    while has_threads_of_gloo() != are_there:
        assert time.monotonic() < deadline, f"threads of gloo: {'none' if are_there else 'left'}"
        time.sleep(0.005)


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
@pytest.mark.filterwarnings("ignore:`broadcast_buffers`:FutureWarning")
def test_nothing_of_a_group_is_left_that_an_error_keeps_in_its_traceback(pair: tuple[Group, Group]) -> None:
    """Else its threads could end no more: see `Group._disconnect`."""

    def train() -> NoReturn:
        module = torch.nn.Linear(2, 2)
        model = pair[0].parallel(module, Optimizer(module, 2, Training()))
        assert model is not None
        raise Interrupted("stopped", 15)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wait_until_threads_of_gloo(are_there=True)
    with pytest.raises(Interrupted) as error, within(pair[0]):
        train()
    assert error.value.__traceback__ is not None
    wait_until_threads_of_gloo(are_there=False)


def test_a_broken_group_is_told_in_a_line(pair: tuple[Group, Group]) -> None:
    lead, _ = pair
    with pytest.raises(GroupError, match="rank 0 lost the others while agreeing: Timed out") as error:  # noqa: SIM117
        with lead.guard("agreeing"):
            raise RuntimeError("[/pytorch/third_party/gloo/transport.cc:81] Timed out waiting 6000ms\nmore")
    assert error.value.retry


def test_running_out_of_memory_breaks_no_group(pair: tuple[Group, Group]) -> None:
    with pytest.raises(torch.OutOfMemoryError), pair[0].guard("adding up gradients"):
        raise torch.OutOfMemoryError("full")


ILLEGAL = "CUDA error: an illegal memory access was encountered"


def test_a_gpu_that_fails_is_told_by_its_rank_alone_and_the_group_is_to_start_again(pair: tuple[Group, Group]) -> None:
    lead, other = pair
    place = f"rank 1 on {os.uname().nodename}"
    with pytest.raises(GroupError) as error, within(other), other.guard("adding up gradients"):
        raise torch.AcceleratorError(f"{ILLEGAL}\nCUDA kernel errors might be asynchronously reported")
    assert (error.value.message, error.value.retry) == (f"{place}: {ILLEGAL}", True)
    with silent(retry=True), within(lead), lead.guard("agreeing"):
        raise RuntimeError("Connection closed by peer")
    with silent(retry=True), within(lead):
        raise ValueError("something that followed from it")
    with silent(retry=True):
        lead.check()


def test_a_rank_that_has_left_waits_for_nothing_any_more(pair: tuple[Group, Group]) -> None:
    """Its thread that waits for a plan would keep its process alive."""
    pair[1].check()
    pair[1].__exit__(None, None, None)
    with pytest.raises(GroupError):
        pair[1].check()
    pair[0].check()


class Gone:
    """A store whose host is gone."""

    def __getattr__(self, name: str) -> Any:
        def broken(*arguments: object) -> None:
            raise dist.DistNetworkError("failed to recv")

        return broken


def test_a_store_that_is_gone_is_a_broken_group(pair: tuple[Group, Group]) -> None:
    for group in pair:
        group._store = Gone()
        assert group.fail()  # nobody else can say it
        for ask in (lambda group=group: group.first(lambda: None), group.check):
            with pytest.raises(GroupError, match=f"rank {group.rank} lost the others while .*: failed to recv"):
                ask()


# --- meeting ------------------------------------------------------------------------------------------------


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port of this host, at which ranks meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(number))
    return int(number)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "SILENCE", 0.0)


def lone(rank: int, size: int = 3, minutes: float = 0.002) -> tuple[str, str, list[str]]:
    """The error and hint of a rank whose others do not come, and what it has said before."""
    said: list[str] = []
    with pytest.raises(GroupError) as error, Group(World(rank, size, 0, size), minutes, say=said.append):
        pass
    return error.value.message, error.value.hint, said


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_waits_for_others_says_for_which_and_where(port: int) -> None:
    for rank, missing in ((1, f"rank 0 at 127.0.0.1:{port} (Connection refused)"), (0, "ranks 1, 2")):
        message, hint, said = lone(rank)
        assert message == f"rank {rank} waited 0.002 minutes for {missing}"
        assert hint.startswith("see that all ranks are started, with the same MASTER_ADDR")
        assert said == [f"rank {rank} waits for {missing}, for up to 0.002 minutes"]


@pytest.mark.usefixtures("impatient", "port")
def test_a_host_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("nowhere.invalid", "a..b"):
        monkeypatch.setenv("MASTER_ADDR", host)
        assert f"for rank 0 at {host}:" in lone(1)[0]


def test_a_port_that_is_taken_is_told_with_what_to_do(port: int) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        with pytest.raises(UserError, match=f"cannot meet at port {port}: address already in use") as error:
            Group(World(0, 2, 0, 2), 1).__enter__()
    assert error.value.hint.startswith("set MASTER_PORT to another port")


def test_a_rank_that_meets_another_program_does_not_wait_for_ever(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert lone(1)[0] == f"rank 1 waited 0.002 minutes for an answer from 127.0.0.1:{port}"


def test_ranks_meet_by_what_they_know_of_one_another(port: int) -> None:
    groups = [Group(World(rank, 2, rank, 2), 1) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Group.__enter__, groups))
    assert groups[0].fail()
    assert not groups[1].fail()


def test_ranks_of_another_run_at_the_same_place_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a step of Slurm that has got the port of another."""
    store = dist.HashStore()
    monkeypatch.setattr(Meeting, "_find_store", lambda meeting, place: store)
    for name, value in {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    lone(1, size=2)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    start_attempt(store, 2)


def test_ranks_on_a_gpu_and_on_a_cpu_are_told_from_one_another(pair: tuple[Group, Group]) -> None:
    with ThreadPoolExecutor(2) as pool:
        used = [pool.submit(pair[rank].use, torch.device(name), 1) for rank, name in enumerate(("cuda:0", "cpu"))]
    for each in used:
        with pytest.raises(UserError, match="cannot exchange gradients: rank 0: cuda; rank 1: cpu"):
            each.result()


def test_a_rank_whose_device_is_missing_keeps_no_other_waiting(pair: tuple[Group, Group]) -> None:
    assert pair[1].fail()
    with silent():
        pair[0].use(torch.device("cpu"), 1)
