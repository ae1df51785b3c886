"""Records of what nmt wrote, and which units of two versions of a file are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.formats.bilingual import BilingualFile
from nmt.formats.written import Written, free_copy, matched, names_of
from nmt.system.integrity import hash_file

pytest.importorskip("translate", reason="needs the package translate-toolkit")


def xliff(path: Path, *units: tuple[str, str]) -> BilingualFile:
    body = "".join(f"<trans-unit id='{name}'><source>{source}</source></trans-unit>" for name, source in units)
    path.write_text(f"<xliff version='1.2'><file source-language='en' target-language='de'>{body}</file></xliff>")
    return BilingualFile(path, ("en", "de"))


def test_units_are_the_same_by_name_and_source_or_by_source_and_order(tmp_path: Path) -> None:
    old = xliff(tmp_path / "a.xlf", ("1", "Yes"), ("2", "No"), ("3", "Yes"), ("4", "Yes"), ("5", "Old"))
    new = xliff(tmp_path / "b.xlf", ("1", "Now"), ("9", "No"), ("8", "Yes"), ("3", "Yes"), ("7", "Yes"), ("5", "New"))
    found = [pair and pair[1].name for pair in matched(new, old)]
    assert found == [None, "2", "1", "3", "4", None]


def test_a_damaged_record_proves_nothing(tmp_path: Path) -> None:
    file = xliff(tmp_path / "a.xlf", ("1", "Yes"))
    record = Written(output="x")
    record.add(file, file, ())
    record.save(file.path)
    ((name, unit),) = names_of(file)
    assert Written.of(file.path).wrote(name, file, unit)
    own = tmp_path / ".nmt/a.xlf.json"
    for damage in (
        "",
        "[]",
        own.read_text().replace('"units": {', '"units": {"a": "b",'),
        '{"format": 2, "output": "x"}',
    ):
        own.write_text(damage)
        assert not Written.of(file.path)


def test_a_copy_replaces_nothing_but_a_copy_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.po"
    assert free_copy(path, "") == tmp_path / "a.po~"
    (tmp_path / "a.po~").symlink_to("nowhere")
    (tmp_path / "a.po~2").mkdir()
    (tmp_path / "a.po~3").write_text("ours")
    assert free_copy(path, "other") == tmp_path / "a.po~4"
    assert free_copy(path, hash_file(tmp_path / "a.po~3")) == tmp_path / "a.po~3"
