"""Files of models on the Hugging Face hub, in its cache. HF_HUB_OFFLINE, HF_ENDPOINT and the cache settings apply."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.system.errors import UserError

NAME = re.compile(r"hf:(?P<model>[\w.-]+/[\w.-]+)(?:@(?P<revision>\S+))?")


def is_hub_name(path: Path) -> bool:
    """Return whether a path is the name of a model on the hub, hf:ORG/NAME."""
    return str(path).startswith("hf:")


def split_name(path: Path, example: str) -> tuple[str, str | None]:
    """Return the model and the revision of hf:ORG/NAME[@REVISION]; raise UserError, with an `example`, for others."""
    given = NAME.fullmatch(str(path))
    if given is None:
        problem = f"{path}: is not the name of a model on the Hugging Face hub"
        raise UserError(problem, f"write hf:ORG/NAME or hf:ORG/NAME@REVISION, such as {example}")
    return given["model"], given["revision"]


def download(model: str, revision: str | None, name: str, files: Sequence[str]) -> Path:
    """Download the files of a model that match patterns, unless they are cached; return their directory in the cache.

    `name` is what the user typed. Raise UserError if the model does not exist or cannot be downloaded.
    """
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(files)))
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: the model has no revision {revision}", "name a branch, tag or commit of it") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = f"{name}: the hub has no such model, or none that you may read"
        raise UserError(problem, f"look for it at {constants.ENDPOINT}; for a private one: hf auth login") from None
    except (OSError, errors.EntryNotFoundError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set"
        raise UserError(
            f"{name}: is not in {constants.HF_HUB_CACHE}, and cannot be downloaded: {reason}",
            f"where there is a network: hf download {model}; then copy models--{model.replace('/', '--')} there, "
            "or name a folder with its files instead",
        ) from None
