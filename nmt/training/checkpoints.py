"""Writes checkpoints while training continues: the weights are copied, and a thread does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt import bundle as bundles
from nmt.console import Console
from nmt.files import is_replaceable, set_aside
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer


class Checkpoints:
    """Writes the checkpoints of a run's directory one after another."""

    def __init__(self, out: Path, recipe: Recipe, tokenizer: Tokenizer, console: Console) -> None:
        self._out, self._recipe, self._tokenizer, self._console = out, recipe, tokenizer, console
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: list[tuple[Future[Path | None], Callable[[], None]]] = []

    def write(
        self,
        path: Path,
        weights: Mapping[str, Tensor],
        training: tuple[Mapping[str, Tensor], Mapping[str, Any]],
        info: Mapping[str, Any],
        then: Callable[[], None],
    ) -> None:
        """Begins to write a checkpoint and to prune old ones; the tensors are copied before this returns.

        An older checkpoint at `path` is replaced. Anything else there is renamed and reported, so that it does not
        cost the updates since the last checkpoint. `check` or `wait` calls `then` once the checkpoint is written.
        """
        device = next(iter(weights.values())).device
        parts = (weights, training[0])
        copies = [{name: tensor.detach().clone() for name, tensor in part.items()} for part in parts]
        copied = torch.cuda.Event() if device.type == "cuda" else None
        if copied is not None:
            copied.record()

        def work() -> Path | None:
            aside = None if is_replaceable(path, "bundle.json") else set_aside(path)
            with _stream_after(copied, device):
                bundles.save_bundle(path, copies[0], self._recipe, self._tokenizer, info, (copies[1], training[1]))
            copies.clear()
            bundles.prune(self._out, self._recipe.training.keep_last)
            return aside

        self._waiting.append((self._thread.submit(work), then))

    def add(self, path: Path, info: Mapping[str, Any], then: Callable[[], None]) -> None:
        """Adds values to the bundle.json of a checkpoint once it is written; `then` is called as for `write`."""
        self._waiting.append((self._thread.submit(bundles.add_info, path, info), then))

    def check(self) -> None:
        """Finishes what has been written by now; raises the error of what could not be written."""
        while self._waiting and self._waiting[0][0].done():
            self._take()

    def wait(self) -> None:
        """Waits until everything is written; raises the error of what could not be written."""
        while self._waiting:
            self._take()

    def _take(self) -> None:
        written, then = self._waiting.pop(0)
        try:
            aside = written.result()
        except BaseException:
            self._waiting.clear()  # what needs this checkpoint fails too, and would hide the cause
            raise
        if aside is not None:
            self._console.say(f"something that was no checkpoint had the name of one; it is now {aside}")
        then()


def _stream_after(event: torch.cuda.Event | None, device: torch.device) -> AbstractContextManager[Any]:
    """A CUDA stream beside that of training, which begins once the copies are made; nothing on a CPU."""
    if event is None:
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_event(event)
    return torch.cuda.stream(stream)
