"""Linearised trees and a parser's target vocabulary, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each symbol is one entry of the vocabulary. The root TOP is omitted. Each leaf is XX or, as in the code that the paper's
authors released, the word's part-of-speech tag: `(S (NP DT NN )NP (VP VBZ )VP )S`. A model learns faster with tags,
because they tell it how many words it has covered. Restoring a tree requires its words, which the sequence omits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from nmt.parsing.tree import TOP, Tree, parse_tree
from nmt.system.errors import UserError
from nmt.system.integrity import checked, known_files
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import DAMAGED, EOS, UNK, TargetVocabulary, Vocabulary

LEAF = 4  # id of XX, or of the first tag
XX = "XX"  # the tag of words that are not punctuation

AMBIGUOUS = 0.05  # an ambiguous word has more than this share of punctuation tags, and of other tags
LONGEST_RUN = 10**9  # upper bound on `longest_run`: a larger one, in a damaged file, could overflow

KnownTag = Literal[",", ":", "``", "''", ".", "XX"]
PUNCTUATION_TAGS = get_args(KnownTag)[:-1]  # EVALB deletes these; if they differ from the gold's, it counts an error
PUNCTUATION = {  # Treebank tags for words unseen in training
    **dict.fromkeys((",", "،", "，", "、"), ","),
    **dict.fromkeys((":", ";", "-", "--", "---", "–", "—", "...", "..", "…", "：", "；"), ":"),
    **dict.fromkeys(("``", "`", "“", "‘", "«", "„", "‚"), "``"),
    **dict.fromkeys(("''", "'", "”", "’", "»", '"'), "''"),
    **dict.fromkeys((".", "?", "!", "?!", "!?", "??", "!!", "!!!", "???", "。", "？", "！"), "."),
}


def escape(word: str) -> str:
    """Escape brackets in a word, as treebanks do, to tell them from those of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearise(tree: Tree, pos_tags: bool = False) -> list[str]:
    """Return a prepared tree's symbols, without its root; leaves are XX or, with `pos_tags`, tags."""
    symbols = [
        f"){word}" if label is None else f"({label}" if word is None else label if pos_tags else XX
        for label, word in tree.symbols()
    ]
    return symbols[1:-1]


Name = Annotated[str, Field(pattern=r"^[^()\t-\r ]+$")]


class _Content(BaseModel):
    """Content of a tree vocabulary's file."""

    model_config = ConfigDict(strict=True)

    tags: tuple[Name, ...]
    labels: tuple[Name, ...] = Field(min_length=1)
    longest_run: int = Field(ge=1, le=LONGEST_RUN)
    punctuation: dict[str, KnownTag]
    ambiguous: frozenset[str]


class TreeVocabulary(TargetVocabulary):
    """Tree symbols: <pad> <unk> <s> </s>, leaves, opening brackets by label, closing brackets by label.

    `tags` (empty if XX is the only leaf) and `labels` are sorted by frequency. `longest_run` is the maximum number of
    consecutive opening brackets in the training data. `punctuation` maps words to tags that EVALB deletes, or to XX if
    they are in `PUNCTUATION` but mostly have other tags in the training data.
    """

    FILE = "tree.json"
    UNSEEN = "trees with a label unseen in training"

    def __init__(self, serialized: bytes, name: str) -> None:
        """Load a vocabulary from bytes; raise UserError, citing `name`, if they do not hold one."""
        self.serialized = serialized
        content = checked(_Content, serialized, name, DAMAGED)
        self.tags, self.labels, self.longest_run = content.tags, content.labels, content.longest_run
        self.punctuation, self._ambiguous = content.punctuation, content.ambiguous
        brackets = (*(f"({label}" for label in self.labels), *(f"){label}" for label in self.labels))
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", *(self.tags or (XX,)), *brackets]
        first = LEAF + (len(self.tags) or 1)
        last = first + len(self.labels)
        self.leaves, self.openers = range(LEAF, first), range(first, last)
        self.closers = range(last, len(self._symbols))
        """Id ranges of leaves and brackets; brackets are in the order of `labels`"""
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._tag_of = PUNCTUATION | self.punctuation

    @classmethod
    def train(cls, trees: Iterable[str], pos_tags: bool = False) -> TreeVocabulary:
        """Build the vocabulary of prepared trees; leaves are XX or, with `pos_tags`, tags.

        Raise UserError if no tree has a constituent below TOP.
        """
        labels: Counter[str] = Counter()
        tagged: Counter[tuple[str, str]] = Counter()
        longest_run = 0
        for text in filter(None, trees):  # targets may be blank
            tree, run = parse_tree(text), 0
            tagged.update(tree.pos())
            for symbol in linearise(tree):
                run = run + 1 if symbol[0] == "(" else 0
                longest_run = max(longest_run, run)
                if run:
                    labels[symbol[1:]] += 1
        if not labels:
            raise UserError(
                "data.train: no tree has a constituent, so there is nothing to train a parser on",
                "name trees that have brackets above the tags, such as (TOP (NP (NN tree)))",
            )
        tags = Counter(tag for _, tag in tagged.elements())
        punctuation, ambiguous = _punctuation(tagged)
        content = {
            "tags": _by_frequency(tags) if pos_tags else [],
            "labels": _by_frequency(labels),
            "longest_run": longest_run,
            "punctuation": punctuation,
            "ambiguous": ambiguous,
        }
        return cls(json.dumps(content, ensure_ascii=False, indent=1).encode(), "the trained tree vocabulary")

    def __len__(self) -> int:
        return len(self._symbols)

    def starts(self) -> list[bool]:
        """Return whether each symbol, by id, is a leaf."""
        return [index in self.leaves for index in range(len(self))]

    def encode(self, text: str) -> list[int]:
        """Encode a prepared tree without `</s>`; an empty text has no ids.

        Labels and tags unseen in training become <unk>. Raise ValueError if the text is not a tree.
        """
        symbols = linearise(parse_tree(text), bool(self.tags)) if text else []
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> str:
        """Join the symbols with spaces, skipping control symbols."""
        return " ".join(self.pieces([index for index in ids if index > EOS]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Look up symbols by id."""
        return [self._symbols[index] for index in ids]

    def tag(self, word: str, leaf: str = XX) -> str:
        """Choose the tag of a word in an output tree, given the `leaf` that the model predicted.

        If EVALB deletes a word from the hypothesis but not from the gold, the whole sentence is an error. So the leaf
        decides whether a word is punctuation only if the training data is ambiguous about it. For other words, a leaf
        that disagrees with the training data is replaced with the word's punctuation tag or XX.
        """
        known = self._tag_of.get(word, XX)
        agreed = (leaf in PUNCTUATION_TAGS) == (known in PUNCTUATION_TAGS) or word in self._ambiguous
        return leaf if self.tags and agreed else known

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """Build the tree from its ids, without `</s>`, and its words, which are escaped and tagged by `tag`.

        `TreeConstraint` ensures that there is a leaf for each word and that brackets match.
        """
        assert len(words) == sum(index in self.leaves for index in ids) > 0, "each word has a leaf"
        rest = map(escape, words)
        outer: list[tuple[str, list[Tree | str]]] = []  # labels and children of enclosing constituents
        label, children = TOP, list[Tree | str]()
        for index, symbol in zip(ids, self.pieces(ids), strict=True):
            if index in self.leaves:
                word = next(rest)
                children.append(Tree(self.tag(word, symbol), (word,)))
            elif symbol[0] == "(":
                outer.append((label, children))
                label, children = symbol[1:], []
            else:
                assert symbol == f"){label}", f"{symbol} cannot close ({label}"
                assert outer, f"{symbol} closes nothing"
                assert children, f"({label} is empty"
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
        assert not outer, f"({label} is not closed"
        return Tree(TOP, tuple(children))


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _punctuation(tags: Counter[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Decide from counts of (word, tag) which words are punctuation; return their tags, and the ambiguous words.

    A word whose tags are mostly ones that EVALB deletes gets the most frequent of these. Any other word gets XX if it
    is in PUNCTUATION, else no entry.
    """
    votes: dict[str, Counter[str]] = {}
    for (word, tag), count in sorted(tags.items()):
        votes.setdefault(word, Counter())[tag if tag in PUNCTUATION_TAGS else XX] += count
    table, ambiguous = {}, []
    for word, counts in votes.items():
        others = counts.pop(XX, 0)
        if min(others, counts.total()) > AMBIGUOUS * (others + counts.total()):
            ambiguous.append(word)
        if counts.total() > others:
            table[word] = counts.most_common(1)[0][0]
        elif word in PUNCTUATION:
            table[word] = XX
    return table, ambiguous


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load a tokenizer, with tree symbols as its target if the directory has a `tree.json`.

    Raise UserError as `Tokenizer.load` does.
    """
    target = TreeVocabulary if TreeVocabulary.FILE in known_files(directory) else Vocabulary
    return Tokenizer.load(directory, target)
