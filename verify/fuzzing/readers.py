"""Readers of recipes and of data: each gives a value, or refuses a file by a UserError with a hint.

Nothing else escapes: no other exception, and no input takes a gigabyte or ten seconds.
"""

from __future__ import annotations

import gzip
from functools import partial

import data_grammar
import recipe_grammar
import torch
from hypothesis import strategies as st
from mistakes import damaged
from random_bundle import tokenizer_of_words
from strategies import CONTENT
from target import Target, accepted, file

from nmt.data.corpus import Corpus
from nmt.data.pairs import read_pairs
from nmt.formats.terms import Terms, missing, read_terms
from nmt.parsing.tree import parse_tree, prepare_tree, read_tree_lines, read_trees
from nmt.recipe import Data, Dataset, load, load_with_base
from nmt.system.compression import members
from nmt.text.language_codes import is_same
from nmt.text.lines import count_lines, read_lines
from nmt.training.word_vectors import read_vectors

# --- recipes -----------------------------------------------------------------------------------------------------


def recipe(contents: tuple[bytes, bytes | None]) -> bool:
    """A recipe is refused, or equal to what is read of what it writes."""
    own, base = contents
    if base is not None:
        file("base.yaml", base)
    path = file("recipe.yaml", own)
    read = accepted(lambda: load_with_base(path))
    if read is None:
        return False
    again = file("again.yaml", read[0].to_yaml().encode())
    assert load(again) == read[0], "another recipe is read from what this one writes"
    return True


def setting(settings: list[str]) -> bool:
    """Any --set is refused, or gives a recipe that is equal to what is read of what it writes."""
    path = file("plain.yaml", recipe_grammar.as_yaml({"name": "a", "data": recipe_grammar.DATA[0]}))
    read = accepted(lambda: load(path, settings))
    return read is not None and load(file("again.yaml", read.to_yaml().encode())) == read


# --- training data -----------------------------------------------------------------------------------------------


def _pairs(name: str, content: bytes) -> bool:
    path = file(name, content)
    dataset = Dataset(file=path.name)
    data = Data(name="x", root=str(path.parent), source="en", target="de", train=(dataset,))
    pairs = accepted(lambda: list(read_pairs(dataset, data)))
    if pairs is None:
        return False
    for pair in pairs:
        assert len(pair) == 2, f"{len(pair)} sides"
        assert not any("\n" in text for text in pair), f"a sentence of two lines: {pair}"
        assert all(text.encode() is not None for text in pair)
    return True


def tsv(content: bytes) -> bool:
    """Columns that are separated by tabs."""
    return _pairs("x.tsv", content)


def csv(content: bytes) -> bool:
    """Columns that are separated by commas, semicolons or tabs, within quotation marks or not."""
    return _pairs("x.csv", content)


def jsonl(content: bytes) -> bool:
    """JSON objects, one a line."""
    return _pairs("x.jsonl", content)


def parquet(content: bytes) -> bool:
    """Parquet files."""
    return _pairs("x.parquet", content)


def lines(content: bytes) -> bool:
    """Lines of a file are as many as are counted, in a compressed file too, which may be damaged."""
    for path in (file("x.txt", content), file("x.gz", content)):
        counted = accepted(partial(count_lines, path))
        read = accepted(lambda: list(read_lines(path)))  # noqa: B023 - called at once
        assert counted == (None if read is None else len(read))
    return read is not None


def archives(content: bytes) -> bool:
    """Texts in a zip archive have as many lines as are counted."""
    path = file("x.zip", content)
    counted = accepted(lambda: [count_lines(member) for member in members(path, ("en", "de"), is_same)])
    read = accepted(lambda: [len(list(read_lines(member))) for member in members(path, ("en", "de"), is_same)])
    assert counted == read
    return read is not None


def trees(content: bytes) -> bool:
    """Trees are what they are written as, in one tree a line and in trees that span lines."""
    path = file("x.mrg", content)
    one_a_line = accepted(lambda: list(read_tree_lines(read_lines(path), str(path))))
    found = accepted(lambda: list(read_trees(path)))
    for tree in [*(found or []), *filter(None, one_a_line or [])]:
        assert parse_tree(str(tree)) == tree, f"read as another tree: {tree}"
        for functions, traces in ((False, False), (True, True)):
            prepared = prepare_tree(tree, functions, traces)
            assert prepared is None or prepare_tree(prepared, functions, traces) == prepared
    return found is not None


def arrow(content: bytes) -> bool:
    """A split of prepared data can be read from the first to the last row, or is refused when it is opened."""
    path = file("train.arrow", content)
    corpus = accepted(lambda: Corpus(path))
    if corpus is None:
        return False
    rows = torch.arange(len(corpus)).numpy()
    lengths = corpus.lengths(rows)
    assert lengths.target.tolist() == corpus.target_lengths.tolist()
    assert lengths.source.tolist() == corpus.source_lengths.tolist()
    assert corpus.longest() == max([0, *lengths.source.tolist(), *lengths.target.tolist()])
    assert corpus.targets(rows)[1].tolist() == lengths.target.tolist()
    corpus.lines(rows)
    corpus.sources(rows)
    corpus.texts()
    return True


def vectors(content: bytes) -> bool:
    """Vectors of words, of which those of the vocabulary are taken."""
    path, vocabulary = file("vectors.txt", content), tokenizer_of_words(True).source
    found = accepted(lambda: read_vectors(path, vocabulary, 2))
    if found is None:
        return False
    rows, numbers = found
    assert numbers.shape == (len(rows), 2)
    assert bool(numbers.isfinite().all()), "vectors that are no numbers"
    return True


# --- tables and prefixes -----------------------------------------------------------------------------------------


def terms(value: tuple[bytes, str]) -> bool:
    """A table of terms finds phrases in a text, which holds those that are to be kept as often as they must come."""
    content, text = value
    path = file("terms.tsv", content)
    table = accepted(lambda: Terms(read_terms(path)))
    if table is None:
        return False
    for phrase in table.phrases(text):
        assert phrase.source in text
        assert phrase.targets
        assert all(phrase.targets)
        assert not (phrase.kept and missing([phrase], text, text)), f"{phrase} is said to be missing in its own source"
    return True


TARGETS = (
    Target(
        recipe,
        recipe_grammar.RECIPES,
        ("nmt.recipe.yaml_files", "nmt.recipe.loading", "nmt.recipe.data", "nmt.recipe.settings"),
    ),
    Target(setting, recipe_grammar.SETTINGS, ("nmt.recipe.yaml_files", "nmt.recipe.loading")),
    Target(tsv, data_grammar.TSV, ("nmt.data.pairs", "nmt.text.lines"), in_bytes=True),
    Target(csv, data_grammar.CSV, ("nmt.data.pairs", "nmt.data.tables"), in_bytes=True),
    Target(jsonl, data_grammar.JSON_LINES, ("nmt.data.pairs",)),
    Target(parquet, data_grammar.PARQUETS, ("nmt.data.pairs",)),
    Target(
        lines,
        CONTENT | CONTENT.map(gzip.compress) | damaged(CONTENT.map(gzip.compress)),
        ("nmt.text.lines",),
    ),
    Target(archives, data_grammar.ARCHIVES, ("nmt.system.compression", "nmt.text.lines")),
    Target(trees, data_grammar.BRACKETS, ("nmt.parsing.tree",)),
    Target(arrow, data_grammar.SPLITS, ("nmt.data.corpus",)),
    Target(vectors, data_grammar.VECTORS, ("nmt.training.word_vectors",)),
    Target(terms, st.tuples(data_grammar.TERMS, data_grammar.TEXTS), ("nmt.formats.terms",)),
)
