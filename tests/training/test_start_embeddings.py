"""Vectors from word2vec text files: what reaches the model, what stays as it was, what is refused."""

import gzip

import pytest
import torch

from nmt.model.transformer import Transformer
from nmt.recipe import Model, TokenizerSettings, Training
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.training.optimizer import Optimizer
from nmt.training.start import use_embeddings

WIDTH = 4
TEXT = [("the house sees the tree .", "das Haus sieht den Baum .")] * 5
FIRST, SECOND = [1.0, -2.0, 3.5, 0.25], [-0.5, 8.0, 0.125, -4.0]


@pytest.fixture(scope="module")
def shared():
    return Tokenizer.train(TEXT, TokenizerSettings(vocab_size=300))


def tiny(tokenizer, tie="all"):
    torch.manual_seed(1)
    config = Model(layers=1, d_model=WIDTH, d_ff=6, heads=2, dropout=0.0, tie_embeddings=tie)
    return Transformer(config, len(tokenizer.source), len(tokenizer.target))


def words_in(vocabulary, count):
    """Pieces that begin a word, without the mark; their plain spelling is no piece."""
    pieces = vocabulary.pieces(range(len(vocabulary)))
    found = [p[1:] for p in pieces if p.startswith("\u2581") and len(p) > 1 and p[1:] not in pieces]
    return found[:count]


def index_of(vocabulary, piece):
    return vocabulary.pieces(range(len(vocabulary))).index(piece)


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def line_of(word, vector):
    return " ".join([word, *map(str, vector)])


def use(model, tokenizer, fresh=True, **settings):
    use_embeddings(model, tokenizer, Training(**settings), Console(quiet=True), fresh)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
@pytest.mark.parametrize("header", [[], ["2 4"]])
def test_vectors_reach_the_model_as_given(shared, tmp_path, name, header):
    """The model multiplies embeddings by √d_model, so what it holds is divided by that."""
    word, other = words_in(shared.source, 2)
    path = write(tmp_path / name, [*header, line_of(word, FIRST), line_of(other, SECOND)])
    model = tiny(shared)
    before = model.source_embedding.weight.detach().clone()
    use(model, shared, source_embeddings=path)
    weight = model.source_embedding.weight.detach()
    rows = [index_of(shared.source, f"\u2581{w}") for w in (word, other)]
    torch.testing.assert_close(weight[rows], torch.tensor([FIRST, SECOND]) / 2.0, rtol=0, atol=0)
    ids = torch.tensor([rows])
    seen = model.eval().embed(ids, weight, model.source_positions(ids))[0] - model.source_positions.table[:2]
    torch.testing.assert_close(seen, torch.tensor([FIRST, SECOND]))
    others = [i for i in range(len(weight)) if i not in rows]
    assert torch.equal(weight[others], before[others])


@pytest.mark.parametrize("order", [1, -1])
def test_a_subword_of_the_same_spelling_wins_over_the_whole_word(shared, tmp_path, order):
    word = words_in(shared.source, 1)[0]
    lines = [line_of(f"\u2581{word}", FIRST), line_of(word, SECOND)]
    model = tiny(shared)
    use(model, shared, source_embeddings=write(tmp_path / "v.txt", lines[::order]))
    row = index_of(shared.source, f"\u2581{word}")
    assert torch.equal(model.source_embedding.weight.detach()[row], torch.tensor(FIRST) / 2.0)


def test_a_subword_inside_words_takes_the_vector_of_its_spelling(shared, tmp_path):
    pieces = shared.source.pieces(range(len(shared.source)))
    inner = next(p for p in pieces[260:] if not p.startswith("\u2581") and f"\u2581{p}" in pieces)
    model = tiny(shared)
    before = model.source_embedding.weight.detach().clone()
    use(model, shared, source_embeddings=write(tmp_path / "v.txt", [line_of(inner, FIRST)]))
    weight = model.source_embedding.weight.detach()
    assert torch.equal(weight[pieces.index(inner)], torch.tensor(FIRST) / 2.0)
    untouched = pieces.index(f"\u2581{inner}")
    assert torch.equal(weight[untouched], before[untouched])


def test_a_resumed_model_keeps_what_it_has_learned(shared, tmp_path):
    path = write(tmp_path / "v.txt", [line_of(words_in(shared.source, 1)[0], FIRST)])
    model = tiny(shared)
    before = model.source_embedding.weight.detach().clone()
    use(model, shared, fresh=False, source_embeddings=path)
    assert torch.equal(model.source_embedding.weight, before)


def learn(model, updates):
    optimizer = Optimizer(model, WIDTH, Training(warmup=2))
    ids = torch.arange(4, 260).view(8, 32)
    everything = torch.arange(len(model.source_embedding.weight))[None]
    for step in range(1, updates + 1):
        model(ids, ids).logsumexp(-1).sum().backward()
        model(everything, everything).square().sum().backward()  # two micro-batches
        optimizer.update(optimizer.rate(step), torch.tensor(False))


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_frozen_vectors_stay_exactly_as_they_are_while_others_learn(shared, tmp_path, fresh, tie):
    words = words_in(shared.source, 2)
    path = write(tmp_path / "v.txt", [line_of(words[0], FIRST), line_of(words[1], SECOND)])
    model = tiny(shared, tie=tie)
    use(model, shared, fresh=fresh, source_embeddings=path, freeze_embeddings=True)
    rows = [index_of(shared.source, f"\u2581{word}") for word in words]
    before = model.source_embedding.weight.detach().clone()
    learn(model, 5)
    after = model.source_embedding.weight.detach()
    assert torch.equal(after[rows], before[rows])
    free = [i for i in range(4, len(after)) if i not in rows]
    assert (after[free] != before[free]).any(1).all()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{word} 1 2 3 4", "unknown 1 2 3"], "2: has 3 numbers, but model.d_model is 4"),
        (["2 4", "{word} 1 2 3 4", "unknown 1 1 1 1 1"], "3: has 5 numbers, but model.d_model is 4"),
        *(
            (["1 4", f"{{word}} 1 2 {cell} 4"], f"2: one of 1 2 {cell} 4 … is not a number")
            for cell in ("three", "nan", "-inf", "1e39")  # the last is infinite in fp32
        ),
        (["1 4", "unheard-of 1 2 3 4"], " has no vector for any of the 300 subwords"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_line(shared, tmp_path, lines, told):
    word = words_in(shared.source, 1)[0]
    path = write(tmp_path / "v.txt", [line.format(word=word) for line in lines])
    with pytest.raises(UserError) as error:
        use(tiny(shared), shared, source_embeddings=path)
    assert error.value.message == f"{path}:{told}"
