"""Read bundles and checkpoints, and find those of a run's directory; nothing is executed or unpickled.

A bundle is a self-contained directory. It holds `model.safetensors`, `recipe.yaml`, the SentencePiece models,
the tree symbols of a parser, and `bundle.json`: format, task, provenance, scores, and hashes of the other files. A
checkpoint `step-00001000/` is a bundle with the training state: `training.safetensors` (Adam's moments) and
`training.json`. Metadata is read without importing torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nmt import recipe as recipes
from nmt.parsing.linearization import TreeVocabulary, load_tokenizer
from nmt.recipe import TASKS, Recipe, Task, TaskName
from nmt.system.device import memory_error
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources, read_json, remedy, remove_directory
from nmt.system.integrity import check_files, checked, hash_file, intact, read_manifest
from nmt.text.sentences import TrainedLengths
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from nmt.model.transformer import Transformer

FORMAT = 1
CHECKPOINT = re.compile(r"step-[0-9]{8,}")
MANIFEST = "bundle.json"
AVERAGED = "averaged"  # the name of an average in a run's directory
WEIGHTS = "model.safetensors"
MOMENTS, POSITION = "training.safetensors", "training.json"  # of a checkpoint
NUMBERS = ("float32", "float16", "bfloat16", "float64")  # types of weights
MOST = 3.4028234663852886e38  # the largest number of fp32
LARGEST_FIGURE = 1e30  # no run takes more FLOPs, seconds or tokens
MAY_VARY = {"dropout", "attention_dropout", "feed_forward_dropout", "attention_window", "max_positions"}
"""Keys of `model` that may differ between a model and the one that its training started from"""


class NewerFormat(UserError):
    """A bundle of a later version of nmt, which may be intact."""


Count = Annotated[int, Field(ge=0, lt=2**63)]
Figure = Annotated[float, Field(ge=0, le=LARGEST_FIGURE)]


class _Cost(BaseModel):
    """FLOPs, seconds and tokens by name, and seconds by device."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Figure | None]
    devices: dict[str, Figure | None] = {}


class _Info(BaseModel):
    """The checked part of bundle.json."""

    model_config = ConfigDict(strict=True)

    format: Literal[1]
    task: TaskName
    run: str
    step: Count
    data: str
    scores: dict[str, float] = {}  # after training diverged they may be infinite or no numbers
    signature: str = ""
    steps: list[Count] = []
    cost: _Cost = _Cost()
    lossy: bool = False
    unscored: bool = False
    lengths: TrainedLengths | None = None
    without_improvement: Count = 0


@dataclass(frozen=True)
class Bundle:
    """The metadata of a bundle; recipe, tokenizer and weights are read when they are needed."""

    path: Path
    info: dict[str, Any]
    """The content of bundle.json: format, task, run, step, steps (of an average), data fingerprint, lengths of training
    pairs, scores, cost."""

    @property
    def step(self) -> int:
        """The number of updates; for an average, that of its newest checkpoint."""
        return int(self.info["step"])

    @property
    def task(self) -> Task:
        """The task of the model."""
        return TASKS[self.info["task"]]

    @property
    def scores(self) -> dict[str, float]:
        """Dev scores by name: bleu or f1, and perplexity; empty if there was no development set."""
        return dict(self.info.get("scores", {}))

    @property
    def dev_score(self) -> float | None:
        """The dev score by which checkpoints are compared; None if there is none."""
        return self.scores.get(self.task.metric)

    @property
    def cost(self) -> dict[str, Any]:
        """The cost of training so far; empty if it is not known."""
        return dict(self.info.get("cost", {}))

    @property
    def lossy(self) -> bool:
        """Whether the tokenizer cannot spell every text, as with models that Marian trained."""
        return bool(self.info.get("lossy", False))

    @property
    def lengths(self) -> TrainedLengths | None:
        """The lengths of the pairs that a translator was trained on; None in bundles of early versions."""
        given = self.info.get("lengths")
        return None if given is None else TrainedLengths(**given)

    def check_task(self, task: TaskName) -> None:
        """Raise UserError unless the model is for this task."""
        if self.info["task"] != task:
            raise UserError(
                f"{self.path}: is {self.task.noun}, but {TASKS[task].noun} is needed",
                f"{self.task.command} --model {self.path} runs it",
            )

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read the metadata; raises UserError if `path` is no bundle, or one of a newer format."""
        info = read_manifest(path / MANIFEST)
        known = info.get("format")
        if type(known) is int and known > FORMAT:
            raise NewerFormat(
                f"{path}: has bundle format {known}, but this version reads {FORMAT}", "install a newer version of nmt"
            )
        if info.get("task") == "score":  # what earlier versions called the task of a language model
            info["task"] = "language_model"
        checked(_Info, info, path / MANIFEST)
        return cls(path, info)

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return recipes.load(intact(self.path / "recipe.yaml"), alone=True)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; raises UserError if it is missing, damaged or not for the task."""
        symbols = TreeVocabulary.FILE
        if (self.path / symbols).exists() != self.task.has_trees:
            does = "lacks" if self.task.has_trees else "holds"
            raise UserError(
                f"{self.path}: damaged: its bundle.json says that it is {self.task.noun}, but it {does} {symbols}",
                "take it from another copy of the model",
            )
        return load_tokenizer(self.path)

    def model(self, device: torch.device) -> Transformer:
        """Load the model onto a device, in evaluation mode."""
        import torch
        from torch.utils import swap_tensors

        tokenizer = self.tokenizer()
        weights = self.weights()
        with torch.device("meta"):  # no memory and no time for initial weights, which are replaced at once
            model = new_model(self.recipe, tokenizer)
        for name, parameter in _fitting(model, weights, self.path).items():
            swap_tensors(parameter, torch.nn.Parameter(weights[name].to(device, parameter.dtype)))
        return model.eval()

    def weights(self) -> dict[str, Tensor]:
        """Map the weights into memory, by name.

        Raises UserError if the file is missing or damaged, or if a number in it cannot be a weight.
        """
        return read_tensors(self.path / WEIGHTS)

    def moments(self) -> dict[str, Tensor]:
        """Read Adam's moments of a checkpoint, by name; raises UserError as `weights` does."""
        double = self.recipe.training.precision == "fp64"
        return read_tensors(self.path / MOMENTS, ("float64" if double else "float32",))

    def position(self) -> Any:
        """Read the training.json of a checkpoint."""
        return read_json(intact(self.path / POSITION))

    def content(self) -> dict[str, Any]:
        """Return what outputs depend on: hashes of the files, by name, and the lengths by which lines are split."""
        kinds, others = (".safetensors", ".yaml", ".model", ".spm", ".json"), (MANIFEST, MOMENTS, POSITION)
        files = [file for file in sorted(self.path.iterdir()) if file.suffix in kinds and file.name not in others]
        return {"lengths": self.info.get("lengths"), **{file.name: hash_file(file) for file in files}}

    def check(self) -> None:
        """Read all files, with the training state of a checkpoint; raises UserError naming the first that is damaged.

        A file's hash is compared once in a process.
        """
        check_files(self.path / MANIFEST)
        self.tokenizer()
        self.weights()
        if CHECKPOINT.fullmatch(self.path.name):
            self.moments()
            self.position()


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> Transformer:
    """Make the untrained model of a recipe, for texts that this tokenizer encodes."""
    from nmt.model.transformer import Transformer

    starts = tokenizer.starts() if recipe.model.positions == "words" else None
    return Transformer.of(recipe, len(tokenizer.source), len(tokenizer.target), starts)


def load_weights(model: Transformer, weights: Mapping[str, Tensor], where: Path) -> None:
    """Copy weights into a model; raises UserError naming the first that does not fit."""
    import torch

    with torch.no_grad():
        for name, parameter in _fitting(model, weights, where).items():
            parameter.copy_(weights[name])


def _fitting(model: Transformer, weights: Mapping[str, Tensor], where: Path) -> dict[str, Parameter]:
    """Return the model's parameters by name; raises UserError naming the first that the weights do not fit."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        name = sorted(parameters.keys() ^ weights.keys())[0]
        side = "lacks the" if name in parameters else "has the unknown"
        raise UserError(
            f"{where}: {side} weight {name}", "give the recipe the model section that these weights were trained with"
        )
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"has shape {list(weights[name].shape)}, but {list(parameter.shape)} by the recipe"
            raise UserError(
                f"{where}: weight {name} {shapes}",
                "give the recipe the model and tokenizer sections that these weights were trained with",
            )
    return parameters


@contextmanager
def tensors_of(path: Path) -> Iterator[Path]:
    """Give the path of an intact .safetensors file to read from; raises UserError if it is missing or damaged."""
    from safetensors import SafetensorError

    try:
        yield intact(path)
    except FileNotFoundError:  # what safetensors calls every file that it cannot open; this one has just been hashed
        raise OutOfResources(f"{path}: cannot be opened", "run this again") from None
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:  # torch: no such shape, no mapping
        if memory_error(error):
            raise
        problem = str(error).partition("\n")[0]  # torch adds a stack
        raise UserError(f"{path}: damaged or not readable: {problem}", remedy(path)) from None


def read_tensors(path: Path, kinds: Sequence[str] = NUMBERS) -> dict[str, Tensor]:
    """Read a .safetensors file.

    Raises UserError if it is missing or damaged, or if the numbers of a tensor are of another type, or not finite.
    """
    from safetensors.torch import load_file

    with tensors_of(path) as file:
        tensors = load_file(file)
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        extremes = tensor.aminmax() if kind in kinds and tensor.numel() else ()  # one pass, without a copy
        check_numbers(path, name, kind, kinds, [float(extreme) for extreme in extremes])
    return tensors


def check_numbers(path: Path, name: str, kind: str, kinds: Sequence[str], extremes: Sequence[float]) -> None:
    """Raise UserError if a tensor's type of number is none of `kinds`, or an extreme value is beyond fp32."""
    if kind not in kinds:
        raise UserError(f"{path}: tensor {name}: holds numbers of type {kind}, not {' or '.join(kinds)}", remedy(path))
    if not all(abs(extreme) <= MOST for extreme in extremes):  # false for NaN
        raise UserError(f"{path}: tensor {name}: holds values that are infinite or not a number", remedy(path))


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return directory / f"step-{step:08d}"


def checkpoint_folders(directory: Path) -> list[Path]:
    """Return the folders of a run that are named like checkpoints, oldest first; some may be damaged."""
    found = (path for path in directory.glob("step-*/") if CHECKPOINT.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def survey(directory: Path) -> tuple[list[Bundle], list[UserError]]:
    """Return the checkpoints of a run, oldest first, and an error for each folder that cannot be read as one."""
    found, wrong = [], []
    for path in checkpoint_folders(directory):
        try:
            found.append(Bundle.read(path))
        except UserError as error:
            wrong.append(error)
    return found, wrong


def checkpoints(directory: Path) -> list[Bundle]:
    """Return the checkpoints of a run, oldest first; raises UserError naming the first that cannot be read."""
    found, wrong = survey(directory)
    if wrong:
        raise wrong[0]
    return found


def ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return the bundles that have a dev score, the best last, and of equals the latest last."""
    scored = [(b.task.rank(score), b.step, b) for b in bundles if (score := b.dev_score) is not None]
    return [bundle for _, _, bundle in sorted(scored, key=lambda entry: entry[:2])]


def best(bundles: Sequence[Bundle]) -> Bundle | None:
    """Return the bundle with the best dev score, of equals the latest; None if none has a score."""
    return next(reversed(ranked(bundles)), None)


def prune(directory: Path, keep_last: int) -> None:
    """Remove old checkpoints: the newest `keep_last` and the best stay."""
    found, _ = survey(directory)  # damaged ones stay, since they may be worth repairing
    keep = {bundle.path for bundle in (*found[-keep_last:], best(found)) if bundle}
    for bundle in found:
        if bundle.path not in keep:
            remove_directory(bundle.path)


def common_tokenizer(bundles: Sequence[Bundle]) -> Tokenizer:
    """Return the tokenizer of models that work together; raises UserError naming two whose tokenizers differ."""
    first, *others = bundles
    tokenizer = first.tokenizer()
    for other in others:
        if not other.tokenizer().equals(tokenizer):
            raise UserError(
                f"{first.path} and {other.path} have different tokenizers",
                "use models that were trained on the same prepared data, or one of them alone",
            )
    return tokenizer
