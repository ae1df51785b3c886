"""What nmt wrote to a file of translators, so that a later run tells its own translations from those of people.

Beside the file `app.po`, `.nmt/app.po.json` has a hash of each unit as nmt left it, and of what the input had for it.
What differs from that is the work of a person, as is all of a file without a record. This module is independent of
models.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

import xxhash
from pydantic import BaseModel

from nmt.formats.bilingual import BilingualFile
from nmt.formats.units import Unit
from nmt.system.errors import UserError
from nmt.system.files import make_directory
from nmt.system.integrity import HASHES, checked, hash_file, read_manifest, replace_manifest

FOLDER = ".nmt"
"""Beside the files that were written, and nothing that translators need"""
_WRAPPING = re.compile(r'"\s*"|\s+|#:')
"""What a program may change by wrapping lines otherwise: white space, and what begins and ends a line of PO"""


def place_beside(path: Path, ending: str) -> Path:
    """Return the path of what nmt keeps beside a file."""
    return path.parent / FOLDER / f"{path.name}{ending}"


class Written(BaseModel):
    """The record of a file: of the run that wrote it last, and of each unit then."""

    format: Literal[1] = 1
    job: str = ""
    """Hash of everything that the file was made from"""
    output: str = ""
    """Hash of its content"""
    rest: str = ""
    """Hash of what is around its units"""
    backup: str = ""
    """Hash of the copy of the version before, if the file is written in place; the next copy may replace that"""
    units: dict[str, str] = {}
    """By `names_of`: a hash of the input's unit and, after a space, of what nmt wrote unless a person did"""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the record of a file; an empty one if there is none, or it is damaged."""
        own = place_beside(path, ".json")
        try:
            return checked(cls, read_manifest(own), own)
        except UserError:
            return cls()

    def __bool__(self) -> bool:
        return self.output != ""

    def wrote(self, name: str, file: BilingualFile, unit: Unit) -> bool:
        """Return whether a unit of the file stands as nmt wrote it."""
        return self.units.get(name, "").partition(" ")[2] == state_of(file, unit)

    def knows(self, name: str) -> bool:
        """Return whether nmt wrote a unit in that run, even if a person has changed it since."""
        return " " in self.units.get(name, "")

    def has(self, name: str) -> bool:
        """Return whether the file had a unit then."""
        return name in self.units

    def saw(self, name: str, file: BilingualFile, unit: Unit) -> bool:
        """Return whether a unit of the input is as it was then."""
        return self.units.get(name, "").partition(" ")[0] == state_of(file, unit)

    def add(self, file: BilingualFile, given: BilingualFile, kept: Collection[str]) -> None:
        """Record the units of the file, which was made from `given`; those named in `kept` are work of people."""
        seen = {name: state_of(given, unit) for name, unit in names_of(given)}
        self.units = {}
        for name, unit in names_of(file):
            self.units[name] = seen.get(name, "")
            if name not in kept:
                self.units[name] += f" {state_of(file, unit)}"

    def save(self, path: Path) -> None:
        """Write the record of a file; raise UserError if it cannot be written."""
        own = place_beside(path, ".json")
        make_directory(own.parent)
        replace_manifest(own, {**self.model_dump(), HASHES: {}})


def hash_of(*values: Any) -> str:
    """Return a hash of values that JSON can hold."""
    return xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())


def content_hash(content: bytes) -> str:
    """Return a hash of the content of a file."""
    return xxhash.xxh3_64_hexdigest(content)


def rest_of(file: BilingualFile) -> str:
    """Return a hash of what is around the units of a file, however it is wrapped.

    The file object cannot be written after this, as `BilingualFile.rest` says.
    """
    return hash_of(_WRAPPING.sub("", file.rest))


def state_of(file: BilingualFile, unit: Unit) -> str:
    """Return a hash of the translation of a unit, with its mark and notes; a file of one language has only texts."""
    texts = unit.targets if file.has_sources else unit.sources
    return hash_of(*texts, unit.needs_review, unit.notes)


def names_of(file: BilingualFile) -> Iterator[tuple[str, Unit]]:
    """Yield the units, those that are locked, and the headers, each with a name that it has in other versions, too."""
    numbers: defaultdict[tuple[str, ...], Iterator[int]] = defaultdict(count)
    for unit in (*file.units, *file.locked, *file.headers):
        key = (unit.name, *_key(file, unit))
        yield hash_of(*key, next(numbers[key])), unit


def _key(file: BilingualFile, unit: Unit) -> tuple[str, ...]:
    """Return what tells units apart, but for their names: their contexts and sources."""
    if not file.has_sources:
        return (unit.context,)
    return (unit.context, *(unit.message or dict.fromkeys(unit.sources)))


def matched(file: BilingualFile, other: BilingualFile) -> list[tuple[str, Unit] | None]:
    """Return for each unit and header that of another version of the file, with its name; None if it has none.

    It has the same context and source and, if there are several, the same name or place in their order.
    """
    named: defaultdict[Any, list[tuple[str, Unit]]] = defaultdict(list)
    alike: defaultdict[Any, list[tuple[str, Unit]]] = defaultdict(list)
    for name, unit in names_of(other):
        named[unit.name, *_key(other, unit)].append((name, unit))
    units = [*file.units, *file.locked, *file.headers]
    found = [_first(named[unit.name, *_key(file, unit)]) for unit in units]
    for rest in named.values():
        for name, unit in rest:
            alike[_key(other, unit)].append((name, unit))
    for at, unit in enumerate(units):
        if found[at] is None:
            found[at] = _first(alike[_key(file, unit)])
    return found


def _first(found: list[tuple[str, Unit]]) -> tuple[str, Unit] | None:
    """Remove the first of those found, and return it; None if there is none."""
    if not found:
        return None
    return found.pop(0)


def free_copy(path: Path, own: str) -> Path:
    """Return where an old version of a file goes: beside it, where nothing is or a copy of ours, with hash `own`."""
    for number in count(1):
        place = path.with_name(f"{path.name}~{number if number > 1 else ''}")
        if not os.path.lexists(place) or (own and place.is_file() and hash_file(place) == own):
            return place
    raise AssertionError
