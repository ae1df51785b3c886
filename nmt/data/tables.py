"""Tables: lines with tabs between their columns, two of which hold the sentences.

Quotation marks are ordinary characters. Where nobody says which columns to read, the first two must not look like
names, numbers or addresses beside columns that do hold sentences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path

import numpy as np

from nmt.system.errors import UserError
from nmt.text.lines import read_lines, stripped
from nmt.text.scripts import UNSPACED

LOOKED_AT = 1000  # lines at the beginning of a table
SHOWN = 40  # characters of a cell in an error
FEW_ROWS = 20  # too few to correlate
LABELS = 0.9  # minimum share of labels in a column of them
TEXTS = 0.5  # maximum share of labels in a column of texts
ALIKE = 0.7  # minimum correlation of the lengths of translations
UNLIKE = 0.3  # maximum correlation of the lengths of what are no translations
KEY = re.compile(r"(?=.*[\d_/\\@:])\S+|.*\.[A-Za-z0-9]{1,5}|[^A-Za-z\u0080-\U0010ffff]*")
"""A cell that is no text: a word with a digit or a sign within it, a name of a file, or no letters at all"""
LABEL = re.compile(rf"{KEY.pattern}|\S*[^\s.!?…。！？]")
"""A cell that is no sentence: also a word without an end of sentence"""
SOURCES = ("source", "src")  # names of columns, beside codes of languages
TARGETS = ("target", "tgt", "trg")
KEYS = ["id", "uuid", "filename", "path", "package", "url", "doc", "score"]
"""Names of columns that hold no sentences; no list of words is likely to begin with one"""


def read_table(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield two columns of each line, those with the numbers `fields`, counted from 1; empty texts for a blank line.

    Raise UserError naming a line that lacks a column, or where a row seems to be broken within quotation marks.
    """
    source = int(fields[0]) - 1
    target = int(fields[1]) - 1
    needed = max(source, target) + 1
    width = 0  # of the first row
    before = [""]  # the row before
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if not stripped(line):
            cells = [""] * needed
        elif len(cells) < needed:
            is_broken = _is_open(cells[-1]) or _is_open(before[-1])
            raise _too_few(f"{path}:{number}", needed, len(cells), is_broken)
        # A row that was broken within a cell: both parts of the cell count.
        elif len(before) + len(cells) == width + 1 and _is_open(before[-1]) and _closes(cells[0]):
            raise _too_few(f"{path}:{number - 1}", width, len(before), True)
        if not width:
            width = len(cells)
        before = cells
        yield cells[source], cells[target]


def _is_open(cell: str) -> bool:
    """Return whether a cell begins with a quotation mark that it does not close."""
    return cell.startswith('"') and cell.count('"') % 2 == 1


def _closes(cell: str) -> bool:
    """Return whether a cell ends with a quotation mark that it does not open."""
    return cell.endswith('"') and cell.count('"') % 2 == 1


def _too_few(where: str, column: int, count: int, is_broken: bool) -> UserError:
    problem = f"{where}: has no column {column} (columns: {count})"
    if is_broken:
        hint = "write spaces for line breaks within rows: quotation marks do not keep lines together"
        return UserError(f"{problem}: a line ends within quotation marks", hint)
    return UserError(problem, "separate columns by tabs, or name others by `fields`, which counts from 1")


def check_columns(path: Path, languages: Sequence[str]) -> None:
    """Raise UserError if the first two columns of a table do not seem to be sentences of `languages`, but others do."""
    rows = [line.split("\t") for line in islice(read_lines(path), LOOKED_AT) if stripped(line)]
    if not rows:
        return
    header = [cell.strip().lower() for cell in rows[0]]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    source = _place(header, {languages[0].lower(), *SOURCES})
    target = _place(header, {languages[1].lower(), *TARGETS})
    if source is not None and target is not None and (source, target) != (0, 1):
        problem = f"{path}: line 1 names its columns: {languages[0]} is {source + 1}, {languages[1]} is {target + 1}"
        raise UserError(problem, _advice(source, target))
    if width < 3:
        return
    if header[0] in KEYS:
        problem = f"{path}: line 1 names its columns, of which the first holds no sentences: {rows[0][0]}"
        raise UserError(problem, _advice(1, 2))
    whole = [row for row in rows if len(row) == width]
    without_header = whole[1:] or whole
    found = _columns(list(zip(*without_header, strict=True)))
    if found is not None:
        source, target = found
        odd = 1 if 0 in found else 0
        problem = f"{path}: column {odd + 1} seems to hold no sentences ({whole[-1][odd].strip()[:SHOWN]})"
        raise UserError(f"{problem}, and columns {source + 1} and {target + 1} do", _advice(source, target))


def _place(header: Sequence[str], names: Collection[str]) -> int | None:
    """Return the place of the only cell that is one of some names; None if there is none, or several."""
    places = [place for place, cell in enumerate(header) if cell in names]
    return places[0] if len(places) == 1 else None


def _advice(source: int, target: int) -> str:
    return f"name the columns of source and target: fields: [{source + 1}, {target + 1}], or [1, 2] if these are meant"


def _columns(columns: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Return the two columns that hold sentences if they are others than the first two; None if that is not clear."""
    for pattern in (KEY, LABEL):
        shares = [_share(column, pattern) for column in columns]
        texts = [place for place, share in enumerate(shares) if share <= TEXTS]
        if max(shares[:2]) >= LABELS and len(texts) >= 2:
            return texts[0], texts[1]
    if len(columns[0]) < FEW_ROWS:
        return None
    lengths = [list(map(len, column)) for column in columns]
    if _correlation(lengths[0], lengths[1]) > UNLIKE:
        return None
    best = None
    highest = -1.0
    for one, other in combinations(texts, 2):
        correlation = _correlation(lengths[one], lengths[other])
        if (one, other) != (0, 1) and (best is None or correlation > highest):
            best = (one, other)
            highest = correlation
    return best if highest >= ALIKE else None


def _share(column: Sequence[str], pattern: re.Pattern[str]) -> float:
    """Return the share of a column's cells that a pattern matches, in scripts with spaces; 1 if all are blank."""
    cells = [cell.strip() for cell in column if cell.strip()]
    if not cells:
        return 1.0
    matching = [cell for cell in cells if pattern.fullmatch(cell) and not UNSPACED.search(cell)]
    return len(matching) / len(cells)


def _correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the correlation of two columns' lengths; 0 if those of one are all the same."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
