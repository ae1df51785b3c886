"""Write bundles and checkpoints atomically; during training, on a background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.reading import FORMAT, MANIFEST, MOMENTS, POSITION, WEIGHTS, prune
from nmt.recipe import Recipe
from nmt.system.device import memory_error
from nmt.system.errors import UserError
from nmt.system.files import whole_directory, write_json
from nmt.system.integrity import read_manifest, replace_manifest, write_manifest
from nmt.text.tokenizer import Tokenizer


def save_bundle(
    path: Path,
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    tokenizer: Tokenizer,
    info: Mapping[str, Any],
    training: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> None:
    """Write a bundle or, with `training` (tensors, JSON values), a checkpoint; raise UserError if that fails."""
    with whole_directory(path, MANIFEST) as part:
        save_tensors(part / WEIGHTS, weights, path)
        (part / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        if training is not None:
            tensors, values = training
            save_tensors(part / MOMENTS, tensors, path)
            write_json(part / POSITION, values)
        lossy = {"lossy": True} if tokenizer.lossy else {}
        write_manifest(part / MANIFEST, {"format": FORMAT, "task": recipe.task.name, **lossy, **info})


def save_tensors(file: Path, tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write a .safetensors file; if that fails, raise UserError naming its final `directory`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(on_cpu, file, {"format": "pt"})  # required by transformers 4
        file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors 0.8 denies access to all but the owner
    except SafetensorError as error:  # for example, the disk is full
        raise UserError(
            f"{directory / file.name}: cannot be written: {error}",
            f"free some space on the disk of {directory.parent}, and see that you may write there",
        ) from None


def add_info(path: Path, info: Mapping[str, Any]) -> None:
    """Add or replace values in a bundle's bundle.json."""
    replace_manifest(path / MANIFEST, read_manifest(path / MANIFEST) | dict(info))


PENDING = 2  # maximum checkpoints that are being or yet to be written, each with a copy of its tensors in memory


class Checkpoints:
    """A background thread that writes a run's checkpoints in order, until the first failure.

    A failure leaves the same files as killing the process at that moment.
    """

    def __init__(self, out: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self._out, self._recipe, self._tokenizer = out, recipe, tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: list[tuple[Future[None], Callable[[], None], bool]] = []  # the last: whether it holds copies
        self._failed = False

    def write(
        self,
        path: Path,
        weights: Mapping[str, Tensor],
        training: tuple[Mapping[str, Tensor], Mapping[str, Any]],
        info: Mapping[str, Any],
        then: Callable[[], None],
    ) -> None:
        """Start writing a checkpoint and pruning old ones; the tensors may be modified once this returns.

        They are copied to host memory, from a GPU in stream order and without synchronising. An existing checkpoint at
        `path` is replaced. `check`, `wait` or a later `write` calls `then` after the checkpoint has been written. While
        `PENDING` others have not been, wait for the first; raise the error of one that failed.
        """
        while sum(holds and not written.done() for written, _, holds in self._waiting) >= PENDING:
            self._complete_next()
        device = next(iter(weights.values())).device
        copies = [{name: _on_host(tensor) for name, tensor in part.items()} for part in (weights, training[0])]
        copied = torch.cuda.Event() if device.type == "cuda" else None
        if copied is not None:
            copied.record()

        def work() -> None:
            if copied is not None:
                torch.cuda.set_device(device)  # per thread; the default would allocate memory on cuda:0
                copied.synchronize()
            save_bundle(path, copies[0], self._recipe, self._tokenizer, info, (copies[1], training[1]))
            copies.clear()
            prune(self._out, self._recipe.training.keep_last)

        self._submit(work, then, holds=True)

    def add(self, path: Path, info: Mapping[str, Any], then: Callable[[], None]) -> None:
        """Add values to a checkpoint's bundle.json after all pending writes; `then` is called as for `write`."""
        self._submit(lambda: add_info(path, info), then)

    def check(self) -> None:
        """Call `then` for each write finished by now; raise the error of a failed one."""
        while self._waiting and self._waiting[0][0].done():
            self._complete_next()

    def wait(self) -> None:
        """Wait for all pending writes and call their `then`; raise the error of a failed one."""
        while self._waiting:
            self._complete_next()

    def _submit(self, work: Callable[[], None], then: Callable[[], None], holds: bool = False) -> None:
        def unless_failed() -> None:
            if self._failed:
                raise CancelledError
            try:
                work()
            except BaseException:
                self._failed = True
                raise

        self._waiting.append((self._thread.submit(unless_failed), then, holds))

    def _complete_next(self) -> None:
        written, then, _ = self._waiting[0]
        if error := written.exception():  # if this is interrupted, a later `wait` still completes it
            self._waiting.clear()  # later writes were cancelled, and their errors would hide the cause
            raise error
        del self._waiting[0]
        then()


def _on_host(tensor: Tensor) -> Tensor:
    """Copy a tensor to host memory; from a GPU, asynchronously in stream order."""
    try:
        return tensor.detach().to("cpu", copy=True, non_blocking=True)  # from a GPU, into pinned memory
    except RuntimeError as error:
        if memory_error(error) is None:
            raise
        return tensor.detach().to("cpu", copy=True)  # too little memory can be pinned, for example under WSL
