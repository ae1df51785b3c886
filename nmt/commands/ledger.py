"""The ledger of suspicious translations: the first of each kind on the screen, all in the table of --ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nmt.commands.process import open_output

MOST_SHOWN = 10  # of each kind
LONGEST = 60  # characters of a text on the screen
COLUMNS = ("file", "unit", "kind", "source", "translation")
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Ledger:
    """Collector of suspicious outputs: counts each kind, reports the first few, and lists all in a table."""

    def __init__(self, path: Path | None, say: Callable[[str], None], held: ExitStack) -> None:
        """Open the table, tab-separated, if there is a path; it is complete when `held` is closed."""
        self._path = path
        self._say = say
        self._counts = Counter[str]()
        self.first = dict[str, str]()
        """File and unit of the first defect of each kind; `--strict` names them"""
        self._write = open_output(path, held) if path else None
        self._add_row(COLUMNS)

    def add(self, kind: str, file: str, unit: str, source: str, translation: str) -> None:
        """Add a defect of a unit, which people know by its name or line; the translation may be empty."""
        self._counts[kind] += 1
        self.first.setdefault(kind, f"{file}, {unit}")
        self._add_row((file, unit, kind, source, translation))
        if self._counts[kind] <= MOST_SHOWN:
            line = f"{file}: {unit}: {kind}: {source[:LONGEST]!r}"
            if translation:
                line += f" -> {translation[:LONGEST]!r}"
            self._say(line)

    def end(self) -> None:
        """Say how many more there are than were shown."""
        more = []
        for kind, count in self._counts.items():
            if count > MOST_SHOWN:
                more.append(f"{kind} {count - MOST_SHOWN:,}")
        if more:
            where = f"{self._path} has all" if self._path else "--ledger FILE lists all"
            self._say(f"and more: {', '.join(more)}; {where}")

    def _add_row(self, row: tuple[str, ...]) -> None:
        if self._write:
            self._write("\t".join(each.translate(_ESCAPES) for each in row))
