"""What a file declares before it is read: its format, by its name and its first bytes, and its languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.system.compression import split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language, language_in, named_language, of_android
from nmt.text.lines import opened

LARGEST_FILE = 1 << 26  # bytes: the tree of a file takes ten times as much memory
NAMED = 3  # files that are left out to name in a message
HEAD = 1 << 16  # bytes to look at: a file may begin with a long comment
KINDS = {".po": ".po", ".pot": ".po", ".mo": ".mo", ".tmx": ".tmx", ".ts": ".ts", ".xml": ".xml"}
KINDS |= dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mxliff", ".mqxliff", ".txlf"), ".xlf")
"""Formats of translators by the endings of names"""
ROOTS = {b"xliff": ".xlf", b"tmx": ".tmx", b"TS": ".ts", b"resources": ".xml"}
"""Those of XML by the root element: for .xml, which any may be called, and for .ts, as TypeScript is called, too"""
_OTHERS = """
.gmo .qm .qph .tbx .resx .resw .wxl .strings .stringsdict .xcstrings .plist
.properties .ftl .dtd .arb .json .jsonl .yaml .yml .toml .ini .csv
.html .htm .xhtml .sgm .sgml .svg .md .markdown .rst .adoc .tex .srt .sbv .vtt .ass .ttml
.js .jsx .tsx .php
.doc .xls .ppt .docx .xlsx .pptx .odt .ods .odp .epub .idml .rtf .pdf
"""
OTHERS = frozenset(_OTHERS.split())
"""Endings of other files that would not come back whole if they were translated as lines"""
CONTENT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\xde\x12\x04\x95|\x95\x04\x12\xde|PK\x03\x04|\xd0\xcf\x11\xe0|%PDF-|{\\rtf|WEBVTT"
    rb"|\s*<(?:\?xml\s|!DOCTYPE\s|(?:html|xliff|tmx|TS|resources|srcset|refset|tstset)[\s>])"
    rb"|(?:\s*#[^\n]*\n)*\s*msg(?:id|ctxt) \")"
)
"""How files begin that are more than lines, whatever their names: MO, office documents, PDF, RTF, WebVTT, XML, PO"""
_ROOT = re.compile(
    rb"\s*+(?:<\?.*?\?>\s*+|<!--.*?-->\s*+|<!DOCTYPE[^\[>]*+(?:\[.*?\]\s*+)?>\s*+)*+<(?:\w++:)?(\w++)((?:\s[^<>]*)?)>",
    re.DOTALL,
)
_PO_HEADER = re.compile(rb'^msgid ""\s+msgstr ((?:"[^\n]*"\s*)+)', re.MULTILINE)
_PO_LANGUAGE = re.compile(rb'(?:"|\\n)Language: *([^"\\]*)')
_MO_LANGUAGE = re.compile(rb"\0(?:[\w-]+:[^\n\0]*\n)*Language: *([^\n\0]*)")
_VARIANT = re.compile(rb"<tuv\s(?:[^<>]*?\s)?(?:xml:)?lang\s*=\s*[\"']([\w-]{2,40})")
_TMX_SOURCE = re.compile(rb"<header\s[^<>]*?srclang\s*=\s*[\"']([\w-]{2,40})")
_FILE_TAG = re.compile(rb"<(?:\w+:)?file(\s[^<>]*)>")
_ATTRIBUTE = re.compile(rb"([\w:.-]+)\s*=\s*[\"']([^\"']*)")
_LANGUAGE = re.compile(r"[\w.@+-]{2,40}", re.ASCII)
_SIDES = {".xlf": (b"source-language", b"target-language"), ".ts": (b"sourcelanguage", b"language")}
_SIDES |= {".xml": (b"tools:locale", b"")}
"""Attributes that name the languages of a file's source and target"""


def content_of(path: Path) -> bytes:
    """Return a file's content, decompressed; raise UserError if it is unreadable, or has more than `LARGEST_FILE`."""
    with opened(path) as stream:
        content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: has more than {LARGEST_FILE:,} bytes", "divide it into several files")
    return content


def ending_of(path: Path) -> str:
    """Return the ending of a file's name, in lower case and before that of compression."""
    return Path(split_suffix(path)[0]).suffix.lower()


def kind_of(path: Path) -> str:
    """Return the format of a file of translators, as `KINDS` names it; an empty string for any other file."""
    ending = ending_of(path)
    if ending not in (".ts", ".xml") or not path.is_file():
        return KINDS.get(ending, "")
    root, _ = _root(_head(path))
    kind = ROOTS.get(root, "")
    if ending == ".ts" and kind != ".ts":
        return ""
    return kind


def is_of_a_format(path: Path) -> bool:
    """Return whether a file, perhaps compressed, is of a format with more than lines: by its name or its content."""
    if ending_of(path) in OTHERS or ending_of(path) in KINDS:
        return True
    return path.is_file() and CONTENT.match(_in_ascii(_head(path))) is not None


def _head(path: Path) -> bytes:
    """Return the beginning of a file; nothing of a damaged one, which reading it will say."""
    try:
        with opened(path) as stream:
            return stream.read(HEAD)
    except UserError:
        return b""


def _root(content: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the name of the root element of XML, and its attributes."""
    found = _ROOT.match(_in_ascii(content).removeprefix(b"\xef\xbb\xbf"))
    if not found:
        return b"", {}
    return found[1], dict(_ATTRIBUTE.findall(found[2]))


def _in_ascii(content: bytes) -> bytes:
    """Return XML in which ASCII is ASCII, as in UTF-16 it is not."""
    if content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return content
    return content[2:].replace(b"\0", b"")


def check_kind(path: Path, content: bytes, kind: str) -> None:
    """Raise UserError if a file is of no format of translators, whatever its name, or XLIFF 2."""
    if not kind and ending_of(path) == ".ts":
        problem = f"{path}: is no file of Qt Linguist, whose root is <TS>"
        raise UserError(problem, "TypeScript ends in .ts, too: name other files")
    if not kind:
        raise UserError(f"{path}: is none of the formats of translators", "name a file that is")
    if kind != ".xlf":
        return
    _, attributes = _root(content)
    if attributes.get(b"version", b"").startswith(b"2") or b":document:2" in attributes.get(b"xmlns", b""):
        hint = "let the program that wrote it export XLIFF 1.2, or PO or TMX"
        raise UserError(f"{path}: is XLIFF 2, and only XLIFF 1.2 is read", hint)


def _declared(path: Path, content: bytes, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the codes of languages that a file declares, each with its side, 0 for the source and -1 for the target."""
    found: list[tuple[int, bytes]] = []
    if kind == ".po":
        header = _PO_HEADER.search(content)
        if header:
            found = [(-1, code) for code in _PO_LANGUAGE.findall(header[1])]
    elif kind == ".mo":
        first = _MO_LANGUAGE.search(content)
        if first:
            found = [(-1, first[1])]
    elif kind in _SIDES:
        of_source, of_target = _SIDES[kind]
        for attributes in _elements_with_languages(content, kind):
            found += [(0, attributes.get(of_source, b"")), (-1, attributes.get(of_target, b""))]
    if kind == ".xml":
        found.append((0, of_android(path.absolute().parent.name).encode()))
    for side, raw in found:
        code = raw.decode("latin-1").strip()
        if _LANGUAGE.fullmatch(code):
            yield side, code


def _elements_with_languages(content: bytes, kind: str) -> list[dict[bytes, bytes]]:
    """Return the attributes of the elements of XML that name languages: the root or, in XLIFF, the files."""
    text = _in_ascii(content)
    if kind == ".xlf":
        files = _FILE_TAG.findall(text)
        if files:
            return [dict(_ATTRIBUTE.findall(tag)) for tag in files]
    _, attributes = _root(text)
    return [attributes]


def declared_languages(path: Path, content: bytes) -> tuple[list[str], list[str]]:
    """Return the codes, as in BCP 47, of the languages of sources and of translations that a file declares, as often as
    it does; of a TMX that names no source language of its units, all are sources."""
    kind = kind_of(path)
    found: tuple[list[str], list[str]] = ([], [])
    if kind != ".tmx":
        for side, code in _declared(path, content, kind):
            found[side].append(Language.of(code).tag)
        return found
    text = _in_ascii(content)
    header = _TMX_SOURCE.search(text)
    source = Language.of(header[1].decode() if header else "")
    for code in _VARIANT.findall(text):
        language = Language.of(code.decode())
        is_source = not source.is_known or source.is_like(language)
        found[0 if is_source else -1].append(language.tag)
    if not found[0]:  # the header names a language that no unit has
        return found[1], []
    return found


def language_by_place(path: Path) -> str:
    """Return the code of the language that a file's name says, as those of x.de, de.po, app.de.po and german.txt do, or
    its folder, as gettext's LANGUAGE/LC_MESSAGES does; else nothing."""
    plain = Path(split_suffix(path.name)[0])
    code = named_language(plain.suffix[1:]) or language_in(plain.stem.rpartition(".")[2])
    folder = Language.of(path.parent.parent.name)
    if not code and path.parent.name == "LC_MESSAGES" and folder.is_known:
        return folder.tag
    return code


def other_language(path: Path, content: bytes, kind: str, languages: Sequence[str]) -> tuple[int, str] | None:
    """Return the side, as in `_declared`, and the code of a language that a file declares, if it is none of
    `languages`, source and target; None if it declares these, or nothing."""
    for side, code in _declared(path, content, kind):
        said = Language.of(code)
        wanted = Language.of(languages[side])
        fits = said.is_same(wanted) if side else said.is_like(wanted)
        if said.is_known and wanted.is_known and not fits:
            return side, code
    return None


def left_out(files: Sequence[object], why: str) -> str:
    """Return the message that files are left out, which names the first of them."""
    names = ", ".join(map(str, files[:NAMED]))
    if len(files) > NAMED:
        names += f" and {len(files) - NAMED:,} more"
    return f"left out, {why} ({len(files):,}): {names}"


def check_language(path: Path, content: bytes, kind: str, languages: Sequence[str]) -> None:
    """Raise UserError if a file declares another language than it is opened for."""
    other = other_language(path, content, kind, languages)
    if other:
        side, code = other
        problem = f"says that its {'translations' if side else 'sources'} are in {code}, not in {languages[side]}"
        hint = "name files of one language, such as po/de.po, or correct what this one says"
        raise UserError(f"{path}: {problem}", hint)
