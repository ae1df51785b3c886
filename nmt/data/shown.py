"""What files of pairs show of themselves, before there is a recipe: their languages, and the columns with the texts.

Languages are those of a header, of keys, of what translators' files declare, or of the files' names. Nothing is guessed
from the texts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.pairs import fields_of, files_in, kind_of_value, pair_files, read_records
from nmt.data.tables import FEW_ROWS, KEYS, LOOKED_AT, SHOWN, WORDS, first_rows, looks, role_of
from nmt.formats.declared import (
    check_kind,
    content_of,
    declared_languages,
    ending_of,
    is_of_a_format,
    kind_of,
    language_by_place,
)
from nmt.recipe.addresses import is_address
from nmt.recipe.data import PAIRS, TABLES, UNITS, format_of
from nmt.system.compression import LISTED, names_in, split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language, direction_in, is_same, named_language
from nmt.text.lines import read_lines

Languages = tuple[str, str]
"""Source and target language; of those that a user has set, one or both may be empty"""
BY_CUSTOM = "en"
"""The source language of translators' files that do not say it: gettext's and Qt's custom"""
BY_NAME = "by the file's name"
COLUMNS = 8  # that are named of those left out
EXAMPLES = 2  # cells of a column, or files, that are left out
TEXT = (".txt", ".text")
DIVIDERS = ("{", "|||", "\t")  # of lines that are records or rows
RECIPES = ("", ".yaml", ".yml")  # endings of recipes
PLAIN = re.compile(r"[\w./-]+")
"""A name that YAML reads as it is"""


class UnclearColumns(UserError):
    """Columns of which nothing says which two are wanted."""


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
    """What is not read, behind `without`: columns and what they look like, or files of lines in a folder"""
    units: Sequence[Path] = ()
    """Translators' files, of one or of a folder of them"""
    variants: Sequence[str] = ()
    """Codes of translators' files that are read as their target language, of other regions"""
    labels: tuple[str, str] | None = None
    """Names of the columns, or the first texts, if they say no languages"""

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
    """Return whether a name, which is none of nmt's recipes, is of data: a folder, a pipe, or by its ending."""
    path = Path(name)
    if path.is_dir() or name.endswith("/") or is_lines(path):
        return True
    is_pipe = name == "-" or (path.exists() and not path.is_file())
    if is_pipe or path.suffix.lower() not in RECIPES:
        return True
    with suppress(UserError):
        return path.suffix == "" and path.is_file() and _divider_of(name) != ""
    return False


def is_lines(path: Path) -> bool:
    """Return whether a file's name is one of a text in one language: x.txt or, if it is there, x.de."""
    return ending_of(path) in TEXT or (_by_ending(path.name) != "" and path.is_file())


def check_no_recipe(names: Iterable[str]) -> None:
    """Raise UserError if one of several names is of a recipe."""
    for name in names:
        if Path(name).suffix.lower() in RECIPES[1:]:
            raise UserError(f"{name}: is a recipe by its name, among files of pairs", "name it alone, or files alone")


def look_at(names: Sequence[str], wanted: Languages) -> list[Shown]:
    """Return the data sets that files and folders make up; `wanted` are the languages that the user has set.

    Raise UserError if a file is missing or unreadable, has not two columns of text, or more of which nothing says
    which are wanted, or if a file of lines has no partner.
    """
    found = list[Shown]()
    lines = list[str]()
    seen = set[Path]()
    check_no_recipe(names)
    for name in names:
        _check_name(name)
        path = Path(name).resolve()
        if path in seen and name not in lines and not is_lines(path):
            raise UserError(f"{name}: is named twice", "name it once")
        seen.add(path)
        if path.is_dir():
            found += _of_folder(name.rstrip("/") or name, wanted)
        elif format_of(name):
            found.append(_of_file(name, wanted))
        else:
            lines.append(name)
    return found + _of_lines(lines)


def _check_name(name: str) -> None:
    """Raise UserError unless a name is of a folder, or of a file that can be read more than once."""
    path = Path(name)
    if is_address(name):
        hint = f"download it, or name it in a recipe: data: {{train: [{{file: {json.dumps(name)}}}]}}"
        raise UserError(f"{name}: is an address, but a recipe is written only for files on this computer", hint)
    if name == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        raise UserError(f"{name}: is no file, but data is read several times", "write it to a file, and name that")
    if not path.exists():
        raise UserError(f"{name}: no such file or folder", "check its name, and the folder it is in")


def _of_folder(name: str, wanted: Languages) -> list[Shown]:
    lines = _lines_in(Path(name))
    try:
        files = pair_files(Path(name))
    except UserError as error:
        if not lines:
            raise
        hint = f"name two files of lines: nmt train {shlex.join(map(str, lines[:2]))}"
        raise UserError(error.message, hint) from None
    if all(format_of(path) in UNITS for path in files):
        found = [_of_units(name, files, wanted)]
    else:
        found = [_of_file_in(name, path, wanted) for path in files]
    if lines:
        more = f" and {len(lines) - EXAMPLES:,} more" if len(lines) > EXAMPLES else ""
        those = f"files of lines ({', '.join(map(str, lines[:EXAMPLES]))}{more}), which must be named"
        found[0] = found[0]._replace(left_out=", ".join(filter(None, (found[0].left_out, those))))
    return found


def _of_file_in(folder: str, path: Path, wanted: Languages) -> Shown:
    """Look at a file of a folder, which may hold others than files of pairs."""
    try:
        return _of_file(str(path), wanted)
    except UserError as error:
        raise type(error)(error.message, f"move it out of {folder}, or {error.hint}") from None


def _lines_in(folder: Path) -> list[Path]:
    """Return a folder's files that seem to be of lines: those whose names differ in a language alone, x.en and x.de.

    The largest come first, which are likelier to be training data than others.
    """
    by_stem = dict[Path, list[Path]]()
    for path in sorted(files_in(folder)):
        plain = path.with_name(split_suffix(path.name)[0])
        if format_of(path) is None and named_language(plain.suffix[1:]):
            by_stem.setdefault(plain.with_suffix(""), []).append(path)
    groups = [paths for paths in by_stem.values() if len(paths) > 1]
    groups.sort(key=lambda paths: -sum(path.stat().st_size for path in paths))
    return [path for paths in groups for path in paths]


def _of_file(name: str, wanted: Languages) -> Shown:
    form = format_of(name)
    if form in UNITS:
        return _of_units(name, [Path(name)], wanted)
    if form in TABLES:
        return _of_table(name, wanted)
    if form == ".zip":
        return _of_archive(name, wanted)
    return _of_records(name, wanted)


def _of_archive(name: str, wanted: Languages) -> Shown:
    """Look at the name of a .zip or, for lack of languages in it, at those of its files."""
    languages = direction_in(_stem(name))
    if languages is not None:
        return Shown(name, languages, BY_NAME)
    everything = names_in(Path(name))
    names = [each for each in everything if _by_ending(each)]
    codes = list(dict.fromkeys(map(_by_ending, names)))
    if all(wanted):
        return Shown(name, None)
    if len(codes) < 2:
        problem = f"{name}: has no two files of lines, whose names end in a language, such as x.en and x.de"
        raise UserError(f"{problem} ({', '.join(everything[:LISTED])})", "extract its files, and name them")
    if len(codes) > 2:
        hint = f"say which, such as --set data.source={codes[0]} --set data.target={codes[1]}"
        raise UserError(f"{name}: has files in {', '.join(codes)}", hint)
    direction = direction_in(_stem(names[0]))
    if direction is None or not are_like(direction, (codes[1], codes[0])):
        direction = (codes[0], codes[1])
    return Shown(name, direction, "by the names in it")


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
    def language(self) -> str:
        """The code of the language that its name says; else nothing"""
        return named_language(self.role)

    @property
    def described(self) -> str:
        examples = ", ".join(list(dict.fromkeys(filter(None, self.cells)))[:EXAMPLES])
        return f"{self.field} ({self.look}: {examples[:SHOWN]})" if examples else f"{self.field} ({self.look})"


def _of_table(name: str, wanted: Languages) -> Shown:
    """Look at a .tsv or .csv; its first row may name the columns."""
    rows = first_rows(Path(name))
    if not rows:
        raise UserError(f"{name}: is empty", "name files that hold pairs")
    widths = [len(row) for row in rows]
    most_frequent = max(widths, key=widths.count)
    if most_frequent < 2:
        separators = "commas, semicolons, tabs or |" if format_of(name) == ".csv" else "tabs"
        problem = f"{name}: has no two columns, separated by {separators}: {' '.join(rows[0])[:SHOWN]}"
        raise UserError(problem, f"put each source and its translation into one row, separated by {separators}")
    if format_of(name) == ".tsv" and all(cell[:1] == cell[-1:] == '"' for row in rows[:FEW_ROWS] for cell in row):
        problem = f"{name}: has its cells in quotation marks, which belong to the text in a .tsv: {rows[0][0][:SHOWN]}"
        raise UserError(problem, f"rename it to {_stem(name)}.csv")
    width = max(most_frequent, widths[0])
    whole = [[*row, *repeat("", width - len(row))] for row in rows if len(row) <= width]
    labels, *others = whole
    cells = list(zip(*(others or whole), strict=True))
    columns = _labelled(range(1, width + 1), labels, cells)
    return _of_columns(name, columns, wanted, "by the names of its columns")


def _of_records(name: str, wanted: Languages) -> Shown:
    """Look at a .jsonl or .parquet, whose fields have names."""
    records = [fields_of(record) for record in islice(read_records(Path(name)), LOOKED_AT)]
    if not records:
        raise UserError(f"{name}: is empty", "name files that hold pairs")
    keys = list(dict.fromkeys(key for record in records for key in record))
    cells = list[list[str]]()
    kinds = list[str]()
    for key in keys:
        values = [record.get(key) for record in records]
        cells.append([str(value) if isinstance(value, str | int | float) else "" for value in values])
        others = [value for value in values if not isinstance(value, str | int | float | None)]
        kinds.append(kind_of_value(others[0]) if others else "")
    columns = _labelled(keys, keys, cells)
    columns = [column._replace(look=kind or column.look) for column, kind in zip(columns, kinds, strict=True)]
    return _of_columns(name, columns, wanted, "by its keys")


def _listed(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - COLUMNS:,} more" if len(columns) > COLUMNS else ""
    return ", ".join(columns[:COLUMNS]) + more


def _labelled(fields: Iterable[Any], labels: Iterable[str], cells: Sequence[Sequence[str]]) -> list[_Labelled]:
    return [_Labelled(*each) for each in zip(fields, labels, cells, looks(cells), strict=True)]


def _of_columns(name: str, columns: Sequence[_Labelled], wanted: Languages, by: str) -> Shown:
    """Choose the two columns with the texts."""
    texts = [column for column in columns if not column.look]
    others = [column.described for column in columns if column.look]
    if len(texts) < 2:
        problem = f"{name}: needs two columns of text, and has {len(texts)}"
        if others:
            problem += f"; without text: {_listed(others)}"
        readable = [column for column in columns if any(column.cells)]
        if len(readable) < 2:
            raise UserError(problem, "write each source and its translation as text, in columns of their own")
        raise UnclearColumns(problem, f"leave it out or, if that is wrong, name two: {_setting(name, readable)}")
    chosen = _chosen(texts, wanted)
    if chosen is None:
        those = ", ".join(f"{column.field} ({column.label[:SHOWN]})" for column in texts)
        hint = _how_to_choose(name, texts, wanted)
        raise UnclearColumns(f"{name}: has {len(texts)} columns of text: {those}", hint)
    source, target = chosen
    languages = (source.language, target.language)
    others += [f"{column.field} ({column.label[:SHOWN]})" for column in texts if column not in chosen]
    left_out = f"column {_listed(others)}" if others else ""
    sides = (source.field, target.field)
    named = direction_in(_stem(name))
    if not all(languages) or languages[0] == languages[1]:
        labels = (source.label[:SHOWN], target.label[:SHOWN])
        return Shown(name, named, BY_NAME, sides, left_out=left_out, labels=labels)
    if named is not None and not are_like(named, languages) and are_like(named, languages[::-1]):
        return Shown(name, languages[::-1], f"{BY_NAME} and {by[3:]}", sides[::-1], left_out=left_out)
    return Shown(name, languages, by, sides, left_out=left_out)


def _chosen(texts: Sequence[_Labelled], wanted: Languages) -> Sequence[_Labelled] | None:
    """Return the columns of source and target, in this order; None if nothing says which."""
    for roles in (("source", "target"), wanted, ("source", wanted[1]), (wanted[0], "target")):
        found = [text for role in roles for text in _of_role(texts, role)]
        if len(found) == 2:
            return found
    if len(texts) == 2:
        is_named = isinstance(texts[0].field, str)  # the first row of a table may be a pair: Target, Ziel
        is_reversed = texts[0].role == "target" or texts[1].role == "source"
        return texts[::-1] if is_named and is_reversed else texts
    named = [text for text in texts if text.role]
    if len(named) != 2:
        return None
    languages = (named[0].language, named[1].language)
    return named if are_like(languages, wanted) or are_like(languages[::-1], wanted) else None


def _of_role(texts: Sequence[_Labelled], role: str) -> Sequence[_Labelled]:
    """Return the columns whose names say a role: if there are some, those that say nothing else, as `en_text` does, or
    those of its region."""
    found = [text for text in texts if role and text.role and _is_like(text.role, role)]
    found = [text for text in found if Language.of(text.role) == Language.of(role)] or found
    whole = [text for text in found if text.label.strip().lower() == role.lower() or named_language(text.label)]
    return whole or found


def _how_to_choose(name: str, texts: Sequence[_Labelled], wanted: Languages) -> str:
    """Return the hint for more than two columns: to name two of their languages if these tell them, else columns."""
    codes = [text.language for text in texts if text.language]
    of_source = codes
    if wanted[0]:
        of_source = [wanted[0]]
    elif any(text.role == "source" for text in texts):
        of_source = [BY_CUSTOM, *codes]
    of_target = [wanted[1]] if wanted[1] else codes
    for source in of_source:
        for target in of_target:
            if not _is_like(source, target) and _chosen(texts, (source, target)) is not None:
                return f"say which, such as --set data.source={source} --set data.target={target}"
    return f"name two: {_setting(name, texts)}"


def _setting(name: str, columns: Sequence[_Labelled]) -> str:
    """Return the setting that names two columns: those that are the likeliest to hold texts."""

    def doubt(column: _Labelled) -> tuple[bool, int]:
        return column.label.lower() in KEYS, ["", WORDS, column.look].index(column.look)

    two = sorted(columns, key=doubt)[:2]
    fields = ", ".join(_quoted(str(column.field)) for column in columns if column in two)
    setting = f"data.train=[{{file: {_quoted(name)}, fields: [{fields}]}}]"
    return f"--set {shlex.quote(setting)}"


def _quoted(name: str) -> str:
    """Return a name as YAML has it in a list."""
    return name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


# --- files of translators -----------------------------------------------------------------------------------------


def _of_units(name: str, files: Sequence[Path], wanted: Languages) -> Shown:
    """Look at what translators' files declare or, for lack of that, at their names, such as app.sv.po."""
    sources = list[str]()
    targets = list[str]()
    all_declare = True
    for path in files:
        content = content_of(path)
        check_kind(path, content, kind_of(path))
        of_sources, of_targets = declared_languages(path, content)
        if format_of(path) == ".tmx" and not of_targets:
            of_sources, of_targets = _sides_of_all(_different(of_sources), wanted)
        elif format_of(path) != ".tmx":
            of_targets = of_targets or list(filter(None, [language_by_place(path)]))
            all_declare &= bool(of_sources)
            of_sources = of_sources or [BY_CUSTOM]
        sources += of_sources
        targets += of_targets
    sides = (("source", _different(sources), wanted[0]), ("target", _different(targets), wanted[1]))
    unclear = [(key, codes) for key, codes, set_one in sides if len(codes) > 1 and not set_one]
    if unclear:
        languages = " and ".join(f"the {key} languages {', '.join(codes)}" for key, codes in unclear)
        settings = " ".join(f"--set data.{key}={_common(codes)}" for key, codes in unclear)
        raise UserError(f"{name}: has {languages}", f"say which, such as {settings}")
    found = [set_one or "".join(codes) for _, codes, set_one in sides]
    if not all(found):
        return Shown(name, None, units=files)
    by = "as declared"
    if not all_declare and not wanted[0]:
        by = f"as declared, or {BY_CUSTOM} by custom"
    variants = [] if len(set(targets)) == 1 else [code for code in dict.fromkeys(targets) if _varies(code, found[1])]
    return Shown(name, (found[0], found[1]), by, units=files, variants=variants)


def _varies(code: str, other: str) -> bool:
    """Return whether two codes are of one language, but one names a region, and the other none."""
    return is_same(code, other) and Language.of(code) != Language.of(other)


def _sides_of_all(codes: Sequence[str], wanted: Languages) -> tuple[list[str], list[str]]:
    """Return the languages of sources and of translations of a TMX that only says which there are."""
    source, target = wanted
    sources = list(codes)
    if source:
        sources = [code for code in codes if _is_like(code, source)]
    elif target:
        sources = [code for code in codes if not _is_like(code, target)]
    elif len(codes) == 2:
        sources = [codes[0]]
    else:
        others = [code for code in codes if not _is_like(code, codes[0])]
        if others and all(_is_like(code, others[0]) for code in others):
            sources = [code for code in codes if code not in others]
    return sources, [code for code in codes if code not in sources]


def _different(codes: Iterable[str]) -> list[str]:
    """Return codes of different languages, the most frequent first."""
    ordered = sorted(dict.fromkeys(codes), key=list(codes).count, reverse=True)
    found = list[str]()
    for code in ordered:
        if not any(Language.of(code).is_same(Language.of(other)) for other in found):
            found.append(code)
    return found


def _common(codes: Sequence[str]) -> str:
    """Return the code of the language of which all are regional variants; else the first."""
    if all(_is_like(code, codes[0]) for code in codes):
        return replace(Language.of(codes[0]), region="").tag
    return codes[0]


# --- lines --------------------------------------------------------------------------------------------------------


def _of_lines(names: Sequence[str]) -> list[Shown]:
    """Make the data set of two files of lines, or none of no files."""
    if not names:
        return []
    for name in names:
        _check_lines(name)
    if len(names) != 2:
        raise _not_two(names)
    if Path(names[0]).samefile(names[1]):
        raise UserError(f"{names[1]}: is named as source and as target", "name the file of the other language, too")
    codes = (language_by_place(Path(names[0])), language_by_place(Path(names[1])))
    languages = codes if all(codes) and codes[0] != codes[1] else None
    return [Shown(names[0], languages, "by the files' names", (names[0], names[1]), is_lines=True)]


def _check_lines(name: str) -> None:
    """Raise UserError if a file is of a format that is not read."""
    path = Path(name)
    if _by_ending(name) or not is_of_a_format(path):
        return
    hint = "save it as .tsv or .csv, with a source and its translation in each row"
    if ".json" in path.suffixes:
        hint = "write one JSON object on each line, and end the name in .jsonl"
    elif kind_of(path) == ".xlf":
        hint = f"rename it to {_stem(name)}.xlf"
    elif kind_of(path) == ".po":
        hint = "name files with translations, such as de.po"
    raise UserError(f"{name}: is neither text of lines nor a file of pairs, whose ending is {', '.join(PAIRS)}", hint)


def _not_two(names: Sequence[str]) -> UserError:
    """Return the error for other than two files of lines, of which a single one may be a table or records."""
    name = names[0]
    inner = Path(name).with_suffix("").name
    if len(names) == 1 and ending_of(Path(name)) in TEXT and format_of(inner):  # Windows hides the last ending
        return UserError(
            f"{name}: seems to be {format_of(inner)}, but its name does not end so", f"rename it to {inner}"
        )
    divider = _divider_of(name) if len(names) == 1 else ""
    if divider == "\t":
        hint = f"if its rows hold a source and a translation, rename it to {_stem(name)}.tsv"
        return UserError(f"{name}: has columns, separated by tabs, but its name does not end in .tsv", hint)
    if divider == "{":
        hint = f"if each of its lines is a JSON object, rename it to {_stem(name)}.jsonl"
        return UserError(f"{name}: seems to be JSON, but its name does not end in .jsonl", hint)
    if divider:
        hint = f"write tabs in place of {divider}, to a file of the name {_stem(name)}.tsv"
        return UserError(f"{name}: has columns, separated by {divider}, which is not read", hint)
    problem = f"{name}: is a text of one language; files of lines that translate each other are two, not {len(names)}"
    if len(names) == 1:
        return UserError(problem, "name both: nmt train x.en x.de")
    hint = "append those of one language to each other, or name patterns in a recipe: {source: '*.en', target: '*.de'}"
    return UserError(problem, hint)


def _divider_of(name: str) -> str:
    """Return what most of a file's first lines have that seem to be no text: a tab or ||| amid them, or { before them;
    else nothing. Raise UserError if it is unreadable, or no text."""
    lines = list(islice(read_lines(name), FEW_ROWS))
    for divider in DIVIDERS:
        having = [line for line in lines if divider in line and (divider != "{" or line.startswith(divider))]
        if 2 * len(having) > len(lines):
            return divider
    return ""


def _by_ending(name: str) -> str:
    """Return the language that a name ends in, as x.de does; else nothing."""
    return named_language(Path(split_suffix(name)[0]).suffix[1:])


def _stem(name: str) -> str:
    """Return a file's name without its endings of format and compression."""
    return Path(split_suffix(name)[0]).stem
