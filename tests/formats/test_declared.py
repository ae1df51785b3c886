"""What a file declares: its format, whatever its name, and its languages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from nmt.formats.declared import check_kind, check_language, content_of, kind_of, other_language
from nmt.system.errors import UserError

XML = '<?xml version="1.0" encoding="utf-8"?>\n<!-- <TS> -->\n'
XLIFF = XML + '<x:xliff xmlns:x="urn:x" version="1.2"><x:file source-language="{}" target-language=\'{}\'></x:file>{}'
SECOND = '<x:file source-language="en" target-language="fr">'
ANDROID = '<resources xmlns:tools="http://schemas.android.com/tools" tools:locale="{}"><string/></resources>'


def po(*lines: str) -> str:
    return 'msgid ""\nmsgstr ""\n' + "".join(f'"{line}\\n"\n' for line in lines) + '\nmsgid "a"\nmsgstr "b"\n'


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.PO", "", ".po"),
        ("a.pot", "", ".po"),
        ("a.po.gz", po(), ".po"),
        ("a.SdlXliff", "", ".xlf"),
        ("a.ts", XML + '<!DOCTYPE TS>\n<TS language="de">', ".ts"),
        ("a.ts", '\ufeff<TS version="2.1">', ".ts"),
        ("a.ts", "export const a = <T>(b: T) => b;\n", ""),
        ("a.ts", "", ""),
        ("a.xml", XML + "<resources>\n", ".xml"),
        ("a.xml", '<!DOCTYPE resources [\n<!ENTITY a "b">]>\n<resources>', ".xml"),
        ("a.xml", XLIFF, ".xlf"),
        ("a.xml", XML + "<manifest>", ""),
        ("a.txt", po(), ""),
    ],
)
def test_formats_are_known_by_names_and_roots(tmp_path: Path, name: str, content: str, kind: str) -> None:
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert kind_of(tmp_path / name) == kind
    assert content_of(tmp_path / name) == raw


@pytest.mark.parametrize(
    ("name", "content", "other"),
    [
        ("a.po", po("Language: de_AT"), None),
        ("a.po", po("Language: "), None),
        ("a.po", po("Language: German"), None),
        ("a.po", po("X-Language: fr", "Content-Type: text/plain"), None),
        ("a.po", po() + '\nmsgid ""\n"Language: fr\\n"\nmsgstr ""\n', None),
        ("a.po", po("Language-Team: x", "Language: pt_BR"), (-1, "pt_BR")),
        ("a.po", 'msgid ""\nmsgstr "MIME-Version: 1.0\\nLanguage: fr\\n"\n', (-1, "fr")),
        ("a.mo", "\xde\x12\x04\x95\0a\0MIME-Version: 1.0\nLanguage: fr\nContent-Type: text/plain\n\0b", (-1, "fr")),
        ("a.mo", "\xde\x12\x04\x95\0a\nLanguage: fr\n\0Content-Type: text/plain\n\0b", None),
        ("a.xlf", XLIFF.format("EN-us", "de-DE", ""), None),
        ("a.xlf", XLIFF.format("en", "deu", SECOND), (-1, "fr")),
        ("a.xlf", XLIFF.format("ja", "de", ""), (0, "ja")),
        ("a.ts", XML + '<TS version="2.1" sourcelanguage="en" language="fr_FR">', (-1, "fr_FR")),
        ("a.ts", '<TS version="2.1">', None),
        ("values-de/a.xml", "<resources>", (0, "de")),
        ("values-en-rGB/a.xml", "<resources>", None),
        ("values/a.xml", ANDROID.format("de"), (0, "de")),
        ("a.tmx", '<tmx><header srclang="fr"/>', None),
    ],
)
def test_another_language_is_found_where_a_format_names_it(
    tmp_path: Path, name: str, content: str, other: tuple[int, str] | None
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for encoding in ("utf-16", "latin-1") if content.startswith("<") else ("latin-1",):
        path.write_bytes(content.encode(encoding))
        assert other_language(path, content_of(path), kind_of(path), ("en", "de")) == other


def test_a_language_whose_code_is_none_is_not_compared(tmp_path: Path) -> None:
    content = po("Language: fr").encode()
    assert other_language(tmp_path / "a.po", content, ".po", ("source", "target")) is None
    with pytest.raises(UserError, match=r"a\.po: says that its translations are in fr, not in de_AT"):
        check_language(tmp_path / "a.po", content, ".po", ("source", "de_AT"))


@pytest.mark.parametrize("root", ['<xliff version="2.0">', '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.1">'])
def test_xliff_2_is_named_as_such(root: str) -> None:
    with pytest.raises(UserError, match=r"a\.xlf: is XLIFF 2, and only XLIFF 1\.2 is read\n"):
        check_kind(Path("a.xlf"), (XML + root).encode(), ".xlf")
