"""The bundles of a run: its checkpoints, the best of them, and the one that a directory stands for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nmt.bundle.reading import CHECKPOINT, MANIFEST, Bundle
from nmt.errors import UserError
from nmt.files import remove_directory
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer

AVERAGED = "averaged"


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
    scored = [(b.kind.rank(score), b.step, b) for b in bundles if (score := b.dev_score) is not None]
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


def resolve(path: Path) -> tuple[Bundle, str]:
    """Find the bundle that a directory stands for; returns it with a sentence that says which and why.

    A bundle stands for itself. A run's directory stands for its average if no checkpoint is newer, else for the best
    checkpoint by dev score, else for the newest. Checkpoints that cannot be read are skipped, and the sentence says so.
    Raises UserError if there is no bundle.
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


def base(recipe: Recipe) -> Bundle | None:
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
