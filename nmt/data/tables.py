"""Tables: rows of columns, two of which hold the sentences.

In a .tsv, a row is a line, tabs separate its columns, and quotation marks are ordinary characters. In a .csv, quotation
marks keep commas, semicolons, tabs or line breaks inside a cell, and a first line such as `sep=;` says what separates
cells. Where nobody says which columns to read, the first two must not look like names, numbers or addresses beside
columns that do hold sentences.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations, islice
from pathlib import Path

import numpy as np

from nmt.recipe.data import format_of
from nmt.system.errors import UserError
from nmt.text.language_codes import LONGEST_CODE, Language, language_in, named_language
from nmt.text.lines import one_line, read_lines, stripped
from nmt.text.scripts import UNSPACED

LOOKED_AT = 1000  # lines at the beginning of a table
SHOWN = 40  # characters of a cell in an error
FEW_ROWS = 20  # too few to correlate, or to see that a separator is the same in each
FEW_VALUES = 0.02  # maximum share of different cells in a column of labels, such as domains or languages
MANY_ROWS = 100  # enough to see that
LABELS = 0.9  # minimum share of labels in a column of them
ALIKE = 0.7  # minimum correlation of the lengths of translations
UNLIKE = 0.3  # maximum correlation of the lengths of what are no translations
KEY = re.compile(r"(?=.*[\d_/\\@:])\S+|.*\.[A-Za-z0-9]{1,5}|[^A-Za-z\u0080-\U0010ffff]*")
"""A cell that is no text: a word with a digit or a sign within it, a name of a file, or no letters at all"""
LABEL = re.compile(rf"{KEY.pattern}|\S*[^\s.!?…。！？]")
"""A cell that is no sentence: also a word without an end of sentence"""
NUMBER = re.compile(r"(?=\D*\d)[-+\d.,:%/ eE]+")
WORDS = "names or single words"
"""What a column looks like whose cells are those of KEY or LABEL"""
SEPARATORS = ",;\t|"  # of the columns of a .csv
SAID = re.compile(r'"?sep=(.)"?')
"""The first line of a .csv for Excel, which names the separator"""
SOURCES = ("source", "src", "original")  # names of columns, beside codes of languages
TARGETS = ("target", "tgt", "trg", "translation", "reference", "ref", "correction", "corrected")
TEXT = "(?:text|string|sentence|segment|phrase)"
NAME_OF_TEXT = re.compile(rf"(?:{TEXT}[ _-]?)?([^\W_]+?)(?:[ _-]?{TEXT})?")
"""The name of a column in small letters, in which words such as `text` say nothing: source_text, German sentence"""
KEYS = ["id", "uuid", "filename", "path", "package", "url", "doc", "score"]
"""Names of columns that hold no sentences; no list of words is likely to begin with one"""


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row of a .tsv or .csv with the line that it begins in; no cells for a blank row.

    Raise UserError naming the line of a row that is none.
    """
    if format_of(path) == ".csv":
        yield from _read_csv(path, _separator(path))
        return
    for number, line in enumerate(read_lines(path), 1):
        yield number, line.split("\t") if stripped(line) else []


def _read_csv(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    lines = read_lines(path)
    first = 1
    if _said_separator(path):
        next(lines)
        first = 2
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    before = first - 1  # lines that the reader does not see
    try:
        for row in reader:
            cells = [one_line(cell) for cell in row]
            yield first, cells if stripped("".join(cells)) else []
            first = before + reader.line_num + 1
    except csv.Error as error:
        hint = 'write a quotation mark inside of a cell twice: "He said ""yes"".", and close each cell that one opens'
        raise UserError(f"{path}:{first}: no row of a .csv begins here: {error}", hint) from None


def _said_separator(path: Path) -> str:
    """Return what the first line of a .csv says that separates its columns; else nothing."""
    said = SAID.fullmatch(next(read_lines(path), ""))
    return said[1] if said else ""


def _separator(path: Path) -> str:
    """Return what separates the columns of a .csv: what it says, or what divides most of its first rows into equally
    many; else a comma."""
    separator = _said_separator(path)
    if separator:
        return separator
    return max(SEPARATORS, key=lambda each: _divided(path, each))


def _divided(path: Path, separator: str) -> int:
    """Return how many of the first rows of a .csv a separator divides into equally many columns, several ones."""
    widths = Counter[int]()
    with suppress(UserError):
        for _, cells in islice(_read_csv(path, separator), FEW_ROWS):
            if len(cells) > 1:
                widths[len(cells)] += 1
    return max(widths.values(), default=0)


def read_table(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield two columns of each row, those with the numbers `fields`, counted from 1; empty texts for a blank row.

    A first row that names both columns is left out. Raise UserError naming a row that lacks a column, or where one
    seems to be broken within quotation marks.
    """
    for _, source, target in _read_columns(path, fields):
        yield source, target


def row_line(path: Path, fields: Sequence[str], number: int) -> tuple[int, str]:
    """Return the line in which a row of `read_table` begins, which is counted from 0, and nothing to show for it."""
    line, *_ = next(islice(_read_columns(path, fields), number, None))
    return line, ""


def _read_columns(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield what `read_table` does, after the line in which each row begins."""
    source = int(fields[0]) - 1
    target = int(fields[1]) - 1
    needed = max(source, target) + 1
    is_csv = format_of(path) == ".csv"
    width = 0  # of the first row that is not blank
    has_header = False
    before = [""]  # the row before
    for number, cells in read_rows(path):
        if not cells:
            before = [""]
            yield number, "", ""
            continue
        if len(cells) < needed:
            is_broken = not is_csv and (_is_open(cells[-1]) or _is_open(before[-1]))
            raise _too_few(f"{path}:{number}", needed, len(cells), is_broken, is_csv)
        # Excel leaves empty cells at the end of a row out, or adds some.
        elif is_csv and width and (_filled(cells) > width or (len(cells) < width and not has_header)):
            problem = f"{path}:{number}: has another number of columns ({len(cells)}) than the first row ({width})"
            raise UserError(problem, "put a cell that has the separator inside between quotation marks")
        # A row that was broken within a cell: both parts of the cell count.
        elif len(before) + len(cells) == width + 1 and _is_open(before[-1]) and _closes(cells[0]):
            raise _too_few(f"{path}:{number - 1}", width, len(before), True)
        if not width:
            width = len(cells)
            roles = {role_of(cells[source]), role_of(cells[target])} - {""}
            has_header = len(roles) == 2
            if has_header:
                continue
        before = cells
        yield number, cells[source], cells[target]


def role_of(name: str) -> str:
    """Return what the name of a column says that its texts are: source, target or in a language, whose code it is."""
    found = NAME_OF_TEXT.fullmatch(name.strip().lower())
    word = found[1] if found else ""
    for role, names in (("source", SOURCES), ("target", TARGETS)):
        if word in names:
            return role
    language = named_language(word) if len(word) > LONGEST_CODE else ""  # "no text" is not Norwegian
    return language_in(name) or language


def _filled(cells: Sequence[str]) -> int:
    """Return the number of cells up to the last one that is not blank."""
    return max(place for place, cell in enumerate(cells, 1) if stripped(cell))


def _is_open(cell: str) -> bool:
    """Return whether a cell begins with a quotation mark that it does not close."""
    return cell.startswith('"') and cell.count('"') % 2 == 1


def _closes(cell: str) -> bool:
    """Return whether a cell ends with a quotation mark that it does not open."""
    return cell.endswith('"') and cell.count('"') % 2 == 1


def _too_few(where: str, column: int, count: int, is_broken: bool, is_csv: bool = False) -> UserError:
    problem = f"{where}: has no column {column} (columns: {count})"
    if is_broken:
        hint = "write spaces for line breaks within rows: quotation marks do not keep lines together"
        return UserError(f"{problem}: a line ends within quotation marks", hint)
    separators = "the separator of the first rows" if is_csv else "tabs"
    hint = f"divide this row by {separators}, or remove it; `fields`, which counts from 1, names other columns"
    return UserError(problem, hint)


def first_rows(path: Path) -> list[list[str]]:
    """Return the cells of the first rows of a table, without blank ones."""
    return [cells for _, cells in islice(read_rows(path), LOOKED_AT) if cells]


def check_columns(path: Path, languages: Sequence[str]) -> None:
    """Raise UserError if the first two columns of a table do not seem to be sentences of `languages`, but others do."""
    rows = first_rows(path)
    if not rows:
        return
    header = [cell.strip().lower() for cell in rows[0]]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    source = _place(header, "source", languages[0])
    target = _place(header, "target", languages[1])
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


def _place(header: Sequence[str], role: str, language: str) -> int | None:
    """Return the place of the only cell that is a role or a language, or else names it; None if there is none, or
    several."""
    places = [place for place, cell in enumerate(header) if cell in (role, language.lower())]
    if not places:
        wanted = Language.of(language)
        roles = list(map(role_of, header))
        places = [place for place, each in enumerate(roles) if each == role or Language.of(each).is_like(wanted)]
    return places[0] if len(places) == 1 else None


def _advice(source: int, target: int) -> str:
    return f"name the columns of source and target: fields: [{source + 1}, {target + 1}], or [1, 2] if these are meant"


def _columns(columns: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Return the only two columns that hold sentences if they are others than the first two; else None."""
    texts = [place for place, look in enumerate(looks(columns)) if not look]
    return (texts[0], texts[1]) if len(texts) == 2 and texts != [0, 1] else None


def looks(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return what each column looks like that seems to hold no text, such as numbers; nothing for one that does.

    Those that do may still be more than two.
    """
    found = [_look(column, KEY) for column in columns]
    if found.count("") > 2:
        stricter = [look or _look(column, LABEL) for look, column in zip(found, columns, strict=True)]
        if stricter.count("") >= 2:
            found = stricter
    texts = [place for place, look in enumerate(found) if not look]
    if len(texts) > 2:
        alike = _alike([columns[place] for place in texts])
        for place in texts:
            if alike and texts.index(place) not in alike:
                found[place] = "texts of other lengths than the rest"
    return found


def _look(column: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return what a column looks like that holds no text but cells that a pattern matches, or few different ones."""
    cells = [cell.strip() for cell in column if cell.strip()]
    if not cells:
        return "nothing"
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
    if len(numbers) >= LABELS * len(cells):
        return "numbers"
    if _share(column, pattern) >= LABELS:
        return WORDS
    if len(cells) >= MANY_ROWS and len(set(cells)) <= FEW_VALUES * len(cells):
        return "few different values"
    return ""


def _alike(columns: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Return the only two columns whose lengths correlate as those of translations do, while those of all other columns
    do not; None if that is not clear."""
    if len(columns[0]) < FEW_ROWS:
        return None
    lengths = [list(map(len, column)) for column in columns]
    found = list[tuple[int, int]]()
    for pair in combinations(range(len(columns)), 2):
        correlation = _correlation(lengths[pair[0]], lengths[pair[1]])
        if correlation >= ALIKE:
            found.append(pair)
        elif correlation > UNLIKE:
            return None
    return found[0] if len(found) == 1 else None


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
