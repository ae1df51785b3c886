"""What files of pairs show of themselves, before there is a recipe: their languages, and the columns with the texts.

Languages are those of a header, of keys, of what translators' files declare, or of the files' names. Nothing is guessed
from the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.pairs import fields_of, pair_files, read_records
from nmt.data.tables import LOOKED_AT, SHOWN, first_rows, looks, role_of
from nmt.formats.declared import content_of, declared_languages
from nmt.recipe.data import TABLES, UNITS, format_of
from nmt.system.compression import split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language, direction_in, language_in, named_language

Languages = tuple[str, str]
"""Source and target language; of those that a user has set, one or both may be empty"""
BY_CUSTOM = "en"
"""The source language of translators' files that do not say it: gettext's and Qt's custom"""
BY_NAME = "by the file's name"
EXAMPLES = 2  # cells of a column that is left out
TEXT = (".txt", ".text")


class Shown(NamedTuple):
    """A data set of the recipe to be: a file, a folder or two files of lines, and what they show of themselves."""

    name: str
    """The file or folder, or the first of two files of lines"""
    languages: Languages | None
    """Languages of its sides in their order; None if it does not say them"""
    by: str = ""
    """What says them"""
    sides: tuple[Any, Any] | None = None
    """Columns or fields with the texts or, with `is_lines`, files; None if the languages alone tell the sides"""
    is_lines: bool = False
    left_out: str = ""
    """Columns that hold no text, and what they look like"""
    units: Sequence[Path] = ()
    """Translators' files, of one or of a folder of them"""

    def dataset(self, languages: Languages) -> dict[str, Any]:
        """Return this data set as a recipe has it, to be read in two languages."""
        sides = self.sides
        if sides is not None and self.languages is not None and are_like(self.languages, languages[::-1]):
            sides = sides[::-1]
        if self.is_lines and sides is not None:
            return dict(zip(("source", "target"), sides, strict=True))
        path = Path(self.name)
        if path.is_dir() and path.suffix:  # only a pattern may end like a file
            return {"file": str(path.with_name(path.name.replace(".", "[.]")))}
        if sides is None or sides == languages:
            return {"file": self.name}
        return {"file": self.name, "fields": list(sides)}


def are_like(languages: Languages, others: Languages) -> bool:
    """Return whether two pairs of languages are the same, whatever their regions; an empty code is like any."""
    pairs = zip(languages, others, strict=True)
    return all(not (one and other) or _is_like(one, other) for one, other in pairs)


def _is_like(code: str, other: str) -> bool:
    return Language.of(code).is_like(Language.of(other))


def is_data(name: str) -> bool:
    """Return whether a name, which is no recipe of nmt, is one of data: of a folder, or of a file of pairs or lines."""
    path = Path(name)
    return path.is_dir() or format_of(name) is not None or is_lines(path)


def is_lines(path: Path) -> bool:
    """Return whether a file's name is one of a text in one language: x.txt or, if it is there, x.de."""
    ending = Path(split_suffix(path)[0]).suffix
    return ending.lower() in TEXT or (named_language(ending[1:]) != "" and path.is_file())


def look_at(names: Sequence[str], wanted: Languages) -> list[Shown]:
    """Return the data sets that files and folders make up; `wanted` are the languages that the user has set.

    Raise UserError if a file is missing or unreadable, has not two columns of text, or more of which nothing says
    which are wanted, or if a file of lines has no partner.
    """
    found = list[Shown]()
    lines = list[str]()
    for name in names:
        if not Path(name).exists():
            raise UserError(
                f"{name}: no such file or folder", "name files of pairs that are here, or with their folder"
            )
        if Path(name).is_dir():
            found += _of_folder(name.rstrip("/") or name, wanted)
        elif format_of(name):
            found.append(_of_file(name, wanted))
        else:
            lines.append(name)
    return found + _of_lines(lines)


def _of_folder(name: str, wanted: Languages) -> list[Shown]:
    files = pair_files(Path(name))
    if not all(format_of(path) in UNITS for path in files):
        return [_of_file(str(path), wanted) for path in files]
    return [_of_units(name, files, wanted)]


def _of_file(name: str, wanted: Languages) -> Shown:
    form = format_of(name)
    if form in UNITS:
        return _of_units(name, [Path(name)], wanted)
    if form in TABLES:
        return _of_table(name, wanted)
    if form == ".zip":
        return Shown(name, direction_in(_stem(name)), BY_NAME)
    return _of_records(name, wanted)


# --- columns ------------------------------------------------------------------------------------------------------


class _Labelled(NamedTuple):
    field: Any
    label: str
    cells: Sequence[str]
    look: str

    @property
    def role(self) -> str:
        """What its name says that it holds, see `role_of`"""
        return role_of(self.label)

    @property
    def described(self) -> str:
        examples = ", ".join(list(dict.fromkeys(filter(None, self.cells)))[:EXAMPLES])
        return f"{self.field} ({self.look}: {examples[:SHOWN]})" if examples else f"{self.field} ({self.look})"


def _of_table(name: str, wanted: Languages) -> Shown:
    """Look at a .tsv or .csv; its first row may name the columns."""
    rows = first_rows(Path(name))
    widths = [len(row) for row in rows]
    width = max(widths, key=widths.count, default=0)
    if width < 2:
        what = "columns, separated by commas" if format_of(name) == ".csv" else "columns, separated by tabs"
        raise UserError(f"{name}: has no two {what}", "put each source and its translation into one row")
    rows = [row for row in rows if len(row) == width]
    labels, *others = rows
    columns = list(zip(*(others or rows), strict=True))
    fields = list(range(1, width + 1))
    return _of_columns(name, fields, labels, columns, wanted, "by the names of its columns")


def _of_records(name: str, wanted: Languages) -> Shown:
    """Look at a .jsonl or .parquet, whose fields have names."""
    records = [fields_of(record) for record in islice(read_records(Path(name)), LOOKED_AT)]
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = list[list[str]]()
    for key in keys:
        values = [record.get(key) for record in records]
        columns.append([str(value) if isinstance(value, str | int | float) else "" for value in values])
    return _of_columns(name, keys, keys, columns, wanted, "by its keys")


def _of_columns(
    name: str,
    fields: Sequence[Any],
    labels: Sequence[str],
    cells: Sequence[Sequence[str]],
    wanted: Languages,
    by: str,
) -> Shown:
    """Choose the two columns with the texts."""
    columns = [_Labelled(*each) for each in zip(fields, labels, cells, looks(cells), strict=True)]
    texts = [column for column in columns if not column.look]
    others = [column.described for column in columns if column.look]
    if len(texts) < 2:
        problem = f"{name}: needs two columns of text, and has {len(texts)}"
        if others:
            problem += f"; without text: {', '.join(others)}"
        raise UserError(problem, f"if that is wrong, name two: {_setting(name, fields)}")
    chosen = _chosen(texts, wanted)
    if chosen is None:
        those = ", ".join(f"{column.field} ({column.label[:SHOWN]})" for column in texts)
        raise UserError(f"{name}: has {len(texts)} columns of text: {those}", f"name two: {_setting(name, fields)}")
    source, target = chosen
    languages = (language_in(source.label), language_in(target.label))
    others += [f"{column.field} ({column.label[:SHOWN]})" for column in texts if column not in chosen]
    left_out = ", ".join(others)
    sides = (source.field, target.field)
    if all(languages) and languages[0] != languages[1]:
        return Shown(name, languages, by, sides, left_out=left_out)
    return Shown(name, direction_in(_stem(name)), BY_NAME, sides, left_out=left_out)


def _chosen(texts: Sequence[_Labelled], wanted: Languages) -> Sequence[_Labelled] | None:
    """Return the columns of source and target, in this order; None if nothing says which."""
    for roles in (("source", "target"), wanted):
        found = [text for role in roles for text in texts if role and text.role == role]
        if len(found) == 2:
            return found
    named = [text for text in texts if text.role]
    return next((pair for pair in (texts, named) if len(pair) == 2), None)


def _setting(name: str, fields: Sequence[Any]) -> str:
    """Return the setting that names two columns."""
    first, second = [*fields, *fields, 1, 2][:2]
    return f"--set 'data.train=[{{file: {name}, fields: [{first}, {second}]}}]'"


# --- files of translators -----------------------------------------------------------------------------------------


def _of_units(name: str, files: Sequence[Path], wanted: Languages) -> Shown:
    """Look at what translators' files declare or, for lack of that, at their names, such as app.sv.po."""
    sources = list[str]()
    targets = list[str]()
    all_declare = True
    for path in files:
        of_sources, of_targets = declared_languages(path, content_of(path))
        if format_of(path) == ".tmx" and len(of_sources) == 2 and not of_targets:
            of_sources, of_targets = of_sources[:1], of_sources[1:]
        elif format_of(path) != ".tmx":
            of_targets = of_targets or list(filter(None, [_language_of(path.name)]))
            all_declare &= bool(of_sources)
            of_sources = of_sources or [BY_CUSTOM]
        sources += of_sources
        targets += of_targets
    found = []
    for key, codes, set_one in (("source", sources, wanted[0]), ("target", targets, wanted[1])):
        different = _different(codes)
        if len(different) > 1 and not set_one:
            problem = f"{name}: has the {key} languages {', '.join(different)}"
            raise UserError(problem, f"say which one: --set data.{key}={different[0]}")
        found.append(set_one or "".join(different))
    if not all(found):
        return Shown(name, None, units=files)
    by = "as declared"
    if not all_declare and not wanted[0]:
        by = f"as declared, or {BY_CUSTOM} by custom"
    return Shown(name, (found[0], found[1]), by, units=files)


def _different(codes: Iterable[str]) -> list[str]:
    """Return codes of different languages, the most frequent first."""
    ordered = sorted(dict.fromkeys(codes), key=list(codes).count, reverse=True)
    found = list[str]()
    for code in ordered:
        if not any(Language.of(code).is_same(Language.of(other)) for other in found):
            found.append(code)
    return found


# --- lines --------------------------------------------------------------------------------------------------------


def _of_lines(names: Sequence[str]) -> list[Shown]:
    """Make the data set of two files of lines, or none of no files."""
    if not names:
        return []
    if len(names) != 2:
        problem = (
            f"{names[0]}: is a text of one language; files of lines that translate each other are two, not {len(names)}"
        )
        raise UserError(problem, "name both: nmt train x.en x.de")
    codes = (_language_of(names[0]), _language_of(names[1]))
    languages = codes if all(codes) and codes[0] != codes[1] else None
    return [Shown(names[0], languages, "by the files' names", (names[0], names[1]), is_lines=True)]


def _language_of(name: str) -> str:
    """Return the language that the name of a file of lines names: x.de, de.txt, x_de.txt or german.txt."""
    path = Path(split_suffix(name)[0])
    return named_language(path.suffix[1:]) or language_in(_stem(name).rpartition(".")[2])


def _stem(name: str) -> str:
    """Return a file's name without its endings of format and compression."""
    return Path(split_suffix(name)[0]).stem
