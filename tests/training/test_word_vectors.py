"""Word vectors as initial embeddings: what reaches the model, what stays as it was, what is refused, and resuming."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reverse_task import BARE, assert_equal_to_the_bit, parameters, small

from nmt.model.transformer import Transformer
from nmt.recipe import Model, TokenizerSettings, Training
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary
from nmt.training.optimizer import Optimizer
from nmt.training.word_vectors import begin_with_vectors, read_vectors

SMALL = small("updates: 6, log_updates: 4", *BARE)
WIDTH = 4
TEXT = [("the house sees the tree .", "das Haus sieht den Baum .")] * 5
FIRST, SECOND, THIRD = [1.0, -2.0, 3.5, 0.25], [-0.5, 8.0, 0.125, -4.0], [0.5, 0.0, -1e-3, 7.0]


@pytest.fixture(scope="module")
def shared() -> Tokenizer:
    return Tokenizer.train(TEXT, TokenizerSettings(vocab_size=300))


def tiny(tokenizer: Tokenizer, tie: Any = "all") -> Transformer:
    torch.manual_seed(1)
    config = Model(layers=1, d_model=WIDTH, d_ff=6, heads=2, dropout=0.0, tie_embeddings=tie)
    return Transformer(config, len(tokenizer.source), len(tokenizer.target))


def words_in(vocabulary: Vocabulary) -> list[str]:
    """The whole words that are subwords, without the mark."""
    return [piece[1:] for piece in vocabulary.spellings() if piece.startswith("\u2581") and len(piece) > 1]


def rows_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [tokenizer.source.listing().index(piece) for piece in pieces]


def line_of(word: str, vector: Sequence[float], end: str = "") -> str:
    return " ".join([word, *map(str, vector)]) + end


def write(path: Path, lines: Sequence[str]) -> str:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def begin(model: Transformer, tokenizer: Tokenizer, **settings: Any) -> tuple[dict[str, torch.Tensor], list[str]]:
    said: list[str] = []
    return begin_with_vectors(model, tokenizer, Training(**settings), said.append), said


@pytest.mark.parametrize("name", ["vectors.vec", "vectors.vec.gz"])
@pytest.mark.parametrize("header", [[], ["3 4"]])
def test_whole_words_get_their_vectors_and_others_keep_what_they_had(
    shared: Tokenizer, tmp_path: Path, name: str, header: list[str]
) -> None:
    one, other = words_in(shared.source)[:2]
    inner = next(piece for piece in shared.source.spellings() if piece and piece.isalpha())
    lines = [line_of(one, FIRST, " "), line_of(f"\u2581{other}", SECOND), line_of(one, THIRD), line_of("Zug", THIRD)]
    assert f"\u2581{inner}" not in shared.source.spellings()
    path = write(tmp_path / name, [*header, *lines, line_of(inner, THIRD), line_of("</s>", THIRD)])
    model = tiny(shared)
    before = model.source_embedding.weight.detach().clone()
    given, said = begin(model, shared, source_embeddings=path)
    assert said == [f"embeddings: 2 of 300 source subwords from {path}"]
    rows = rows_of(shared, f"\u2581{one}", f"\u2581{other}")
    weight = model.source_embedding.weight.detach()
    assert weight[rows].tolist() == [FIRST, SECOND]
    others = [row for row in range(300) if row not in rows]
    assert torch.equal(weight[others], before[others])
    assert given.keys() == {"source_embedding.weight"}
    assert given["source_embedding.weight"].nonzero().flatten().tolist() == sorted(rows)


def test_words_of_a_script_without_spaces_are_found_amid_a_text(tmp_path: Path) -> None:
    texts = [("\u4f60\u597d\u4e16\u754c\u4f60\u597d", "\u4e16\u754c\u4f60\u597d")] * 20
    vocabulary = Tokenizer.train(texts, TokenizerSettings(vocab_size=268)).source
    assert "\u4f60\u597d" in vocabulary.listing()
    path = write(tmp_path / "zh.vec", [line_of("\u4f60\u597d", FIRST)])
    rows, vectors = read_vectors(Path(path), vocabulary, WIDTH)
    pieces = vocabulary.pieces(rows.tolist())
    assert "\u4f60\u597d" in pieces
    assert {piece.removeprefix("\u2581") for piece in pieces} == {"\u4f60\u597d"}
    assert vectors.tolist() == [FIRST] * len(pieces)


@pytest.mark.parametrize("tie", ["all", "target"])
def test_each_side_has_its_own_file(shared: Tokenizer, tmp_path: Path, tie: str) -> None:
    """Where both sides have one matrix, that of the target comes last."""
    word = words_in(shared.source)[0]
    files = {
        f"{side}_embeddings": write(tmp_path / side, [line_of(word, vector)])
        for side, vector in (("source", FIRST), ("target", SECOND))
    }
    model = tiny(shared, tie)
    given, said = begin(model, shared, **files)
    (row,) = rows_of(shared, f"\u2581{word}")
    assert model.source_embedding.weight[row].tolist() == (SECOND if tie == "all" else FIRST)
    assert model.target_embedding.weight[row].tolist() == SECOND
    assert len(given) == (1 if tie == "all" else 2)
    assert len(said) == 2


@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_fixed_vectors_stay_as_they_are_while_all_else_learns(
    shared: Tokenizer, tmp_path: Path, tie: str, is_fixed: bool
) -> None:
    words = words_in(shared.source)[:2]
    path = write(tmp_path / "v", [line_of(words[0], FIRST), line_of(words[1], SECOND)])
    model = tiny(shared, tie)
    settings = Training(warmup=2, weight_decay=0.3, source_embeddings=path, freeze_embeddings=is_fixed)
    optimizer = Optimizer(model, WIDTH, settings)
    optimizer.note_given(begin_with_vectors(model, shared, settings, print))
    before = model.source_embedding.weight.detach().clone()
    everything = torch.arange(300)[None]
    for step in range(1, 6):
        for _ in range(2):  # micro-batches
            model(everything, everything).logsumexp(-1).sum().backward()
        optimizer.update(optimizer.rate(step), torch.tensor(False))
    changed = (model.source_embedding.weight != before).any(1)
    rows = rows_of(shared, *(f"\u2581{word}" for word in words))
    assert changed[rows].tolist() == [not is_fixed] * 2
    assert changed[[row for row in range(4, 300) if row not in rows]].all()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{word} 1 2 3 4", "unknown 1 2 3"], "2: has 3 numbers, but model.d_model is 4"),
        (["{word} 1 2 3 4", ""], "2: has 0 numbers, but model.d_model is 4"),
        (["2 300", "{word} 1 2 3 4"], "1: has 300 numbers, but model.d_model is 4"),
        (["2 4", "{word} 1 2 3 4", "unknown 1 1 1 1 1"], "3: has 5 numbers, but model.d_model is 4"),
        *(
            (["1 4", f"{{word}} 1 2 {cell} 4"], f"2: one of 1 2 {cell} 4 … is not a number of single precision")
            for cell in ("three", "nan", "-inf", "1e39")  # the last is infinite in fp32
        ),
        (["1 4", "unheard-of 1 2 3 4"], " has no vector for any of the 300 subwords"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_line(
    shared: Tokenizer, tmp_path: Path, lines: list[str], told: str
) -> None:
    word = words_in(shared.source)[0]
    path = write(tmp_path / "v.txt", [line.format(word=word) for line in lines])
    with pytest.raises(UserError) as error:
        begin(tiny(shared), shared, source_embeddings=path)
    assert error.value.message == f"{path}:{told}"
    assert error.value.hint


# --- runs ---------------------------------------------------------------------------------------------------


def vectors_of(task: Path) -> dict[int, list[float]]:
    """Write vectors for the words in the task's vocabulary to `vectors`; return them by their rows."""
    vocabulary = Tokenizer.load(task / "data/bare").source
    words = words_in(vocabulary)
    vectors = {word: [round(0.01 * (row + column), 2) for column in range(16)] for row, word in enumerate(words)}
    write(task / "vectors", [line_of(word, vector) for word, vector in vectors.items()])
    return {vocabulary.listing().index(f"\u2581{word}"): vector for word, vector in vectors.items()}


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_run_resumes_to_the_bit_without_the_file(train: Callable[..., str], task: Path, is_fixed: bool) -> None:
    vectors = vectors_of(task)
    assert vectors
    given = "training.source_embeddings=vectors", f"training.freeze_embeddings={str(is_fixed).lower()}"
    said = train(*given, out="whole")
    assert f"embeddings: {len(vectors)} of 280 source subwords from vectors\n" in said
    train(*given, "training.updates=3")
    (task / "vectors").unlink()
    again = train(*given)
    assert "embeddings:" not in again
    assert "changed: training.updates" in again
    assert_equal_to_the_bit(task / "ckpts", task / "whole")
    weight = parameters(task / "ckpts")["source_embedding.weight"]
    same = [torch.equal(weight[row], torch.tensor(vector)) for row, vector in vectors.items()]
    assert set(same) == {is_fixed}
    # Neither the name of the file nor what it held matters any more; fixed rows may be set free, and others fixed.
    changes = f"training.freeze_embeddings={str(not is_fixed).lower()}", "training.source_embeddings=other"
    more = train(*changes, "training.updates=8")
    assert "source_embeddings" not in more
    after = parameters(task / "ckpts")["source_embedding.weight"]
    assert [torch.equal(after[row], weight[row]) for row in vectors] == [not is_fixed] * len(vectors)


def test_a_file_of_another_dimension_is_refused_before_data_is_prepared(train: Callable[..., str], task: Path) -> None:
    write(task / "vectors", [line_of("a", FIRST)])
    settings = "training.source_embeddings=vectors", "data.name=other"
    said = train(*settings, code=1)
    assert "error: vectors:1: has 4 numbers, but model.d_model is 16\n" in said
    assert "--set model.d_model=4" in said
    assert not (task / "data/other").exists()
