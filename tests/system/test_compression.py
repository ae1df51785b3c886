"""Which files of a zip archive are read; damage is a UserError that names the archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from moses_zip import moses_zip

from nmt.system.compression import members
from nmt.system.errors import UserError
from nmt.text.language_codes import is_same
from nmt.text.lines import count_lines, read_lines


def test_files_are_found_by_their_endings_wherever_they_are_and_never_extracted(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../out/text.en", "one\r\ntwo")
        archive.writestr("__MACOSX/out/._text.en", b"\0\5\x16\7")  # as the Finder packs
        archive.writestr("/text.de", "eins\nzwei\n")
        archive.writestr("README.md", "none\n")
    english, german = members(path, ("en", "de"), is_same)
    assert str(english) == f"{path}/../out/text.en"
    assert [*zip(read_lines(english), read_lines(german), strict=True)] == [("one", "eins"), ("two", "zwei")]
    assert [count_lines(english), count_lines(german)] == [2, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["a.zip"]


def encrypted(content: bytes) -> bytes:
    """With the flag that says so, in the local and the central headers."""
    return content.replace(b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1").replace(
        b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"
    )


def by_bzip2(texts: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_BZIP2) as archive:
        for language, text in texts.items():
            archive.writestr(f"a.{language}", text)
    return written.getvalue()


TEXTS = {"en": "tree\n" * 1000, "de": "Baum\n" * 1000}
GOOD = moses_zip("a", TEXTS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a zip archive that can be read"),
        (GOOD[:-30], "is not a zip archive that can be read"),
        (encrypted(GOOD), "is encrypted"),
        (by_bzip2(TEXTS), "a.en is compressed by method 12, not 8 (deflate)"),
        (GOOD.replace(b"PK\3\4", b"PK\3\5"), "Bad magic number"),
        (
            moses_zip("a", {"en": "tree\n"}),
            "has 0 files whose names end in .de, not one (README, LICENSE, a.en, a.xml)",
        ),
        (moses_zip("a", {**TEXTS, "b.de": "Wald\n"}), "has 2 files whose names end in .de, not one (a.de, a.b.de)"),
    ],
)
def test_what_cannot_be_read_is_a_user_error(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        _ = [count_lines(member) for member in members(path, ("en", "de"), is_same)]
    assert caught.value.message.startswith(f"{path}: ")
    assert words in caught.value.message


def test_a_damaged_text_is_noticed_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.en", "tree\n")
    path.write_bytes(path.read_bytes().replace(b"tree", b"free"))
    [member] = members(path, ["en"], is_same)
    with pytest.raises(UserError, match=r"a\.zip/a\.en: cannot be read to its end: Bad CRC-32"):
        list(read_lines(member))
