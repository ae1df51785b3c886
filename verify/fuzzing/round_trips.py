"""What is written reads back: texts as ids, trees as symbols, and a bundle as a folder of transformers."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from random_bundle import WORDS, random_bundle, tokenizer_of_words
from strategies import TEXT, TREES, TRICKY
from target import Target, accepted, folder

from nmt.checkpoint.reading import Bundle
from nmt.exchange.huggingface import export
from nmt.exchange.opus_mt import MarianBundle
from nmt.parsing.linearization import TreeVocabulary, linearise
from nmt.parsing.tree import parse_tree, prepare_tree
from nmt.search.constraints import SubwordIndex
from nmt.text.vocabulary import BOS, EOS, Vocabulary


def text(line: str) -> bool:
    """Ids of a text give the text back as a reader sees it, however the text is encoded."""
    for shared in (True, False):
        tokenizer = tokenizer_of_words(shared)
        for side in (tokenizer.source, tokenizer.target):
            assert isinstance(side, Vocabulary)
            ids = side.encode(line)
            assert side.decode(ids) == side.plain(line)
            assert all(EOS < index < len(side) for index in ids)
            assert side.encode_all([line, ""]) == [ids, side.encode("")]
            assert len(side.pieces(ids)) == len(ids)
    return True


def beginning(line: str) -> bool:
    """What an output must begin with spells the beginning that was asked for, in any way that the search allows."""
    side = tokenizer_of_words(True).source
    ids, rest, rest_ids = side.encode_beginning(line)
    wanted = side.plain(line).lstrip()
    assert side.decode([*ids, *rest_ids]).strip() == wanted.strip()
    steps = _spelling().steps(rest)
    if steps is not None:
        _check_paths(steps, rest)
    return True


def _beginnings() -> SearchStrategy[str]:
    """Beginnings of outputs in words that the vocabulary knows."""
    words = st.sampled_from([*WORDS, *map(str.upper, WORDS), "", "tre", "WIN"])
    return st.lists(words, max_size=4).map(" ".join)


@cache
def _spelling() -> SubwordIndex:
    return SubwordIndex(tokenizer_of_words(True).source.spellings())


def _check_paths(steps: list[dict[int, int]], rest: str) -> None:
    """Each symbol spells what lies between two places of the text; the last may go on beyond it."""
    spellings = tokenizer_of_words(True).source.spellings()
    reached = {0}
    for at, step in enumerate(steps):
        for index, end in step.items():
            assert (spellings[index].startswith(rest[at:]) and end == len(rest)) or spellings[index] == rest[at:end]
        reached |= set(step.values()) if at in reached else set()
    assert not steps or len(rest) in reached


def tree_symbols(value: tuple[list[str], bool]) -> bool:
    """Prepared trees become symbols and the same trees again."""
    texts, pos_tags = value
    prepared = [tree for text in texts if (tree := prepare_tree(parse_tree(text))) is not None]
    vocabulary = accepted(lambda: TreeVocabulary.train(map(str, prepared), pos_tags))
    if vocabulary is None:
        return False
    for tree in prepared:
        ids = vocabulary.encode(str(tree))
        again = vocabulary.tree(ids, tree.leaves())
        assert linearise(again, False) == linearise(tree, False)
        assert again.leaves() == tree.leaves()
    return True


def huggingface(value: dict[str, Any]) -> bool:
    """A translator that is exported to a folder of transformers and read from there is the same translator."""
    bundle = accepted(lambda: random_bundle(folder() / "own", value["tie_embeddings"] == "all", **value))
    if bundle is None or (path := accepted(lambda: _exported(bundle))) is None:
        return False
    read = MarianBundle.read(path)
    assert read.tokenizer().equals(bundle.tokenizer())
    ours, theirs = (each.model(torch.device("cpu")).double() for each in (bundle, read))
    source, target = torch.tensor([[5, 270, 9, EOS]]), torch.tensor([[BOS, 7, 300]])
    torch.testing.assert_close(theirs(source, target), ours(source, target), rtol=1e-4, atol=1e-4)
    return True


def _exported(bundle: Bundle) -> Path:
    path = folder() / "exported"
    shutil.rmtree(path, ignore_errors=True)
    export(bundle, path)
    return path


_SHAPES = st.fixed_dictionaries(
    {"tie_embeddings": st.sampled_from(["all", "all", "target", "none"])},
    optional={
        "layers": st.integers(1, 2),
        "decoder_layers": st.integers(1, 2),
        "d_model": st.sampled_from([8, 12, 16]),
        "d_ff": st.integers(1, 20),
        "heads": st.sampled_from([1, 2, 4]),
        "norm": st.sampled_from(["post", "pre"]),
        "norm_epsilon": st.sampled_from([1e-12, 1e-6, 1e-5, 1e-4]),
        "activation": st.sampled_from(["relu", "silu", "gelu"]),
        "attention_bias": st.booleans(),
        "output_bias": st.booleans(),
        "positions": st.sampled_from(["sinusoidal", "sinusoidal", "learned"]),
    },
)

TARGETS = (
    Target(text, TEXT | TRICKY, ("nmt.text.vocabulary",)),
    Target(beginning, TEXT | TRICKY | _beginnings(), ("nmt.search.constraints", "nmt.text.vocabulary")),
    Target(
        tree_symbols,
        st.tuples(st.lists(TREES.map(str), min_size=1, max_size=3), st.booleans()),
        ("nmt.parsing.linearization",),
    ),
    Target(huggingface, _SHAPES, ("nmt.exchange.huggingface", "nmt.exchange.opus_mt")),
)
