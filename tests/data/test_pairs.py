"""The same pairs from every kind of file; errors that name file and record."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from moses_zip import moses_zip

from nmt.data.pairs import check_inputs, describe, read_pairs
from nmt.recipe import Data, Dataset
from nmt.system.errors import UserError

PAIRS = [
    ("I like trees.", "Ich mag Bäume."),
    ('He said "no", twice.', 'Er sagte „nein", zweimal.'),
    ('"an open quote', "'halb offen"),
    ('""', '"'),
    ("U+2028 \u2028 and \u2029 and \x0b and \x85", "\x0c \x1c \x1d \x1e"),
    ("  leading, trailing  ", " \u3000"),
    ("", "no source"),
    ("no target", ""),
    ("back\\slash \\n \\t", "a,b;c|d"),
    ("😀👩‍👩‍👧‍👦 🇩🇪", "\u2581 e\u0301"),
    ("2020-01-01", "007"),
]

TRANSLATIONS = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` keeps locks in the home directory."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def data_below(root: Path) -> Data:
    dataset = Dataset(file="unused.tsv")
    return Data(name="x", root=str(root), source="en", target="de", train=(dataset,))


def tree_data(root: Path, **settings: Any) -> Data:
    train = (Dataset(trees="unused.mrg"),)
    return Data(name="x", root=str(root), source="en", target="tree", train=train, **settings)


def read(root: Path, **dataset: Any) -> list[tuple[str, str]]:
    return list(read_pairs(Dataset.model_validate(dataset), data_below(root)))


def lines(texts: list[str], end: str = "\n") -> bytes:
    return "".join(text + end for text in texts).encode()


def jsonl(records: list[Any]) -> bytes:
    return lines([json.dumps(record, ensure_ascii=False) for record in records])


def plain(root: Path) -> dict[str, Any]:
    (root / "a.en").write_bytes(lines([source for source, _ in PAIRS]))
    (root / "a.de").write_bytes(lines([target for _, target in PAIRS]))
    return {"source": "a.en", "target": "a.de"}


def without_last_newline(root: Path) -> dict[str, Any]:
    (root / "a.en").write_bytes(lines([source for source, _ in PAIRS])[:-1])
    (root / "a.de").write_bytes(lines([target for _, target in PAIRS], "\r\n"))
    return {"source": "a.en", "target": "a.de"}


def zipped(root: Path) -> dict[str, Any]:
    sides = zip(("en", "de"), zip(*PAIRS, strict=True), strict=True)
    (root / "a.zip").write_bytes(moses_zip("a.de-en", {language: lines([*side]).decode() for language, side in sides}))
    return {"file": "a.zip"}


def tsv(root: Path) -> dict[str, Any]:
    (root / "a.tsv").write_bytes(lines([f"{source}\t{target}" for source, target in PAIRS]))
    return {"file": "a.tsv"}


def tsv_with_other_columns(root: Path) -> dict[str, Any]:
    rows = [f"id {n}\t{target}\t{source}\tmore" for n, (source, target) in enumerate(PAIRS)]
    (root / "a.TSV.xz").write_bytes(lzma.compress(lines(rows)))
    return {"file": "a.TSV.xz", "fields": [3, "2"]}


def jsonl_escaped(root: Path) -> dict[str, Any]:
    records = [json.dumps({"en": source, "de": target, "id": n}) for n, (source, target) in enumerate(PAIRS)]
    (root / "a.jsonl.gz").write_bytes(gzip.compress(lines(records)))
    return {"file": "a.jsonl.gz"}


def jsonl_with_translations(root: Path) -> dict[str, Any]:
    (root / "a.jsonl").write_bytes(jsonl(TRANSLATIONS))
    return {"file": "a.jsonl"}


def jsonl_with_fields(root: Path) -> dict[str, Any]:
    (root / "a.jsonl").write_bytes(jsonl([{"text": source, "translation": target} for source, target in PAIRS]))
    return {"file": "a.jsonl", "fields": ["text", "translation"]}


def parquet(root: Path) -> dict[str, Any]:
    source, target = zip(*PAIRS, strict=True)
    table = pa.table({"de": target, "n": range(len(PAIRS)), "en": source})
    pyarrow.parquet.write_table(table, root / "a.parquet", row_group_size=4)
    return {"file": "a.parquet"}


def in_an_odd_folder(root: Path) -> dict[str, Any]:
    (root / "a [1] *").mkdir()
    return {"file": "a [1] */" + jsonl_escaped(root / "a [1] *")["file"]}


@pytest.mark.parametrize(
    "write",
    [plain, without_last_newline, zipped, tsv, tsv_with_other_columns, jsonl_escaped,
     jsonl_with_translations, jsonl_with_fields, parquet, in_an_odd_folder],
    ids=lambda write: write.__name__,
)  # fmt: skip
def test_every_kind_of_file_gives_the_same_pairs(tmp_path: Path, write: Callable[[Path], dict[str, Any]]) -> None:
    assert read(tmp_path, **write(tmp_path)) == PAIRS


def test_a_lone_carriage_return_ends_no_pair(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\rmore\ntwo\r\n")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\rmehr\n")
    (tmp_path / "a.tsv").write_bytes(b"one\rmore\teins\ntwo\tzwei\rmehr\r\n")
    expected = [("one\rmore", "eins"), ("two", "zwei\rmehr")]
    assert read(tmp_path, source="a.en", target="a.de") == expected
    assert read(tmp_path, file="a.tsv") == expected


def test_line_ends_inside_a_record_become_spaces_and_null_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"en": "one\nmore", "de": "eins\r\nmehr"}, {"en": "two", "de": None}]))
    assert read(tmp_path, file="a.jsonl") == [("one more", "eins  mehr"), ("two", "")]


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(rb'{"en": "\ud83d\ude00 a \ud83d", "de": "\ude00\ud83d b"}' + b"\n")
    assert read(tmp_path, file="a.jsonl") == [("😀 a \ufffd", "\ufffd\ufffd b")]


# --- errors -------------------------------------------------------------------------------------------------


def refusal(root: Path, **dataset: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        read(root, **dataset)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_tsv_line_with_too_few_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"one\teins\ntwo\nthree\tdrei\n")
    message = refusal(tmp_path, file="a.tsv").message
    assert message.startswith(f"{tmp_path / 'a.tsv'}:2: has no column 2 (columns: 1)")
    assert "column 3" in refusal(tmp_path, file="a.tsv", fields=["3", "1"]).message


def test_a_blank_line_of_a_tsv_is_a_blank_pair(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\ufeffone\teins\n \u200b\nthree\tdrei\n\n")
    assert read(tmp_path, file="a.tsv") == [("one", "eins"), ("", ""), ("three", "drei"), ("", "")]


def test_a_file_that_lost_lines_since_they_were_counted_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("a\nb\n")
    (tmp_path / "a.de").write_text("a\n")
    assert "a.de ends after 1 line" in refusal(tmp_path, source="a.en", target="a.de").message


def test_a_missing_field_names_the_record_and_the_fields_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"english": "one", "de": "eins"}]))
    error = refusal(tmp_path, file="a.jsonl")
    assert error.message == f"{tmp_path / 'a.jsonl'}: record 1 has no text field 'en', it has english, de"
    assert "fields:" in error.hint
    assert read(tmp_path, file="a.jsonl", fields=["english", "de"]) == [("one", "eins")]
    parquet(tmp_path)
    error = refusal(tmp_path, file="a.parquet", fields=["en", "fr"])
    assert error.message == f"{tmp_path / 'a.parquet'}: record 1 has no text field 'fr', it has de, n, en"


@pytest.mark.parametrize(
    ("value", "kind"),
    [(b"one", "bytes"), (1, "a number"), (0.5, "a number"), (True, "true or false"), (["one"], "a list")],
)
def test_a_field_that_holds_no_text_is_told_from_a_missing_one(tmp_path: Path, value: Any, kind: str) -> None:
    table = pa.table({"en": ["one", "two"], "de": [value, value]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    error = refusal(tmp_path, file="a.parquet")
    assert error.message == f"{tmp_path / 'a.parquet'}: record 1 has no text in field 'de', but {kind}"
    assert ("cast('string')" in error.hint) == (kind == "bytes")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_without_records_is_a_user_error(tmp_path: Path, name: str) -> None:
    if name.endswith(".parquet"):
        empty = pa.schema([("en", pa.string()), ("de", pa.string())]).empty_table()
        pyarrow.parquet.write_table(empty, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"\n")
    assert refusal(tmp_path, file=name).message == f"{tmp_path / name}: holds no records"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl([{"en": 1, "de": "eins"}])),
        ("a.jsonl", jsonl([{"en": ["one"], "de": "eins"}])),
        ("a.jsonl", jsonl(["one"])),
        ("a.jsonl", jsonl([{"translation": {"en": "a", "de": "b"}}, {"translation": None}])),
        ("a.jsonl", b'{"en": "one", "de": "eins"}\n{"en": "two", "de":\n'),
        ("a.jsonl", b"not json\n"),
        ("a.jsonl.gz", gzip.compress(b'{"en": "one", "de": "eins"}\n' * 100, mtime=0)[:-20]),
        ("a.jsonl.gz", b"not gzip"),
        ("a.parquet", b"not parquet"),
        ("a.tsv.gz", gzip.compress(b"one\teins\n" * 100, mtime=0)[:-10]),
    ],
)
def test_a_broken_file_or_record_is_a_user_error_naming_it(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert str(tmp_path / name) in refusal(tmp_path, file=name).message


def test_missing_files_are_named_with_the_root(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\n")
    dataset = Dataset(source="a.en", target="a.de")
    with pytest.raises(UserError, match=r"a\.de: no such file") as caught:
        check_inputs([dataset], data_below(tmp_path))
    assert "data.root" in caught.value.hint


def test_only_columns_that_nobody_has_chosen_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "part.1.tsv").write_text("0ad\tA game of war.\tEin Kriegsspiel.\n")
    data = data_below(tmp_path)
    for name in ("part.1.tsv", "part.*.tsv"):
        with pytest.raises(UserError, match=r"part\.1\.tsv: column 1 seems to hold no sentences \(0ad\)"):
            check_inputs([Dataset(file=name)], data)
        check_inputs([Dataset.model_validate({"file": name, "fields": [1, 2]})], data)
    assert read(tmp_path, file="part.1.tsv", fields=[2, 3]) == [("A game of war.", "Ein Kriegsspiel.")]


def test_unequal_line_counts_are_both_named(tmp_path: Path) -> None:
    texts = {"en": "x\n" * 1234, "de": "x\r" * 5 + "\n" + "x\n" * 1231}
    (tmp_path / "a.zip").write_bytes(moses_zip("a", texts))
    for side, text in texts.items():
        (tmp_path / f"a.{side}").write_bytes(text.encode())
        (tmp_path / f"a.{side}.gz").write_bytes(gzip.compress(text.encode()))
    sets = [{"source": "a.en", "target": "a.de"}, {"source": "a.en.gz", "target": "a.de.gz"}, {"file": "a.zip"}]
    for dataset, (before, after) in zip(sets, (("", ""), ("", ".gz"), ("a.zip/", "")), strict=True):
        with pytest.raises(UserError, match=f"{before}a.en{after} has 1,234 lines and .*{before}a.de{after} has 1,232"):
            check_inputs([Dataset.model_validate(dataset)], data_below(tmp_path))


# --- the hub, without a network -----------------------------------------------------------------------------


def test_the_hub_is_asked_for_what_the_data_set_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(*arguments: Any, **options: Any) -> list[Any]:
        asked.append((*arguments, *options.values()))
        return TRANSLATIONS

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read(tmp_path, hub="wmt/wmt14", config="de-en", split="validation") == PAIRS
    files = {"revision": "refs/convert/parquet", "data_files": ["a/*.parquet", "b.parquet"]}
    assert read(tmp_path, hub="wmt/wmt14", split="validation[:50%]", **files) == PAIRS
    assert asked == [
        ("wmt/wmt14", "de-en", "validation", None, None),
        ("wmt/wmt14", None, "validation[:50%]", "refs/convert/parquet", {"validation": files["data_files"]}),
    ]


def test_files_of_a_data_set_make_up_its_split(tmp_path: Path) -> None:
    """A folder in place of a name on the hub."""
    (tmp_path / "set" / "de-en").mkdir(parents=True)
    other = [{"translation": {"de": "not", "en": "this"}}]
    for name, records in (("train", TRANSLATIONS[:5]), ("more", TRANSLATIONS[5:]), ("other", other)):
        (tmp_path / "set" / "de-en" / f"{name}.jsonl").write_bytes(jsonl(records))
    files = ["de-en/train.jsonl", "de-en/mo*.jsonl"]
    assert read(tmp_path, hub=str(tmp_path / "set"), split="test", data_files=files) == PAIRS
    assert read(tmp_path, hub=str(tmp_path / "set"), split="test[2:4]", data_files=files) == PAIRS[2:4]


def test_a_data_set_with_a_loading_script_gets_a_hint_that_names_its_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text("raise SystemExit('this is run')\n")
    error = refusal(tmp_path, hub=str(tmp_path / "set"), config="de-en", split="validation")
    assert "scripts are no longer supported, but found set.py" in error.message
    parquet = "revision: refs/convert/parquet, data_files: [de-en/validation/*.parquet]"
    assert f"{{hub: {tmp_path / 'set'}, {parquet}}}" in error.hint


def test_a_hub_out_of_reach_is_a_user_error_that_offers_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def load_dataset(*arguments: Any, **options: Any) -> list[Any]:
        raise ConnectionError("Couldn't reach the hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    error = refusal(tmp_path, hub="wmt/wmt14")
    assert error.message == "wmt/wmt14: cannot be loaded from the hub: Couldn't reach the hub at all"
    assert "--set 'data.train=" in error.hint


# --- identity -----------------------------------------------------------------------------------------------


def test_a_description_tells_settings_apart_but_not_file_names(tmp_path: Path) -> None:
    data = data_below(tmp_path)
    alike = (Dataset(file="a.tsv"), Dataset(file="b.tsv"), Dataset(file="c.tsv", weight=2))
    assert [describe(dataset, data) for dataset in alike] == 3 * [describe(alike[0], data)]
    differing = [{"file": "a.tsv"}, {"file": "a.tsv", "fields": ("2", "1")}, {"hub": "x"}, {"hub": "y"}]
    differing += [{"hub": "x", key: value} for key, value in (("config", "de-en"), ("split", "test"))]
    differing += [{"hub": "x", key: value} for key, value in (("revision", "v2"), ("data_files", ("a.parquet",)))]
    descriptions = [describe(Dataset.model_validate(dataset), data) for dataset in differing]
    trees, settings = Dataset(trees="a.mrg"), ({}, {"functional_tags": True}, {"traces": True})
    descriptions += [describe(trees, tree_data(tmp_path, **each)) for each in settings]
    assert len({json.dumps(description, sort_keys=True) for description in descriptions}) == len(descriptions)
    assert describe(trees, tree_data(tmp_path)) == describe(Dataset(trees="b.mrg", weight=2), tree_data(tmp_path))
