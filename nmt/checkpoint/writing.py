"""Write bundles, checkpoints and averages atomically; checkpoints of a training on a background thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

from nmt.checkpoint import reading
from nmt.checkpoint.reading import MANIFEST, POSITION, Bundle
from nmt.model.transformer import Lexicon
from nmt.recipe import Recipe
from nmt.recipe.settings import resolved
from nmt.system import files, integrity
from nmt.system.console import Console
from nmt.system.device import memory_error
from nmt.system.errors import UserError
from nmt.system.processes import exclusive
from nmt.text.tokenizer import Tokenizer

Tensors = Mapping[str, Tensor]
Values = Mapping[str, Any]
State = tuple[Tensors, Values]
"""The state of training: the optimizer's moments, and the values of training.json"""


def save_bundle(
    path: Path,
    weights: Tensors,
    recipe: Recipe,
    tokenizer: Tokenizer,
    info: Values,
    training: State | None = None,
    lexicon: Lexicon | None = None,
) -> None:
    """Write a bundle or, with `training` (tensors, JSON values), a checkpoint; raise UserError if that fails."""
    with files.whole_directory(path, MANIFEST) as part:
        save_tensors(part / reading.WEIGHTS, weights, path)
        (part / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        if lexicon is not None:
            save_tensors(part / reading.LEXICON, lexicon._asdict(), path)
        if training is not None:
            tensors, values = training
            save_tensors(part / reading.MOMENTS, tensors, path)
            files.write_json(part / POSITION, values)
        about: dict[str, Any] = {"format": reading.FORMAT, "task": recipe.task.name}
        if tokenizer.lossy:
            about["lossy"] = True
        integrity.write_manifest(part / MANIFEST, {**about, **info})


def save_copy(
    bundle: Bundle,
    path: Path,
    weights: Tensors | None = None,
    recipe: Recipe | None = None,
    lexicon: Lexicon | None = None,
) -> Bundle:
    """Write a bundle again, at `path`, which may be its own, with other weights, another recipe or lexicon if given."""
    info = {key: value for key, value in bundle.written.items() if key not in ("format", "task", "lossy", "hashes")}
    given = (weights or bundle.weights(), recipe or bundle.recipe, bundle.tokenizer(), info)
    save_bundle(path, *given, lexicon=lexicon or bundle.lexicon())
    return Bundle.read(path)


def save_tensors(file: Path, tensors: Tensors, directory: Path) -> None:
    """Write a .safetensors file; if that fails, raise UserError naming its final `directory`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(on_cpu, file, {"format": "pt"})  # required by transformers 4
        file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors 0.8 denies access to all but the owner
    except SafetensorError as error:  # for example, the disk is full
        hint = f"free some space on the disk of {directory.parent}, and see that you may write there"
        raise UserError(f"{directory / file.name}: cannot be written: {error}", hint) from None


def add_info(path: Path, info: Values) -> None:
    """Add or replace values in a bundle's bundle.json."""
    integrity.replace_manifest(path / MANIFEST, integrity.read_manifest(path / MANIFEST) | dict(info))


class _Write(NamedTuple):
    """A file that is being or yet to be written."""

    written: Future[None]
    then: Callable[[], None]
    """What is to be called once it has been written"""
    holds: bool
    """Whether it holds copies of the tensors"""


PENDING = 2  # maximum checkpoints that are being or yet to be written, each with a copy of its tensors in memory


class Checkpoints:
    """A background thread that writes a run's checkpoints in order, until the first failure.

    A failure leaves the same files as killing the process at that moment.
    """

    def __init__(self, out: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self._out = out
        self._recipe = recipe
        self._tokenizer = tokenizer
        self.seconds = 0.0
        """Seconds that the last checkpoint took to write; 0 before the first"""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: list[_Write] = []

    def write(self, path: Path, weights: Tensors, training: State, info: Values, then: Callable[[], None]) -> None:
        """Start writing a checkpoint and pruning old ones; the tensors may be modified once this returns.

        They are copied to host memory, from a GPU in stream order and without synchronising. An existing checkpoint at
        `path` is replaced. `check`, `wait` or a later `write` calls `then` after the checkpoint has been written. While
        `PENDING` others have not been, wait for the first; raise the error of one that failed.
        """
        while sum(each.holds and not each.written.done() for each in self._waiting) >= PENDING:
            self._complete_next()
        device = next(iter(weights.values())).device
        moments, position = training
        copies = [_all_on_host(weights), _all_on_host(moments)]
        copied = None
        if device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record()

        def work() -> None:
            began = time.perf_counter()
            if copied is not None:
                torch.cuda.set_device(device)  # per thread; the default would allocate memory on cuda:0
                copied.synchronize()
            save_bundle(path, copies[0], self._recipe, self._tokenizer, info, (copies[1], position))
            copies.clear()  # frees their memory before pruning
            reading.prune(self._out, self._recipe.training.keep_last)
            self.seconds = time.perf_counter() - began

        self._submit(work, then, holds=True)

    def add(self, path: Path, info: Values, then: Callable[[], None]) -> None:
        """Add values to a checkpoint's bundle.json after all pending writes; `then` is called as for `write`."""
        self._submit(lambda: add_info(path, info), then)

    def check(self) -> None:
        """Call `then` for each write finished by now; raise the error of a failed one."""
        while self._waiting and self._waiting[0].written.done():
            self._complete_next()

    def wait(self) -> None:
        """Wait for all pending writes and call their `then`; raise the error of a failed one."""
        while self._waiting:
            self._complete_next()

    def _submit(self, work: Callable[[], None], then: Callable[[], None], holds: bool = False) -> None:
        """Have the thread do `work` if everything before it has succeeded; see `write` for `then`."""
        before = self._waiting[-1].written if self._waiting else None

        def unless_failed() -> None:
            if before is not None:
                before.result()  # raises its error
            work()

        self._waiting.append(_Write(self._thread.submit(unless_failed), then, holds))

    def _complete_next(self) -> None:
        first = self._waiting[0]
        error = first.written.exception()  # if this is interrupted, a later `wait` still completes it
        if error:
            self._waiting.clear()  # later writes fail with the same error
            raise error
        del self._waiting[0]
        first.then()


def _all_on_host(tensors: Tensors) -> dict[str, Tensor]:
    return {name: _on_host(tensor) for name, tensor in tensors.items()}


def _on_host(tensor: Tensor) -> Tensor:
    """Copy a tensor to host memory; from a GPU, asynchronously in stream order."""
    try:
        return tensor.detach().to("cpu", copy=True, non_blocking=True)  # from a GPU, into pinned memory
    except RuntimeError as error:
        if memory_error(error) is None:
            raise
        return tensor.detach().to("cpu", copy=True)  # too little memory can be pinned, for example under WSL


@contextmanager
def alone(path: Path, console: Console) -> Iterator[None]:
    """Wait until no other process averages into `path`, and let none do so while the block runs."""
    place = Path(os.path.realpath(path))
    with exclusive(place.with_name(f".{place.name}.lock"), str(path), console.say, wait=True):
        yield


KEPT = ("run", "step", "data", "train_data", "dev_set", "lengths", "cost")
"""Keys of bundle.json that an average has from its newest checkpoint"""


def average(
    directory: Path,
    last: int | None = None,
    out: Path | None = None,
    best: int | None = None,
    console: Console | None = None,
) -> Bundle:
    """Write the average of a run's newest `last` checkpoints, or its `best` by dev score, as a bundle.

    `out` defaults to DIRECTORY/averaged, `last` to the recipe's training.average_last. If there are fewer checkpoints,
    average all. `console` shows progress. Raise UserError if there are none, or if they are from different runs.
    """
    found, path = plan_average(directory, out)
    newest = found[-1]
    if best:
        chosen = reading.ranked(found)[-best:]
    else:
        count = last or newest.recipe.training.average_last
        chosen = found[-count:]
    if not chosen:
        problem = f"{directory}: none of its checkpoints has a dev score"
        raise UserError(problem, "use --last N, which averages the newest; only runs with data.valid have dev scores")
    mean = Mean(newest)
    with (console or Console(quiet=True)).progress("averaging", len(chosen), "checkpoints") as advance:
        for bundle in reversed(chosen):
            mean.add(bundle)
            advance(1)
    return mean.save(path, mean.weights())


def plan_average(directory: Path, out: Path | None) -> tuple[list[Bundle], Path]:
    """Return a run's checkpoints, oldest first, and the path for their average.

    Raise UserError if there are none, or if the average would replace anything but a bundle.
    """
    found = reading.checkpoints(directory)
    if not found:
        there = "holds no checkpoints" if directory.is_dir() else "no such directory"
        raise UserError(f"{directory}: {there}", f"train a model: nmt train RECIPE --out {directory}")
    path = out or directory / reading.AVERAGED
    if (path / POSITION).exists():
        problem = f"--out {path}: is a checkpoint, and its training state would be lost"
        raise UserError(problem, "name another directory")
    files.check_replaceable(path, MANIFEST)
    return found, path


class Mean:
    """The running mean of a run's checkpoints, or of models with weights, in fp32.

    The last bits of a sum depend on the order, so callers add the newest checkpoint first.
    """

    def __init__(self, newest: Bundle) -> None:
        """Start an empty mean; `newest` is the run's newest checkpoint."""
        self.newest = newest
        self.steps: list[int] = []
        self._sums = dict[str, Tensor]()
        self._total = 0.0

    def add(self, bundle: Bundle, share: float | None = None) -> None:
        """Add a checkpoint, or a model with its `share`, which is not negative.

        Raise UserError if a checkpoint is from another run, or if the weights' shapes differ.
        """
        newest = self.newest
        if share is None and bundle.info.run != newest.info.run:
            problem = f"{bundle.path} and {newest.path} are of different runs, {bundle.info.run} and {newest.info.run}"
            raise UserError(problem, f"move the checkpoints of one run out of {newest.path.parent}")
        weights = {name: tensor.float() for name, tensor in bundle.weights().items()}
        if not self._sums:
            self._sums = {name: weight.new_zeros(weight.shape) for name, weight in weights.items()}
        sums = self._sums
        alpha = 1.0 if share is None else share
        for name in sorted(sums.keys() | weights.keys()):
            if name not in sums or name not in weights or sums[name].shape != weights[name].shape:
                problem = f"{bundle.path}: weight {name} is missing or of another shape than in {newest.path}"
                raise UserError(problem, f"move {bundle.path} away, and average the others")
            sums[name].add_(weights[name], alpha=alpha)
        self._total += alpha
        self.steps.append(bundle.step)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the mean so far."""
        return {name: total / self._total for name, total in self._sums.items()}

    def save(self, path: Path, weights: Tensors, count: int | None = None, **more: Any) -> Bundle:
        """Write `weights`, the mean of the first `count` checkpoints added (or of all), and `more` in bundle.json."""
        about = self.newest.written
        info: dict[str, Any] = {key: about[key] for key in KEPT if key in about}
        info |= {"steps": sorted(self.steps[:count]), **more}
        newest = self.newest
        save_bundle(path, weights, newest.recipe, newest.tokenizer(), info, lexicon=newest.lexicon())
        return Bundle.read(path)


def mix(models: Sequence[Bundle], shares: Sequence[float], out: Path) -> Bundle:
    """Write the weighted mean of models as a bundle with the last model's recipe and history.

    The shares are non-negative and are normalised by their sum, which must be positive. Raise UserError if the models'
    tasks, tokenizers or weight shapes differ.
    """
    files.check_replaceable(out, MANIFEST)
    last = models[-1]
    others = resolved(last.recipe.model)
    for model in models[:-1]:
        model.check_task(last.info.task)
        for key, value in resolved(model.recipe.model).items():
            if key not in reading.MAY_VARY and value != others[key]:
                problem = f"{model.path} and {last.path} differ in model.{key}: {value} and {others[key]}"
                hint = "average models of which one was trained from the other, by training.init_from"
                raise UserError(problem, hint)
    reading.common_tokenizer(models)
    mean = Mean(last)
    mixed = []
    for model, share in zip(models, shares, strict=True):
        mean.add(model, share)
        mixed.append({"run": model.info.run, "step": model.step, "weight": share / sum(shares)})
    return mean.save(out, mean.weights(), run=uuid4().hex[:12], steps=[], mixed=mixed)
