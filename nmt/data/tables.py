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
SHOWN = 40  # characters of a cell
FEW_ROWS = 20  # too few to correlate
LABELS, TEXTS = 0.9, 0.5  # minimum share of labels in a column of them, and maximum share in one of texts
ALIKE, UNLIKE = 0.7, 0.3  # minimum correlation of the lengths of translations, and maximum of what is none
KEY = re.compile(r"(?=.*[\d_/\\@:])\S+|.*\.[A-Za-z0-9]{1,5}|[^A-Za-z\u0080-\U0010ffff]*")
"""A cell that is no text: a word with a digit or a sign within it, a name of a file, or no letters at all"""
LABEL = re.compile(rf"{KEY.pattern}|\S*[^\s.!?…。！？]")
"""A cell that is no sentence: also a word without an end of sentence"""
SIDES = (("source", "src"), ("target", "tgt", "trg"))  # names of columns, beside codes of languages
KEYS = ["id", "uuid", "filename", "path", "package", "url", "doc", "score"]
"""Names of columns without sentences, none of which a list of words would begin with"""


def read_table(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the columns `fields` of each line, counted from 1; empty strings for a blank line.

    Raise UserError naming a line that lacks a column, or where a row seems to be broken within quotation marks.
    """
    columns = [int(column) - 1 for column in fields]
    width, before = 0, [""]  # number of columns of the first row; the row before
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if not stripped(line):
            cells = [""] * (max(columns) + 1)
        elif len(cells) <= max(columns):
            is_broken = _is_open(cells[-1]) or _is_open(before[-1])
            raise _too_few(f"{path}:{number}", max(columns) + 1, len(cells), is_broken)
        elif len(before) + len(cells) == width + 1 and _is_open(before[-1]) and _closes(cells[0]):
            raise _too_few(f"{path}:{number - 1}", width, len(before), True)
        width, before = width or len(cells), cells
        yield tuple([cells[column] for column in columns])


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
    lines = [line.split("\t") for line in islice(read_lines(path), LOOKED_AT) if stripped(line)]
    if not lines:
        return
    header = [cell.strip().lower() for cell in lines[0]]
    width = Counter(map(len, lines)).most_common(1)[0][0]
    source, target = (_place(header, {code.lower(), *names}) for code, names in zip(languages, SIDES, strict=True))
    if source is not None and target is not None and (source, target) != (0, 1):
        problem = f"{path}: line 1 names its columns: {languages[0]} is {source + 1}, {languages[1]} is {target + 1}"
        raise UserError(problem, _advice(source, target))
    if width < 3:
        return
    if header[0] in KEYS:
        problem = f"{path}: line 1 names its columns, of which the first holds no sentences: {lines[0][0]}"
        raise UserError(problem, _advice(1, 2))
    rows = [row for row in lines if len(row) == width]
    found = _columns([*zip(*(rows[1:] or rows), strict=True)])  # without a header
    if found is not None:
        odd = next(column for column in (0, 1) if column not in found)
        problem = f"{path}: column {odd + 1} seems to hold no sentences ({rows[-1][odd].strip()[:SHOWN]})"
        raise UserError(f"{problem}, and columns {found[0] + 1} and {found[1] + 1} do", _advice(*found))


def _place(header: Sequence[str], names: Collection[str]) -> int | None:
    """Return the place of the only cell that is one of some names; None if there is none, or several."""
    places = [place for place, cell in enumerate(header) if cell in names]
    return places[0] if len(places) == 1 else None


def _advice(source: int, target: int) -> str:
    return f"name the columns of source and target: fields: [{source + 1}, {target + 1}], or [1, 2] if these are meant"


def _columns(columns: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Return the two columns that hold sentences if they are others than the first two; None if that is not clear."""
    for pattern in (KEY, LABEL):
        labels = [_share(column, pattern) for column in columns]
        texts = [place for place, share in enumerate(labels) if share <= TEXTS]
        if max(labels[:2]) >= LABELS and len(texts) >= 2:
            return texts[0], texts[1]
    if len(columns[0]) < FEW_ROWS:
        return None
    lengths = [[len(cell) for cell in column] for column in columns]
    if _correlation(lengths[0], lengths[1]) > UNLIKE:
        return None
    pairs = [pair for pair in combinations(texts, 2) if pair != (0, 1)]
    best = max(pairs, key=lambda pair: _correlation(*(lengths[place] for place in pair)), default=None)
    is_clear = best is not None and _correlation(lengths[best[0]], lengths[best[1]]) >= ALIKE
    return best if is_clear else None


def _share(column: Sequence[str], pattern: re.Pattern[str]) -> float:
    """Return the share of a column's cells that a pattern matches, in scripts with spaces; 1 if all are blank."""
    cells = [cell.strip() for cell in column if cell.strip()]
    matching = [cell for cell in cells if pattern.fullmatch(cell) and not UNSPACED.search(cell)]
    return len(matching) / len(cells) if cells else 1.0


def _correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the correlation of two columns' lengths; 0 if those of one are all the same."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
