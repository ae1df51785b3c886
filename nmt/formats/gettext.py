"""PO and MO, the catalogs of gettext. A PO file is changed in place: all but translations, the flag `fuzzy` and our
comments stays.

A comment may stand anywhere; obsolete entries and previous sources are comments here (`#~`, `#|`).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unicodedata import east_asian_width

from nmt.formats.catalogs import usual_plurals
from nmt.formats.plurals import fits_all, forms_for, numbers_of_forms
from nmt.formats.units import Edits, Numbers, Origin, Unit, UnitFile, origin_of

MOST_COLUMNS = 79  # of a line that gettext writes
TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+)
    | (?P<comment>\#(?:[^\r\n]|\r(?!\n))*)
    | (?P<keyword>(?:msgctxt|msgid_plural|msgid|msgstr|domain)\b)
    | (?P<index>\[\s*[0-9]+\s*\])
    | (?P<string>"(?:[^"\\\n]++|\\.)*+")""",
    re.VERBOSE,
)
ENTRY = re.compile(r"domain|(msgctxt )?msgid (msgstr|msgid_plural( msgstr\[\d+\])+)")
"""The keywords of an entry, in order"""
ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]+)|(.))")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
PLURALS = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;\n]+)")
DECLARATION = r"Content-Type: text/plain; charset=UTF-8\n"  # as it is written, with \n for a line end
UNDECLARED = re.compile(r"Content-Type:[^\"\\]*(?:\\n)?", re.IGNORECASE)
CHARSET = re.compile(
    r'(?:^|(?<=")|(?<=\\n))(Content-Type:[^\n\\"]*?charset=\s*)([\w.:-]+)', re.IGNORECASE | re.MULTILINE
)
_LINE_END = re.compile(r"\r?\n")
_FUZZY = re.compile(r",\s*fuzzy\s*(?=,|$)")
_NOTE = re.compile(r"#(?:\s|$)")
"""How a translator's comment begins"""
_ORIGIN = re.compile(r"#\s*nmt: *(.*)")


@dataclass
class _Field:
    name: str
    begin: int
    """Where the token before it ends: removing a field removes the space before it, too"""
    start: int
    strings: list[re.Match[str]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.strings[-1].end()

    @property
    def raw(self) -> str:
        """The strings as they are written."""
        first = self.strings[0]
        return first.string[first.start() : self.end]

    @property
    def text(self) -> str:
        return "".join(ESCAPE.sub(_unescaped, each[0][1:-1]) for each in self.strings)


@dataclass
class _Entry:
    comments: list[re.Match[str]]
    fields: list[_Field] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Where its first keyword stands."""
        return self.fields[0].start

    @property
    def notes(self) -> list[re.Match[str]]:
        """Comments of translators, before the entry."""
        return [each for each in self.comments if _NOTE.match(each[0]) and each.end() <= self.start]

    @property
    def previous(self) -> list[re.Match[str]]:
        """Comments with the source that a fuzzy translation was made for."""
        return [each for each in self.comments if each[0].startswith("#|")]

    @property
    def texts(self) -> dict[str, str]:
        return {each.name: each.text for each in self.fields}

    @property
    def forms(self) -> list[_Field]:
        return [each for each in self.fields if each.name.startswith("msgstr")]


class PoFile(UnitFile):
    """A PO file."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, which names the line, if it is none."""
        self._raw = raw.removeprefix(BOM_UTF8)
        self._bom = raw[: len(raw) - len(self._raw)]
        declared = _encoding_in(self._raw.decode("latin-1"))
        self._encoding = declared or ("ascii" if self._raw.isascii() else "UTF-8")
        try:
            text = self._raw.decode(self._encoding)
        except UnicodeDecodeError as error:
            line = self._raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"line {line}: {error}") from None
        super().__init__(text, Edits())
        self._languages = languages
        self._read([])

    def _read(self, forms: Sequence[Sequence[Numbers]]) -> None:
        """Read the units, with these plural forms below each header, and below others with those that they declare."""
        self.units = []
        self.headers = []
        plurals = plural_forms("", self._languages)
        for entry in _entries(self.text):
            texts = entry.texts
            if _is_header(texts):
                header = texts["msgstr"]
                number = len(self.headers)
                plurals = forms[number] if number < len(forms) else plural_forms(header, self._languages)
                if not self.headers:
                    self.accelerator = _accelerator_of(header)
                self.headers.append(self._header(entry, header, plurals))
            elif texts.get("msgid"):
                self.units.append(self._unit(entry, texts, plurals))

    def divide_as(self, other: PoFile, theirs: Collection[Unit]) -> None:
        """Take the plural forms of headers of another version that are `theirs`, the work of people.

        Those of this file stay if it has translations of more forms.
        """
        forms = []
        for own, given in zip(self.headers, other.headers, strict=False):
            is_lost = any(_has_more_forms(unit, given.numbers) for unit in self.units)
            forms.append(given.numbers if given in theirs and not is_lost else own.numbers)
        if forms != [header.numbers for header in self.headers[: len(forms)]]:
            self._read(forms)
            for unit in self.units:
                self._drop_forms(unit.place, len(unit.sources))

    def _header(self, entry: _Entry, text: str, plurals: Sequence[Numbers]) -> Unit:
        """Return the unit of a header, whose numbers are those of the plural forms below it."""
        unit = Unit([""], [text], "", _is_fuzzy(entry), partial(self._write, entry, []), plurals)
        unit.notes = "\n".join(_as_written(entry.notes))
        unit.place = entry
        return unit

    def _unit(self, entry: _Entry, texts: Mapping[str, str], plurals: Sequence[Numbers]) -> Unit:
        """Return the unit of an entry whose fields have these texts, with as many forms as its header declares."""
        sources = [texts["msgid"]]
        if "msgid_plural" in texts:
            sources.append(texts["msgid_plural"])
        targets = [texts.get(name, "") for name in _names_of_forms(len(plurals), "msgid_plural" in texts)]
        notes = _as_written(entry.notes)
        unit = unit_of(texts.get("msgctxt", ""), sources, targets, plurals)
        unit.needs_review = _is_fuzzy(entry)
        unit.write = partial(self._write, entry, notes)
        unit.notes = "\n".join([*notes, *_names_of_flags(entry)])
        unit.origin = _origin_in(notes)
        unit.start = entry.start
        unit.place = entry
        return unit

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        entry = unit.place
        given = other.place
        newline = self._newline(entry.start)
        if unit not in self.headers:
            raw = _raw_forms(given, unit, other)
        elif unit.numbers == other.numbers:
            raw = {"msgstr": given.forms[0].raw}
        else:
            raw = {"msgstr": self._with_own_plurals(entry, given.texts["msgstr"], newline)}
        present = self._drop_forms(entry, len(unit.sources))
        for form in present:
            self._set(form, _LINE_END.sub(newline, raw.pop(form.name, '""')))
        self._add(entry, "".join(f"{newline}{name} {text}" for name, text in raw.items()))
        notes = _as_written(given.notes)
        if is_reviewed:
            notes = _without_origin(notes)
        unit.write = partial(self._write, entry, notes)
        self._annotate(entry, notes, newline)
        own_flags = _names_of_flags(entry)
        added_flags = [name for name in _names_of_flags(given) if name not in own_flags]
        self._mark(entry, other.needs_review, newline, added_flags)
        for comment in entry.previous:
            self._set_line(comment, bool(given.previous), 1)  # editors drop them with the mark

    def _with_own_plurals(self, header: _Entry, text: str, newline: str) -> str:
        """Return the strings of another header with the plural forms that this one declares."""
        own = PLURALS.search(header.texts["msgstr"])
        if own:
            text = PLURALS.sub(lambda _: own[0], text)
        return _quoted("msgstr", text, newline)

    def _drop_forms(self, entry: _Entry, count: int) -> list[_Field]:
        """Remove the forms that are too many for the header; return those that stay."""
        wanted = _names_of_forms(count, entry.forms[0].name != "msgstr")
        stay = []
        for form in entry.forms:
            if form.name in wanted:
                stay.append(form)
            else:
                self.edits.replace(form.begin, form.end, "")
        return stay

    def _set(self, field: _Field, raw: str) -> None:
        """Replace the strings of a field."""
        self.edits.replace(field.strings[0].start(), field.end, raw)

    def _add(self, entry: _Entry, raw: str) -> None:
        """Set what is added behind an entry."""
        end = entry.fields[-1].end
        self.edits.replace(end, end, raw, 1)

    def _set_line(self, comment: re.Match[str], stays: bool, order: int = 0) -> None:
        """Keep or remove the line of a comment."""
        start = comment.start()
        end = self._line_end(comment)
        self.edits.replace(start, end, self.text[start:end] if stays else "", order)

    def _line_end(self, comment: re.Match[str]) -> int:
        """Return where the line of a comment ends, with its line break."""
        line_end = _LINE_END.match(self.text, comment.end())
        return line_end.end() if line_end else comment.end()

    def _newline(self, start: int = 0) -> str:
        """Return the line break of the line at an offset or, if it has none, that of the file."""
        line_end = _LINE_END.search(self.text, start) or _LINE_END.search(self.text)
        return line_end[0] if line_end else "\n"

    def _write(
        self, entry: _Entry, notes: Sequence[str], texts: Sequence[str], review: bool, origin: Origin = ""
    ) -> None:
        newline = self._newline(entry.start)
        wraps = "no-wrap" not in _names_of_flags(entry)
        present = {form.name: form for form in self._drop_forms(entry, len(texts))}
        names = _names_of_forms(len(texts), entry.forms[0].name != "msgstr")
        added = ""
        for name, text in zip(names, texts, strict=True):
            form = present.pop(name, None)
            if form is None:
                added += f"{newline}{name} {_quoted(name, text, newline, wraps)}"
            elif text == form.text:
                self._set(form, form.raw)
            else:
                self._set(form, _quoted(name, text, newline, wraps))
        self._add(entry, added)
        comments = _without_origin(notes)
        if origin:
            comments.append(f"# nmt: {origin}")
        self._annotate(entry, comments, newline)
        self._mark(entry, review, newline)

    def _annotate(self, entry: _Entry, notes: Sequence[str], newline: str) -> None:
        """Set the comments of translators: where they are or, if there are none, before all others."""
        present = entry.notes
        stays = _as_written(present) == list(notes)
        added = ""
        if not stays:
            added = "".join(note + newline for note in notes)
        at = _first_start(present or entry.comments, entry)
        self.edits.replace(at, at, added, -1)
        for comment in present:
            self._set_line(comment, stays)

    def _mark(self, entry: _Entry, review: bool, newline: str, added: Sequence[str] = ()) -> None:
        """Set or remove the flag `fuzzy`, and add others: in the line of flags, or else where gettext puts them."""
        flags = _flags(entry)
        is_fuzzy = _is_fuzzy(entry)
        for each in flags:
            line = each[0]
            end = each.end()
            if is_fuzzy and not review:
                line = _FUZZY.sub("", line)
                if line.strip() == "#":
                    line = ""
                    end = self._line_end(each)
            elif review and not is_fuzzy and each is flags[0]:
                line = "#, fuzzy" + line[1:]
            if added and each is flags[0]:
                line = ", ".join([line or "#", *added])
                end = each.end()
            self.edits.replace(each.start(), end, line)
        if not flags:
            self._insert_flags(entry, ["fuzzy", *added] if review else added, newline)

    def _insert_flags(self, entry: _Entry, names: Sequence[str], newline: str) -> None:
        """Set the line of flags of an entry that has none."""
        at = _first_start(entry.previous, entry)
        before = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        line = ""
        if names:
            line = ", ".join(["#", *names]) + newline
            line = newline + line if before.strip() else line + before
        self.edits.replace(at, at, line)

    def content(self) -> bytes:
        """Return the file with all that was written; in UTF-8, as its header then says, if its encoding lacks that."""
        text = self.edits.applied(self.text)
        if text == self.text:
            return self._bom + self._raw
        declared = _encoding_in(text)  # that of a header of people's may be another one
        encoding = declared or "ascii"
        with suppress(UnicodeEncodeError):
            written = text.encode(encoding)
            if encoding != self._encoding or self.text.encode(encoding) == self._raw:
                return self._bom + written
        return self._bom + self._in_utf_8(text).encode()

    def _in_utf_8(self, text: str) -> str:
        """Return a file whose headers declare UTF-8."""
        edits = Edits()
        for entry in _entries(text):
            if _is_header(entry.texts):
                header = entry.forms[0]
                edits.replace(header.strings[0].start(), header.end, self._with_utf_8(header.raw))
        return edits.applied(text)

    def _with_utf_8(self, raw: str) -> str:
        """Return the strings of a header with this encoding in place of their own, or added."""
        newline = self._newline()
        declared, count = CHARSET.subn(r"\1UTF-8", raw, count=1)
        if not count:
            declared, count = UNDECLARED.subn(lambda _: DECLARATION, raw, count=1)
        if not count and raw.startswith('""'):
            declared = f'""{newline}"{DECLARATION}"{raw[2:]}'
        elif not count:
            declared = f'"{DECLARATION}"{newline}{raw}'
        return declared


class MoFile(UnitFile):
    """An MO file, which is only read."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise an exception of any type if it is none."""
        from translate.storage.mo import mofile

        super().__init__("", Edits())
        store = mofile()
        store.parse(raw)
        headers = [str(unit.target) for unit in store.units if unit.isheader()]
        if not headers or not headers[0]:
            raise ValueError("it has no header, which names its encoding")
        self.accelerator = _accelerator_of(headers[0])
        plurals = plural_forms(headers[0], languages)
        for unit in store.units:
            if not unit.isheader():
                context = unit.getcontext() or ""
                self.units.append(unit_of(context, _strings(unit.source), _strings(unit.target), plurals))


def _strings(text: Any) -> list[str]:
    """Return the forms of a text of the toolkit."""
    return [str(each) for each in getattr(text, "strings", [text])]


def _accelerator_of(header: str) -> str:
    """Return the mark of accelerators that a header names; an empty text if it names none."""
    mark = ""
    for line in header.split("\n"):
        name, _, value = line.partition(":")
        if name.strip() == "X-Accelerator-Marker":
            mark = value.strip()
    return mark


def unit_of(context: str, sources: Sequence[str], targets: Sequence[str], plurals: Sequence[Numbers]) -> Unit:
    """Return the unit of a message, which has one source or the singular and the plural; it cannot be written."""
    singular, *plural = sources
    note = re.match(r"_: (.*)\n", singular)  # KDE's contexts of old
    if note:
        context += note[1]
        singular = singular[note.end() :]
    unit = Unit([singular], targets, context, False, lambda *_, **__: None)
    if plural:
        unit.message = [singular, *plural]
        unit.sources = plural[:1]
        unit.numbers = plurals
        if len(plurals) > 1:
            unit.sources = [_source_of(numbers, singular, *plural) for numbers in plurals]
    return unit


def plural_forms(header: str, languages: Sequence[str]) -> Sequence[Numbers]:
    """Return the numbers that take each plural form that a header declares, or else those of the target language."""
    declared = PLURALS.search(header)
    if declared:
        return numbers_of_forms(int(declared[1]), declared[2])
    _, target = languages
    return numbers_of_forms(*usual_plurals(target))


def _source_of(numbers: Numbers, singular: str, plural: str) -> str:
    """Return the source of a plural form: the singular for that of one thing, if it fits all numbers of the form."""
    is_sure = len(numbers) == 1 or re.search("[%{]", singular) is not None
    if 1 in numbers and is_sure and fits_all(numbers, singular, plural):
        return singular
    return plural


def _entries(text: str) -> Iterator[_Entry]:
    """Yield the entries of a PO file, in order; raise ValueError if it is none."""
    entry = _Entry([])
    comments: list[re.Match[str]] = []
    begin = 0
    name = ""
    for token in _tokens(text):
        kind = token.lastgroup
        at = token.start()
        if kind == "space":
            continue
        if kind == "comment":
            comments.append(token)
            if token[0].startswith("#~"):
                comments = []  # those before belong to the obsolete entry
        elif kind == "keyword":
            if token[0] in ("domain", "msgctxt") or (token[0] == "msgid" and name != "msgctxt"):
                yield from _checked(entry, text)
                entry = _Entry([])
            name = token[0]
            entry.fields.append(_Field(name, begin, at))
        elif not entry.fields or (kind == "index" and (name != "msgstr" or entry.fields[-1].strings)):
            raise _error(text, at)
        elif kind == "index":
            entry.fields[-1].name += f"[{int(token[0][1:-1])}]"
        else:
            if comments and entry.fields[-1].strings:
                raise _error(text, comments[0].start())
            entry.fields[-1].strings.append(token)
        if kind != "comment":
            entry.comments += comments
            comments = []
        begin = token.end()
    yield from _checked(entry, text)


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise _error(text, at)
        yield token
        at = token.end()


def _checked(entry: _Entry, text: str) -> Iterator[_Entry]:
    """Yield an entry unless it is empty; raise ValueError if it is not complete."""
    if entry.fields:
        for each in entry.fields:
            if not each.strings:
                raise _error(text, each.start)
        names = [each.name for each in entry.fields]
        if not ENTRY.fullmatch(" ".join(names)) or len(set(names)) < len(names):
            raise _error(text, entry.start)
        yield entry


def _error(text: str, at: int) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line}: no entry of msgid and msgstr: {text[at : at + 40].splitlines()[0]!r}")


def _is_header(texts: dict[str, str]) -> bool:
    return texts.get("msgid") == "" and "msgctxt" not in texts and "msgstr" in texts


def _first_header(text: str) -> str:
    for entry in _entries(text):
        texts = entry.texts
        if _is_header(texts):
            return texts["msgstr"]
    raise ValueError("it has no header, which names its encoding")


def _encoding_in(text: str) -> str:
    """Return the encoding that the header of a file declares; an empty text if it leaves this open."""
    declared = CHARSET.search(_first_header(text))
    if declared is None or declared[2] == "CHARSET":
        return ""
    return declared[2]


def _has_more_forms(unit: Unit, numbers: Sequence[Numbers]) -> bool:
    """Return whether a plural is translated in more forms than there are."""
    return unit.numbers != () and any(unit.filled[len(numbers) :])


def _raw_forms(given: _Entry, unit: Unit, other: Unit) -> dict[str, str]:
    """Return the strings of another version's entry as they are written, by the names of the unit's forms."""
    raw = {form.name: form.raw for form in given.forms}
    if not unit.numbers:
        return raw
    places = [f"msgstr[{place}]" for place in forms_for(unit, other)]
    return {f"msgstr[{form}]": raw[place] for form, place in enumerate(places) if place in raw}


def _as_written(comments: Iterable[re.Match[str]]) -> list[str]:
    return [comment[0] for comment in comments]


def _first_start(comments: Iterable[re.Match[str]], entry: _Entry) -> int:
    """Return where the first of some comments starts, or the entry itself if that is before."""
    return min([comment.start() for comment in comments] + [entry.start])


def _names_of_forms(count: int, is_plural: bool) -> list[str]:
    if not is_plural:
        return ["msgstr"]
    return [f"msgstr[{form}]" for form in range(count)]


def _origin_in(notes: Iterable[str]) -> Origin:
    for note in notes:
        found = _ORIGIN.match(note)
        if found:
            return origin_of(found[1])
    return ""


def _without_origin(notes: Iterable[str]) -> list[str]:
    return [note for note in notes if not _ORIGIN.match(note)]


def _flags(entry: _Entry) -> list[re.Match[str]]:
    return [each for each in entry.comments if each[0].startswith("#,")]


def _names_of_flags(entry: _Entry) -> list[str]:
    """Return the flags of an entry but `fuzzy`."""
    names: list[str] = []
    for flags in _as_written(_flags(entry)):
        names += map(str.strip, flags.split(",")[1:])
    return [name for name in names if name != "fuzzy"]


def _is_fuzzy(entry: _Entry) -> bool:
    return any(_FUZZY.search(each[0]) for each in _flags(entry))


def _unescaped(escape: re.Match[str]) -> str:
    octal, hexadecimal, sign = escape.groups()
    if sign:
        return ESCAPES.get(sign, sign)
    code = int(octal, 8) if octal else int(hexadecimal, 16)
    return chr(code & 0xFF)  # C escapes are bytes


def _quoted(name: str, text: str, newline: str, wraps: bool = True) -> str:
    """Return the strings of a field, wrapped as gettext does, or with the line breaks of the text alone."""
    from translate.storage.pypo import escapeforpo, quoteforpo

    if not wraps:
        lines = [f'"{escapeforpo(line)}"' for line in re.findall(r"[^\n]*\n|[^\n]+", text)] or ['""']
        return newline.join(lines if len(lines) == 1 else ['""', *lines])
    lines = quoteforpo(text) or ['""']
    if len(lines) == 1 and len(name) + 1 + _columns(lines[0]) > MOST_COLUMNS:
        lines = ['""', *lines]
    return newline.join(lines)


def _columns(text: str) -> int:
    wide = [each for each in text if east_asian_width(each) in "WF"]
    return len(text) + len(wide)
