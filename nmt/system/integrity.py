"""Hashes by which damaged files are noticed.

A bundle's `bundle.json`, the `fingerprint.json` of prepared data, the `converted.json` of a conversion and the
`plan.json` of an epoch's plan hold, under `hashes`, the xxh3_64 of every other file in the directory and of their own
content. Each file is compared with its hash when it is read. This finds accidents, such as bit rot or a broken copy; it
is no protection from attackers, who can change a hash as well. Directories of early versions have no hashes, and their
files are read without the check.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import xxhash
from pydantic import BaseModel, Field, ValidationError

from nmt.system.errors import UserError
from nmt.system.files import not_read, read_json, read_whole, regular, remedy, replace_json, write_json

MANIFESTS = ("bundle.json", "fingerprint.json", "converted.json", "plan.json")
"""Files that hold the hashes of their directories."""
HASHES = "hashes"
M = TypeVar("M", bound=BaseModel)
BLOCK = 1 << 18  # bytes that are hashed at a time: they fit into a core's cache

FileName = Annotated[str, Field(pattern=r"^[^/]*$")]  # a stranger's manifest must not name files elsewhere


class _Manifest(BaseModel):
    """The checked part of every manifest."""

    hashes: dict[FileName, str] = {}


_unchanged: set[tuple[Path, int, int, str]] = set()  # files hashed by this process: path, size, time and hash


def write_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON with the hashes of all files in its directory, and of its own content."""
    hashes = {file.name: hash_file(file) for file in sorted(path.parent.iterdir()) if file != path}
    write_json(path, _sealed(path, {**values, HASHES: hashes}))


def replace_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a manifest, whole or not at all; the hashes of files are those among the values."""
    replace_json(path, _sealed(path, values))


def _sealed(path: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the hash of a manifest's own content, if there are hashes."""
    if HASHES not in values:
        return values
    return {**values, HASHES: {**values[HASHES], path.name: _hash_values(path, values)}}


def checked(kind: type[M], given: object, name: str | Path, hint: str | None = None) -> M:
    """Parse JSON, as bytes or already read, into a model; raises UserError naming the first problem.

    `name` is that of the file; the default hint is its `remedy`.
    """
    try:
        return kind.model_validate_json(given) if isinstance(given, bytes) else kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    where = "".join(f"{part}: " for part in first["loc"])[:200]
    problem = "is not a JSON object" if first["type"] == "model_type" else first["msg"].replace("Input should", "must")
    raise UserError(f"{name}: damaged: {where}{problem}", hint or remedy(Path(name)))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a JSON object, with or without hashes; raises UserError if it is missing or damaged."""
    values = read_json(path)
    hashes = checked(_Manifest, values, path).hashes
    if HASHES in values and hashes.get(path.name) != _hash_values(path, values):
        raise _damaged(path)
    return dict(values)


def intact(path: Path) -> Path:
    """Return the path of a file that equals its hash, if a manifest beside it has one; else raise UserError.

    Raises UserError also if it is missing or no regular file. A process hashes a file once unless it changes.
    """
    status = regular(path).stat()
    expected = next((_hashes(path.parent / name) for name in MANIFESTS if os.path.lexists(path.parent / name)), {})
    if path.name in expected:
        known = (path.absolute(), status.st_size, status.st_mtime_ns, str(expected[path.name]))
        if known not in _unchanged:
            if hash_file(path) != expected[path.name]:
                raise _damaged(path)
            _unchanged.add(known)
    return path


def content(path: Path) -> bytes:
    """Read the bytes of an `intact` file; raises UserError as that and `read_whole` do."""
    found = read_whole(path)  # first, since it limits the size
    intact(path)
    return found


def known_files(folder: Path) -> set[str]:
    """Return the names of the files in a directory, and of those that its manifest lists."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return there.union(*(_hashes(folder / name) for name in there.intersection(MANIFESTS)))


def check_files(manifest: Path) -> None:
    """Raise UserError naming the first file that is missing or damaged by the hashes of a directory's manifest."""
    for name in _hashes(manifest):
        if name != manifest.name:
            intact(manifest.parent / name)


def hash_file(path: Path) -> str:
    """Hash a file's content by xxh3_64, in hexadecimal."""
    digest, buffer = xxhash.xxh3_64(), bytearray(BLOCK)
    view = memoryview(buffer)
    try:
        with regular(path).open("rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                digest.update(view[:size])
    except OSError as error:
        raise not_read(path, error, remedy(path)) from None
    return digest.hexdigest()


def _hashes(manifest: Path) -> dict[str, Any]:
    hashes: dict[str, Any] = read_manifest(manifest).get(HASHES, {})
    return hashes


def _hash_values(path: Path, values: Mapping[str, Any]) -> str:
    """Hash a manifest's values without this hash itself, whatever the spaces and the order of keys."""
    others = {name: value for name, value in values[HASHES].items() if name != path.name}
    return xxhash.xxh3_64_hexdigest(json.dumps({**values, HASHES: others}, sort_keys=True).encode())


def _damaged(path: Path) -> UserError:
    edited = "; or, if somebody edited it, delete `hashes` from the .json file that has them"
    hint = remedy(path) + (edited if path.suffix in (".json", ".yaml") else "")
    return UserError(f"{path}: damaged: its content is not what was written", hint)
