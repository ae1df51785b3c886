"""Bundles and checkpoints as they are written: whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.bundle.reading import FORMAT, MANIFEST, MOMENTS, POSITION, WEIGHTS
from nmt.errors import UserError
from nmt.files import whole_directory, write_json
from nmt.integrity import read_manifest, replace_manifest, write_manifest
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


def save_bundle(
    path: Path,
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    tokenizer: Tokenizer,
    info: Mapping[str, Any],
    training: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> None:
    """Write a bundle; with `training`, tensors and plain values, a checkpoint. Raises UserError if it cannot be."""
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
        write_manifest(part / MANIFEST, {"format": FORMAT, "task": recipe.task, **lossy, **info})


def save_tensors(file: Path, tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write a .safetensors file of what will be a directory; raises UserError if it cannot be."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(on_cpu, file, {"format": "pt"})  # transformers 4 wants to be told that these are PyTorch's
        file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors 0.8 writes for the owner alone
    except SafetensorError as error:  # raised for a full disk, among others
        raise UserError(
            f"{directory / file.name}: cannot be written: {error}",
            f"free some space on the disk of {directory.parent}, and see that you may write there",
        ) from None


def add_info(path: Path, info: Mapping[str, Any]) -> None:
    """Add or replace values in the bundle.json of a bundle."""
    replace_manifest(path / MANIFEST, read_manifest(path / MANIFEST) | dict(info))
