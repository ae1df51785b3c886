"""Lines end at \\n only, plain or compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import CONTENT

from nmt.system.compression import compressed as compressing
from nmt.system.compression import open_input
from nmt.system.errors import UserError
from nmt.text.lines import count_lines, count_rest, decoded, in_groups, read_lines, read_parallel, stripped

LINE = st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"]))


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file, compressing(file, path) as stream:
        yield stream


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
compressed = pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@compressed
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\nc", ["a\rb", "c"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"a\n\rb", ["a", "\rb"]),
        ("a\u2028b\u2029c\n".encode(), ["a\u2028b\u2029c"]),
        (b"a\x0bb\x0cc\x1cd\x1ee\n", ["a\x0bb\x0cc\x1cd\x1ee"]),
        (b"a\xffb\nc\xe2\x80\n", ["a\ufffdb", "c\ufffd"]),
        ("\ufeffa\nb\n\ufeffc \ufeffd".encode(), ["a", "b", "c \ufeffd"]),  # files with marks, joined
        ("\ufeff\n".encode(), [""]),
        (b"  a \t\n", ["  a \t"]),
        (b"a\x00b\n", ["a\x00b"]),
    ],
)
def test_a_line_ends_at_newline_and_nowhere_else(tmp_path: Path, name: str, content: bytes, lines: list[str]) -> None:
    path = write(tmp_path / name, content)
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


@compressed
@settings(max_examples=150)
@given(content=CONTENT)
def test_counting_agrees_with_reading(folder: Path, name: str, content: bytes) -> None:
    path = write(folder / name, content)
    try:
        lines = list(read_lines(path))
    except UserError as error:  # it looks like UTF-16, or its lines seem to end in \r
        with pytest.raises(UserError, match=re.escape(error.message)):
            count_lines(path)
        return
    assert count_lines(path) == len(lines)
    assert len(lines) == content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))


@settings(max_examples=150)
@given(lines=st.lists(LINE, max_size=8))
def test_lines_written_read_back_equal(folder: Path, lines: list[str]) -> None:
    for name, end in (("y", "\n"), ("y.gz", "\n"), ("y", "\r\n")):
        with written(folder / name) as stream:
            stream.write("".join(line + end for line in lines).encode())
        assert list(read_lines(folder / name)) == lines


@settings(max_examples=50)
@given(content=CONTENT, start=st.integers(0, 60))
def test_the_rest_of_an_open_file_is_counted_and_left_to_be_read(folder: Path, content: bytes, start: int) -> None:
    with write(folder / "x", content).open("rb", buffering=0) as file:
        file.seek(min(start, len(content)))
        count = count_rest(file.fileno())
        assert count == len(list(file))


@pytest.mark.parametrize(("one", "other", "ended"), [(b"1\n", b"x\ny\n", "a"), (b"1\n2\n", b"x\n", "b")])
def test_a_file_that_ends_before_the_other_is_named(tmp_path: Path, one: bytes, other: bytes, ended: str) -> None:
    lines = read_parallel(write(tmp_path / "a", one), write(tmp_path / "b", other))
    assert next(lines) == ("1", "x")
    with pytest.raises(UserError, match=f"{ended} ends after 1 line and .* goes on"):
        next(lines)


@compressed
@pytest.mark.parametrize("content", [b"one\rtwo", b"one\r\rtwo\r", b"a line of a text\r" * 10_000])
def test_a_text_whose_lines_end_in_carriage_returns_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path / name, content)
    for read in (count_lines, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match=re.escape(f"{path}: is text whose lines end in \\r alone")) as caught:
            read(path)
    assert r"tr '\r' '\n'" in caught.value.hint


def test_a_long_line_may_have_a_carriage_return_before_its_end_is_seen(tmp_path: Path) -> None:
    line = b"one\rmore " + b"and more " * 20_000
    assert list(read_lines(write(tmp_path / "x", line + b"\n"))) == [line.decode()]


GZ = gzip.compress(os.urandom(3000).hex().encode() + b"\n")


@pytest.mark.parametrize("read", [count_lines, lambda path: list(read_lines(path))], ids=["count", "read"])
def test_a_damaged_file_is_a_user_error_naming_it(tmp_path: Path, read: Callable[[Path], object]) -> None:
    other_crc = GZ[:-8] + bytes(byte ^ 255 for byte in GZ[-8:-4]) + GZ[-4:]
    cut_short = GZ[: len(GZ) // 2], GZ[:-1], bz2.compress(GZ)[:-9], lzma.compress(GZ)[:-9]
    for content in (*cut_short, other_crc, GZ[:20] + b"\xff" * 40 + GZ[60:]):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(UserError, match="damaged: cannot be read to its end"):
            read(tmp_path / "damaged")


@compressed
def test_what_cannot_be_opened_is_a_user_error_naming_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: cannot be read: No such file"):
        open_input(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: cannot be read: No such file"):
        list(read_lines(tmp_path / name))
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name}: cannot be read"):
        count_lines(tmp_path / name)


@pytest.mark.parametrize("name", ["x.GZ", "x.Bz2", "x.xz"])
def test_files_are_compressed_as_their_names_say_and_read_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, tmp_path / f"again{Path(name).suffix}"):
        with written(path) as stream:
            stream.write("ä\nb\n".encode())
    assert COMPRESS[Path(name).suffix.lower()]("ä\nb\n".encode())[:4] == (tmp_path / name).read_bytes()[:4]
    assert path.read_bytes() == (tmp_path / name).read_bytes()  # neither name nor time is in it
    (tmp_path / name).rename(tmp_path / "other.gz")
    assert list(read_lines(tmp_path / "other.gz")) == ["ä", "b"]
    (tmp_path / "other.gz").rename(tmp_path / "other")
    assert list(read_lines(tmp_path / "other")) == ["ä", "b"]
    assert count_lines(tmp_path / "other") == 2


@pytest.mark.parametrize("content", [b"", b"plain text\n"])
@pytest.mark.parametrize("read", [count_lines, read_lines])
def test_what_is_not_compressed_as_its_name_says_is_an_error(
    tmp_path: Path, read: Callable[[Path], object], content: bytes
) -> None:
    (tmp_path / "x.xz").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.xz: ends in \.xz, but is not compressed"):
        read(tmp_path / "x.xz")


@pytest.mark.skipif(find_spec("_zstd") is not None, reason="this Python has zstd")
def test_zstd_is_an_error_that_names_the_program(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes.fromhex("28b52ffd 2004210000 610a"))
    with pytest.raises(UserError, match="reads and writes zstd from version") as caught:
        read_lines(tmp_path / "x")
    assert "zstd -d FILE" in caught.value.hint
    with pytest.raises(UserError, match="reads and writes zstd from version"), compressing(io.BytesIO(), "x.zst"):
        pass


ENGLISH, RUSSIAN, CHINESE = "A dog.\nTwo.\n", "Привет, мир.\nКак дела?\n" * 9, "你好世界。\n他们在学校里。\n" * 99


@pytest.mark.parametrize(
    ("content", "problem", "command"),
    [
        (ENGLISH.encode("utf-16"), "is UTF-16, not UTF-8", "iconv -f UTF-16 "),
        (b"\xfe\xff" + ENGLISH.encode("utf-16-be"), "is UTF-16, not UTF-8", "iconv -f UTF-16 "),
        (ENGLISH.encode("utf-32"), "is UTF-32, not UTF-8", "iconv -f UTF-32 "),
        (ENGLISH.encode("utf-16-le"), "is UTF-16 or not text", "iconv -f UTF-16LE "),
        (RUSSIAN.encode("utf-16-be"), "is UTF-16 or not text", "iconv -f UTF-16BE "),
        (CHINESE.encode("utf-16-le"), "is UTF-16 or not text", "iconv -f UTF-16LE "),
        (b"PK\3\4\x14\0\6\0\x08\0!\0", "is a zip archive, as .docx", "pandoc -t plain "),
        (b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\n", "is a PDF", "pdftotext - - < "),
        (b"PAR1\x15\x04\0\0\0\0\0\0\x15", "is UTF-16 or not text", ""),
        (gzip.compress(gzip.compress(ENGLISH.encode(), mtime=0), mtime=0), "is compressed (.gz)", "gzip -dc "),
    ],
)
def test_what_is_not_utf_8_is_told_before_the_first_line(
    tmp_path: Path, content: bytes, problem: str, command: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    for read in (count_lines, lambda path: next(read_lines(path))):
        with pytest.raises(UserError, match=re.escape(f"{path}: {problem}")) as caught:
            read(path)
        assert command in caught.value.hint
    with pytest.raises(UserError, match=r"^<stdin>: is "), path.open("rb") as stream:
        next(decoded(stream, "<stdin>"))


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_tar_archive_is_told_from_utf_16(tmp_path: Path, ending: str) -> None:
    (tmp_path / "one").write_text("one\n")
    path = tmp_path / f"x.{ending}"
    with tarfile.open(path, "w:gz" if "gz" in ending else "w") as archive:
        archive.add(tmp_path / "one", "one")
    with pytest.raises(UserError, match="is a tar archive") as caught:
        next(read_lines(path))
    assert f"tar -xf {path}" in caught.value.hint


@pytest.mark.parametrize("text", ["", " \t\u3000", "\u200b", "\ufeff \u2060", "\xad\0\x1b", "\u2028\x85\ufe0f\u3164"])
def test_text_without_a_visible_character_is_blank(text: str) -> None:
    assert stripped(text) == ""
    assert stripped(f" a{text}\u200bb ") == f"a{text}\u200bb"  # within a text they stay
    assert stripped(f"{text}🦊\u0301") != ""


@compressed
def test_a_full_disk_is_not_passed_over(tmp_path: Path, name: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises((OSError, UserError)), written(tmp_path / name) as stream:
        stream.write(b"a\n")


def test_groups_end_at_so_many_pairs_or_characters() -> None:
    pairs = [("aa", "b"), ("", "c"), ("d", ""), ("e" * 50, "f"), ("g", "h"), ("i" * 8, "jj"), ("k", "l")]
    sizes = [len(group) for group in in_groups(pairs, count=2, characters=10)]
    assert sizes == [2, 2, 2, 1]
    assert [pair for group in in_groups(pairs, 2, 10) for pair in group] == pairs
    assert [len(group) for group in in_groups(pairs, count=5, characters=10)] == [4, 2, 1]
    assert list(in_groups([], 2, 10)) == []
