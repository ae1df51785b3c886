"""Raw text to a prepared directory: once, whole, and only when something changed."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tiny_treebank import write_treebank

from nmt.console import Console
from nmt.data import prepare as preparation
from nmt.data.encode import Chunk, PairEncoder, encode_chunks
from nmt.data.pairs import read_pairs
from nmt.data.prepare import directory, fingerprint, prepare, set_sizes
from nmt.errors import UserError
from nmt.files import sha256
from nmt.recipe import Recipe
from nmt.text.linear import TreeVocabulary
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary

TEXT = "the a dog cat sees likes tree big small red green house man woman walks runs under over"
WORDS = TEXT.split()
OUT = Path("data/x")
QUIET = Console(quiet=True)


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=7)) + f" {n}" for n in range(count)]


def write(name: str, lines: Sequence[str | bytes]) -> None:
    Path(name).write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))


def recipe(**sections: dict[str, Any]) -> Recipe:
    """A recipe on the files that `workplace` writes, with some keys of its sections changed."""
    data = {"name": "x", "source": "en", "target": "de", "train": [{"source": "a.en", "target": "a.de"}]}
    data |= {"valid": [{"source": "v.en", "target": "v.de"}], "test": [{"source": "t.en", "target": "t.de"}]}
    tree: dict[str, Any] = {"name": "x", "data": data, "tokenizer": {"vocab_size": 300}}
    for section, changes in sections.items():
        tree[section] = tree.get(section, {}) | changes
    return Recipe.model_validate(tree)


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count, seed in (("a", 120, 1), ("v", 9, 3), ("t", 5, 5)):
        write(f"{name}.en", sentences(count, seed))
        write(f"{name}.de", sentences(count, seed + 1))


def snapshot(folder: Path = OUT) -> dict[str, tuple[bytes, int, int]]:
    """Content, time and inode of all files: unchanged only where nothing was written."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def table(split: str, out: Path = OUT) -> pa.Table:
    with pa.OSFile(str(out / f"{split}.arrow")) as file:
        return pa.ipc.open_stream(file).read_all()


def report(split: str) -> dict[str, Any]:
    return json.loads((OUT / "report.json").read_text())[split]


def no_reading(path: Path) -> str:
    raise AssertionError(f"{path} was read")


# --- what is written ----------------------------------------------------------------------------------------


def test_a_prepared_directory_holds_what_the_design_says() -> None:
    assert directory(recipe()) == OUT
    assert prepare(recipe(), QUIET, 1) is True
    arrow = {"train.arrow", "valid.arrow", "test.arrow"}
    assert {p.name for p in OUT.iterdir()} == arrow | {"tokenizer.model", "report.json", "fingerprint.json"}
    assert sorted(p.name for p in OUT.parent.iterdir()) == [".x.lock", "x"]


def test_separate_vocabularies_are_written_and_used_for_their_sides() -> None:
    write("a.de", [line.upper() for line in sentences(120, 2)])
    changed = recipe(tokenizer={"shared": False}, model={"tie_embeddings": "target"})
    prepare(changed, QUIET, 1)
    tokenizer = Tokenizer.load(OUT)
    assert not tokenizer.shared
    train = table("train")
    source, target = sentences(120, 1)[0], sentences(120, 2)[0].upper()
    assert train["source"][0].as_py() == tokenizer.source.encode(source) != tokenizer.target.encode(source)
    assert train["target"][0].as_py() == tokenizer.target.encode(target) != tokenizer.source.encode(target)


def test_every_pair_is_encoded_in_order_without_symbols_at_its_ends() -> None:
    prepare(recipe(), QUIET, 1)
    vocabulary = Tokenizer.load(OUT).source
    for split, name, count, seed in (("train", "a", 120, 1), ("valid", "v", 9, 3), ("test", "t", 5, 5)):
        rows = table(split)
        assert rows["source"].to_pylist() == [vocabulary.encode(s) for s in sentences(count, seed)], name
        assert rows["target"].to_pylist() == [vocabulary.encode(s) for s in sentences(count, seed + 1)], name
        assert rows["line"].to_pylist() == list(range(1, count + 1))


def test_evaluation_splits_keep_their_text_and_training_does_not() -> None:
    write("v.en", ["one", "  two  ", "", "thr\u2028ee"])
    write("v.de", ["eins", "", "", "\tdrei"])
    prepare(recipe(), QUIET, 1)
    assert table("valid")["source_text"].to_pylist() == ["one", "two", "", "thr\u2028ee"]
    assert table("valid")["target_text"].to_pylist() == ["eins", "", "", "drei"]
    assert set(table("train")["source_text"].to_pylist()) == {None}


def test_evaluation_splits_keep_every_line() -> None:
    write("v.en", ["", "a", "x" * 3000, "a", "bad \ufffd", "a dog"])
    write("v.de", ["", "", "b", "y " * 3000, "b", "der Hund"])
    prepare(recipe(data={"max_length": 50, "max_ratio": 2.0}), QUIET, 1)
    assert table("valid").num_rows == 6
    assert table("valid")["line"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert report("valid")["read"] == report("valid")["kept"] == 6
    assert not [key for key in report("valid") if key.startswith("dropped")]


def test_splits_may_be_absent() -> None:
    prepare(recipe(data={"valid": [], "test": []}), QUIET, 1)
    assert table("valid").num_rows == 0
    assert table("train").num_rows == 120


def test_several_training_sets_are_concatenated() -> None:
    write("b.tsv", [f"{s}\t{t}" for s, t in zip(sentences(30, 7), sentences(30, 8), strict=True)])
    train = [{"source": "a.en", "target": "a.de"}, {"file": "b.tsv"}]
    prepare(recipe(data={"train": train}), QUIET, 1)
    assert table("train").num_rows == 150
    assert table("train")["source"][120].as_py() == Tokenizer.load(OUT).source.encode(sentences(30, 7)[0])


def test_the_tokenizer_sees_the_training_split_only() -> None:
    write("v.en", ["ЖЖЖ ЖЖЖ ЖЖЖ"] * 200)
    write("v.de", ["ЖЖЖ ЖЖЖ ЖЖЖ"] * 200)
    write("t.en", ["ЪЪЪ ЪЪЪ"] * 200)
    write("t.de", ["ЪЪЪ ЪЪЪ"] * 200)
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
    prepare(recipe(), QUIET, 1, tokenizer_from=Path("data/other"))
    assert Tokenizer.load(OUT).files() == Tokenizer.load(Path("data/other")).files()
    assert prepare(recipe(), QUIET, 1, tokenizer_from=Path("data/other")) is False
    assert prepare(recipe(), QUIET, 1) is True  # of its own again
    assert len(Tokenizer.load(OUT).source) == 300


# --- the report ---------------------------------------------------------------------------------------------


@pytest.fixture
def given() -> Path:
    """A tokenizer that knows no q: it spells "qqq" as a lone U+2581 and three bytes."""
    prepare(recipe(data={"name": "given"}), QUIET, 1)
    vocabulary = Tokenizer.load(Path("data/given")).source
    assert [len(vocabulary.encode("q" * count)) for count in (1, 20)] == [2, 21]
    return Path("data/given")


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
    prepare(recipe(), QUIET, 1, tokenizer_from=given)
    train = report("train")
    assert train["read"] == 102
    assert train["dropped as empty"] == 3
    assert train["dropped as too long"] == 3
    assert train["dropped for their length ratio"] == 2
    assert train["dropped as not UTF-8"] == 2
    assert train["kept"] == table("train").num_rows == 102 - 10
    dropped = {4, 5, 6, 11, 12, 13, 21, 22, 101, 102}
    assert set(table("train")["line"].to_pylist()) == set(range(1, 103)) - dropped


def test_limits_are_inclusive(given: Path) -> None:
    write("a.en", ["q" * 20, "q" * 21, "qq"])  # 21, 22 and 3 subwords
    write("a.de", ["q" * 20, "q" * 20, "q" * 5])  # 21, 21 and 6
    for max_length, max_ratio, kept in (
        (20, 9.0, [3]),
        (21, 2.0, [1, 3]),
        (22, 1.99, [1, 2]),
        (22, 2.0, [1, 2, 3]),
    ):
        limits = {"max_length": max_length, "max_ratio": max_ratio}
        prepare(recipe(data=limits), QUIET, 1, tokenizer_from=given)
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


def test_the_report_has_lengths() -> None:
    prepare(recipe(), QUIET, 1)
    for split, count in (("train", 120), ("valid", 9), ("test", 5)):
        sides = [[len(ids) for ids in table(split)[side].to_pylist()] for side in ("source", "target")]
        lengths = [length for side in sides for length in side]
        histogram = report(split)["sentences by length in subwords, up to"]
        assert sum(histogram.values()) == 2 * count
        assert histogram.get("20", 0) == sum(10 < length <= 20 for length in lengths)
        means = [report(split)[f"mean length of {side}"] for side in ("sources", "targets")]
        assert means == pytest.approx([sum(side) / count for side in sides], abs=0.01)


def test_what_matters_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write("v.en", sentences(120, 1)[:2])
    write("v.de", sentences(120, 2)[:2])
    prepare(recipe(), Console(), 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "train: 120 of 120 pairs" in err
    assert "2 training pairs are in valid or test" in err


# --- nothing to do ------------------------------------------------------------------------------------------


def test_a_second_run_does_nothing() -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    assert prepare(recipe(), QUIET, 1) is False
    assert snapshot() == before


def test_a_second_run_removes_what_a_killed_one_had_replaced() -> None:
    prepare(recipe(), QUIET, 1)
    before, old = snapshot(), OUT.with_name(f".{OUT.name}@old.tmp")
    old.mkdir()
    (old / "train.arrow").write_text("old")
    assert prepare(recipe(), QUIET, 1) is False
    assert (snapshot(), old.exists()) == (before, False)


def test_touching_a_file_changes_nothing_but_what_is_known_of_its_time() -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    for name in ("a.en", "v.de"):
        os.utime(name, ns=(1, 1))
    assert prepare(recipe(), QUIET, 1) is False
    after = snapshot()
    known = json.loads(before.pop(str(OUT / "fingerprint.json"))[0])
    known["files"]["a.en"][1] = known["files"]["v.de"][1] = 1
    now = json.loads(after.pop(str(OUT / "fingerprint.json"))[0])
    assert now["hashes"].pop("fingerprint.json") != known["hashes"].pop("fingerprint.json")
    assert now == known
    assert after == before


def test_data_prepared_without_hashes_is_not_prepared_anew() -> None:
    """As earlier versions left it."""
    prepare(recipe(), QUIET, 1)
    path = OUT / "fingerprint.json"
    values = json.loads(path.read_text())
    del values["hashes"]
    path.write_text(json.dumps(values))
    os.utime("a.en", ns=(1, 1))
    assert prepare(recipe(), QUIET, 1) is False
    assert "hashes" not in json.loads(path.read_text())


@pytest.mark.parametrize("name", ["train.arrow", "valid.arrow", "tokenizer.model", "report.json", "fingerprint.json"])
def test_data_that_is_damaged_is_named_and_stays(name: str) -> None:
    prepare(recipe(), QUIET, 1)
    content = bytearray((OUT / name).read_bytes())
    content[len(content) // 2] ^= 1
    (OUT / name).write_bytes(content)
    before = snapshot()
    with pytest.raises(UserError, match=f"{name}: damaged") as caught:
        prepare(recipe(), QUIET, 1)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"remove {OUT}, then nmt preprocess writes it again")
    assert snapshot() == before


@pytest.mark.parametrize("change", ["touched", "moved"])
def test_unchanged_content_is_read_once_more_and_not_at_every_start(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(recipe(), QUIET, 1)
    root = "."
    if change == "touched":
        os.utime("a.en", ns=(1, 1))
    else:
        root = "corpus"
        Path(root).mkdir()
        for name in ("a.en", "a.de", "v.en", "v.de", "t.en", "t.de"):
            shutil.move(name, root)
    read = []
    monkeypatch.setattr("nmt.files.sha256", lambda path: read.append(path) or sha256(path))
    assert prepare(recipe(data={"root": root}), QUIET, 1) is False
    assert len(read) == (1 if change == "touched" else 6)
    assert prepare(recipe(data={"root": root}), QUIET, 1) is False
    assert len(read) == (1 if change == "touched" else 6)


def test_a_file_that_was_gone_and_came_back_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    os.utime("v.en", ns=(1, 1))
    os.rename("a.en", "aside")
    assert prepare(recipe(), QUIET, 1) is False
    os.rename("aside", "a.en")
    monkeypatch.setattr("nmt.files.sha256", no_reading)
    assert prepare(recipe(), QUIET, 1) is False


def test_prepared_data_that_cannot_be_written_is_good_to_train_from(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    os.utime("a.en", ns=(1, 1))

    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    assert prepare(recipe(), QUIET, 1) is False
    assert snapshot() == before


def test_files_that_moved_change_nothing() -> None:
    prepare(recipe(), QUIET, 1)
    Path("corpus").mkdir()
    for name in ("a.en", "a.de", "v.en", "v.de", "t.en", "t.de"):
        shutil.move(name, f"corpus/{name}")
    assert prepare(recipe(data={"root": "corpus"}), QUIET, 1) is False


def test_files_that_are_gone_are_not_needed_any_more() -> None:
    prepare(recipe(), QUIET, 1)
    for name in ("a.en", "a.de", "v.en"):
        os.unlink(name)
    assert prepare(recipe(), QUIET, 1) is False


def test_settings_of_model_training_and_decoding_do_not_matter() -> None:
    prepare(recipe(), QUIET, 1)
    other = recipe(model={"layers": 2}, training={"updates": 3, "seed": 4}, decoding={"beam": 1})
    assert prepare(other, QUIET, 1) is False


def test_unchanged_files_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    monkeypatch.setattr("nmt.files.sha256", no_reading)
    assert prepare(recipe(), QUIET, 1) is False


# --- something to do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.en", "a.de", "v.en", "v.de", "t.en", "t.de"])
def test_changed_content_is_prepared_again(name: str) -> None:
    prepare(recipe(), QUIET, 1)
    before = fingerprint(recipe())
    changed = Path(name).read_text().replace("the", "eth").replace("dog", "god")
    Path(name).write_text(changed)  # of the same size
    assert fingerprint(recipe()) != before
    assert prepare(recipe(), QUIET, 1) is True
    split, side = (
        {"a": "train", "v": "valid", "t": "test"}[name[0]],
        {"en": "source", "de": "target"}[name[2:]],
    )
    vocabulary = Tokenizer.load(OUT).source
    assert vocabulary.decode(table(split)[side][0].as_py()) == changed.split("\n")[0]
    assert prepare(recipe(), QUIET, 1) is False


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": {"vocab_size": 310}},
        {"tokenizer": {"algorithm": "unigram"}},
        {"data": {"max_length": 5}},
        {"data": {"max_ratio": 1.0}},
        {"data": {"test": []}},
        {"data": {"source": "de", "target": "en"}},
        {"data": {"train": [{"source": "a.de", "target": "a.en"}]}},
        {"data": {"valid": [{"source": "t.en", "target": "t.de"}]}},
    ],
    ids=str,
)
def test_changed_settings_ask_for_preparing_again(change: dict[str, Any]) -> None:
    original = recipe()
    other = recipe(**change)
    prepare(original, QUIET, 1)
    assert fingerprint(original) == json.loads((OUT / "fingerprint.json").read_text())["fingerprint"]
    assert fingerprint(other) != fingerprint(original)


def test_preparing_again_leaves_nothing_of_before() -> None:
    prepare(recipe(tokenizer={"shared": False}, model={"tie_embeddings": "none"}), QUIET, 1)
    assert (OUT / "source.model").exists()
    assert prepare(recipe(), QUIET, 1) is True
    assert not (OUT / "source.model").exists()
    assert sorted(p.name for p in OUT.parent.iterdir()) == [".x.lock", "x"]


# --- failures -----------------------------------------------------------------------------------------------


def test_unequal_files_are_refused_before_anything_is_written() -> None:
    write("v.de", sentences(7, 4))
    with pytest.raises(UserError, match=r"v\.en has 9 lines and v\.de has 7"):
        prepare(recipe(), QUIET, 1)
    assert not Path("data").exists()


def test_a_missing_file_is_refused_before_anything_is_written() -> None:
    os.unlink("t.de")
    with pytest.raises(UserError, match=r"t\.de: no such file"):
        prepare(recipe(), QUIET, 1)
    assert not Path("data").exists()


def test_a_failure_in_the_middle_keeps_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    before = snapshot()
    write("v.en", sentences(9, 30))

    original = preparation._write_split

    def fail_in_valid(path: Path, *rest: Any) -> Any:
        if path.name == "valid.arrow":
            raise KeyboardInterrupt
        return original(path, *rest)

    monkeypatch.setattr(preparation, "_write_split", fail_in_valid)
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(), QUIET, 1)
    assert snapshot() == before
    assert sorted(p.name for p in OUT.parent.iterdir()) == [".x.lock", "x"]


def test_a_broken_line_keeps_what_was_prepared() -> None:
    data = {"train": [{"file": "b.tsv"}]}
    rows = [f"{s}\t{t}" for s, t in zip(sentences(60, 7), sentences(60, 8), strict=True)]
    write("b.tsv", rows)
    prepare(recipe(data=data), QUIET, 1)
    before = snapshot()
    write("b.tsv", [*rows, "no second column"])
    with pytest.raises(UserError, match=r"b\.tsv:61: has no column 2"):
        prepare(recipe(data=data), QUIET, 1)
    assert snapshot() == before
    assert sorted(p.name for p in OUT.parent.iterdir()) == [".x.lock", "x"]


def test_training_data_without_a_usable_pair_is_refused() -> None:
    write("a.en", ["q" * 40] * 200)
    write("a.de", ["q"] * 200)
    with pytest.raises(UserError, match="none of the 200 pairs read is usable"):
        prepare(recipe(tokenizer={"vocab_size": 265}, data={"max_ratio": 1.5}), QUIET, 1)
    assert not OUT.exists()


def test_what_is_not_ours_is_not_overwritten() -> None:
    OUT.mkdir(parents=True)
    (OUT / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="holds other files"):
        prepare(recipe(), QUIET, 1)
    assert [p.name for p in OUT.iterdir()] == ["thesis.txt"]


def test_a_name_too_long_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"^data/x+: cannot be written: File name too long\n"):
        prepare(recipe(data={"name": "x" * 256}), QUIET, 1)


def test_a_file_in_place_of_the_directory_is_a_user_error() -> None:
    OUT.parent.mkdir()
    OUT.write_text("precious")
    with pytest.raises(UserError, match="data/x"):
        prepare(recipe(), QUIET, 1)
    assert OUT.read_text() == "precious"


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


def vocabularies(given: Path) -> tuple[Vocabulary | TreeVocabulary, ...]:
    tokenizer = Tokenizer.load(given)
    return tokenizer.source, tokenizer.target


def test_chunks_come_in_order_whichever_is_ready_first(given: Path) -> None:
    encoder = PairEncoder(vocabularies(given), 256, 9.0, frozenset(), keep_all=False)
    sizes = [400, 1, 300, 1, 1, 200]
    chunks = [Chunk(n, 1, [("q " * size, "q " * size)] * size) for n, size in enumerate(sizes)]
    assert [(chunk.dataset, chunk.read) for chunk in encode_chunks(encoder, chunks, 3)] == list(enumerate(sizes))


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_collected_again_after_encoding_whatever_happens(collecting: bool, given: Path) -> None:
    encoder = PairEncoder(vocabularies(given), 256, 9.0, frozenset(), keep_all=False)
    chunks = [Chunk(0, 1, [("a", "b")])] * 5
    states = []
    was = gc.isenabled()
    try:
        gc.enable() if collecting else gc.disable()
        for _ in encode_chunks(encoder, chunks, 1):
            states.append(gc.isenabled())
        states.append(gc.isenabled())
        with pytest.raises(ValueError, match="shorter"):
            list(encode_chunks(encoder, [Chunk(0, 1, [("a",)])], 1))
        states.append(gc.isenabled())
    finally:
        gc.enable() if was else gc.disable()
    assert states == [False] * 5 + [collecting] * 2


def test_an_error_in_a_later_chunk_reaches_the_user_from_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK", 10)
    write("b.tsv", [*(f"{s}\t{s}" for s in sentences(90, 7)), "broken"])
    given = recipe(data={"name": "given"})
    prepare(given, QUIET, 1)
    with pytest.raises(UserError, match=r"b\.tsv:91: has no column 2"):
        prepare(recipe(data={"train": [{"file": "b.tsv"}]}), QUIET, 2, tokenizer_from=Path("data/given"))
    assert not OUT.exists()


def test_chunks_do_not_change_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    monkeypatch.setattr(preparation, "CHUNK", 7)
    prepare(recipe(data={"name": "y"}), QUIET, 1)
    for split in ("train", "valid", "test"):
        assert table(split).equals(table(split, Path("data/y")))
    assert len(table("train", Path("data/y"))["source"].chunks) == 18


def test_long_lines_make_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe(), QUIET, 1)
    monkeypatch.setattr(preparation, "CHUNK_TEXT", 1)
    prepare(recipe(data={"name": "y"}), QUIET, 1)
    assert table("train").equals(table("train", Path("data/y")))
    assert len(table("train", Path("data/y"))["source"].chunks) == len(table("train"))


@pytest.mark.parametrize("threads", [1, 3])
def test_pairs_are_streamed_not_held(threads: int, given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the chunk that is written, no more are read than there are threads."""
    monkeypatch.setattr(preparation, "CHUNK", 10)
    read = written = 0

    def watched(*arguments: Any) -> Iterator[tuple[str, ...]]:
        nonlocal read
        for pair in read_pairs(*arguments):
            read += 1
            yield pair

    ahead = []
    original = preparation.table_of

    def write_chunk(chunk: Any, schema: Any) -> Any:
        nonlocal written
        written += chunk.read
        ahead.append(read - written)
        return original(chunk, schema)

    monkeypatch.setattr(preparation, "read_pairs", watched)
    monkeypatch.setattr(preparation, "table_of", write_chunk)
    prepare(recipe(data={"valid": [], "test": []}), QUIET, threads, tokenizer_from=given)
    assert max(ahead) == 10 * threads
    assert len(ahead) == 12


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
    assert report("train")["kept by set"] == set_sizes(OUT) == [118, 0, 30]
    assert report("train")["kept"] == table("train").num_rows == 148
    rows, vocabulary = table("train"), Tokenizer.load(OUT).source
    assert rows["source"][118].as_py() == vocabulary.encode(sentences(30, 7)[0])
    assert rows["line"][118].as_py() == 120 + 4 + 1  # lines are counted through the split


def test_sizes_of_sets_are_said_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe(), Console(), 1)
    assert "by set" not in capsys.readouterr().err
    prepare(recipe(data={"train": several()}), Console(), 1)
    assert "by set 118 + 0 + 30" in capsys.readouterr().err


def test_a_weight_prepares_nothing_again() -> None:
    train = several()
    prepare(recipe(data={"train": train}), QUIET, 1)
    train[0]["weight"] = 2.5
    assert prepare(recipe(data={"train": train}), QUIET, 1) is False


@pytest.mark.parametrize("content", [None, "[]", "{}", '{"train": {"kept": 3}}', '{"train": {"kept by set": ["1"]}}'])
def test_sizes_that_are_not_said_are_a_user_error(content: str | None) -> None:
    OUT.mkdir(parents=True)
    if content is not None:
        (OUT / "report.json").write_text(content)
    with pytest.raises(UserError, match=r"data/x/report\.json: ") as caught:
        set_sizes(OUT)
    assert "\n" not in caught.value.message


# --- what is shown ------------------------------------------------------------------------------------------


class Recorded(Console):
    """Keeps lines and progress bars."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.bars: list[tuple[str, int | None, int]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def progress(self, task: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        steps: list[int] = []
        yield steps.append
        self.bars.append((task, total, sum(steps)))


def test_bars_know_where_they_end_when_all_pairs_are_lines_of_text() -> None:
    console = Recorded()
    prepare(recipe(), console, 1)
    assert console.bars == [
        ("reading for the tokenizer", 120, 120),
        ("encoding train", 120, 120),
        ("encoding valid", 9, 9),
        ("encoding test", 5, 5),
    ]


def test_bars_have_no_end_where_the_number_of_pairs_is_not_known() -> None:
    console = Recorded()
    prepare(recipe(data={"train": several(), "test": []}), console, 1)
    assert console.bars[:3] == [
        ("reading for the tokenizer", None, 154),
        ("encoding train", None, 154),
        ("encoding valid", 9, 9),
    ]


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (True, ["all text: reading the training data", "all text: training on 101 of 240 sentences"]),
        (False, [f"{side}: {what}" for side in ("source", "target")
                 for what in ("reading the training data", "training on 101 of 120 sentences")]),
    ],
)  # fmt: skip
def test_the_training_of_the_tokenizer_says_on_how_much_text(shared: bool, said: list[str]) -> None:
    console = Recorded()
    changed = recipe(tokenizer={"shared": shared, "sample": 101}, model={"tie_embeddings": "target"})
    prepare(changed, console, 1)
    assert console.lines[: len(said)] == [f"tokenizer: bpe, 300 pieces, {line}" for line in said]


# --- trees --------------------------------------------------------------------------------------------------

TREES = """\
( (S (NP-SBJ (DT the) (NN dog))
     (VP (VBZ sees) (NP (DT a) (NN tree)))
     (. .)) )
( (S (NP-SBJ (-NONE- *)) (VP (VB look) (NP-PRD (-NONE- *T*-1))) (. !)) )
( (NP (-NONE- *)) )
"""


def tree_recipe(**data: Any) -> Recipe:
    """A parser's recipe on files of trees that `treebank` writes."""
    sets = {"train": [{"trees": "a.mrg"}], "valid": [{"trees": "v.mrg"}]}
    return Recipe.model_validate(
        {
            "name": "x",
            "data": {"name": "x", "source": "en", "target": "tree", **sets, **data},
            "tokenizer": {"vocab_size": 286},
        }
    )


@pytest.fixture
def treebank() -> None:
    Path("a.mrg").write_text(TREES * 40)
    Path("v.mrg").write_text(TREES + "(TOP (INTJ (UH oh)))")


@pytest.mark.usefixtures("treebank")
def test_trees_become_words_and_symbols() -> None:
    prepare(tree_recipe(), QUIET, 1)
    assert {path.name for path in OUT.iterdir()} >= {"source.model", "tree.json"}
    tokenizer = Tokenizer.load(OUT)
    rows = table("train")
    assert rows["source"][0].as_py() == tokenizer.source.encode("the dog sees a tree .")
    symbols = tokenizer.target.decode(rows["target"][0].as_py())
    assert symbols == "(S (NP XX XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert tokenizer.target.decode(rows["target"][1].as_py()) == "(S (VP XX )VP XX )S"


@pytest.mark.usefixtures("treebank")
def test_trees_without_words_are_dropped_but_kept_for_evaluation() -> None:
    prepare(tree_recipe(), QUIET, 1)
    train, valid = report("train"), report("valid")
    assert (train["read"], train["kept"], train["dropped as empty"]) == (120, 80, 40)
    assert table("train")["line"].to_pylist()[:3] == [1, 2, 4]
    assert (valid["read"], valid["kept"]) == (4, 4)
    texts = table("valid").select(["source_text", "target_text"]).to_pylist()
    assert texts[1] == {"source_text": "look !", "target_text": "(TOP (S (VP (VB look)) (. !)))"}
    assert texts[2] == {"source_text": "", "target_text": ""}


@pytest.mark.usefixtures("treebank")
def test_labels_unseen_in_training_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tree_recipe(), Console(), 1)
    assert report("valid")["trees with a label unseen in training"] == 1
    assert "trees with a label unseen in training" not in report("train")
    err = capsys.readouterr().err
    assert "286 pieces and 11 tree symbols" in err
    assert "train: 80 of 120 trees, " in err
    assert "tree symbols out" in err
    assert "1 trees with a label unseen in training" in err


@pytest.mark.usefixtures("treebank")
def test_a_word_of_a_tree_may_be_whitespace_that_text_would_lose() -> None:
    Path("v.mrg").write_text("(NP (NN tree) (SYM \u00a0))", encoding="utf-8")
    prepare(tree_recipe(), QUIET, 1)
    pair = {"source_text": "tree \u00a0", "target_text": "(TOP (NP (NN tree) (SYM \u00a0)))"}
    assert table("valid").select(list(pair)).to_pylist() == [pair]


@pytest.mark.usefixtures("treebank")
def test_sets_of_trees_are_told_apart_for_their_weights() -> None:
    Path("b.mrg").write_text(TREES)
    prepare(tree_recipe(train=[{"trees": "b.mrg", "weight": 10}, {"trees": "a.mrg"}]), QUIET, 1)
    assert set_sizes(OUT) == [2, 80]


@pytest.mark.usefixtures("treebank")
@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("functional_tags", "(S (NP-SBJ XX XX )NP-SBJ", "(S (VP XX )VP"),
        ("traces", "(S (NP XX XX )NP", "(S (NP XX )NP (VP XX (NP XX )NP )VP"),
    ],
)
def test_how_trees_are_prepared_makes_other_data(key: str, first: str, second: str) -> None:
    prepare(tree_recipe(), QUIET, 1)
    changed = tree_recipe(**{key: True})
    assert prepare(changed, QUIET, 1) is True
    rows = [Tokenizer.load(OUT).target.decode(ids) for ids in table("train")["target"].to_pylist()[:2]]
    assert rows[0].startswith(first)
    assert rows[1].startswith(second)
    assert prepare(changed, QUIET, 1) is False


def test_prepared_trees_are_enough_where_the_treebank_is_not(tmp_path: Path) -> None:
    write_treebank(tmp_path / "wsj", ("02", "03", "22"))
    data = {"root": "wsj", "train": [{"trees": "0[2-9]"}], "valid": [{"trees": "22"}]}
    prepare(tree_recipe(**data), QUIET, 1)
    shutil.move("wsj", "away")
    assert prepare(tree_recipe(**data), QUIET, 1) is False
    shutil.move("away", "wsj")
    (tmp_path / "wsj/03/wsj_0300.mrg").unlink()  # one of a folder's files is a change
    with pytest.raises(UserError, match="03: no file in this folder or below ends in"):
        prepare(tree_recipe(**data), QUIET, 1)
    shutil.rmtree(tmp_path / "wsj/03")
    assert prepare(tree_recipe(**data), QUIET, 1) is True


@pytest.mark.usefixtures("treebank")
def test_trees_that_are_none_are_named_with_their_place_and_leave_nothing() -> None:
    Path("a.mrg").write_text(TREES + "( (S (NP (DT the)) )\n")
    with pytest.raises(UserError, match=r"^a\.mrg:6:1: "):
        prepare(tree_recipe(), QUIET, 1)
    assert not OUT.exists()
