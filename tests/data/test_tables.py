"""Tables: rows that are broken, and whether the first two columns are those that hold the sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt.data.tables import check_columns, read_table, row_line
from nmt.system.errors import UserError

Rows = list[list[str]]
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
TEXTS = [
    (f"I see {'very ' * (count % 7)}many trees.", f"Ich sehe {'sehr, ' * (count % 7)}viele Bäume.")
    for count in range(60)
]
DATES = [f"{month} 2024, in the morning" for month in ("May", "September", "July")]
RIGHTS = "CC-BY 2.0 (France) Attribution: tatoeba.org #{} (CM) & #{} (pne)"


def table(folder: Path, rows: Sequence[Sequence[str]]) -> Path:
    path = folder / "a.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


# --- which columns ------------------------------------------------------------------------------------------


def beside(labels: Sequence[str], texts: Sequence[Sequence[str]] = TEXTS) -> Rows:
    """Rows of a label and texts."""
    return [[labels[number % len(labels)], *row] for number, row in enumerate(texts)]


@pytest.mark.parametrize(
    ("rows", "problem", "fields"),
    [
        (beside(["0ad", "ada", "zsh"]), "column 1 seems to hold no sentences (zsh)", "[2, 3]"),
        (beside(["zsh"], TEXTS[:1]), "column 1 seems to hold no sentences (zsh), and columns 2 and 3 do", "[2, 3]"),
        (beside(["src/a.po", "My Files/b c.odt"]), "column 1", "[2, 3]"),
        (beside(["17", "0.93", "2024-01-02 10:20"]), "column 1", "[2, 3]"),
        (beside(DATES), "column 1 seems to hold no sentences (July 2024, in the morning)", "[2, 3]"),
        (beside(["msg_1", "msg_2"], [("Open", "Öffnen")] * 9), "column 1", "[2, 3]"),
        ([["1", one, "2", other] for one, other in TEXTS], "column 1", "[2, 4]"),
        ([[one, "note", other] for one, other in TEXTS], "column 2 seems to hold no sentences (note)", "[1, 3]"),
        ([["en", "de", *row] for row in TEXTS], "column 1", "[3, 4]"),
        (beside(["z1", "z2"], [("猫在桌子上", "Da ist eine Katze.")] * 9), "column 1", "[2, 3]"),
        ([["package", "one", "other"], ["a", "b", "c"]], "the first holds no sentences: package", "[2, 3]"),
        ([["package", "English", "German"], ["a", "b", "c"]], "line 1 names its columns: en is 2, de is 3", "[2, 3]"),
        ([["DE", "en"], ["Ja.", "Yes."]], "line 1 names its columns: en is 2, de is 1", "[2, 1]"),
        ([["German", "English (US)"], ["Ja.", "Yes."]], "line 1 names its columns: en is 2, de is 1", "[2, 1]"),
        ([["target_text", "source_text"], ["Ja.", "Yes."]], "names its columns: en is 2, de is 1", "[2, 1]"),
        ([["score", "src", "tgt"], ["x y", "a b", "c d"]], "line 1 names its columns: en is 2, de is 3", "[2, 3]"),
    ],
)
def test_columns_without_sentences_are_refused(tmp_path: Path, rows: Rows, problem: str, fields: str) -> None:
    path = table(tmp_path, rows)
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        check_columns(path, ("en", "de"))
    assert caught.value.message.startswith(f"{path}: ")
    assert f"fields: {fields}" in caught.value.hint


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[""], [" "]],
        [[*row] for row in TEXTS],
        [[*row, RIGHTS.format(number, number**3)] for number, row in enumerate(TEXTS)],
        [["Go.", "Geh.", RIGHTS.format(1, 2)], ["Hi.", "Hallo!", RIGHTS.format(3, 4)]],
        [[*row, "0.93", "en-de"] for row in TEXTS],
        [[*row, f"http://a.org/{row[0][:9]}", "x.html"] for row in TEXTS],
        [[one, "Das " + other, other] for one, other in TEXTS],
        [[word, word.upper(), "a number that people count with"] for word in NUMBERS],
        [[word, word.upper(), "noun"] for word in NUMBERS],
        [["id", "what identifies"], ["x1", "y z"]],  # two columns only
        [["en", "de", "note"], *([*row, "from a book"] for row in TEXTS)],
        [["猫在桌子上", "Da ist eine Katze.", "from a book"]] * 9,
    ],
)
def test_columns_with_sentences_are_read_whatever_follows_them(tmp_path: Path, rows: Rows) -> None:
    check_columns(table(tmp_path, rows), ("en", "de"))


# --- broken rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('a\tb\n"c\nd"\te\n', ":2: has no column 2 (columns: 1)"),
        ('a\tb\nc\t"d\ne"\n', ":3: has no column 2 (columns: 1)"),
        ('a\tb\tc\nd\t"e\nf"\tg\n', ":2: has no column 3 (columns: 2)"),
    ],
)
def test_a_line_break_within_quotation_marks_is_called_that(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_table(tmp_path / "a.tsv", ("1", "2")))
    assert caught.value.message == f"{tmp_path / 'a.tsv'}{problem}: a line ends within quotation marks"
    assert "write spaces for line breaks" in caught.value.hint


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_a_header_after_blank_rows_is_no_pair_either(tmp_path: Path, ending: str) -> None:
    separator = {"tsv": "\t", "csv": ","}[ending]
    rows = [["", ""], ["en", "de", "note"], ["Go.", "Geh.", "x"], ["", ""], ["Hi.", "Hallo.", "y"]]
    path = tmp_path / f"a.{ending}"
    path.write_text("".join(separator.join(filter(None, row)) + "\n" for row in rows))
    found = list(read_table(path, ("1", "2")))
    assert found == [("", ""), ("Go.", "Geh."), ("", ""), ("Hi.", "Hallo.")]
    assert [row_line(path, ("1", "2"), number)[0] for number in range(4)] == [1, 3, 4, 5]


def test_quotation_marks_that_stay_open_are_ordinary_characters(tmp_path: Path) -> None:
    rows = [['"I see', '"Ich sehe', "note"], ['trees."', 'Bäume."'], ["He said", '"Ja'], ['"so', "so"], ["a", "b", "c"]]
    assert list(read_table(table(tmp_path, rows), ("1", "2"))) == [tuple(row[:2]) for row in rows]


# --- .csv ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\nen;de\r\na;b\r\nc;d\r\n",
        "\ufeffsep=|\nen|de\na|b\nc|d\n",
        "en;de\na;b;;\nc;d;;\n",  # empty cells that Excel adds
        "en;de;note\na;b\nc;d;x, y, z\n",  # and those that it leaves out
    ],
)
def test_a_csv_is_read_as_excel_writes_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    assert list(read_table(path, ("1", "2"))) == [("a", "b"), ("c", "d")]
    line = 4 if "sep" in text else 3
    assert row_line(path, ("1", "2"), 1) == (line, "")


@pytest.mark.parametrize("text", ["a,b\nc, d,e\n", "en,de\nc, d,e\n", "a,b,c\nd,e\n"])
def test_a_row_of_a_csv_with_other_columns_than_the_first_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=":2: has another number of columns"):
        list(read_table(path, ("1", "2")))
