"""Read bundles and checkpoints, and list, rank and prune those of a run; nothing is executed or unpickled.

A bundle is a self-contained directory: `model.safetensors`, `recipe.yaml`, the SentencePiece models, a parser's tree
symbols, and `bundle.json` with format, task, provenance, scores and the other files' hashes. A checkpoint, such as
`step-00001000/`, adds the training state: `training.safetensors` (moments) and `training.json`. Metadata is read
without importing torch.
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
from nmt.formats.confidence import Confidence
from nmt.formats.sentences import TrainedLengths
from nmt.parsing.linearization import TreeVocabulary, load_tokenizer
from nmt.recipe import TASKS, Recipe, Task, TaskName
from nmt.system import files, integrity
from nmt.system.console import figure
from nmt.system.device import memory_error
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from nmt.model.transformer import Lexicon, Transformer

FORMAT = 1
CHECKPOINT = re.compile(r"step-[0-9]{8,}")
MANIFEST = "bundle.json"
AVERAGED = "averaged"  # default name of an average, inside the run's directory
WEIGHTS = "model.safetensors"
LEXICON = "lexicon.safetensors"  # of translators with large vocabularies
MOMENTS = "training.safetensors"  # in checkpoints only, as is the next
POSITION = "training.json"
CONTENT = (".safetensors", ".yaml", ".model", ".spm", ".json")  # suffixes of the files that determine outputs
WEIGHT_DTYPES = ("float32", "float16", "bfloat16", "float64")
FP32_MAX = 3.4028234663852886e38  # weights beyond it, in fp64, would be infinite in fp32
LARGEST_FIGURE = 1e30  # no run takes more FLOPs, seconds or tokens
POOR = 50.0  # dev perplexity above which a model has learnt too little to be of use
MAY_VARY = {"dropout", "attention_dropout", "feed_forward_dropout", "max_positions"}
"""Keys of `model` that may differ between a model and the one its training started from"""


class NewerFormat(UserError):
    """Raised for bundles that a later version of nmt wrote; they may be intact."""


Natural = Annotated[int, Field(ge=0, lt=2**63)]
Figure = Annotated[float, Field(ge=0, le=LARGEST_FIGURE)]


class _Cost(BaseModel):
    """The cost of training: FLOPs, seconds and tokens by name, and seconds by device."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Figure | None]
    devices: dict[str, Figure | None] = {}


class BundleInfo(BaseModel):
    """The members of bundle.json that nmt reads."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: Literal[1]
    task: TaskName
    run: str
    """Identifier of the run that the model is from"""
    step: Natural
    """Number of updates; for an average, those of its newest checkpoint"""
    data: str
    """Fingerprint of all of the prepared data"""
    train_data: str = ""  # unknown, as is `dev_set`, for a model from Hugging Face's transformers
    """Fingerprint of what ties a run: its training data, limits, languages and tokenizer"""
    dev_set: str = ""
    """Fingerprint of the development set"""
    scores: dict[str, float] = {}  # infinite or NaN if training diverged
    """Dev scores by name: chrf and bleu, or f1, and perplexity; empty without a development set"""
    signatures: dict[str, str] = {}
    """How the dev scores were computed, by name"""
    interval: tuple[float, float] | None = Field(None, strict=False)
    """95% interval of the score that ranks"""
    steps: list[Natural] = []
    """Of an average: the updates of its checkpoints"""
    curve: list[dict[str, int | float]] = []
    """Of an average: for every number of newest checkpoints that was tried, `last`, the dev scores of their average"""
    robustness: dict[str, int | float] = {}
    """Of a translator's average: chrF of some dev lines, plain and changed, by name as in `nmt.training.robustness`,
    and the number of these `lines`"""
    cost: _Cost = _Cost()
    """The cost of training so far"""
    lossy: bool = False
    """Whether the tokenizer cannot represent every text, as in models that Marian trained"""
    unscored: bool = False
    """Whether a checkpoint is yet to be scored"""
    lengths: TrainedLengths | None = None
    """Lengths of a translator's training pairs"""
    confidence: Confidence | None = None
    """How a translator's confidence follows from what a search knows"""
    without_improvement: Natural = 0
    """Number of checkpoints since the best one"""


@dataclass(frozen=True)
class Bundle:
    """A bundle's metadata; recipe, tokenizer and weights are read on demand."""

    path: Path
    written: dict[str, Any]
    """bundle.json as plain values, also those that are not in `info`, to be copied into other bundles"""

    @cached_property
    def info(self) -> BundleInfo:
        """The members of bundle.json."""
        return integrity.checked(BundleInfo, self.written, self.path / MANIFEST)

    @property
    def step(self) -> int:
        """Number of updates; for an average, those of its newest checkpoint."""
        return self.info.step

    @property
    def task(self) -> Task:
        """The model's task."""
        return TASKS[self.info.task]

    @property
    def scores(self) -> dict[str, float]:
        """Dev scores by name: chrf and bleu, or f1, and perplexity; empty without a development set."""
        return self.info.scores

    @property
    def signatures(self) -> dict[str, str]:
        """How the dev scores were computed, by name."""
        return self.info.signatures

    @property
    def dev_score(self) -> float | None:
        """The dev score that ranks checkpoints, or None."""
        return self.scores.get(self.task.metric)

    def is_scored_on(self, dev_set: str) -> bool:
        """Return whether scores are of the development set with this fingerprint."""
        return self.info.dev_set == dev_set

    @property
    def is_poor(self) -> bool:
        """Whether the dev perplexity, if known, is so high that outputs are of no use."""
        return not self.scores.get("perplexity", 0.0) <= POOR  # NaN if training diverged

    @property
    def described_score(self) -> str:
        """The dev score with its 95% interval, such as `dev chrF2 96.40 (95.20–97.30)`; empty if there is none."""
        if self.dev_score is None:
            return ""
        described = f"dev {self.task.label} {figure(self.dev_score)}"
        if self.info.interval is None:
            return described
        low, high = self.info.interval
        return f"{described} ({low:.2f}–{high:.2f})"

    @property
    def cost(self) -> dict[str, Any]:
        """The cost of training so far; empty if unknown."""
        return dict(self.written.get("cost", {}))

    @property
    def lossy(self) -> bool:
        """Whether the tokenizer cannot represent every text, as in models that Marian trained."""
        return self.info.lossy

    @property
    def lengths(self) -> TrainedLengths | None:
        """Lengths of a translator's training pairs; None if unknown."""
        return self.info.lengths

    def check_task(self, task: TaskName) -> None:
        """Raise UserError unless the model is for `task`."""
        if self.info.task != task:
            problem = f"{self.path}: is {self.task.noun}, but {TASKS[task].noun} is needed"
            raise UserError(problem, f"{self.task.command} --model {self.path} runs it")

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read a bundle's metadata; raise UserError if `path` is not a bundle or its format is newer."""
        written = integrity.read_manifest(path / MANIFEST)
        known = written.get("format")
        if type(known) is int and known > FORMAT:
            problem = f"{path}: has bundle format {known}, but this version reads {FORMAT}"
            raise NewerFormat(problem, "install a newer version of nmt")
        integrity.checked(BundleInfo, written, path / MANIFEST)
        return cls(path, written)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, with all keys resolved."""
        return recipes.load(integrity.intact(self.path / "recipe.yaml"), alone=True)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; raise UserError if it is missing, damaged or for another task."""
        symbols = TreeVocabulary.FILE
        if (self.path / symbols).exists() != self.task.has_trees:
            does = "lacks" if self.task.has_trees else "holds"
            problem = f"{self.path}: damaged: its bundle.json says that it is {self.task.noun}, but it {does} {symbols}"
            raise UserError(problem, "take it from another copy of the model")
        return load_tokenizer(self.path)

    def model(self, device: torch.device) -> Transformer:
        """Load the model onto `device`, in evaluation mode."""
        import torch
        from torch.utils import swap_tensors

        tokenizer = self.tokenizer()
        weights = self.weights()
        with torch.device("meta"):  # skips allocating and initialising weights
            model = new_model(self.recipe, tokenizer)
        for name, parameter in _matching_parameters(model, weights, self.path).items():
            # In place, so that matrices that share a parameter still do.
            swap_tensors(parameter, torch.nn.Parameter(weights[name].to(device, parameter.dtype)))
        model.lexicon = self.lexicon()
        return model.eval()

    def lexicon(self) -> Lexicon | None:
        """Read the lexicon, or return None if there is none; raise UserError if it is missing or damaged."""
        from nmt.model.transformer import Lexicon

        if LEXICON not in integrity.known_files(self.path):
            return None
        path = self.path / LEXICON
        tokenizer = self.tokenizer()
        tensors = read_tensors(path, ("int32",))
        shapes = {name: tensor.dim() for name, tensor in tensors.items()}
        if shapes == {"translations": 2, "frequent": 1}:
            found = Lexicon(**tensors)
            frequent = found.frequent.tolist()
            symbols = {*frequent, *found.translations.unique().tolist()}
            if (
                symbols <= {-1, *range(len(tokenizer.target))}
                and frequent == sorted({*frequent})
                and frequent[: EOS + 1] == list(range(EOS + 1))
                and len(found.translations) == len(tokenizer.source)
            ):
                return found
        raise UserError(f"{path}: is not a lexicon for the model's vocabularies", files.remedy(path))

    def weights(self) -> dict[str, Tensor]:
        """Memory-map the weights, by name.

        Raise UserError if the file is missing or damaged, or if a weight has an unknown dtype or is not finite.
        """
        return read_tensors(self.path / WEIGHTS)

    def moments(self) -> dict[str, Tensor]:
        """Memory-map the moments of a checkpoint's optimizer, by name; raise UserError as `weights` does."""
        dtype = "float64" if self.recipe.training.precision == "fp64" else "float32"
        return read_tensors(self.path / MOMENTS, (dtype,))

    def position(self) -> Any:
        """Read a checkpoint's training.json."""
        return files.read_json(integrity.intact(self.path / POSITION))

    def content(self) -> dict[str, Any]:
        """Return the values that determine outputs: file hashes by name, and two members of bundle.json."""
        found = {key: self.written.get(key) for key in ("lengths", "confidence")}
        for file in sorted(self.path.iterdir()):
            if file.suffix in CONTENT and file.name not in (MANIFEST, MOMENTS, POSITION):
                found[file.name] = integrity.hash_file(file)
        return found

    def check(self) -> None:
        """Read all files, including a checkpoint's training state; raise UserError naming the first damaged one.

        Each file's hash is checked once per process.
        """
        integrity.check_files(self.path / MANIFEST)
        self.tokenizer()
        self.weights()
        if CHECKPOINT.fullmatch(self.path.name):
            self.moments()
            self.position()


def confidence_of(models: Sequence[Bundle]) -> Confidence | None:
    """Return how confidence follows from a search with these models; None if that is unknown, as of several."""
    first, *others = models
    return None if others else first.info.confidence


def known_confidence(models: Sequence[Bundle]) -> Confidence:
    """Return how confidence follows from a search with these models; raise UserError if that is unknown."""
    found = confidence_of(models)
    if found is not None:
        return found
    if len(models) > 1:
        raise UserError("confidence: an ensemble has none; it is calibrated for one model", "give one model alone")
    hint = "where its data is prepared, nmt average adds it to the model of a run with a development set"
    raise UserError(f"{models[0].path}: its bundle.json has no calibrated confidence", hint)


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> Transformer:
    """Return an untrained model for `recipe` and the vocabularies of `tokenizer`."""
    from nmt.model.transformer import Transformer

    starts = None
    if recipe.model.positions == "words":
        starts = (tokenizer.source.starts(), tokenizer.target.starts())
    return Transformer(recipe.model, len(tokenizer.source), len(tokenizer.target), starts)


def load_weights(model: Transformer, weights: Mapping[str, Tensor], origin: Path) -> None:
    """Copy `weights`, read from `origin`, into a model; raise UserError naming the first that does not fit."""
    import torch

    with torch.no_grad():
        for name, parameter in _matching_parameters(model, weights, origin).items():
            parameter.copy_(weights[name])


def _matching_parameters(model: Transformer, weights: Mapping[str, Tensor], origin: Path) -> dict[str, Parameter]:
    """Return the model's parameters by name; raise UserError unless `weights` have the same names and shapes."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() | weights.keys()):
        ours = list(parameters[name].shape) if name in parameters else "none"
        theirs = list(weights[name].shape) if name in weights else "none"
        if ours != theirs:
            shapes = f"{theirs}, but {ours} by the recipe"
            hint = "give the recipe the model and tokenizer sections that these weights were trained with"
            raise UserError(f"{origin}: weight {name} has shape {shapes}", hint)
    return parameters


@contextmanager
def tensors_of(path: Path) -> Iterator[Path]:
    """Verify a .safetensors file and yield its path; turn errors while reading it into UserError."""
    from safetensors import SafetensorError

    try:
        yield integrity.intact(path)
    except FileNotFoundError:  # safetensors raises it for any file it cannot open; this one was just hashed
        raise files.OutOfResources(f"{path}: cannot be opened", "run this again") from None
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:  # torch's: bad shape, failed mmap
        if memory_error(error):
            raise
        problem = str(error).partition("\n")[0]  # without torch's stack trace
        hint = files.remedy(path) if files.is_utf8(path) else f"rename {path.parent}: safetensors reads names in UTF-8"
        raise UserError(f"{path}: damaged or not readable: {problem}", hint) from None


def read_tensors(path: Path, dtypes: Sequence[str] = WEIGHT_DTYPES) -> dict[str, Tensor]:
    """Read a .safetensors file.

    Raise UserError if it is missing or damaged, or if a tensor is not finite or its dtype is not in `dtypes`.
    """
    from safetensors.torch import load_file

    with tensors_of(path) as file:
        tensors = load_file(file)
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in dtypes:
            problem = f"holds numbers of type {dtype}, not {' or '.join(dtypes)}"
            raise UserError(f"{path}: tensor {name}: {problem}", files.remedy(path))
        if not tensor.numel():
            continue
        least, greatest = tensor.aminmax()  # one pass, no copy
        if not (float(least) >= -FP32_MAX and float(greatest) <= FP32_MAX):  # both are NaN if one number is
            problem = "holds values that are infinite or not a number"
            raise UserError(f"{path}: tensor {name}: {problem}", files.remedy(path))
    return tensors


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint at `step`."""
    return directory / f"step-{step:08d}"


def checkpoint_folders(directory: Path) -> list[Path]:
    """Return a run's checkpoint directories, oldest first; some may be damaged."""
    found = (path for path in directory.glob("step-*/") if CHECKPOINT.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def survey(directory: Path) -> tuple[list[Bundle], list[UserError]]:
    """Return a run's readable checkpoints, oldest first, and an error for each unreadable one."""
    found = []
    wrong = []
    for path in checkpoint_folders(directory):
        try:
            found.append(Bundle.read(path))
        except UserError as error:
            wrong.append(error)
    return found, wrong


def checkpoints(directory: Path) -> list[Bundle]:
    """Return a run's checkpoints, oldest first; raise UserError naming the first unreadable one."""
    return [Bundle.read(path) for path in checkpoint_folders(directory)]


def ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return the bundles that have a score on the newest bundle's dev set, best last; equal ones in order of step."""
    if not bundles:
        return []
    newest = max(bundles, key=lambda bundle: bundle.step)
    scored = [each for each in bundles if each.dev_score is not None and each.is_scored_on(newest.info.dev_set)]
    return sorted(scored, key=lambda bundle: (bundle.task.rank(bundle.dev_score or 0.0), bundle.step))


def best(bundles: Sequence[Bundle]) -> Bundle | None:
    """Return the bundle with the best dev score (the latest of equals), or None if no bundle has one."""
    in_order = ranked(bundles)
    return in_order[-1] if in_order else None


def prune(directory: Path, keep_last: int) -> None:
    """Remove a run's checkpoints except the newest `keep_last` and the best."""
    found, _ = survey(directory)  # damaged ones stay: they may be worth repairing
    keep = {bundle.path for bundle in found[-keep_last:]}
    top = best(found)
    if top is not None:
        keep.add(top.path)
    for bundle in found:
        if bundle.path not in keep:
            files.remove_directory(bundle.path)


def common_tokenizer(bundles: Sequence[Bundle]) -> Tokenizer:
    """Return the tokenizer that all bundles share; raise UserError naming two whose tokenizers differ."""
    first, *others = bundles
    tokenizer = first.tokenizer()
    for other in others:
        if not other.tokenizer().equals(tokenizer):
            problem = f"{first.path} and {other.path} have different tokenizers"
            raise UserError(problem, "use models that were trained on the same prepared data, or one of them alone")
    return tokenizer
