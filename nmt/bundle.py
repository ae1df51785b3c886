"""Bundles and checkpoints: directories that need nothing else, read without executing or unpickling anything.

A bundle holds `model.safetensors`, `recipe.yaml`, the SentencePiece models, a parser's symbols of trees and
`bundle.json` (format, task, provenance, scores, and hashes of the other files). A checkpoint `step-00001000/` is a
bundle with the training state beside: `training.safetensors` (Adam's moments) and `training.json`. Metadata is read
without importing torch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from nmt import recipe as recipes
from nmt.errors import UserError
from nmt.files import check_replaceable, read_json, remedy, remove_directory, whole_directory, write_json
from nmt.integrity import check_files, intact, read_manifest, replace_manifest, write_manifest
from nmt.recipe import Recipe, TaskName
from nmt.text.tokenizer import TREES, Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from nmt.model.transformer import Transformer

FORMAT = 1
AVERAGED = "averaged"
CHECKPOINT = re.compile(r"step-[0-9]{8,}")
MANIFEST = "bundle.json"
MOST = 3.4028234663852886e38  # the largest number of fp32
WEIGHTS = "model.safetensors"
MOMENTS, POSITION = "training.safetensors", "training.json"  # of a checkpoint


class Kind(NamedTuple):
    """What a model is for."""

    noun: str
    """What errors call the model."""
    metric: str
    """Name of the dev score by which checkpoints are compared."""
    label: str
    """That score for people."""
    sign: int = 1
    """-1 where less of it is better."""

    def rank(self, score: float) -> float:
        """What grows with how good a dev score is; least where it is no number."""
        return self.sign * score if math.isfinite(score) else -math.inf


KINDS = {
    "translate": Kind("a translator", "bleu", "BLEU"),
    "parse": Kind("a parser", "f1", "F1"),
    "score": Kind("a language model", "perplexity", "ppl", sign=-1),
}
"""By the command that runs such a model, as bundle.json has it."""


class NewerFormat(UserError):
    """A bundle was written by a later version of nmt, so it may well be whole."""


@dataclass(frozen=True)
class Bundle:
    """A bundle's metadata; recipe, tokenizer and weights are read when asked for."""

    path: Path
    info: dict[str, Any]
    """Content of bundle.json: format, task, run, step, steps (of an average), data fingerprint, scores, cost."""

    @property
    def step(self) -> int:
        """The update the weights come from; of an average the newest there was, be it part of it or not."""
        return int(self.info["step"])

    @property
    def kind(self) -> Kind:
        """What the model is for."""
        return KINDS[self.info["task"]]

    @property
    def scores(self) -> dict[str, float]:
        """Dev scores, by name: bleu or f1, and perplexity; empty where there was no development set."""
        return dict(self.info.get("scores", {}))

    @property
    def dev_score(self) -> float | None:
        """The one by which checkpoints are compared."""
        return self.scores.get(self.kind.metric)

    @property
    def cost(self) -> dict[str, Any]:
        """What training took so far, as `training/cost.py` has it; empty where that is not known."""
        return dict(self.info.get("cost", {}))

    def check_task(self, task: TaskName) -> None:
        """Raises UserError, which says what the model is for, unless it is for this task."""
        if self.info["task"] != task:
            raise UserError(
                f"{self.path}: is {self.kind.noun}, but {KINDS[task].noun} is needed",
                f"nmt {self.info['task']} --model {self.path} runs it",
            )

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Reads metadata; raises UserError where `path` is no bundle of a format this version knows."""
        info = read_manifest(path / MANIFEST)
        if not isinstance(info, dict):
            raise UserError(f"{path / MANIFEST}: damaged: is not a JSON object", remedy(path / MANIFEST))
        known = info.get("format")
        if _is_count(known) and known > FORMAT:
            raise NewerFormat(
                f"{path}: has bundle format {known}, but this version reads {FORMAT}", "install a newer version of nmt"
            )
        scores, steps = info.get("scores", {}), info.get("steps", [])
        valid = {
            "format": _is_count(known) and known == FORMAT,
            "run": isinstance(info.get("run"), str),
            "step": _is_count(info.get("step")),
            "data": isinstance(info.get("data"), str),
            "task": info.get("task") in list(KINDS),
            "scores": isinstance(scores, dict) and all(map(_is_score, scores.values())),
            "signature": isinstance(info.get("signature", ""), str),
            "steps": isinstance(steps, list) and all(map(_is_count, steps)),
            "cost": _is_cost(info.get("cost", {})),
            "unscored": isinstance(info.get("unscored", False), bool),
            "without_improvement": _is_count(info.get("without_improvement", 0)),
        }
        wrong = [key for key in valid if not valid[key]]
        if wrong:
            raise UserError(
                f"{path / MANIFEST}: damaged: {wrong[0]} is missing or of the wrong kind", remedy(path / MANIFEST)
            )
        return cls(path, info)

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe inside."""
        return recipes.load(intact(self.path / "recipe.yaml"))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer inside; raises UserError where it is missing, damaged or not for the task."""
        parses = self.info["task"] == "parse"
        if (self.path / TREES[1]).exists() != parses:
            does = "lacks" if parses else "holds"
            raise UserError(
                f"{self.path}: damaged: its bundle.json says that it is {self.kind.noun}, but it {does} {TREES[1]}",
                "take it from another copy of the model",
            )
        return Tokenizer.load(self.path)

    def model(self, device: torch.device) -> Transformer:
        """The model inside, on a device, in evaluation mode."""
        import torch
        from torch.utils import swap_tensors

        tokenizer = self.tokenizer()
        weights = self.weights()
        with torch.device("meta"):  # no memory and no time for initial weights, which those of the file replace
            model = new_model(self.recipe, tokenizer)
        for name, parameter in _fitting(model, weights, self.path).items():  # on a CPU the file itself, mapped
            swap_tensors(parameter, torch.nn.Parameter(weights[name].to(device, parameter.dtype)))
        return model.eval()

    def weights(self) -> dict[str, Tensor]:
        """The weights inside, by name; on a CPU the file itself, mapped into memory.

        Raises UserError where the file is missing or damaged, or holds what are no weights.
        """
        return _read_numbers(self.path / WEIGHTS, ("float32", "float16", "bfloat16", "float64"))

    def moments(self) -> dict[str, Tensor]:
        """What the optimizer of a checkpoint remembers, by name; raises UserError as `weights` does."""
        double = self.recipe.training.precision == "fp64"
        return _read_numbers(self.path / MOMENTS, ("float64" if double else "float32",))

    def position(self) -> Any:
        """The content of a checkpoint's training.json."""
        return read_json(intact(self.path / POSITION))

    def check(self) -> None:
        """Raises UserError naming the first file that is missing or damaged; of a checkpoint, the training state too.

        What has been checked is not read again by this process to compare hashes.
        """
        check_files(self.path / MANIFEST)
        self.tokenizer()
        self.weights()
        if CHECKPOINT.fullmatch(self.path.name):
            self.moments()
            self.position()


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> Transformer:
    """The untrained model of a recipe, for texts that this tokenizer encodes."""
    from nmt.model.transformer import Transformer

    starts = tokenizer.starts() if recipe.model.positions == "words" else None
    return Transformer.of(recipe, len(tokenizer.source), len(tokenizer.target), starts)


def _is_cost(cost: object) -> bool:
    """Whether it is figures by name, among them some by device."""
    if not isinstance(cost, dict) or not isinstance(devices := cost.get("devices", {}), dict):
        return False
    figures = [value for name, value in cost.items() if name != "devices"]
    return all(value is None or is_figure(value) for value in (*figures, *devices.values()))


def is_figure(value: object) -> bool:
    """Whether it may be a number of FLOPs, seconds or tokens: finite, and not more than any run could take."""
    return type(value) in (int, float) and 0 <= value <= 1e30  # type: ignore[operator]


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63


def _is_score(value: object) -> bool:
    """Whether it is a dev score; that of a model which diverged may be infinite or no number."""
    return type(value) is float or is_figure(value)


def load_weights(model: Transformer, weights: Mapping[str, Tensor], where: Path) -> None:
    """Copies weights into a model; raises UserError naming the first that does not fit."""
    import torch

    with torch.no_grad():
        for name, parameter in _fitting(model, weights, where).items():
            parameter.copy_(weights[name])


def _fitting(model: Transformer, weights: Mapping[str, Tensor], where: Path) -> dict[str, Parameter]:
    """The model's parameters; raises UserError naming the first that the weights do not fit."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        name = sorted(parameters.keys() ^ weights.keys())[0]
        side = "lacks the" if name in parameters else "has the unknown"
        raise UserError(
            f"{where}: {side} weight {name}",
            "give the recipe the model section that these weights were trained with",
        )
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"has shape {list(weights[name].shape)}, but {list(parameter.shape)} by the recipe"
            raise UserError(
                f"{where}: weight {name} {shapes}",
                "give the recipe the model and tokenizer sections that these weights were trained with",
            )
    return parameters


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads a .safetensors file; raises UserError where it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(intact(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or not readable: {error}", remedy(path)) from None


def _read_numbers(path: Path, kinds: Sequence[str]) -> dict[str, Tensor]:
    """Reads a .safetensors file; raises UserError where a tensor is of no such kind, or not finite."""
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        extremes = tensor.aminmax() if kind in kinds and tensor.numel() else ()  # one pass, and no other copy
        check_numbers(path, name, kind, kinds, [float(extreme) for extreme in extremes])
    return tensors


def check_numbers(path: Path, name: str, kind: str, kinds: Sequence[str], extremes: Sequence[float]) -> None:
    """Raises UserError where a tensor's kind of number is none of `kinds`, or its extremes are no fp32 numbers."""
    if kind not in kinds:
        raise UserError(f"{path}: tensor {name}: holds numbers of type {kind}, not {' or '.join(kinds)}", remedy(path))
    if not all(abs(extreme) <= MOST for extreme in extremes):  # which NaN is not either
        raise UserError(f"{path}: tensor {name}: holds values that are infinite or not a number", remedy(path))


def save_bundle(
    path: Path,
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    tokenizer: Tokenizer,
    info: Mapping[str, Any],
    training: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> None:
    """Writes a bundle, whole or not at all; with `training`, tensors and plain values, a checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def save(tensors: Mapping[str, Tensor], name: str) -> None:
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, part / name)
        except SafetensorError as error:  # its word for a full disk, among others
            raise UserError(
                f"{path / name}: cannot be written: {error}",
                f"free some space on the disk of {path.parent}, and see that you may write there",
            ) from None

    with whole_directory(path, MANIFEST) as part:
        save(weights, WEIGHTS)
        (part / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        if training is not None:
            tensors, values = training
            save(tensors, MOMENTS)
            write_json(part / POSITION, values)
        write_manifest(part / MANIFEST, {"format": FORMAT, "task": recipe.task, **info})


def add_info(path: Path, info: Mapping[str, Any]) -> None:
    """Adds to what a bundle's bundle.json says."""
    replace_manifest(path / MANIFEST, read_manifest(path / MANIFEST) | dict(info))


def initial_bundle(recipe: Recipe) -> Bundle | None:
    """The bundle that training.init_from names, if it names one; raises UserError where that is for another task, or
    learned from other encodings of positions."""
    if recipe.training.init_from is None:
        return None
    found, _ = resolve(Path(recipe.training.init_from))
    found.check_task(recipe.task)
    positions = found.recipe.model.positions
    if positions != recipe.model.positions:  # of sinusoids no weight tells
        raise UserError(
            f"training.init_from: {found.path} has model.positions {positions}, but the recipe has "
            f"{recipe.model.positions}",
            f"--set model.positions={positions}",
        )
    return found


# --- directories of checkpoints --------------------------------------------------------------------------------


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return directory / f"step-{step:08d}"


def checkpoint_folders(directory: Path) -> list[Path]:
    """The folders of a run's directory that are called as checkpoints are, oldest first; some may be damaged."""
    found = (path for path in directory.glob("step-*/") if CHECKPOINT.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def survey(directory: Path) -> tuple[list[Bundle], list[UserError]]:
    """The checkpoints of a run, oldest first, and what is wrong with each folder that is called so and is none."""
    found, wrong = [], []
    for path in checkpoint_folders(directory):
        try:
            found.append(Bundle.read(path))
        except UserError as error:
            wrong.append(error)
    return found, wrong


def checkpoints(directory: Path) -> list[Bundle]:
    """The checkpoints of a run, oldest first; raises UserError naming the first that cannot be read."""
    found, wrong = survey(directory)
    if wrong:
        raise wrong[0]
    return found


def ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Those that were scored, the best by dev score last, and the latest last among equals."""
    scored = [(b.kind.rank(score), b.step, b) for b in bundles if (score := b.dev_score) is not None]
    return [bundle for _, _, bundle in sorted(scored, key=lambda entry: entry[:2])]


def best(bundles: Sequence[Bundle]) -> Bundle | None:
    """The one with the best dev score, the latest among equals; None where none was scored."""
    return next(reversed(ranked(bundles)), None)


def prune(directory: Path, keep_last: int) -> None:
    """Removes old checkpoints: the newest `keep_last` and the best stay."""
    found, _ = survey(directory)  # one that is damaged may be worth mending
    keep = {bundle.path for bundle in (*found[-keep_last:], best(found)) if bundle}
    for bundle in found:
        if bundle.path not in keep:
            remove_directory(bundle.path)


def resolve(path: Path) -> tuple[Bundle, str]:
    """The bundle that a directory stands for, and a sentence that says which and why.

    A bundle is itself. A run's directory gives its average when no checkpoint is newer, else the best checkpoint by
    dev score, else the newest. Checkpoints that cannot be read are passed over, which the sentence says.
    """
    if os.path.lexists(path / MANIFEST):
        return Bundle.read(path), f"model: {path}"
    if not path.is_dir():
        raise UserError(
            f"{path}: no such model",
            "name a bundle or a run's directory; nmt train RECIPE writes one to ckpts/",
        )
    found, wrong = survey(path)
    note = "".join(f"; skipped: {error.message}" for error in wrong)
    if os.path.lexists(path / AVERAGED / MANIFEST):
        average = Bundle.read(path / AVERAGED)
        same_run = not found or average.info["run"] == found[-1].info["run"]
        if same_run and (not found or average.step >= found[-1].step):
            steps = average.info.get("steps", [])
            return average, f"model: {average.path} (average of {len(steps)} checkpoints){note}"
        reason = "is older than the newest checkpoint" if same_run else "is of another run than the checkpoints"
        note += f"; {average.path} is not used, since it {reason}: nmt average {path} renews it"
    if not found:
        if wrong:
            raise wrong[0]
        raise UserError(f"{path}: holds neither a bundle nor checkpoints", f"write some: nmt train RECIPE --out {path}")
    chosen = best(found)
    if chosen is None:
        return found[-1], f"model: {found[-1].path} (newest checkpoint){note}"
    return chosen, f"model: {chosen.path} (best dev {chosen.kind.label}, {chosen.dev_score:.2f}){note}"


def common_tokenizer(bundles: Sequence[Bundle]) -> Tokenizer:
    """The tokenizer of models that are to work together; raises UserError naming two whose tokenizers differ."""
    first, *others = bundles
    tokenizer = first.tokenizer()
    for other in others:
        if not other.tokenizer().equals(tokenizer):
            raise UserError(
                f"{first.path} and {other.path} have different tokenizers",
                "use models that were trained on the same prepared data, or one of them alone",
            )
    return tokenizer


# --- averages ----------------------------------------------------------------------------------------------------


def average(directory: Path, last: int | None = None, out: Path | None = None, best: int | None = None) -> Bundle:
    """Averages the newest `last` checkpoints of a run, or the `best` by dev score, into a bundle.

    It is `out`, else DIRECTORY/averaged. `last` is the recipe's decoding.average_last unless given; with fewer
    checkpoints there, all are taken. Raises UserError where there is none, or where they are of different runs.
    """
    found, path = averageable(directory, out)
    chosen = ranked(found)[-best:] if best else found[-(last or found[-1].recipe.decoding.average_last) :]
    if not chosen:
        raise UserError(
            f"{directory}: none of its checkpoints has a dev score",
            "use --last N, which averages the newest; only runs with data.valid have dev scores",
        )
    mean = Mean(found[-1])
    for bundle in reversed(chosen):
        mean.add(bundle)
    return mean.save(path, mean.weights())


def averageable(directory: Path, out: Path | None) -> tuple[list[Bundle], Path]:
    """The checkpoints of a run, oldest first, and where their average goes; UserError where there are none."""
    found = checkpoints(directory)
    if not found:
        there = "holds no checkpoints" if directory.is_dir() else "no such directory"
        raise UserError(f"{directory}: {there}", f"write some: nmt train RECIPE --out {directory}")
    path = out or directory / AVERAGED
    if (path / POSITION).exists():
        raise UserError(
            f"--out {path}: is a checkpoint, and its training state would be lost", "name another directory"
        )
    check_replaceable(path, MANIFEST)
    return found, path


class Mean:
    """The mean of checkpoints that are added one by one, each of which is read once; in fp32.

    Sums depend to the last bit on the order: all who average add the newest first.
    """

    def __init__(self, newest: Bundle) -> None:
        """Of the run whose newest checkpoint this is."""
        self.newest = newest
        self.steps: list[int] = []
        self._sums: dict[str, Tensor] = {}

    def add(self, bundle: Bundle) -> None:
        """Raises UserError where it is of another run, or its weights have other shapes."""
        newest = self.newest
        if bundle.info["run"] != newest.info["run"]:
            raise UserError(
                f"{bundle.path} and {newest.path} are of different runs, {bundle.info['run']} and {newest.info['run']}",
                f"move the checkpoints of one run out of {newest.path.parent}",
            )
        weights = {name: tensor.float() for name, tensor in bundle.weights().items()}
        sums = self._sums or {name: weight.new_zeros(weight.shape) for name, weight in weights.items()}
        for name in sorted(sums.keys() | weights.keys()):
            if name not in sums or name not in weights or sums[name].shape != weights[name].shape:
                raise UserError(
                    f"{bundle.path}: weight {name} is missing or of another shape than in {newest.path}",
                    f"move {bundle.path} away, and average the others",
                )
            sums[name] += weights[name]
        self._sums = sums
        self.steps.append(bundle.step)

    def weights(self) -> dict[str, Tensor]:
        """The mean of what was added so far; a copy."""
        return {name: total / len(self.steps) for name, total in self._sums.items()}

    def save(self, path: Path, weights: Mapping[str, Tensor], count: int | None = None, **more: Any) -> Bundle:
        """Writes `weights`, the mean of the first `count` (else all) that were added; `more` goes to bundle.json."""
        about = self.newest.info
        info: dict[str, Any] = {key: about[key] for key in ("run", "step", "data", "cost") if key in about}
        info |= {"steps": sorted(self.steps[:count]), **more}
        save_bundle(path, weights, self.newest.recipe, self.newest.tokenizer(), info)
        return Bundle.read(path)
