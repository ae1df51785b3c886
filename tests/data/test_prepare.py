"""Raw text to a prepared directory: what it holds, what is reported, and what happens when it fails."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from prepared import OUT, QUIET, WORDS, recipe, report, sentences, snapshot, table, write

from nmt.data import prepare as preparation
from nmt.data.corpus import HELD_OUT
from nmt.data.data_report import read_report
from nmt.data.pairs import Pair
from nmt.data.prepare import choose_held_out, prepare, trained_lengths
from nmt.decoding.splitter import LineSplitter
from nmt.formats.sentences import TrainedLengths
from nmt.recipe import Decoding
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("workplace")


# --- what is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_every_pair_is_encoded_in_order_without_symbols_at_its_ends(shared: bool) -> None:
    write("a.de", upper := [line.upper() for line in sentences(120, 2)])
    tokenizing = {"shared": shared, "vocab_size": 310}
    prepare(recipe(tokenizer=tokenizing, model={"tie_embeddings": "target"}), QUIET, 1)
    tokenizer = Tokenizer.load(OUT)
    assert tokenizer.shared is shared
    assert (tokenizer.source.encode(upper[0]) == tokenizer.target.encode(upper[0])) is shared
    for split, count, source, target in (
        ("train", 120, sentences(120, 1), upper),
        ("valid", 9, sentences(9, 3), sentences(9, 4)),
        ("test", 5, sentences(5, 5), sentences(5, 6)),
    ):
        rows = table(split)
        assert rows["source"].to_pylist() == [tokenizer.source.encode(text) for text in source]
        assert rows["target"].to_pylist() == [tokenizer.target.encode(text) for text in target]
        assert rows["line"].to_pylist() == list(range(1, count + 1))


def test_evaluation_splits_keep_every_line_and_tell_what_cannot_be_scored_well(
    given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("v.en", ["a dog", "a \u200b", "\u200b\ufeff", "x" * 3000, "a", b"caf\xe9"])
    write("v.de", ["Hund", "", "x", "b", "y " * 3000, b"Caf\xe9"])
    prepare(recipe(data={"max_length": 50, "max_ratio": 2.0}), Console(False), 1, start=Tokenizer.load(given))
    assert table("valid")["line"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert report("valid")["read"] == report("valid")["kept"] == 6
    assert not [key for key in report("valid") if key.startswith("dropped")]
    assert report("valid")["pairs kept though empty"] == 2
    assert report("valid")["pairs kept though not UTF-8 or with U+FFFD"] == 1
    shown = capsys.readouterr().err
    assert ", 2 pairs kept though empty, 1 pairs kept though not UTF-8 or with U+FFFD\n" in shown
    assert "  pairs kept though not UTF-8 or with U+FFFD: v.en:6: caf\ufffd ||| Caf\ufffd\n" in shown


@pytest.mark.parametrize(
    ("split", "sources", "targets"),
    [("valid", [], []), ("valid", ["a", "b"], ["", " \u200b"]), ("test", [""], ["x"]), ("valid", ["a", ""], ["", "b"])],
)
def test_a_split_that_cannot_be_scored_is_an_error(
    given: Path, split: str, sources: list[str], targets: list[str]
) -> None:
    write(f"{split[0]}.en", sources)
    write(f"{split[0]}.de", targets)
    with pytest.raises(UserError, match=f"data.{split}: none of the {len(sources)} pairs? read can be scored"):
        prepare(recipe(), QUIET, 1, start=Tokenizer.load(given))
    assert not OUT.exists()


@pytest.mark.parametrize("change", ["more text", "touched"])
def test_an_input_that_changes_while_it_is_read_is_named(
    given: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    encode = preparation._measure_lengths

    def change_then_encode(*arguments: Any) -> Any:
        write("v.de", [*sentences(9, 4)[:8], "other" if change == "more text" else sentences(9, 4)[8]])
        os.utime("v.de", (1, 1))
        return encode(*arguments)

    monkeypatch.setattr(preparation, "_measure_lengths", change_then_encode)
    if change == "touched":
        assert prepare(recipe(), QUIET, 1, start=Tokenizer.load(given))
        return
    with pytest.raises(UserError, match=r"v\.de: has changed while it was read"):
        prepare(recipe(), QUIET, 1, start=Tokenizer.load(given))
    assert not OUT.exists()


def test_the_tokenizer_sees_the_training_split_only() -> None:
    for name in ("v.en", "v.de", "t.en", "t.de"):
        write(name, [("ЖЖЖ ЖЖЖ ЖЖЖ" if name[0] == "v" else "ЪЪЪ ЪЪЪ")] * 200)
    prepare(recipe(tokenizer={"character_coverage": 1.0}), QUIET, 1)
    with_them = Tokenizer.load(OUT).source
    pieces = with_them.pieces(range(len(with_them)))
    assert not [piece for piece in pieces if "Ж" in piece or "Ъ" in piece]
    data = {"name": "y", "valid": [], "test": []}
    prepare(recipe(tokenizer={"character_coverage": 1.0}, data=data), QUIET, 1)
    without = Tokenizer.load(Path("data/y")).source
    assert pieces == without.pieces(range(len(without)))


def test_a_given_tokenizer_is_used_instead_of_training_one() -> None:
    prepare(recipe(data={"name": "other"}, tokenizer={"vocab_size": 290}), QUIET, 1)
    prepare(recipe(), QUIET, 1, start=Tokenizer.load(Path("data/other")))
    assert Tokenizer.load(OUT).files() == Tokenizer.load(Path("data/other")).files()
    assert not prepare(recipe(), QUIET, 1, start=Tokenizer.load(Path("data/other"))).is_new
    assert prepare(recipe(), QUIET, 1).is_new  # of its own again
    assert len(Tokenizer.load(OUT).source) == 300


# --- the report ---------------------------------------------------------------------------------------------


def test_the_report_counts_what_was_dropped_and_why(given: Path) -> None:
    source, target = sentences(100, 1), sentences(100, 2)
    source[3], target[4], source[5], target[5] = "", " \t\u3000", "", ""  # three pairs are empty on a side
    source[10] = "q" * 300
    source[11] = target[11] = "q" * 300
    target[12] = "q" * 300
    source[20], target[20] = "q", "q" * 40
    source[21], target[21] = "q" * 40, "q"
    write("a.en", [*source, b"bad \xff byte", "good text"])
    write("a.de", [*target, "guter Satz", b"kaputter \xc3 Satz"])
    prepare(recipe(), QUIET, 1, start=Tokenizer.load(given))
    train = report("train")
    assert train["read"] == 102
    assert train["dropped as empty"] == 3
    assert train["dropped as too long"] == 3
    assert train["dropped for their length ratio"] == 2
    assert train["dropped as not UTF-8 or with U+FFFD"] == 2
    assert train["kept"] == table("train").num_rows == 102 - 10
    dropped = {4, 5, 6, 11, 12, 13, 21, 22, 101, 102}
    assert set(table("train")["line"].to_pylist()) == set(range(1, 103)) - dropped


def test_limits_are_inclusive(given: Path) -> None:
    write("a.en", ["q" * 20, "q" * 21, "qq"])  # 21, 22 and 3 subwords
    write("a.de", ["q" * 20, "q" * 20, "q" * 5])  # 21, 21 and 6
    for max_length, max_ratio, kept in ((20, 9.0, [3]), (21, 2.0, [1, 3]), (22, 1.99, [1, 2]), (22, 2.0, [1, 2, 3])):
        limits = {"max_length": max_length, "max_ratio": max_ratio}
        prepare(recipe(data=limits), QUIET, 1, start=Tokenizer.load(given))
        assert table("train")["line"].to_pylist() == kept


def test_the_report_counts_training_pairs_that_stand_in_valid_or_test() -> None:
    source, target = sentences(120, 1), sentences(120, 2)
    write("v.en", [source[0], source[1], "new"])
    write("v.de", [f"  {target[0]} ", "another translation", "neu"])  # spaces around do not hide it
    write("t.en", [source[2], "dog"])
    write("t.de", [target[2], "Hund"])
    prepare(recipe(), QUIET, 1)
    assert report("train")["pairs also in valid or test"] == 2
    assert report("train")["source sentences also in valid or test"] == 1
    assert report("train")["kept"] == 120  # told, not dropped


REPEATED_ROWS = ["a dog\tHund", "a cat\tKatze", "a dog\tHund", "\tnone", "\tnone", "a dog\tein Hund", " a cat\tKatze "]


def test_duplicates_are_counted_and_kept(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("b.tsv", REPEATED_ROWS)
    write("c.tsv", ["a cat\tKatze", "a dog\tHund"])
    sets = [{"file": "b.tsv"}, {"file": "c.tsv"}, {"file": "c.tsv", "target": "fr"}]
    prepare(recipe(data={"train": sets, "valid": [sets[1]], "test": [sets[0]]}), Console(), 1)
    assert report("train")["pairs that repeat an earlier one"] == 2 + 2  # in no other direction, and no empty ones
    assert report("train")["kept"] == 5 + 2 + 2
    assert report("test")["pairs that repeat an earlier one"] == 2
    assert "pairs that repeat an earlier one" not in report("valid")
    shown = capsys.readouterr().err
    assert ", 4 pairs that repeat an earlier one" in shown
    assert "  pairs that repeat an earlier one: b.tsv:3: a dog ||| Hund; also b.tsv:7, c.tsv:1\n" in shown


def test_data_without_its_duplicates_is_that_of_files_that_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK", 50)
    pairs = [*zip(sentences(120, 1), sentences(120, 2), strict=True)]
    draw = random.Random(1)
    again = draw.choices(pairs, k=60)
    write("a.tsv", [f"{source}\t{target}" for source, target in (*pairs, *again)])
    data = {"train": [{"file": "a.tsv"}], "test": [{"file": "b.tsv"}], "valid": {"take": 10}}
    write("b.tsv", ["one more\teins mehr"] * 2)
    prepare(recipe(data={**data, "duplicates": "drop"}), QUIET, 2)
    dropped, tokenizer, test = table("train"), Tokenizer.load(OUT).files(), table("test")
    found = report("train")
    assert found["dropped as duplicates"] + found[HELD_OUT] == 60 + 10
    assert test.num_rows == 2
    write("a.tsv", [f"{source}\t{target}" for source, target in pairs])
    prepare(recipe(data=data), QUIET, 1)
    assert dropped.equals(table("train"))
    assert Tokenizer.load(OUT).files() == tokenizer


def test_an_example_is_named_by_its_file_and_line(given: Path) -> None:
    Path("parts").mkdir()
    write("parts/1.jsonl", ['{"en": "a", "de": "b"}', "", '{"en": "", "de": "b"}'])
    write("parts/2.tsv", ["a\tb", "\tb"])
    write("a.en", [""])
    write("a.de", ["x"])
    prepare(
        recipe(data={"train": [{"file": "parts"}, {"source": "a.en", "target": "a.de"}]}),
        QUIET,
        1,
        Tokenizer.load(given),
    )
    places = ["parts/1.jsonl:3", "parts/2.tsv:2", "a.en:1"]
    assert [example.split(": ")[0] for example in report("train")["examples"]["dropped as empty"]] == places


def test_the_report_has_lengths() -> None:
    prepare(recipe(), QUIET, 1)
    for split, count in (("train", 120), ("valid", 9), ("test", 5)):
        sides = [[len(ids) for ids in table(split)[side].to_pylist()] for side in ("source", "target")]
        means = [report(split)[f"mean length of {side}"] for side in ("sources", "targets")]
        assert means == pytest.approx([sum(side) / count for side in sides], abs=0.01)


# --- failures -----------------------------------------------------------------------------------------------


def test_a_missing_file_is_refused_before_anything_is_written() -> None:
    os.unlink("t.de")
    with pytest.raises(UserError, match=r"t\.de: no such file"):
        prepare(recipe(), QUIET, 1)
    assert not Path("data").exists()


def test_a_failure_in_the_middle_keeps_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    write("v.en", sentences(9, 30))

    original = preparation.encode_chunks

    def fail_in_valid(encoder: Any, *given: Any) -> Any:
        if encoder.keep_all:
            raise KeyboardInterrupt
        return original(encoder, *given)

    monkeypatch.setattr(preparation, "encode_chunks", fail_in_valid)
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(), QUIET, 1)
    assert snapshot() == before
    assert sorted(p.name for p in OUT.parent.iterdir()) == [".x.lock", "x"]


def test_training_data_without_a_usable_pair_is_refused() -> None:
    write("a.en", ["q" * 40] * 200)
    write("a.de", ["q"] * 200)
    with pytest.raises(UserError, match="none of the 200 pairs read is usable"):
        prepare(recipe(tokenizer={"vocab_size": 265}, data={"max_ratio": 1.5}), QUIET, 1)
    assert not OUT.exists()


# --- many pairs ---------------------------------------------------------------------------------------------


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = sentences(120, 1), sentences(120, 2)
    source[7] = target[40] = ""
    write("a.en", source)
    write("a.de", target)
    write("v.en", source[50:59])
    monkeypatch.setattr(preparation, "CHUNK", 10)
    prepare(recipe(), QUIET, 1)
    prepare(recipe(data={"name": "parallel"}), QUIET, 3)
    parallel = Path("data/parallel")
    for name in ("tokenizer.model", "train.arrow", "valid.arrow", "test.arrow", "report.json"):
        assert (OUT / name).read_bytes() == (parallel / name).read_bytes()
    assert table("train")["line"].to_pylist() == [n for n in range(1, 121) if n not in (8, 41)]


# --- several training sets ----------------------------------------------------------------------------------


def several() -> list[dict[str, Any]]:
    """Three training sets of which 118, 0 and 30 pairs are kept."""
    source = sentences(120, 1)
    source[7] = source[119] = ""
    write("a.en", source)
    write("none.tsv", ["\tnothing"] * 4)
    write("b.tsv", [f"{s}\t{t}" for s, t in zip(sentences(30, 7), sentences(30, 8), strict=True)])
    return [{"source": "a.en", "target": "a.de"}, {"file": "none.tsv"}, {"file": "b.tsv"}]


def test_the_report_says_where_each_training_set_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK", 25)
    prepare(recipe(data={"train": several()}), QUIET, 2)
    assert report("train")["kept by set"] == [118, 0, 30]
    assert report("train")["kept"] == table("train").num_rows == 148
    rows, vocabulary = table("train"), Tokenizer.load(OUT).source
    assert rows["source"][118].as_py() == vocabulary.encode(sentences(30, 7)[0])
    assert rows["line"][118].as_py() == 120 + 4 + 1  # lines are counted through the split


@pytest.mark.parametrize("content", [None, "[]", '{"train": 3}'])
def test_sizes_that_are_not_said_are_a_user_error(content: str | None) -> None:
    OUT.mkdir(parents=True)
    if content is not None:
        (OUT / "report.json").write_text(content)
    with pytest.raises(UserError, match=r"data/x/report\.json: ") as caught:
        read_report(OUT)
    assert "\n" not in caught.value.message


# --- pairs set aside ----------------------------------------------------------------------------------------

PAIRS = [Pair(f"source {number % 80}", f"target {number}") for number in range(100)]  # 20 sources come twice


def test_taken_pairs_have_distinct_sources_that_no_order_changes() -> None:
    found = choose_held_out(PAIRS, {"valid": 10, "test": 20})
    sources = [pair[0] for split in found.values() for pair in split]
    assert len(set(sources)) == 30
    assert all(pair == next(each for each in PAIRS if each[0] == pair[0]) for pair in found["test"])
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    again = choose_held_out(shuffled, {"valid": 10, "test": 20})
    assert {pair[0] for pair in again["test"]} == {pair[0] for pair in found["test"]}
    one_more = choose_held_out([*PAIRS, Pair("new", "neu")], {"test": 20})
    assert {pair[0] for pair in one_more["test"]} <= {"new", *(pair[0] for pair in found["test"])}
    assert choose_held_out(PAIRS, {"valid": 5, "test": 20})["test"] == found["test"]  # whatever valid takes
    unusable = [Pair("", "x"), Pair("x", ""), Pair("\ufffd", "x")]
    assert len(choose_held_out([*PAIRS, *unusable], {"test": 100})["test"]) == 80


def test_what_valid_and_test_take_is_not_trained_on() -> None:
    source, target = [*sentences(100, 1), *sentences(20, 1)], sentences(120, 2)
    write("a.en", source)
    write("a.de", target)
    prepare(recipe(data={"valid": {"take": 7}, "test": [{"take": 11}]}), QUIET, 1)
    texts = {split: table(split)["source_text"].to_pylist() for split in ("valid", "test")}
    assert [len(texts["valid"]), len(texts["test"])] == [7, 11]
    held = {*texts["valid"], *texts["test"]}
    assert len(held) == 18
    kept = [number for number, text in enumerate(source, 1) if text not in held]
    assert table("train")["line"].to_pylist() == kept
    assert report("train")[HELD_OUT] == 120 - len(kept)
    assert (OUT / "test.en").read_text().splitlines() == texts["test"]
    assert (OUT / "test.de").read_text().splitlines() == [target[source.index(text)] for text in texts["test"]]
    for wanted in (500, len(set(source))):  # something is to be left for training
        with pytest.raises(UserError, match=rf"data\.valid: take {wanted} sources, but data\.train has only"):
            prepare(recipe(data={"valid": {"take": wanted}}), QUIET, 1)
    assert not prepare(recipe(data={"valid": {"take": 7}, "test": [{"take": 11}]}), QUIET, 1).is_new
    assert prepare(recipe(data={"valid": {"take": 8}, "test": [{"take": 11}]}), QUIET, 1).is_new
    assert table("test")["source_text"].to_pylist() == texts["test"]


# --- lengths of prepared pairs ------------------------------------------------------------------------------


def sentence(draw: random.Random, words: int) -> str:
    return f"A {' '.join(draw.choices(WORDS, k=words))}."


def measured(lines: list[str], **data: Any) -> tuple[TrainedLengths | None, Tokenizer]:
    """Lengths of training pairs, whose sides are equal, as `nmt preprocess` measures them, and the tokenizer."""
    write("a.en", lines)
    write("a.de", lines)
    prepare(recipe(data={"valid": [], "test": [], **data}), QUIET, 1)
    return trained_lengths(OUT), Tokenizer.load(OUT)


@pytest.mark.parametrize("sample", [10_000, 70])
def test_lengths_are_those_of_the_training_pairs(sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "SAMPLE", sample)
    draw = random.Random(1)
    lines = [sentence(draw, 3 + n % 5) for n in range(300)]
    lengths, tokenizer = measured(lines)
    assert lengths is not None
    assert (lengths.language, lengths.sentences, lengths.usual_sentences) == ("en", 1, 1)
    longest = max(len(tokenizer.source.encode(source)) for source in lines)
    assert 0.7 * longest <= lengths.source <= lengths.longest_source <= longest
    assert lengths.least_ratio == lengths.greatest_ratio == 1.0


def test_a_model_trained_on_several_sentences_a_line_gets_such_lines_whole() -> None:
    draw = random.Random(1)
    lines = [" ".join(sentence(draw, 5) for _ in range(3 + n % 3)) for n in range(300)]
    lengths, tokenizer = measured(lines)
    assert lengths is not None
    assert (lengths.sentences, lengths.usual_sentences) == (5, 4)
    splitter = LineSplitter(tokenizer.source, Decoding(), lengths)
    assert [len(splitter.split(source)) for source in lines[:50]] == [1] * 50
    assert len(splitter.split(" ".join(sentence(draw, 5) for _ in range(20)))) == 5
