"""Models of the Hugging Face hub by name: downloads the files that nmt reads, and nothing that would be unpickled."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from nmt.bundle.marian import converting
from nmt.errors import UserError

NAME = re.compile(r"hf:(?P<model>[\w.-]+/[\w.-]+)(?:@(?P<revision>\S+))?")
FILES = ["*.json", "*.spm", "model.safetensors"]
"""Patterns of the files that are downloaded."""
CONVERTER, PICKLED = "SFconvertbot", "pytorch_model.bin"
"""Who proposes safetensors for models that have only the other file."""


def is_name(path: Path) -> bool:
    """Tell whether this is a name of the hub, such as hf:Helsinki-NLP/opus-mt-en-de, and no path."""
    return str(path).startswith("hf:")


@cache
def fetch(path: Path) -> Path:
    """Return the folder of the hub's cache with the files of hf:ORG/NAME[@REVISION], downloaded if they are not there.

    Without a revision it is the newest of main, or if that has no safetensors, the one that the hub's converter
    proposes; the hub is asked once in a process. HF_HUB_OFFLINE, HF_ENDPOINT and the settings of the cache are
    respected. Raises UserError if there is no such model, or if it cannot be had.
    """
    given = NAME.fullmatch(str(path))
    if given is None:
        raise UserError(
            f"{path}: is no name of a model on the Hugging Face hub",
            "write hf:ORG/NAME or hf:ORG/NAME@REVISION, such as hf:Helsinki-NLP/opus-mt-en-de",
        )
    model, revision = given["model"], given["revision"]
    folder = _download(model, revision, str(path))
    if (folder / "model.safetensors").exists():
        return folder
    if revision is None and (proposed := _proposed(model)):
        return _download(model, proposed, str(path))
    raise UserError(
        f"{path}: has no model.safetensors, and nmt does not unpickle {PICKLED}", converting(model, Path(model).name)
    )


def _download(model: str, revision: str | None, name: str) -> Path:
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=FILES))
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: the model has no revision {revision}", "name a branch, tag or commit of it") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{name}: the hub has no such model, or none that you may read",
            f"look for it at {constants.ENDPOINT}; for a private one: hf auth login",
        ) from None
    except (OSError, errors.EntryNotFoundError) as error:
        offline = constants.HF_HUB_OFFLINE
        reason = "HF_HUB_OFFLINE is set" if offline else " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{name}: is not in {constants.HF_HUB_CACHE}, and cannot be downloaded: {reason}",
            f"where there is a network: hf download {model}; then copy models--{model.replace('/', '--')} there, "
            "or name a folder with its files instead",
        ) from None


def _proposed(model: str) -> str | None:
    """Return the revision in which the hub's converter proposes safetensors of main's weights, if there is one.

    If the hub does not answer, it is the one in the cache.
    """
    from huggingface_hub import HfApi, constants

    api = HfApi()
    try:
        for change in api.get_repo_discussions(model, author=CONVERTER, discussion_type="pull_request"):
            if change.author == CONVERTER and change.is_pull_request and (revision := change.git_reference):
                files = [file for r in (revision, None) for file in api.get_paths_info(model, PICKLED, revision=r)]
                if len(files) == 2 and len({getattr(file, "blob_id", "") for file in files}) == 1:
                    return revision
    except Exception:  # which ones, depends on the library that this version of huggingface_hub uses
        references = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "refs/refs/pr"
        with suppress(OSError):
            return next((f"refs/pr/{number}" for number in sorted(os.listdir(references))), None)
    return None
