"""Addresses of data in recipes, such as https://host/pairs.tsv: which are allowed, and where their files are kept.

Nothing is downloaded here; `nmt/data/downloads.py` does that.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

from nmt.recipe.settings import Refusal

FOLDER = Path("data", "_downloads")  # no name of prepared data begins with _
DIGITS = 12  # of an address's hash in the name of its file
LONGEST = 100  # characters kept of the end of a file's own name
SHA256 = r"[0-9a-fA-F]{64}"
OWN_MACHINE = ("127.0.0.1", "::1", "localhost")


def is_address(name: str | None) -> TypeGuard[str]:
    """Return whether a name is an address, such as https://host/pairs.tsv, and not a file's."""
    return name is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def path_in(address: str) -> str:
    """Return the path in an address, without the query that may follow it."""
    return unquote(urlsplit(address).path)


def kept_at(address: str) -> Path:
    """Return where the file of an address is kept, relative to the working directory.

    The name begins with a hash of the address, so that files of the same name do not replace each other.
    """
    digest = hashlib.sha256(address.encode(errors="backslashreplace")).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", PurePosixPath(path_in(address)).name)
    return FOLDER / f"{digest[:DIGITS]}-{name[-LONGEST:]}"


def check_address(address: str, sha256: str | None) -> None:
    """Raise Refusal unless an address begins with https://, or with http:// where its content cannot be changed unseen.

    That is so if its `sha256` is known, or if the server is this machine.
    """
    parts = urlsplit(address)
    if parts.scheme.lower() not in ("https", "http"):
        raise Refusal(f"file: an address must begin with https:// (got {address})", "download it and name the file")
    is_safe = parts.scheme.lower() == "https" or sha256 is not None or parts.hostname in OWN_MACHINE
    if not is_safe:
        problem = f"file: http:// without sha256 may give what somebody else has put in its place (got {address})"
        raise Refusal(problem, "write https://, or add the file's sha256")
