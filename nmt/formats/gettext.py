"""PO and MO, the catalogs of gettext. A PO file is changed in place: all but translations, the flag `fuzzy` and our
comments stays.

A comment may stand anywhere; obsolete entries and previous sources are comments here (`#~`, `#|`).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from unicodedata import east_asian_width

from nmt.formats.catalogs import usual_plurals
from nmt.formats.plurals import fits_all, numbers_of_forms
from nmt.formats.units import Numbers, Origin, Unit, UnitFile, origin_of

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
DECLARATION = r"Content-Type: text/plain; charset=UTF-8\n"
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
    """Where what stands before it ends"""
    start: int
    strings: list[re.Match[str]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.strings[-1].end()

    @property
    def raw(self) -> str:
        """The strings as they are written."""
        return self.strings[0].string[self.strings[0].start() : self.end]

    @property
    def text(self) -> str:
        return "".join(ESCAPE.sub(_unescaped, each[0][1:-1]) for each in self.strings)


@dataclass
class _Entry:
    comments: list[re.Match[str]]
    fields: list[_Field] = field(default_factory=list)

    @property
    def notes(self) -> list[re.Match[str]]:
        """Comments of translators, before the entry."""
        return [each for each in self.comments if _NOTE.match(each[0]) and each.end() <= self.fields[0].start]

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


class Catalog(UnitFile):
    """A catalog of either kind."""

    def _read_header(self, header: str) -> None:
        lines = (line.partition(":") for line in header.split("\n"))
        fields = {name.strip(): value.strip() for name, _, value in lines}
        self.language = fields.get("Language", "")
        self.accelerator = fields.get("X-Accelerator-Marker", "")


class PoFile(Catalog):
    """A PO file."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise ValueError, which names the line, if it is none."""
        super().__init__()
        self._raw = raw.removeprefix(BOM_UTF8)
        self._bom = raw[: len(raw) - len(self._raw)]
        self._edits, self._headers = self.edits, list[_Entry]()
        declared = CHARSET.search(_first_header(self._raw.decode("latin-1")))
        self._is_declared = declared is not None and declared[2] != "CHARSET"
        self._encoding = "ascii" if self._raw.isascii() else "UTF-8"
        if declared and self._is_declared:
            self._encoding = declared[2]
        try:
            self._text = self._raw.decode(self._encoding)
        except UnicodeDecodeError as error:
            line = self._raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"line {line}: {error}") from None
        self.text = self._text
        self.units = [*self._units(languages)]

    def _units(self, languages: Sequence[str]) -> Iterator[Unit]:
        plurals = plural_forms("", languages)
        for entry in _entries(self._text):
            texts = entry.texts
            if _is_header(texts):
                if not self._headers:
                    self._read_header(texts["msgstr"])
                self._headers.append(entry)
                plurals = plural_forms(texts["msgstr"], languages)
                self.headers.append(self._header(entry, texts["msgstr"]))
            elif texts.get("msgid"):
                targets = {each.name: texts[each.name] for each in entry.forms}
                forms = [f"msgstr[{form}]" for form in range(len(plurals))] if "msgid_plural" in texts else ["msgstr"]
                unit = unit_of(
                    texts.get("msgctxt", ""),
                    [texts["msgid"], *([texts["msgid_plural"]] if "msgid_plural" in texts else [])],
                    [targets.get(form, "") for form in forms],
                    plurals,
                )
                notes, unit.place, unit.start = [each[0] for each in entry.notes], entry, entry.fields[0].start
                unit.needs_review, unit.notes = _is_fuzzy(entry), "\n".join([*notes, *_names_of_flags(entry)])
                unit.origin = next((origin_of(each[1]) for each in map(_ORIGIN.match, notes) if each), "")
                unit.write = partial(self._write, entry, notes)
                yield unit

    def _header(self, entry: _Entry, text: str) -> Unit:
        """Return the unit of a header; its context is on what the rest of the file depends."""
        found = [pattern.search(text) for pattern in (PLURALS, CHARSET)]
        fixed = "\n".join(each[0] for each in found if each)
        unit = Unit([""], [text], fixed, _is_fuzzy(entry), partial(self._write, entry, []))
        unit.notes, unit.place = "\n".join(each[0] for each in entry.notes), entry
        return unit

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there."""
        entry, given = unit.place, other.place
        newline = self._newline(entry)
        raw = {each.name: each.raw for each in given.forms}
        for each in entry.forms:
            own = _LINE_END.sub(newline, raw.pop(each.name, '""'))
            self._edits.replace(each.strings[0].start(), each.end, own)
        added = "".join(f"{newline}{name} {text}" for name, text in raw.items())
        self._edits.replace(entry.fields[-1].end, entry.fields[-1].end, added, 1)
        notes = [each[0] for each in given.notes if not (is_reviewed and _ORIGIN.match(each[0]))]
        unit.write = partial(self._write, entry, notes)
        self._annotate(entry, notes, newline)
        own_flags = _names_of_flags(entry)
        self._mark(
            entry, other.needs_review, newline, [each for each in _names_of_flags(given) if each not in own_flags]
        )
        for each in entry.previous:
            end = self._line_end(each)
            own = self._text[each.start() : end] if given.previous else ""  # editors drop them with the mark
            self._edits.replace(each.start(), end, own, 1)

    def _line_end(self, comment: re.Match[str]) -> int:
        """Return where the line of a comment ends, with its line break."""
        line_end = _LINE_END.match(self._text, comment.end())
        return line_end.end() if line_end else comment.end()

    def _newline(self, entry: _Entry) -> str:
        line_end = _LINE_END.search(self._text, entry.fields[0].start) or _LINE_END.search(self._text)
        return line_end[0] if line_end else "\n"

    def _write(
        self, entry: _Entry, notes: Sequence[str], texts: Sequence[str], review: bool, origin: Origin = ""
    ) -> None:
        last, newline = entry.fields[-1], self._newline(entry)
        present = {each.name: each for each in entry.forms}
        names = [*present][:1] if "msgstr" in present else [f"msgstr[{form}]" for form in range(len(texts))]
        added = ""
        for name, text in zip(names, texts, strict=True):
            if name not in present:
                added += f"{newline}{name} {_quoted(name, text, newline)}"
                continue
            form = present.pop(name)
            own = form.raw if text == form.text else _quoted(name, text, newline)
            self._edits.replace(form.strings[0].start(), form.end, own)
        for each in present.values():  # the header says that there are fewer forms
            self._edits.replace(each.begin, each.end, "")
        self._edits.replace(last.end, last.end, added, 1)
        others = [each for each in notes if not _ORIGIN.match(each)]
        self._annotate(entry, [*others, *([f"# nmt: {origin}"] if origin else [])], newline)
        self._mark(entry, review, newline)

    def _annotate(self, entry: _Entry, notes: Sequence[str], newline: str) -> None:
        """Set the comments of translators: where they are or, if there are none, before all others."""
        own = entry.notes
        starts = [each.start() for each in own or entry.comments]
        at = min([*starts, entry.fields[0].start])
        stays = [each[0] for each in own] == [*notes]
        self._edits.replace(at, at, "" if stays else "".join(note + newline for note in notes), -1)
        for each in own:
            end = self._line_end(each)
            self._edits.replace(each.start(), end, self._text[each.start() : end] if stays else "")

    def _mark(self, entry: _Entry, review: bool, newline: str, added: Sequence[str] = ()) -> None:
        """Set or remove the flag `fuzzy`, and add others: in the line of flags, or else where gettext puts them."""
        flags, is_fuzzy = _flags(entry), _is_fuzzy(entry)
        for each in flags:
            line, end = each[0], each.end()
            if is_fuzzy and not review:
                line = _FUZZY.sub("", line)
                if line.strip() == "#":
                    line, end = "", self._line_end(each)
            elif review and not is_fuzzy and each is flags[0]:
                line = "#, fuzzy" + line[1:]
            if added and each is flags[0]:
                line = ", ".join([line or "#", *added])
                end = each.end()
            self._edits.replace(each.start(), end, line)
        if not flags:
            at = min([each.start() for each in entry.previous] + [entry.fields[0].start])
            before = self._text[self._text.rfind("\n", 0, at) + 1 : at]
            line = ", ".join(["#", *["fuzzy"] * review, *added])
            flag = f"{line}{newline}{before}" if not before.strip() else f"{newline}{line}{newline}"
            self._edits.replace(at, at, flag if review or added else "")

    def content(self) -> bytes:
        """Return the file with all that was written; in UTF-8, as its header then says, if its encoding lacks that."""
        text = self._edits.applied(self._text)
        if text == self._text:
            return self._bom + self._raw
        try:
            written = text.encode(self._encoding)
            if self._text.encode(self._encoding) == self._raw and (self._is_declared or text.isascii()):
                return self._bom + written
        except UnicodeEncodeError:
            pass
        for header in self._headers:
            self._declare_utf_8(header.forms[0])
        return self._bom + self._edits.applied(self._text).encode()

    def _declare_utf_8(self, header: _Field) -> None:
        """Set the encoding in a header, or add it."""
        start = header.strings[0].start()
        raw = self._text[start : header.end]
        line_end = _LINE_END.search(self._text)
        newline = line_end[0] if line_end else "\n"
        declared, count = CHARSET.subn(r"\1UTF-8", raw, count=1)
        if not count:
            declared, count = UNDECLARED.subn(lambda _: DECLARATION, raw, count=1)
        if not count and raw.startswith('""'):
            declared = f'""{newline}"{DECLARATION}"{raw[2:]}'
        elif not count:
            declared = f'"{DECLARATION}"{newline}{raw}'
        self._edits.replace(start, header.end, declared)


class MoFile(Catalog):
    """An MO file, which is only read."""

    def __init__(self, raw: bytes, languages: Sequence[str]) -> None:
        """Read a file; raise an exception of any type if it is none."""
        from translate.storage.mo import mofile

        super().__init__()
        store = mofile()
        store.parse(raw)
        messages = [unit for unit in store.units if not unit.isheader()]
        said = next((str(unit.target) for unit in store.units if unit.isheader()), "")
        if not said:
            raise ValueError("it has no header, which names its encoding")
        self._read_header(said)
        plurals = plural_forms(said, languages)
        self.units = [
            unit_of(
                unit.getcontext() or "",
                [*map(str, getattr(unit.source, "strings", [unit.source]))],
                [*map(str, getattr(unit.target, "strings", [unit.target]))],
                plurals,
            )
            for unit in messages
        ]


def unit_of(context: str, sources: Sequence[str], targets: Sequence[str], plurals: Sequence[Numbers]) -> Unit:
    """Return the unit of a message, which has one source or the singular and the plural; it cannot be written."""
    note, own = re.match(r"(?:_: (.*)\n)?", sources[0]), list(sources)  # KDE's contexts of old
    if note and note[1] is not None:
        context += note[1]
        own[0] = sources[0][note.end() :]
    numbers = plurals if len(own) > 1 else ()
    if numbers:
        own = [_source_of(each, *own) if len(numbers) > 1 else own[1] for each in numbers]
    return Unit(own, targets, context, False, lambda *_, **__: None, numbers=numbers)


def plural_forms(header: str, languages: Sequence[str]) -> Sequence[Numbers]:
    """Return the numbers that take each plural form that a header declares, or else those of the target language."""
    found = PLURALS.search(header)
    if found:
        count, rule = int(found[1]), found[2]
    else:
        count, rule = usual_plurals(languages[-1])
    return numbers_of_forms(count, rule)


def _source_of(numbers: Numbers, singular: str, plural: str) -> str:
    """Return the source of a plural form: the singular for that of one thing, if it fits all numbers of the form."""
    is_sure = len(numbers) == 1 or re.search("[%{]", singular) is not None
    return singular if 1 in numbers and is_sure and fits_all(numbers, singular, plural) else plural


def _entries(text: str) -> Iterator[_Entry]:
    """Yield the entries of a PO file, in order; raise ValueError if it is none."""
    entry, comments, begin, name = _Entry([]), list[re.Match[str]](), 0, ""
    for token in _tokens(text):
        kind, at = token.lastgroup, token.start()
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
        names = [each.name for each in entry.fields]
        lacking = next((each for each in entry.fields if not each.strings), None)
        if lacking or not ENTRY.fullmatch(" ".join(names)) or len({*names}) < len(names):
            raise _error(text, (lacking or entry.fields[0]).start)
        yield entry


def _error(text: str, at: int) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line}: no entry of msgid and msgstr: {text[at : at + 40].splitlines()[0]!r}")


def _is_header(texts: dict[str, str]) -> bool:
    return texts.get("msgid") == "" and "msgctxt" not in texts and "msgstr" in texts


def _first_header(text: str) -> str:
    found = (entry.texts for entry in _entries(text))
    header = next(filter(_is_header, found), None)
    if header is None:
        raise ValueError("it has no header, which names its encoding")
    return header["msgstr"]


def _flags(entry: _Entry) -> list[re.Match[str]]:
    return [each for each in entry.comments if each[0].startswith("#,")]


def _names_of_flags(entry: _Entry) -> list[str]:
    """Return the flags of an entry but `fuzzy`."""
    names = [name.strip() for each in _flags(entry) for name in each[0].split(",")[1:]]
    return [name for name in names if name != "fuzzy"]


def _is_fuzzy(entry: _Entry) -> bool:
    return any(_FUZZY.search(each[0]) for each in _flags(entry))


def _unescaped(escape: re.Match[str]) -> str:
    octal, hexadecimal, sign = escape.groups()
    if sign:
        return ESCAPES.get(sign, sign)
    return chr((int(octal, 8) if octal else int(hexadecimal, 16)) & 0xFF)


def _quoted(name: str, text: str, newline: str) -> str:
    """Return the strings of a field, wrapped as gettext does."""
    from translate.storage.pypo import quoteforpo

    lines = quoteforpo(text) or ['""']
    if len(lines) == 1 and len(name) + 1 + _columns(lines[0]) > MOST_COLUMNS:
        lines = ['""', *lines]
    return newline.join(lines)


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)
