"""What a file declares before it is read: its format, by its name and its first bytes, and its languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.system.compression import split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language, of_android
from nmt.text.lines import opened

LARGEST_FILE = 1 << 26  # bytes: their tree takes ten times as much memory
NAMED = 3  # files of those that are left out
HEAD = 1 << 16  # bytes to look at: a file may begin with a long comment
KINDS = {".po": ".po", ".pot": ".po", ".mo": ".mo", ".tmx": ".tmx", ".ts": ".ts", ".xml": ".xml"}
KINDS |= dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mxliff", ".mqxliff", ".txlf"), ".xlf")
"""Formats of translators by the endings of names"""
ROOTS = {b"xliff": ".xlf", b"tmx": ".tmx", b"TS": ".ts", b"resources": ".xml"}
"""Those of XML by the root element: for .xml, which any may be called, and for .ts, as TypeScript is called, too"""
OTHERS = {
    *(".gmo", ".qm", ".qph", ".tbx", ".resx", ".resw", ".wxl", ".strings", ".stringsdict", ".xcstrings", ".plist"),
    *(".properties", ".ftl", ".dtd", ".arb", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".csv"),
    *(
        ".html",
        ".htm",
        ".xhtml",
        ".svg",
        ".md",
        ".markdown",
        ".rst",
        ".adoc",
        ".tex",
        ".srt",
        ".sbv",
        ".vtt",
        ".ass",
        ".ttml",
    ),
    *(".js", ".jsx", ".tsx", ".php"),
    *(".doc", ".xls", ".ppt", ".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub", ".idml", ".rtf", ".pdf"),
}
"""Endings of other files that would not come back whole if they were translated as lines"""
CONTENT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\xde\x12\x04\x95|\x95\x04\x12\xde|PK\x03\x04|\xd0\xcf\x11\xe0|%PDF-|{\\rtf|WEBVTT"
    rb"|\s*<(?:\?xml\s|!DOCTYPE\s|(?:html|xliff|tmx|TS|resources)[\s>])"
    rb"|(?:\s*#[^\n]*\n)*\s*msg(?:id|ctxt) \")"
)
"""How such files begin, whatever their names: catalogs, office documents, PDF, RTF, WebVTT, XML and PO"""
_ROOT = re.compile(
    rb"\s*+(?:<\?.*?\?>\s*+|<!--.*?-->\s*+|<!DOCTYPE[^\[>]*+(?:\[.*?\]\s*+)?>\s*+)*+<(?:\w++:)?(\w++)((?:\s[^<>]*)?)>",
    re.DOTALL,
)
_PO_HEADER = re.compile(rb'^msgid ""\s+msgstr ((?:"[^\n]*"\s*)+)', re.MULTILINE)
_PO_LANGUAGE = re.compile(rb'(?:"|\\n)Language: *([^"\\]*)')
_MO_LANGUAGE = re.compile(rb"\0(?:[\w-]+:[^\n\0]*\n)*Language: *([^\n\0]*)")
_ATTRIBUTE = re.compile(rb"([\w:.-]+)\s*=\s*[\"']([^\"']*)")
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
    kind = ROOTS.get(_root(_head(path))[0], "")
    return kind if ending == ".xml" or kind == ".ts" else ""


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
    return (found[1], dict(_ATTRIBUTE.findall(found[2]))) if found else (b"", {})


def _in_ascii(content: bytes) -> bytes:
    """Return XML in which ASCII is ASCII, as in UTF-16 it is not."""
    return content[2:].replace(b"\0", b"") if content[:2] in (b"\xff\xfe", b"\xfe\xff") else content


def check_kind(path: Path, content: bytes, kind: str) -> None:
    """Raise UserError if a file is of no format of translators, whatever its name, or XLIFF 2."""
    if not kind:
        what, hint = "none of the formats of translators", "name a file that is"
        if ending_of(path) == ".ts":
            what, hint = "no file of Qt Linguist, whose root is <TS>", "TypeScript ends in .ts, too: name other files"
        raise UserError(f"{path}: is {what}", hint)
    attributes = _root(content)[1] if kind == ".xlf" else {}
    if attributes.get(b"version", b"").startswith(b"2") or b":document:2" in attributes.get(b"xmlns", b""):
        hint = "let the program that wrote it export XLIFF 1.2, or PO or TMX"
        raise UserError(f"{path}: is XLIFF 2, and only XLIFF 1.2 is read", hint)


def _declared(path: Path, content: bytes, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the codes of languages that a file declares, each with its side, 0 for the source and -1 for the target."""
    found = list[tuple[int, bytes]]()
    if kind == ".po":
        header = _PO_HEADER.search(content)
        found = [(-1, code) for code in _PO_LANGUAGE.findall(header[1] if header else b"")]
    elif kind == ".mo":
        found = [(-1, each[1]) for each in _MO_LANGUAGE.finditer(content)][:1]
    elif kind in _SIDES:
        text = _in_ascii(content)
        tags = re.findall(rb"<(?:\w+:)?file(\s[^<>]*)>", text) if kind == ".xlf" else []
        elements = [dict(_ATTRIBUTE.findall(tag)) for tag in tags] or [_root(text)[1]]
        found = [(-side, each.get(_SIDES[kind][side], b"")) for each in elements for side in (0, 1)]
        found += [(0, of_android(path.absolute().parent.name).encode())] * (kind == ".xml")
    codes = ((side, code.decode("latin-1").strip()) for side, code in found)
    yield from ((side, code) for side, code in codes if re.fullmatch(r"[\w.@+-]{2,40}", code, re.ASCII))


def other_language(path: Path, content: bytes, kind: str, languages: Sequence[str]) -> tuple[int, str] | None:
    """Return the side, as in `_declared`, and the code of a language that a file declares, if it is none of
    `languages`, source and target; None if it declares these, or nothing."""
    for side, code in _declared(path, content, kind):
        said, wanted = Language.of(code), Language.of(languages[side])
        fits = said.is_same(wanted) if side else said.is_like(wanted)
        if said.is_known and wanted.is_known and not fits:
            return side, code
    return None


def left_out(files: Sequence[object], why: str) -> str:
    """Return the message that files are left out, which names the first of them."""
    more = f" and {len(files) - NAMED:,} more" * (len(files) > NAMED)
    return f"left out, {why} ({len(files):,}): {', '.join(map(str, files[:NAMED]))}{more}"


def check_language(path: Path, content: bytes, kind: str, languages: Sequence[str]) -> None:
    """Raise UserError if a file declares another language than it is opened for."""
    if other := other_language(path, content, kind, languages):
        side, code = other
        problem = f"says that its {'translations' if side else 'sources'} are in {code}, not in {languages[side]}"
        hint = "name files of one language, such as po/de.po, or correct what this one says"
        raise UserError(f"{path}: {problem}", hint)
