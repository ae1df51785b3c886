"""Checkpoints written beside training: what is copied, when it counts as written, and disks that fill up."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from nmt.checkpoint import writing
from nmt.checkpoint.reading import Bundle, best, checkpoint_path, checkpoints, read_tensors
from nmt.checkpoint.writing import Checkpoints, save_bundle
from nmt.recipe import Recipe, TokenizerSettings
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.training.directory import clear_leftovers

INFO = {"run": "r", "data": "d"}
DATA = {"name": "x", "source": "a", "target": "b", "train": [{"file": "x.tsv"}]}
RECIPE = Recipe.model_validate({"name": "x", "data": DATA, "training": {"keep_last": 2}})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([("a b c", "c b a")] * 5, TokenizerSettings(vocab_size=266))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open unless a test closes it; writing waits for it."""
    gate = threading.Event()
    gate.set()
    yield gate
    gate.set()


@pytest.fixture
def written(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> Checkpoints:
    save = save_bundle

    def when_told(*arguments: object) -> None:
        assert gate.wait(60)
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "save_bundle", when_told)
    return Checkpoints(tmp_path, RECIPE, tokenizer)


class Told(list[str]):
    """What was said to be written."""

    def that(self, what: str) -> Callable[[], None]:
        return lambda: self.append(what)


def write(to: Checkpoints, step: int, said: Told, weights: dict[str, Tensor] | None = None) -> Path:
    path = checkpoint_path(to._out, step)
    weights, moments = (weights or {"w": torch.full((3,), step * 1.0)}), {"w:exp_avg": torch.full((3,), step * 1.0)}
    to.write(path, weights, (moments, {"step": step}), INFO | {"step": step}, said.that(path.name))
    return path


def steps(folder: Path) -> list[int]:
    return [bundle.step for bundle in checkpoints(folder)]


def test_tensors_may_change_as_soon_as_writing_has_begun(written: Checkpoints, gate: threading.Event) -> None:
    gate.clear()
    weights = {"w": torch.ones(1000)}
    path = write(written, 1, Told(), weights)
    weights["w"].zero_()
    gate.set()
    written.wait()
    assert read_tensors(path / "model.safetensors")["w"].eq(1).all()


class OnGpu:
    """A tensor of a second GPU, which notes what is asked of it."""

    device = torch.device("cuda:1")

    def __init__(self, calls: list[object], pinned: bool) -> None:
        self._calls, self._pinned = calls, pinned

    def detach(self) -> OnGpu:
        return self

    def to(self, device: str, *, copy: bool, non_blocking: bool = False) -> Tensor:
        """A copy on the host, which can be pinned or not."""
        if non_blocking and not self._pinned:
            raise torch.AcceleratorError("CUDA error: out of memory")
        self._calls.append(("copy", device, copy, non_blocking))
        return torch.ones(3)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_gpu_copies_to_the_host_and_the_thread_waits_for_it_there(
    written: Checkpoints, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    calls: list[object] = []

    def note(name: str) -> Callable[..., None]:
        thread = threading.current_thread
        return lambda *arguments: calls.append((name, *arguments, thread().name.startswith("checkpoint")))

    event = SimpleNamespace(record=note("record"), synchronize=note("synchronize"))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "set_device", note("device"))
    path = write(written, 1, Told(), {"w": OnGpu(calls, pinned)})  # type: ignore[dict-item]
    written.wait()
    assert calls == [
        ("copy", "cpu", True, pinned),
        ("record", False),
        ("device", OnGpu.device, True),
        ("synchronize", True),
    ]
    assert read_tensors(path / "model.safetensors")["w"].eq(1).all()


def test_training_goes_on_meanwhile_and_saved_and_scored_is_said_once_it_is(
    written: Checkpoints, gate: threading.Event, tmp_path: Path
) -> None:
    gate.clear()
    said = Told()
    path = write(written, 1, said)
    written.add(path, {"scores": {"chrf": 3.0}, "unscored": False}, said.that("scores"))
    written.check()
    assert (said, steps(tmp_path)) == ([], [])
    gate.set()
    for future, _, _ in written._waiting:
        future.result()
    assert (said, steps(tmp_path)) == ([], [1])
    written.check()
    assert said == [path.name, "scores"]
    written.check()
    written.wait()
    assert said == [path.name, "scores"]
    info = Bundle.read(path).info
    assert (info.run, info.step, info.data, info.unscored) == ("r", 1, "d", False)
    assert info.scores == {"chrf": 3.0}


class Slow:
    """A thread that writes only while it is waited for."""

    def __init__(self) -> None:
        self.left: list[Future[None]] = []
        self.interrupt = False

    def submit(self, work: Callable[[], None]) -> Future[None]:
        future = Future[None]()

        def exception(timeout: float | None = None) -> BaseException | None:
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
            while not future.done():
                first, own = self.left.pop(0), None
                try:
                    first.work()  # type: ignore[attr-defined]
                except BaseException as error:
                    own = error
                first.set_exception(own) if own else first.set_result(None)
            return Future.exception(future)

        future.work, future.exception = work, exception  # type: ignore[attr-defined, method-assign]
        self.left.append(future)
        return future


def test_training_waits_once_two_checkpoints_are_pending_and_old_ones_are_removed(
    written: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, slow, copied = Told(), Slow(), []
    written._thread = slow  # type: ignore[assignment]
    monkeypatch.setattr(
        writing,
        "_on_host",
        lambda tensor: copied.append(len(slow.left)) or tensor.clone(),  # type: ignore[func-returns-value]
    )
    for step in range(1, 7):
        path = write(written, step, said)
        written.add(path, {"scores": {"chrf": 3.0}}, said.that(f"{path.name} scored"))
    assert copied == [pending for pending in (0, 2, 3, 3, 3, 3) for _ in "wm"]  # writes, and a write with its scores
    slow.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        write(written, 7, said)
    written.wait()  # as when a run ends
    names = [f"step-{step:08d}" for step in range(1, 7)]
    assert said == [line for name in names for line in (name, f"{name} scored")]
    assert steps(tmp_path) == [5, 6]


def full(*arguments: object) -> None:
    """Fail as a call does on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_wait_for_a_full_disk_ends_with_its_error(written: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    written._thread = Slow()  # type: ignore[assignment]
    monkeypatch.setattr(os, "fsync", full)
    for step in (1, 2):
        write(written, step, Told())
    with pytest.raises(UserError, match="step-00000001: the disk is full"):
        write(written, 3, Told())
    written.wait()  # nothing more is told


@pytest.mark.parametrize("place", ["weights", "sync"])
def test_a_full_disk_is_told_in_one_line_and_spoils_nothing(
    written: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    said = Told()
    older = write(written, 1, said)
    written.wait()
    content = {file.name: file.read_bytes() for file in older.iterdir()}
    if place == "weights":
        monkeypatch.setattr("safetensors.torch.save_file", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    path = write(written, 2, said)
    written.add(path, {"scores": {"chrf": 3.0}}, said.that("scores"))  # in vain, and not what is told
    with pytest.raises(UserError, match="step-00000002: the disk is full") as error:
        written.wait()
    assert "\n" not in error.value.message
    assert said == [older.name]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [older.name]
    assert {file.name: file.read_bytes() for file in older.iterdir()} == content
    written.wait()  # nothing more is told


def test_nothing_is_written_after_what_could_not_be(
    written: Checkpoints, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the run resumes from a checkpoint without scores, which it knows how to do, and not from a later one."""

    def fail(*arguments: object) -> None:
        raise UserError("too many open files", "close some")

    monkeypatch.setattr(writing, "add_info", fail)
    gate.clear()
    said = Told()
    path = write(written, 1, said)
    written.add(path, {"scores": {"chrf": 3.0}}, said.that("scores"))
    write(written, 2, said)
    gate.set()
    with pytest.raises(UserError, match="too many open files"):
        written.wait()
    written._thread.shutdown()
    assert said == [path.name]
    assert steps(tmp_path) == [1]


def test_a_checkpoint_replaces_another_of_the_same_step_with_its_scores(written: Checkpoints, tmp_path: Path) -> None:
    for step in (1, 2):
        path = write(written, step, Told())
        written.add(path, {"scores": {"chrf": 9.0}}, lambda: None)
    write(written, 2, Told(), {"w": torch.full((3,), 7.0)})
    written.wait()
    assert steps(tmp_path) == [1, 2]
    top = best(checkpoints(tmp_path))
    assert top is not None
    assert top.step == 1  # the other's score was that of other weights
    assert read_tensors(path / "model.safetensors")["w"].eq(7).all()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("step", [3, pytest.param(2, marks=pytest.mark.slow)], ids=["a new one", "one that is there"])
def test_a_process_killed_at_any_time_leaves_whole_checkpoints_alone(
    tmp_path: Path, tokenizer: Tokenizer, step: int
) -> None:
    """Killed at every call that changes the disk, one after another."""
    to = Checkpoints(tmp_path / "before", RECIPE, tokenizer)
    for before in (1, 2):
        write(to, before, Told())
    to.wait()
    ended = False
    for calls in range(1, 100):
        out = tmp_path / str(calls)
        shutil.copytree(tmp_path / "before", out)
        if ended := killed_after(calls, out, tokenizer, step):
            break
        clear_leftovers(out)
        found = checkpoints(out)
        assert [bundle.step for bundle in found] in ([1, 2], [1, 2, step], [2, step])
        assert all(entry.name.startswith("step-") for entry in (*out.iterdir(), *out.glob("*/.*")))
        for bundle in found:
            assert read_tensors(bundle.path / "model.safetensors")["w"].eq(bundle.step).all()
            assert read_tensors(bundle.path / "training.safetensors")["w:exp_avg"].eq(bundle.step).all()
            assert json.loads((bundle.path / "training.json").read_text()) == {"step": bundle.step}
            assert bundle.tokenizer().equals(tokenizer)
    assert ended
    assert calls > 10
    assert steps(out) == sorted({2, step} if step == 3 else {1, 2})


def killed_after(calls: int, out: Path, tokenizer: Tokenizer, step: int) -> bool:
    """Writes a checkpoint with scores in a process that dies at its n-th change of the disk; whether it ended."""
    child = os.fork()
    if child == 0:
        left = calls
        for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "close"):
            original = getattr(os, name)

            def counted(*arguments: object, original: Callable[..., object] = original, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return original(*arguments, **options)

            setattr(os, name, counted)
        to = Checkpoints(out, RECIPE, tokenizer)
        path = write(to, step, Told())
        to.add(path, {"scores": {"chrf": 1.0}}, lambda: None)
        to.wait()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
