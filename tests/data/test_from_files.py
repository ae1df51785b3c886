"""The recipe for files of pairs: languages, columns and sizes that files show, and the errors of those that do not."""

from __future__ import annotations

import csv
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nmt.data import from_files
from nmt.data.from_files import Size, choices, count_pairs, make_recipe
from nmt.recipe import load
from nmt.system.errors import UserError

ROOT = Path(__file__).parents[2]
PAIRS = [
    (f"I see {count} trees{' and dogs' * (count % 7)}.", f"Ich sehe {count} Bäume{' und Hunde' * (count % 7)}.")
    for count in range(240)
]
TMX = '<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'
UNIT = '<tu><tuv xml:lang="de"><seg>{1}</seg></tuv><tuv xml:lang="en-US"><seg>{0}</seg></tuv></tu>'
PO = 'msgid ""\nmsgstr "Language: {}\\n"\n\n'
ENTRY = 'msgid "{}"\nmsgstr "{}"\n\n'


def write(name: str, rows: Sequence[Sequence[object]] = PAIRS, header: Sequence[str] = ()) -> str:
    """Write a table or, with a header of keys, records to the working directory."""
    rows = [header, *rows] if header and not name.endswith(".jsonl") else rows
    with Path(name).open("w", newline="") as file:
        if name.endswith(".csv"):
            csv.writer(file).writerows(rows)
        elif name.endswith(".jsonl"):
            file.writelines(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
        else:
            file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
    return name


def labelled(*places: int) -> list[list[object]]:
    """The pairs with a number, a name and a constant beside them, in some order of these columns and the texts."""
    return [
        [(number, f"name{number % 9}", "news", *pair)[place] for place in places] for number, pair in enumerate(PAIRS)
    ]


def catalog(path: Path, code: str, pairs: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(PO.format(code) + "".join(ENTRY.format(*pair) for pair in pairs))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(from_files, "core_flops", lambda: 1e11 / 2)
    monkeypatch.setattr(from_files, "threads_of_torch", lambda _: 2)


@pytest.mark.parametrize(
    ("name", "rows", "header", "fields"),
    [
        ("x.en-de.tsv", PAIRS, (), [1, 2]),
        ("x.de-en.tsv", PAIRS, (), [1, 2]),
        ("x.tsv", PAIRS, ("English", "German"), [1, 2]),
        ("x.en-de.tsv", [("Target", "Ziel"), *PAIRS], (), [1, 2]),
        ("x.en-de.tsv", labelled(0, 3, 1, 4, 2), (), [2, 4]),
        ("x.csv", labelled(0, 4, 3), ("id", "de", "text_en"), [2, 3]),
        ("x.jsonl", labelled(3, 0, 4), ("en", "id", "de"), None),
        ("x.jsonl", labelled(2, 4, 3), ("domain", "german", "english"), ["german", "english"]),
        ("x.en-de.jsonl", labelled(4, 3), ("target", "source"), ["source", "target"]),
        ("x.en-de.csv", labelled(4, 3), ("tgt_sentence", "src_sentence"), [2, 1]),
        ("x.en-de.tsv", labelled(4, 3), ("Translation", "Original text"), [2, 1]),
        ("x.en-de.jsonl", labelled(4, 0, 3), ("targetText", "id", "sourceText"), ["sourceText", "targetText"]),
        ("x.en-de.jsonl", labelled(4, 3), ("translation", "text"), ["text", "translation"]),
        ("x.jsonl", labelled(3, 4), ("English text", "German text"), ["English text", "German text"]),
    ],
)
def test_names_headers_and_keys_tell_languages_and_columns(name, rows, header, fields) -> None:
    made = make_recipe([write(name, rows, header)], Path("x.yaml"), ())
    (dataset,) = made.recipe.data.train
    assert dataset.fields == (fields and tuple(map(str, fields)))
    is_english_first = not name.startswith("x.de") and "german" not in header and header[1:2] != ("de",)
    assert made.recipe.data.languages == (("en", "de") if is_english_first else ("de", "en"))


def test_of_columns_in_regions_the_wanted_one_is_read_and_others_than_the_wanted_ones_are_not() -> None:
    rows = [(source, source.upper(), target) for source, target in PAIRS]
    settings = ["data.source=en-GB", "data.target=de"]
    made = make_recipe([write("x.csv", rows, ("en-US", "en-GB", "de"))], Path("x.yaml"), settings)
    assert made.recipe.data.train[0].fields == ("2", "3")
    write("y.csv", rows, ("Note", "German", "French"))
    with pytest.raises(UserError, match=r"y\.csv: has 3 columns of text"):
        make_recipe(["y.csv"], Path("x.yaml"), ["data.source=en", "data.target=de"])
    assert make_recipe(["y.csv"], Path("x.yaml"), ["data.source=fr"]).recipe.data.train[0].fields == ("3", "2")


def test_a_column_of_sources_beside_several_languages_goes_with_the_wanted_one() -> None:
    rows = [(number, *pair, pair[1].upper()) for number, pair in enumerate(PAIRS)]
    name = write("x.csv", rows, ("identifier", "source_phrase", "German", "French"))  # as Crowdin exports
    for settings in ((), ["data.source=en"]):
        with pytest.raises(UserError, match=re.escape("text: 2 (source_phrase), 3 (German), 4 (French)")) as caught:
            make_recipe([name], Path("x.yaml"), settings)
        assert caught.value.hint == "say which, such as --set data.source=en --set data.target=de"
    for source, target, fields in (("en", "fr", ("2", "4")), ("fr", "de", ("4", "3"))):
        made = make_recipe([name], Path("x.yaml"), [f"data.source={source}", f"data.target={target}"])
        assert made.recipe.data.train[0].fields == fields


def test_the_names_of_columns_count_even_if_there_are_more_columns_than_names() -> None:
    rows = "".join(f"{source};{target};;\n" for source, target in PAIRS)
    Path("x.csv").write_text(f"en;de\n{rows}")
    made = make_recipe(["x.csv"], Path("x.yaml"), ())
    columns = "x.csv without column 3 (nothing), 4 (nothing)"
    assert made.said == f"x.csv: 240 pairs, en-de by the names of its columns; {columns}"


def test_of_many_columns_without_text_only_some_are_named() -> None:
    keys = [f"n{number}" for number in range(20)]
    write("x.jsonl", [(*range(20), *pair) for pair in PAIRS], (*keys, "en", "de"))
    made = make_recipe(["x.jsonl"], Path("x.yaml"), ())
    assert made.said.endswith("n7 (numbers: 7) and 12 more")


def test_columns_tell_the_sides_and_the_name_of_the_file_tells_the_direction() -> None:
    made = make_recipe([write("x.de-en.tsv", header=("en", "de"))], Path("x.yaml"), ())
    assert made.recipe.data.languages == ("de", "en")
    assert made.recipe.data.train[0].fields == ("2", "1")
    assert made.said.endswith("de-en by the file's name and the names of its columns")


def test_a_column_named_by_a_language_alone_goes_before_one_that_is_named_by_more() -> None:
    rows = [(source, source.upper(), target) for source, target in PAIRS]
    made = make_recipe(
        [write("x.tsv", rows, ("en", "en_upper", "de"))], Path("x.yaml"), ["data.source=EN", "data.target=de-AT"]
    )
    assert made.recipe.data.train[0].fields == ("1", "3")


def test_files_in_other_languages_than_the_wanted_ones_are_left_out_and_named() -> None:
    Path("all").mkdir()
    write("all/a.en-de.tsv")
    write("all/b.en-fr.tsv", [(source, target.upper()) for source, target in PAIRS])
    made = make_recipe(["all"], Path("x.yaml"), ["data.target=fr"])
    assert [dataset.file for dataset in made.recipe.data.train] == ["all/b.en-fr.tsv"]
    assert made.said == "all: 240 pairs, en-fr by the file's name; without all/a.en-de.tsv (en-de)"
    assert "# without all/a.en-de.tsv (en-de)" in made.text


def test_a_user_may_say_that_a_name_is_wrong_but_not_half_of_it() -> None:
    write("x.en-de.tsv")
    made = make_recipe(["x.en-de.tsv"], Path("x.yaml"), ["data.source=fr", "data.target=es"])
    assert made.said == "x.en-de.tsv: 240 pairs, fr-es; but x.en-de.tsv is en-de by the file's name"
    with pytest.raises(UserError) as caught:
        make_recipe(["x.en-de.tsv"], Path("x.yaml"), ["data.source=fr"])
    assert caught.value.message == "x.en-de.tsv: is en-de by the file's name, but data.source is fr"


@pytest.mark.parametrize(
    ("settings", "hint"),
    [(["data.source=en", "data.target=Chinese"], "data.target=zh"), (["data.source=en data.target=de"], "of its own")],
)
def test_a_language_is_a_code(settings: list[str], hint: str) -> None:
    write("x.tsv")
    with pytest.raises(UserError, match="must be a code") as caught:
        make_recipe(["x.tsv"], Path("x.yaml"), [*settings, "data.target=zh"][:2])
    assert hint in caught.value.hint


def test_files_of_lines_and_hidden_files_in_a_folder_are_not_read_but_the_former_are_named() -> None:
    Path("all/.backup").mkdir(parents=True)
    for name in ("all/x.en", "all/x.de", "all/notes.cs"):
        Path(name).write_text("more\n")
    for name in ("all/dev.en", "all/dev.de"):
        Path(name).write_text("a\n")
    with pytest.raises(UserError, match="all: holds no files that end in") as caught:
        make_recipe(["all"], Path("x.yaml"), ())
    assert caught.value.hint == "name two files of lines: nmt train all/x.de all/x.en"
    write("all/.backup/a.en-de.tsv")
    write("all/a.en-de.tsv")
    made = make_recipe(["all"], Path("x.yaml"), ())
    without = "all/a.en-de.tsv without files of lines (all/x.de, all/x.en and 2 more), which must be named"
    assert made.said == f"all: 240 pairs, en-de by the file's name; {without}"


@pytest.mark.parametrize(
    ("settings", "languages"),
    [((), ("de", "en-US")), (["data.source=en"], ("en", "de")), (["data.target=de"], ("en-US", "de"))],
)
def test_of_a_tmx_of_two_languages_the_first_is_the_source(settings: Sequence[str], languages: tuple[str, str]) -> None:
    pytest.importorskip("translate")
    units = "".join(UNIT.format(*pair) for pair in PAIRS)
    Path("x.tmx").write_text(TMX.replace('"en"', '"*all*"').format(units))
    assert make_recipe(["x.tmx"], Path("x.yaml"), settings).recipe.data.languages == languages


def test_the_recipe_has_the_settings_and_a_comment_on_each_choice() -> None:
    name = write("x.en-de.tsv", labelled(1, 3, 4))
    made = make_recipe([name], Path("x.yaml"), ["training.minutes=5", "data.source=de", "data.target=en"])
    Path("x.yaml").write_text(made.text)
    assert load("x.yaml") == made.recipe
    assert yaml.safe_load(made.text) == {
        "extends": "laptop",
        "name": "x",
        "data": {
            "source": "de",
            "target": "en",
            "train": [{"file": name, "fields": [3, 2]}],
            "valid": [{"take": 10}],
            "test": [{"take": 20}],
        },
        "tokenizer": {"vocab_size": 500},
        "model": {"dropout": 0.3},
        "training": {"weight_decay": 0.9, "minutes": 5},
    }
    first, *lines = made.text.splitlines()
    assert first == "# Written by: nmt train x.en-de.tsv"
    assert "  minutes: 5 # by --set" in lines
    assert (
        "  minutes: 30 # of training in all; raise it to train longer" in make_recipe([name], Path("x.yaml"), ()).text
    )
    assert any(line.endswith("# x.en-de.tsv without column 1 (names or single words: name1, name2)") for line in lines)


def test_what_cannot_be_looked_at_in_a_folder_is_left_out() -> None:
    Path("all").mkdir()
    Path("all/link.tsv").symlink_to("x" * 300)  # a name that is too long, as one that may not be read, is an error
    write("all/a.en-de.tsv")
    assert [each.file for each in make_recipe(["all"], Path("x.yaml"), ()).recipe.data.train] == ["all/a.en-de.tsv"]


def test_files_that_are_called_as_what_one_tests_on_are_named_if_they_are_trained_on() -> None:
    for name in ("all/train.en-de.tsv", "all/Test.en-de.tsv", "all/latest.en-de.tsv"):
        Path("all").mkdir(exist_ok=True)
        write(name)
    made = make_recipe(["all"], Path("x.yaml"), ())
    assert made.said == "all: 720 pairs, en-de by the file's name; also trains on all/Test.en-de.tsv"
    assert "# also trains on all/Test.en-de.tsv" in made.text


def test_two_files_of_lines_and_several_files_make_one_recipe() -> None:
    for side, language in enumerate(("en", "de")):
        Path(f"x.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    files = ["x.en", "x.de", write("y.de-en.tsv")]
    train = yaml.safe_load(make_recipe(files, Path("y.yaml"), ["data.source=en"]).text)["data"]["train"]
    assert train == [{"file": "y.de-en.tsv", "fields": [2, 1]}, {"source": "x.en", "target": "x.de"}]


def test_translators_files_declare_their_languages() -> None:
    pytest.importorskip("translate")
    Path("x.tmx").write_text(TMX.format("".join(UNIT.format(*pair) for pair in PAIRS)))
    made = make_recipe(["x.tmx"], Path("x.yaml"), ())
    assert made.recipe.data.languages == ("en-US", "de")
    for number in range(12):
        catalog(Path(f"po.d/{number}.po"), "de", PAIRS[number * 20 :][:20])
    made = make_recipe(["po.d"], Path("po.yaml"), ())
    assert made.recipe.data.languages == ("en", "de")
    assert [dataset.take for dataset in (*made.recipe.data.valid, *made.recipe.data.test)] == ["1 file", "1 file"]
    assert "extends: strings" in made.text
    catalog(Path("po.d/fr.po"), "fr", PAIRS[:5])
    with pytest.raises(UserError, match="has the target languages de, fr") as caught:
        make_recipe(["po.d"], Path("po.yaml"), ())
    assert caught.value.message.startswith("po.d: ")
    assert caught.value.hint == "say which, such as --set data.target=de"


def test_catalogs_of_other_regions_that_are_read_are_named() -> None:
    pytest.importorskip("translate")
    for code in ("de", "de_AT", "de_CH"):
        catalog(Path(f"po/{code}.po"), code, PAIRS)
    made = make_recipe(["po"], Path("r.yaml"), ())
    assert made.said == "po: 720 pairs, en-de as declared, or en by custom; also reads de-AT, de-CH as de"
    made = make_recipe(["po"], Path("r.yaml"), ["data.target=de-AT"])
    assert made.said.endswith("480 pairs, en-de-AT as declared, or en by custom; also reads de as de-AT")
    made = make_recipe(["po/de_CH.po"], Path("r.yaml"), ["data.target=de"])
    assert "also reads" not in made.said


def test_catalogs_that_declare_nothing_are_told_apart_by_their_names_and_by_folders_of_gettext() -> None:
    pytest.importorskip("translate")
    for code, pairs in (("de", PAIRS), ("fr", PAIRS[:5])):
        for path in (f"po/{code}.po", f"locale/{code}/LC_MESSAGES/django.po"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            catalog(Path(path), "", pairs)
    for folder in ("po", "locale"):
        with pytest.raises(UserError, match=f"{folder}: has the target languages de, fr"):
            make_recipe([folder], Path("r.yaml"), ())
        made = make_recipe([folder], Path("r.yaml"), ["data.target=de"])
        assert made.said.startswith(f"{folder}: 240 pairs, en-de ")


@pytest.mark.parametrize(
    ("source", "codes", "hint"),
    [
        ("en", ("en-US", "de-AT", "en-GB", "de-DE"), "--set data.source=en --set data.target=de"),
        ("*all*", ("en-US", "de-AT", "en-GB", "de-DE"), "--set data.source=de --set data.target=en"),
        ("it", ("en", "de", "en", "de"), ""),  # the header names a language that no unit has
    ],
)
def test_regions_in_a_tmx_are_named_with_the_settings_that_read_all(
    source: str, codes: Sequence[str], hint: str
) -> None:
    pytest.importorskip("translate")
    units = UNIT.replace('"de"', '"{3}"').replace('"en-US"', '"{2}"')
    content = "".join(
        units.format(*pair, *(codes[2:] if number % 2 else codes[:2])) for number, pair in enumerate(PAIRS)
    )
    Path("x.tmx").write_text(TMX.replace('"en"', f'"{source}"').format(content))
    settings = [each for each in hint.split() if each != "--set"]
    if hint:
        with pytest.raises(UserError, match=r"x\.tmx: has the source languages .* and the target languages ") as caught:
            make_recipe(["x.tmx"], Path("r.yaml"), ())
        assert caught.value.hint == f"say which, such as {hint}"
    made = make_recipe(["x.tmx"], Path("r.yaml"), settings)
    assert made.said.startswith("x.tmx: 240 pairs, ")


XLIFF = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" datatype="plaintext"
source-language="en" target-language="de"><body>{}</body></file></xliff>"""
QT = '<!DOCTYPE TS><TS version="2.1" language="de"><context><name>A</name>{}</context></TS>'


def test_names_in_an_archive_tell_its_languages_and_may_write_their_codes_otherwise() -> None:
    for name, members in (
        ("books.zip", ("B.fr-en.en", "B.fr-en.fr", "README")),
        ("en-pt_BR.txt.zip", ("a.en", "a.pt_br")),
    ):
        with zipfile.ZipFile(name, "w") as archive:
            for member in members:
                archive.writestr(member, "".join(f"{member} {number}\n" for number in range(240)))
    made = make_recipe(["books.zip"], Path("r.yaml"), ())
    assert made.said == "books.zip: 240 pairs, fr-en by the names in it"
    made = make_recipe(["en-pt_BR.txt.zip"], Path("r.yaml"), ())
    assert made.said == "en-pt_BR.txt.zip: 240 pairs, en-pt-BR by the file's name"


def test_archives_parquet_and_single_translators_files_show_their_languages() -> None:
    pytest.importorskip("translate")
    columns = {"score": [0.5] * len(PAIRS), "de": [pair[1] for pair in PAIRS], "en": [pair[0] for pair in PAIRS]}
    pq.write_table(pa.table(columns), "x.parquet")
    with zipfile.ZipFile("de-en.txt.zip", "w") as archive:
        for side, language in enumerate(("en", "de")):
            archive.writestr(f"x.de-en.{language}", "".join(f"{pair[side]}\n" for pair in PAIRS))
    unit = '<trans-unit id="{0}"><source>{1}</source><target state="final">{2}</target></trans-unit>'
    Path("x.xlf").write_text(XLIFF.format("".join(unit.format(at, *pair) for at, pair in enumerate(PAIRS))))
    message = "<message><source>{}</source><translation>{}</translation></message>"
    Path("x.ts").write_text(QT.format("".join(message.format(*pair) for pair in PAIRS)))
    by_custom = "as declared, or en by custom"
    for name, languages, by in (
        ("x.parquet", ("de", "en"), "by its keys; x.parquet without column score (numbers: 0.5)"),
        ("de-en.txt.zip", ("de", "en"), "by the file's name"),
        ("x.xlf", ("en", "de"), "as declared"),
        ("x.ts", ("en", "de"), by_custom),
    ):
        made = make_recipe([name], Path("r.yaml"), ())
        assert made.recipe.data.languages == languages
        assert made.said == f"{name}: 240 pairs, {'-'.join(languages)} {by}"


@pytest.mark.parametrize(
    ("names", "problem", "hint"),
    [
        (
            ["pairs.tsv"],
            "neither its name nor anything in it says which languages it is in (I see 0 trees. | Ich sehe 0 Bäume.)",
            "data.source=en --set data.t",
        ),
        (["few.en-de.tsv"], "12 pairs with 12 different sources; at least 200 are needed", "more files"),
        (["one.en-de.tsv"], "has no two columns, separated by tabs: I see 0 trees.", "into one row, separated by tabs"),
        (
            ["ids.en-de.tsv"],
            "needs two columns of text, and has 1; without text: 1 (numbers: 1, 2)",
            "{file: ids.en-de.tsv, fields: [1, 2]}",
        ),
        (["many.en-de.tsv"], "has 3 columns of text", "name two: --set 'data.train=[{file: many"),
        (["x.en"], "files of lines that translate each other are two, not 1", "nmt train x.en x.de"),
        (["x.en", "x.de", "y.en", "y.de"], "each other are two, not 4", "append those of one language"),
        (["x.en", "./x.en"], "./x.en: is named as source and as target", "of the other language"),
        (["deu.txt"], "deu.txt: has columns, separated by tabs", "rename it to deu.tsv"),
        (["x.ndjson"], "x.ndjson: seems to be JSON", "rename it to x.jsonl"),
        (["x.json"], "x.json: is neither text of lines nor a file of pairs", "end the name in .jsonl"),
        (["x.xlsx.csv"], "x.xlsx.csv: is a zip archive, as .docx, .xlsx, ", "save it as .csv in UTF-8"),
        (["x.tgz"], "x.tgz: is a tar archive", "extract its files"),
        (["x.en", "a.de.sgm"], "a.de.sgm: is neither text of lines nor a file of pairs", "save it as .tsv"),
        (["x.docx.sdlxliff"], "x.docx.sdlxliff: is neither text of lines", "rename it to x.docx.xlf"),
        (["quoted.tsv"], "quoted.tsv: has its cells in quotation marks", "rename it to quoted.csv"),
        (["x.en", "x.srt"], "x.srt: is neither text of lines nor a file of pairs", "save it as .tsv"),
        (
            ["all"],
            "all/names.csv: has no two columns",
            "move it out of all, or put each source and its translation into",
        ),
        (["pairs.csv.txt"], "pairs.csv.txt: seems to be .csv, but its name does not end so", "rename it to pairs.csv"),
        (["anki.txt"], "anki.txt: has columns, separated by tabs", "rename it to anki.tsv"),
        (["bars.txt"], "bars.txt: has columns, separated by |||", "to a file of the name bars.tsv"),
        (["x.en-fr.jsonl"], "without text: id (numbers: 0, 1), text (an object)", "as text"),
        (["none.jsonl"], "none.jsonl: is empty", "hold pairs"),
        (["few.en-de.tsv", "./few.en-de.tsv"], "./few.en-de.tsv: is named twice", "name it once"),
        (["x.en", "x.yaml"], "x.yaml: is a recipe by its name", "name it alone"),
        (["empty.en-de.tsv"], "empty.en-de.tsv: is empty", "hold pairs"),
        (["pipe.en-de.tsv"], "pipe.en-de.tsv: is no file, but data is read several times", "write it to a file"),
        (["-"], "-: is no file", "write it to a file"),
        (["https://example.org/x.en-de.tsv"], "is an address", "data: {train: [{file: "),
        (["x.xliff"], "x.xliff: is XLIFF 2, and only XLIFF 1.2 is read", "export XLIFF 1.2"),
        (
            ["it's three.tsv"],
            "columns of text: 1 (id), 2 (one)",
            "'data.train=[{file: \"it'\"'\"'s three.tsv\", fields: [2, 3]",
        ),
        (["words.en-de.tsv"], "needs two columns of text, and has 0", "fields: [2, 4]"),
        (["bars.csv"], "neither its name nor anything in it says which languages", "data.source=en"),
        (["catalogs.zip"], "has no two files of lines, whose names end in a language", "extract its files"),
        (["two.zip"], "two.zip: has 2 files whose names end in .en, not one (train.en, test.en)", "name a file in it"),
        (["three.zip"], "three.zip: has files in en, de, fr", "--set data.source=en --set data.target=de"),
        (["languages.tsv"], "columns of text: 1 (mt), 2 (en), 3 (de)", "--set data.source=mt --set data.target=en"),
        (["none.tsv"], "no such file or folder", "check its name"),
        (["few.en-de.tsv", "y.en-fr.tsv"], "y.en-fr.tsv: is en-fr, and few.en-de.tsv is en-de", "one at a time"),
        (["broken.en-de.csv"], "broken.en-de.csv:3: no row of a .csv begins here", "write a quotation mark"),
    ],
)
def test_files_that_do_not_say_enough_are_refused(names: Sequence[str], problem: str, hint: str) -> None:
    write("pairs.tsv")
    write("few.en-de.tsv", PAIRS[:12])
    write("one.en-de.tsv", [pair[:1] for pair in PAIRS])
    write("ids.en-de.tsv", labelled(0, 3))
    write("many.en-de.tsv", [(*pair, pair[1][::-1]) for pair in PAIRS])
    write("y.en-fr.tsv")
    for name in ("x.en", "x.de", "y.en", "y.de", "x.srt", "x.yaml"):
        Path(name).write_text("a\n")
    Path("empty.en-de.tsv").touch()
    Path("none.jsonl").touch()
    write("quoted.tsv", [[f'"{text}"' for text in pair] for pair in PAIRS])
    Path("x.xlsx.csv").write_bytes(b"PK\3\4")
    with tarfile.open("x.tgz", "w:gz") as archive:
        archive.add("x.en")
    for name in ("a.de.sgm", "x.docx.sdlxliff"):
        Path(name).write_text("<x>\n")
    Path("pairs.csv.txt").write_text("en;de\n")
    Path("all").mkdir()
    write("all/a.en-de.tsv")
    Path("all/names.csv").write_text("Anna\nBob\n")
    Path("anki.txt").write_text("#separator:tab\n" + Path("pairs.tsv").read_text())
    Path("bars.txt").write_text("".join(" ||| ".join(pair) + "\n" for pair in PAIRS))
    Path("bars.csv").write_text("".join("|".join(pair) + "\n" for pair in PAIRS))
    write("words.en-de.tsv", [(number, f"word_{number}", "x" * 50, f"Wort_{number}") for number in range(240)])
    for archive, members in (
        ("catalogs", ("de/app.po", "fr/app.po")),
        ("two", ("train.en", "train.de", "test.en", "test.de")),
        ("three", ("x.en", "x.de", "x.fr")),
    ):
        with zipfile.ZipFile(f"{archive}.zip", "w") as opened:
            for member in members:
                opened.writestr(member, "a\n")
    write(
        "x.en-fr.jsonl",
        [(number, dict(zip(("en", "fr"), pair, strict=True))) for number, pair in enumerate(PAIRS)],
        ("id", "text"),
    )
    os.mkfifo("pipe.en-de.tsv")
    for name in ("x.json", "x.ndjson"):
        Path(write("x.jsonl", header=("en", "de"))).rename(name)
    Path(write("deu.tsv")).rename("deu.txt")
    Path("x.xliff").write_text('<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"></file></xliff>')
    three = [(source, target, target[::-1]) for source, target in PAIRS]
    write("it's three.tsv", three, ("id", "one", "other"))
    write("languages.tsv", three, ("mt", "en", "de"))
    Path("broken.en-de.csv").write_text('a,b\nc,"d, e"\n"f"g,h\n')
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        make_recipe(names, Path("x.yaml"), ())
    assert hint in caught.value.hint


MANY = 100_000_000  # characters, which need neither dropout nor more weight decay


@pytest.mark.parametrize(
    ("size", "vocabulary", "takes"),
    [
        (Size(3000, 3000, True, 20_000, MANY, 90, 0), [], [100, 200]),
        (Size(3000, 3000, True, 4690, MANY, 90, 0), [2300], [100, 200]),
        (Size(300, 300, True, 90, MANY, 30, 0), [500], [10, 20]),
        (Size(3000, 3000, True, 3100, MANY, 1500, 0), [3300], [100, 200]),
        (Size(200_000, 100_000, False, 9000, 1, 0, 0), [], [500, 1000]),
        (Size(9000, 1000, False, 9000, 1, 0, 222), [], ["3 files", "3 files"]),
    ],
)
def test_vocabulary_and_what_is_set_aside_suit_what_there_is(
    size: Size, vocabulary: Sequence[object], takes: Sequence[object]
) -> None:
    base = load(ROOT / "recipes/laptop.yaml", ["data.name=x"])
    found = [choice.value for choice in choices(size, base, 1e11)]
    assert found == [*vocabulary, *([{"take": take}] for take in takes)]


@pytest.mark.parametrize(
    ("length", "flops", "settings", "dropout"),
    [
        (6_000_000, 1e11, [], None),  # 10.8 million tokens
        (2_400_000, 1e11, [], 0.1),
        (4_000_000, 1e11, ["training.minutes=65"], 0.1),  # 23 epochs of much text
        (1_100_000, 1e11, [], 0.2),
        (1_100_000, 2e10, [], None),
        (1_100_000, 1e11, ["training.minutes=5"], None),
        (300_000, 1e11, [], 0.3),
        (300_000, 1e11, ["training.updates=1000"], 0.1),
        (300_000, 1e11, ["training.minutes=null"], 0.3),
        (300_000, 1e11, ["model.dropout=0.4"], None),
    ],
)
def test_dropout_suits_how_often_the_pairs_are_trained_on(
    length: int, flops: float, settings: Sequence[str], dropout: float | None
) -> None:
    size = Size(8000, 8000, True, 20_000, length, 90, 0)
    base = load(ROOT / "recipes/laptop.yaml", ["data.name=x", *settings])
    found = {choice.key: choice.value for choice in choices(size, base, flops)}
    assert found.get("model.dropout") == dropout
    few = choices(size._replace(is_all=False), base, flops)
    assert "model.dropout" not in {choice.key for choice in few}


def test_pairs_are_seen_as_often_as_the_processes_that_will_train_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    name = write("x.en-de.tsv")
    seen = list[int]()
    for threads in (1, 2, 16):
        monkeypatch.setattr(from_files, "threads_of_torch", lambda _, threads=threads: threads)
        found = re.search(r"each pair is seen some ([\d,]+) times", make_recipe([name], Path("x.yaml"), ()).text)
        assert found is not None
        seen.append(int(found[1].replace(",", "")))
    assert seen[0] == pytest.approx(seen[1] / 2, abs=1)
    assert seen[1] == seen[2]


@pytest.mark.parametrize(
    ("target", "length"),
    [("Ein Hund läuft über Gras.", 25), ("一只狗在草地上跑。", 27), ("犬が草の上を走る。 OK", 30), ("หมากำลังวิ่ง", 12)],
)
def test_a_chinese_character_is_most_of_a_subword(tmp_path: Path, target: str, length: int) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(f"A dog runs over grass.\t{target}\n")
    recipe = load(ROOT / "recipes/laptop.yaml", [f"data.train=[{{file: {json.dumps(str(path))}}}]"])
    assert count_pairs(recipe, 10, 0).length == length


@pytest.mark.parametrize(
    ("length", "settings", "decay"),
    [
        (700_000, [], 0.6),  # 179 updates of 1,024 tokens in an epoch
        (700_000, ["training.learning_rate_scale=2"], 0.3),
        (700_000, ["training.batch_tokens=4096"], 0.9),
        (700_000, ["training.optimizer=adam"], None),
        (700_000, ["training.weight_decay=0.2"], None),
        (20_000, [], 0.9),
        (3_000_000, [], 0.2),
        (4_000_000, [], None),
    ],
)
def test_weights_decay_in_about_two_epochs(length: int, settings: Sequence[str], decay: float | None) -> None:
    size = Size(8000, 8000, True, 20_000, length, 90, 0)
    base = load(ROOT / "recipes/laptop.yaml", ["data.name=x", *settings])
    found = {choice.key: choice.value for choice in choices(size, base, 1e11)}
    assert found.get("training.weight_decay") == decay
    assert "training.weight_decay" not in {choice.key for choice in choices(size._replace(is_all=False), base, 1e11)}


@pytest.mark.parametrize(
    ("length", "settings", "width", "dropout"),
    [
        (6_000_000, ["training.minutes=120"], 192, 0.2),  # 43 million tokens by laptop, 22 million by the wider one
        (6_000_000, ["training.minutes=60"], None, 0.1),
        (6_000_000, ["training.minutes=120", "training.updates=10_000"], None, None),
        (3_000_000, ["training.minutes=120"], None, 0.3),
    ],
)
def test_a_wider_model_needs_time_and_text(
    length: int, settings: Sequence[str], width: int | None, dropout: float | None
) -> None:
    size = Size(100_000, 90_000, True, 60_000, length, 90, 0)
    base = load(ROOT / "recipes/laptop.yaml", ["data.name=x", *settings])
    found = {choice.key: choice.value for choice in choices(size, base, 1e11)}
    assert (found.get("model.d_model"), found.get("model.dropout")) == (width, dropout)
    own = {choice.key for choice in choices(size, base, 1e11, has_sizes=True)}
    assert "model.d_model" not in own
    load(ROOT / "recipes/laptop.yaml", ["data.name=x", *(f"{key}={json.dumps(found[key])}" for key in found)])


@pytest.mark.parametrize(
    ("size", "vocabulary", "width", "dropout"),
    [
        (Size(8000, 8000, True, 9000, 100_000, 90, 0), 4500, 256, 0.3),
        (Size(90_000, 90_000, True, 60_000, 4_000_000, 90, 0), 10_000, 512, 0.3),
        (Size(150_000, 100_000, False, 60_000, 4_000_000, 0, 0), 10_000, 512, 0.2),
    ],
)
def test_a_gpu_trains_a_larger_model(size: Size, vocabulary: int, width: int, dropout: float) -> None:
    base = load(ROOT / "recipes/laptop.yaml", ["data.name=x"])
    found = {choice.key: choice.value for choice in choices(size, base, None)}
    values = [found[key] for key in ("tokenizer.vocab_size", "model.d_model", "model.dropout")]
    assert values == [vocabulary, width, dropout]
    recipe = load(ROOT / "recipes/laptop.yaml", ["data.name=x", *(f"{key}={json.dumps(found[key])}" for key in found)])
    assert recipe.training.batch_tokens == 4096


@pytest.mark.parametrize("setting", ["model.d_model=128", "training.target_embeddings=vectors.txt"])
def test_sizes_that_a_user_chose_stay(setting: str) -> None:
    name = write("x.en-de.tsv")
    made = make_recipe([name], Path("x.yaml"), [setting, "training.embeddings=random"], on_gpu=True)
    assert made.recipe.model.d_model == 128
    assert make_recipe([name], Path("x.yaml"), (), on_gpu=True).recipe.model.d_model == 256


@pytest.mark.parametrize("has_spaces", [True, False])
def test_few_pairs_fill_their_vocabulary(nmt: Callable[..., Any], has_spaces: bool) -> None:
    rows = PAIRS
    if not has_spaces:  # each with ideographs of its own
        rows = [
            (pair[0], "".join(chr(0x4E00 + 4 * number + each) for each in range(4)) * 3)
            for number, pair in enumerate(PAIRS)
        ]
    write("few.en-xx.tsv".replace("xx", "de" if has_spaces else "zh"), rows)
    name = "few.en-de" if has_spaces else "few.en-zh"
    done = nmt("preprocess", f"{name}.tsv")
    assert done.code == 0, done.err
    assert load(Path(f"{name}.yaml"), ()).tokenizer.vocab_size == (500 if has_spaces else 2300)


def test_headers_name_languages_in_themselves() -> None:
    write("x.csv", header=("English", "Deutsch"))
    made = make_recipe(["x.csv"], Path("x.yaml"), ())
    assert made.recipe.data.languages == ("en", "de")
    assert "240 pairs" in made.said


def test_text_in_another_encoding_is_refused() -> None:
    Path("x.en-de.tsv").write_bytes("".join(f"{source}\t{target}\n" for source, target in PAIRS).encode("latin-1"))
    with pytest.raises(UserError, match=r"x\.en-de\.tsv: is in another encoding than UTF-8, such as LATIN1") as caught:
        make_recipe(["x.en-de.tsv"], Path("x.yaml"), ())
    assert caught.value.hint == "make it text in UTF-8, by: iconv -f ENCODING -t UTF-8 x.en-de.tsv > utf8-x.en-de.tsv"
