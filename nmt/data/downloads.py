"""Download the files that a recipe names by their addresses, each once, into data/_downloads.

Only preparing data downloads, and so only a recipe on the command line: what else reads a recipe, such as that of a
bundle, finds files that are here and fetches none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from nmt.recipe import Dataset
from nmt.recipe.addresses import FOLDER, is_address, kept_at
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import FULL, sha256, whole_file
from nmt.system.processes import exclusive


def download_all(datasets: Iterable[Dataset], console: Console) -> None:
    """Download the files of data sets that are named by an address and not here yet.

    Raise UserError if one cannot be downloaded, or if its hash is not the `sha256` of its data set.
    """
    for dataset in datasets:
        if not is_address(dataset.file):
            continue
        path = kept_at(dataset.file)
        if path.exists():
            continue
        with exclusive(path.parent / ".lock", str(path.parent), console.say, wait=True):
            if not path.exists():  # another process may have just downloaded it
                _download(dataset.file, dataset, path, console)


def _download(address: str, dataset: Dataset, path: Path, console: Console) -> None:
    """Download a file to `path`, where it appears once it is whole and its hash is right."""
    console.say(f"downloading {address}")
    with whole_file(path) as file:
        _fetch(address, file, console)
        file.flush()
        found = sha256(Path(file.name))
        check_hash(dataset, address, found)
    console.say(f"downloaded {path}, sha256 {found}")


def _fetch(address: str, file: IO[bytes], console: Console) -> None:
    """Write the content of an address to a file, going on after short interruptions."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import disable_progress_bars

    if not console.live:
        disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its exceptions repeat what it logs
    try:
        http_get(address, file, headers={"Accept-Encoding": "identity"})  # type: ignore[arg-type]
    except Exception as error:  # of many types, which depend on huggingface_hub's version
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        response = getattr(error, "response", None)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if response is not None:
            reason = f"the server answers {response.status_code}"
        hint = "check the address; without a network, download the file elsewhere and name it by file: NAME"
        raise UserError(f"{address}: cannot be downloaded: {reason}", hint) from error


def check_hash(dataset: Dataset, name: str, found: str) -> None:
    """Raise UserError, citing `name`, if the SHA-256 of a data set's file is not that of the recipe."""
    if dataset.sha256 is not None and found != dataset.sha256.lower():
        problem = f"{name}: has sha256 {found}, and the recipe says {dataset.sha256}"
        hint = f"if it is the right one, correct sha256; what you remove from {FOLDER} is downloaded again"
        raise UserError(problem, hint)


def downloaded(datasets: Iterable[Dataset]) -> dict[str, str]:
    """Return the addresses of data sets and where their files are kept."""
    return {each.file: str(kept_at(each.file)) for each in datasets if is_address(each.file)}
