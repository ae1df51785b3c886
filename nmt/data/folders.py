"""Folders of prepared data: what each was made from, and who uses it.

`data/NAME` has the data that a recipe of that name asked for last. Data of other inputs or settings that a run still
uses, or that was asked for before, is beside it in `data/NAME-HASH`, named by its fingerprint. A run holds a shared
lock on the report.json of its folder: only a folder that nobody uses is renamed or removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from glob import escape
from itertools import chain, repeat
from pathlib import Path, PurePath
from typing import Any

from nmt.data.data_report import REPORT
from nmt.data.downloads import check_hash
from nmt.data.pairs import describe, input_files
from nmt.formats.bilingual import READING
from nmt.recipe import Data, Dataset, Recipe
from nmt.recipe.data import UNITS, format_of
from nmt.system import files
from nmt.system.errors import UserError
from nmt.system.files import clear_parts, remove_directory
from nmt.system.integrity import read_manifest
from nmt.system.processes import claimed
from nmt.text.tokenizer import Tokenizer

FORMAT = 2  # version of fingerprint.json
MANIFEST = "fingerprint.json"
DATA = "data"  # folder of all prepared data, relative to the working directory
KEPT = 2  # maximum number of unused folders per name
DIGITS = 12  # of a fingerprint in the name of a folder


def directory(recipe: Recipe) -> Path:
    """Return data/NAME, relative to the working directory; if it is a symbolic link, its target."""
    path = Path(DATA) / recipe.data.name
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def beside(out: Path, fingerprint: str) -> Path:
    """Return the path beside `out` of data with a fingerprint."""
    return out.with_name(f"{out.name}-{fingerprint[:DIGITS]}")


def read_fingerprint(folder: Path) -> dict[str, Any]:
    """Read fingerprint.json, with each input's stamp and hash under `files`; return {} if missing or outdated."""
    if not os.path.lexists(folder / MANIFEST):
        return {}
    found = read_manifest(folder / MANIFEST)
    return found if found.get("format") == FORMAT else {}


def fingerprints(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes that bundles record of the data that they were trained on.

    `data` is of everything; `train_data` of what ties a run: training sets, what is taken from them, languages, limits
    and tokenizer; `dev_set` of the development set, as scores on another one are not comparable.
    """
    contents = manifest["contents"]
    taken = {}
    for split, sets in contents.items():
        taken[split] = [(settings, hashes) for settings, hashes in sets if "take" in settings]
    ties = [manifest["languages"], manifest["limits"], manifest["tokenizer"], contents["train"], taken]
    return {
        "data": manifest["fingerprint"],
        "train_data": _digest(ties),
        "dev_set": _digest(contents["valid"]),
    }


def fingerprints_of(folder: Path) -> dict[str, str]:
    """Return the `fingerprints` of prepared data."""
    return fingerprints(read_fingerprint(folder))


def manifests(out: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield `out` and the folders beside it, each with what `read_fingerprint` returns of it.

    Raise UserError if `out` is damaged; skip the others that are.
    """
    yield out, read_fingerprint(out)
    for path in sorted(out.parent.glob(_pattern(out))):
        with suppress(UserError):
            manifest = read_fingerprint(path)
            if manifest and beside(out, manifest["fingerprint"]) == path:  # else a recipe has this name
                yield path, manifest


def _pattern(out: Path) -> str:
    return f"{escape(out.name)}-{'[0-9a-f]' * DIGITS}"


def find(out: Path, train_data: str, dev_set: str) -> Path | None:
    """Return the folder, `out` or beside it, with the training data and development set of these fingerprints.

    Return None if there is no such folder.
    """
    for path, manifest in manifests(out):
        if not manifest:
            continue
        found = fingerprints(manifest)
        if found["train_data"] == train_data and found["dev_set"] == dev_set:
            return path
    return None


def look_up(recipe: Recipe, start: Tokenizer | None) -> tuple[Path | None, dict[str, Any]]:
    """Return the folder with the recipe's data, if any, and the recipe's inputs and settings with their fingerprint."""
    first: dict[str, Any] = {}
    for path, before in manifests(directory(recipe)):
        inputs = _inputs(recipe, start, before)
        if inputs["fingerprint"] == before.get("fingerprint"):
            return path, inputs | {"files": before["files"] | inputs["files"]}
        first = first or inputs
    return None, first


_stamps: dict[Path, list[Any]] = {}  # by `files.identify`, of the files that this process has read


def _inputs(recipe: Recipe, start: Tokenizer | None, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's inputs and settings with their fingerprint; `before` is the manifest of prepared data.

    Files are read again only if their stamp has changed. A missing one counts as unchanged if `before` has a
    file of its name, perhaps in another folder, since training needs only the prepared data.
    """
    data = recipe.data
    known = before.get("files", {})
    stamps = dict[str, list[Any]]()
    contents: dict[str, list[Any]] = {}
    for split, datasets in data.splits.items():
        contents[split] = []
        older = chain(before.get("contents", {}).get(split, ()), repeat((None, [])))
        for dataset, (settings, hashes_before) in zip(datasets, older, strict=False):
            described = describe(dataset, data)
            unchanged = hashes_before if settings == described else []
            contents[split].append([described, _hashes(dataset, data, known, unchanged, stamps)])
    limits: list[Any] = [data.max_length, data.max_ratio]
    if data.duplicates == "drop":  # the default adds nothing, so older fingerprints stay valid
        limits.append("drop duplicates")
    if data.overlap == "drop":
        limits.append("drop overlap")
    what = {
        "format": FORMAT,
        "languages": data.languages,
        "contents": contents,
        "limits": limits,
        "tokenizer": _tokenizer(recipe, start),
    }
    return {"fingerprint": _digest(what), **what, "files": stamps}


def _hashes(
    dataset: Dataset,
    data: Data,
    known: Mapping[str, list[Any]],
    unchanged: Sequence[str],
    stamps: dict[str, list[Any]],
) -> list[str]:
    """Return the hashes of a data set's files, and add their stamps to `stamps`.

    `known` are the stamps of prepared data; `unchanged` are its hashes of this data set, for files that are missing.
    """
    hashes = list[str]()
    for number, path in enumerate(input_files(dataset, data.of(dataset))):
        name = str(path)
        if path.exists():
            key = path.absolute()
            stamp = files.identify(path, _stamps.get(key) or known.get(name))
            _stamps[key] = stamp
            stamps[name] = stamp
            check_hash(dataset, name, stamp[-1])
            reading = f"-{READING}" if format_of(path) in UNITS else ""
            hashes.append(stamp[-1] + reading)
        elif _has_file(known, f"*/{PurePath(name).name}"):  # with wildcards, if the data set is a pattern of trees
            hashes += unchanged[number : number + 1] if dataset.target else unchanged
    return hashes


def _has_file(names: Iterable[str], end: str) -> bool:
    """Return whether a pattern matches the end of one of these names, or of the folder it is in."""
    return any(fnmatchcase(f"/{name}", end) or fnmatchcase(f"/{name}", f"{end}/*") for name in names)


def _tokenizer(recipe: Recipe, start: Tokenizer | None) -> dict[str, Any]:
    """Return what determines the tokenizer: its settings or, of one that is there, its files and new languages."""
    settings = recipe.tokenizer.model_dump(mode="json")
    new = {"new_languages": settings.pop("new_languages"), "new_vocab_size": settings.pop("new_vocab_size")}
    if start is None:
        return settings
    origin = start.before(recipe.tokenizer.new_languages)  # of a resumed run, too
    given: dict[str, Any] = {name: hashlib.sha256(content).hexdigest() for name, content in origin.files().items()}
    if recipe.tokenizer.new_languages:
        given |= new
    return given


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def use(folder: Path, fingerprint: str, held: ExitStack) -> bool:
    """Keep a folder from being renamed or removed until `held` closes; return whether it has the data wanted."""
    is_free = held.enter_context(claimed(folder / REPORT, alone=False))
    return is_free and read_fingerprint(folder).get("fingerprint") == fingerprint


def promote(folder: Path, out: Path) -> Path:
    """Rename a folder to `out`, and the one there to its name beside, unless one is in use; return the folder's path.

    The caller holds the lock for writing.
    """
    before = read_fingerprint(out).get("fingerprint")
    if folder == out or (out.exists() and not before):
        return folder
    with ExitStack() as held, suppress(OSError):
        is_free = held.enter_context(claimed(folder / REPORT, alone=True))
        if before:
            is_free &= held.enter_context(claimed(out / REPORT, alone=True))
        if is_free:
            if before:
                out.rename(beside(out, before))
            folder.rename(out)
            return out
    return folder


def remove_unused(out: Path) -> None:
    """Remove the folders of `out` that nobody uses, except the newest; the caller holds the lock for writing."""
    clear_parts(out.parent, _pattern(out))
    free = 0
    folders = list(dict(manifests(out)))
    folders.sort(key=lambda folder: (folder / MANIFEST).stat().st_mtime_ns, reverse=True)
    for folder in folders:
        with claimed(folder / REPORT, alone=True) as is_free:
            free += is_free
            if is_free and free > KEPT:
                remove_directory(folder)
