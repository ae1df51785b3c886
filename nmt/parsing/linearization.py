"""Linearised trees and a parser's target vocabulary, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each symbol is one entry of the vocabulary. The root TOP is omitted. Each leaf is XX or, as in the code that the paper's
authors released, the word's part-of-speech tag: `(S (NP DT NN )NP (VP VBZ )VP )S`. A model learns faster with tags,
because they tell it how many words it has covered. Restoring a tree requires its words, which the sequence omits.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from nmt.parsing.brackets import DELETED
from nmt.parsing.tree import EMPTY, TOP, Tree, parse_tree
from nmt.system.errors import UserError
from nmt.system.integrity import checked, known_files
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import DAMAGED, EOS, UNK, TargetVocabulary, Vocabulary

LEAF = 4  # id of XX, or of the first tag: after <pad>, <unk>, <s> and </s>
XX = "XX"  # the tag of words that are not punctuation

AMBIGUOUS = 0.05  # an ambiguous word has more than this share of tags of another kind than most
LONGEST_RUN = 10**9  # upper bound on `longest_run`: a larger one, in a damaged file, could overflow

ANY, WORD, MARK, TRACE = range(4)  # kinds of words: ambiguous; kept by EVALB; deleted as punctuation; deleted as traces


def escape(word: str) -> str:
    """Escape brackets in a word, as treebanks do, to tell them from those of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearise(tree: Tree, pos_tags: bool = False) -> list[str]:
    """Return a prepared tree's symbols, without its root; leaves are XX or, with `pos_tags`, tags."""
    symbols = []
    for label, word in tree.symbols():
        if label is None:
            symbols.append(f"){word}")
        elif word is None:
            symbols.append(f"({label}")
        else:
            symbols.append(label if pos_tags else XX)
    return symbols[1:-1]


Name = Annotated[str, Field(pattern=r"^[^()\t-\r ]+$")]


class _Content(BaseModel):
    """Content of a tree vocabulary's file."""

    model_config = ConfigDict(strict=True)

    tags: tuple[Name, ...]
    labels: tuple[Name, ...] = Field(min_length=1)
    longest_run: int = Field(ge=1, le=LONGEST_RUN)
    punctuation: dict[str, Name]
    ambiguous: frozenset[str]


class TreeVocabulary(TargetVocabulary):
    """Tree symbols: <pad> <unk> <s> </s>, leaves, opening brackets by label, closing brackets by label.

    `tags` (empty if XX is the only leaf) and `labels` are sorted by frequency. `longest_run` is the maximum number of
    consecutive opening brackets in the training data. `punctuation` maps words without letters, traces, and what else
    EVALB deletes, to their tags there.
    """

    FILE = "tree.json"
    UNSEEN = "trees with a label unseen in training"

    def __init__(self, serialized: bytes, name: str) -> None:
        """Load a vocabulary from bytes; raise UserError, citing `name`, if they do not hold one."""
        self.serialized = serialized
        content = checked(_Content, serialized, name, DAMAGED)
        self.tags = content.tags
        self.labels = content.labels
        self.longest_run = content.longest_run
        self.punctuation = content.punctuation
        votes = Counter[tuple[str, str]]()  # each word votes for the tag of its shapes
        for word, tag in self.punctuation.items():
            votes.update((shape, tag) for shape in _shapes(word))
        unseen, ambiguous = _decide(votes)  # by shape
        self._tags = unseen | self.punctuation
        self._ambiguous = (ambiguous - self.punctuation.keys()) | content.ambiguous
        leaves = self.tags or (XX,)
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", *leaves]
        for bracket in "()":
            self._symbols += [bracket + label for label in self.labels]
        first = LEAF + len(leaves)
        last = first + len(self.labels)
        self.leaves = range(LEAF, first)
        self.openers = range(first, last)
        self.closers = range(last, len(self._symbols))
        """Id ranges of leaves and brackets; brackets are in the order of `labels`"""
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        kinds = list(map(_kind, self.tags))
        self.fitting: list[list[bool]] = []
        """`fitting[kind][tag]`: whether a tag fits a word of this kind; all fit where none is of this kind"""
        for kind in range(TRACE + 1):
            self.fitting.append([kind == of_tag or kind not in kinds for of_tag in kinds])

    @classmethod
    def train(cls, trees: Iterable[str], pos_tags: bool = False) -> TreeVocabulary:
        """Build the vocabulary of prepared trees; leaves are XX or, with `pos_tags`, tags.

        Raise UserError if no tree has a constituent below TOP.
        """
        labels = Counter[str]()
        tagged = Counter[tuple[str, str]]()  # words with their tags
        longest_run = 0
        for text in filter(None, trees):  # targets may be blank
            tree = parse_tree(text)
            tagged.update(tree.pos())
            for is_opening, symbols in groupby(linearise(tree), lambda symbol: symbol[0] == "("):
                if is_opening:
                    opened = [symbol[1:] for symbol in symbols]
                    labels.update(opened)
                    longest_run = max(longest_run, len(opened))
        if not labels:
            hint = "name trees that have brackets above the tags, such as (TOP (NP (NN tree)))"
            raise UserError("data.train: no tree has a constituent, so there is nothing to train a parser on", hint)
        tags = Counter[str]()
        if pos_tags:
            for (_, tag), count in tagged.items():
                tags[tag] += count
        punctuation, ambiguous = _decide(tagged)
        content = {
            "tags": _by_frequency(tags),
            "labels": _by_frequency(labels),
            "longest_run": longest_run,
            "punctuation": dict(sorted(punctuation.items())),
            "ambiguous": sorted(ambiguous),
        }
        return cls(json.dumps(content, ensure_ascii=False, indent=1).encode(), "the trained tree vocabulary")

    def starts(self) -> list[bool]:
        """Return whether each symbol, by id, is a leaf."""
        return [index in self.leaves for index in range(len(self))]

    def table(self) -> dict[str, Any]:
        """Return all that `kinds`, `tree` and the constraint of a search know, as plain values for other programs."""
        ranges = {"leaves": self.leaves, "openers": self.openers, "closers": self.closers}
        return {
            "symbols": self.listing(),
            **{name: [ids.start, ids.stop] for name, ids in ranges.items()},
            "longestRun": self.longest_run,
            "fitting": self.fitting,
            "tags": self._tags,
            "ambiguous": sorted(self._ambiguous),
            "deleted": sorted(DELETED),
            "empty": EMPTY,
        }

    def encode(self, text: str) -> list[int]:
        """Encode a prepared tree without `</s>`; an empty text has no ids.

        Labels and tags unseen in training become <unk>. Raise ValueError if the text is not a tree.
        """
        if not text:
            return []
        symbols = linearise(parse_tree(text), bool(self.tags))
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> str:
        """Join the symbols with spaces, skipping control symbols."""
        return " ".join(self.pieces([index for index in ids if index > EOS]))

    def kinds(self, words: Sequence[str]) -> list[int]:
        """Return each word's kind by the training data, an index of `fitting`."""
        kinds = []
        for word in words:
            tag, is_ambiguous = self._known(escape(word))
            kinds.append(ANY if is_ambiguous else _kind(tag))
        return kinds

    def tag(self, word: str, leaf: str = XX) -> str:
        """Choose the tag of a word in an output tree: the `leaf` that the model predicted, if that is a tag.

        If EVALB deletes a word from the hypothesis but not from the gold, the whole sentence is an error. So where no
        tag of the vocabulary fits the word, it gets the one that the training data, or its shape, tells.
        """
        known, is_ambiguous = self._known(word)
        if self.tags and (is_ambiguous or _kind(leaf) == _kind(known)):
            return leaf
        return known

    def _known(self, word: str) -> tuple[str, bool]:
        """Return the tag of a word, or of its smallest class that training had, or XX; and whether it is ambiguous."""
        for shape in _shapes(word):
            if shape in self._tags or shape in self._ambiguous:
                return self._tags.get(shape, XX), shape in self._ambiguous
        return XX, False

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """Build the tree from its ids, without `</s>`, and its words, which are escaped and tagged by `tag`.

        `TreeConstraint` ensures that there is a leaf for each word and that brackets match.
        """
        assert len(words) == sum(index in self.leaves for index in ids) > 0, "each word has a leaf"
        rest = map(escape, words)
        outer: list[tuple[str, list[Tree | str]]] = []  # labels and children of enclosing constituents
        label = TOP
        children = list[Tree | str]()
        for index, symbol in zip(ids, self.pieces(ids), strict=True):
            if index in self.leaves:
                word = next(rest)
                children.append(Tree(self.tag(word, symbol), (word,)))
            elif symbol[0] == "(":
                outer.append((label, children))
                label = symbol[1:]
                children = []
            else:
                assert symbol == f"){label}", f"{symbol} cannot close ({label}"
                assert outer, f"{symbol} closes nothing"
                assert children, f"({label} is empty"
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
        assert not outer, f"({label} is not closed"
        return Tree(TOP, tuple(children))


def _by_frequency(counts: Counter[Any]) -> list[Any]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _kind(tag: str) -> int:
    if tag == EMPTY:
        return TRACE
    if tag in DELETED:
        return MARK
    return WORD


def _shapes(word: str) -> list[str]:
    """Return a word's classes, smallest first: itself; `!` of `!!!`, `*T*-0` of `*T*-12`; "", all symbols."""
    shape = re.sub(r"([^\w])\1+", r"\1", re.sub(r"\d+", "0", word))
    if not any(map(str.isalnum, word)):
        return [word, shape, ""]
    if word[0] == "*":
        return [word, shape]
    return [word]


def _decide(tags: Counter[tuple[str, str]]) -> tuple[dict[str, str], set[str]]:
    """Return words' tags, and the ambiguous words, from counts of (word, tag).

    A word's tag is the most frequent one of its most frequent kind. Words with letters that EVALB keeps are left out.
    """
    kinds = Counter[tuple[str, int]]()
    for (word, tag), count in tags.items():
        kinds[word, _kind(tag)] += count
    tag_of: dict[tuple[str, int], str] = {}  # the most frequent one
    for word, tag in _by_frequency(tags):
        tag_of.setdefault((word, _kind(tag)), tag)
    kind_of: dict[str, int] = {}  # the most frequent one
    for word, kind in _by_frequency(kinds):
        kind_of.setdefault(word, kind)
    table: dict[str, str] = {}
    ambiguous = set[str]()
    for (word, kind), count in kinds.items():
        most = kinds[word, kind_of[word]]
        if kind != kind_of[word]:
            if count > AMBIGUOUS * (count + most):
                ambiguous.add(word)
        elif kind != WORD or "" in _shapes(word):
            table[word] = tag_of[word, kind]
    return table, ambiguous


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load a tokenizer, with tree symbols as its target if the directory has a `tree.json`.

    Raise UserError as `Tokenizer.load` does.
    """
    has_trees = TreeVocabulary.FILE in known_files(directory)
    return Tokenizer.load(directory, TreeVocabulary if has_trees else Vocabulary)
