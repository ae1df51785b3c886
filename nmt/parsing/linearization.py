"""Trees as sequences of symbols, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each symbol is one entry of the vocabulary, which is the target vocabulary of a parser. The root TOP is not written.
XX stands for any word. Instead of XX, the part-of-speech tag of the word may be written, as in the code that the
paper's authors released: `(S (NP DT NN )NP (VP VBZ )VP )S`. A model learns that faster, because the tags tell it how
many words it has covered. The sequence has no words, so they are needed to restore the tree.
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

AMBIGUOUS = 0.05  # share of the rarer reading of a word, as punctuation or not, above which it may be either
LONGEST_RUN = 10**9  # limit of a number in the file, so that a damaged one overflows no arithmetic

KnownTag = Literal[",", ":", "``", "''", ".", "XX"]
PUNCTUATION_TAGS = get_args(KnownTag)[:-1]  # EVALB deletes these; a tree that differs in them is an error to it
PUNCTUATION = {  # tags of the Treebank, for words that are not in the training data
    **dict.fromkeys((",", "،", "，", "、"), ","),
    **dict.fromkeys((":", ";", "-", "--", "---", "–", "—", "...", "..", "…", "：", "；"), ":"),
    **dict.fromkeys(("``", "`", "“", "‘", "«", "„", "‚"), "``"),
    **dict.fromkeys(("''", "'", "”", "’", "»", '"'), "''"),
    **dict.fromkeys((".", "?", "!", "?!", "!?", "??", "!!", "!!!", "???", "。", "？", "！"), "."),
}


def escape(word: str) -> str:
    """Spell a word as treebanks do, so that its brackets are not taken for those of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearise(tree: Tree, pos_tags: bool = False) -> list[str]:
    """Write a prepared tree as symbols, without its root; leaves are XX, or with `pos_tags` tags."""
    symbols = [
        f"){word}" if label is None else f"({label}" if word is None else label if pos_tags else XX
        for label, word in tree.symbols()
    ]
    return symbols[1:-1]


Name = Annotated[str, Field(pattern=r"^[^()\t-\r ]+$")]


class _Content(BaseModel):
    """What the file of a vocabulary of trees holds."""

    model_config = ConfigDict(strict=True)

    tags: tuple[Name, ...]
    labels: tuple[Name, ...] = Field(min_length=1)
    longest_run: int = Field(ge=1, le=LONGEST_RUN)
    punctuation: dict[str, KnownTag]
    ambiguous: frozenset[str]


class TreeVocabulary(TargetVocabulary):
    """The symbols of linear trees: <pad> <unk> <s> </s>, leaves, an opening bracket for each label, then the closing
    brackets in the same order.

    `tags` are the tags of leaves, none if XX is the only leaf, and `labels` those of constituents, both by frequency.
    `longest_run` is the largest number of opening brackets in a row in the training data. `punctuation` maps words to
    tags that EVALB deletes, and words of `PUNCTUATION` that are mostly something else in the training data to XX.
    """

    FILE = "tree.json"
    UNSEEN = "trees with a label unseen in training"

    def __init__(self, serialized: bytes, name: str) -> None:
        """Read a vocabulary, which errors call `name`; raises UserError if the bytes are no tree vocabulary of ours."""
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
        """Ids of leaves and of brackets, these in the order of `labels`"""
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._tag_of = PUNCTUATION | self.punctuation

    @classmethod
    def train(cls, trees: Iterable[str], pos_tags: bool = False) -> TreeVocabulary:
        """Collect the vocabulary of prepared trees; its leaves are XX, or with `pos_tags` tags.

        Raises UserError if no tree has a constituent below TOP.
        """
        labels: Counter[str] = Counter()
        tagged: Counter[tuple[str, str]] = Counter()
        longest_run = 0
        for text in filter(None, trees):  # without blank targets
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
        tags: Counter[str] = Counter()
        for (_, tag), count in tagged.items():
            tags[tag] += count
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
        """Encode a prepared tree, without `</s>`; a blank text has no ids.

        Labels and tags that are not in the training data become <unk>. Raises ValueError if the text is no tree.
        """
        symbols = linearise(parse_tree(text), bool(self.tags)) if text else []
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> str:
        """Join the symbols by spaces, without control symbols."""
        return " ".join(self.pieces([index for index in ids if index > EOS]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the symbols of ids."""
        return [self._symbols[index] for index in ids]

    def tag(self, word: str, leaf: str = XX) -> str:
        """Choose the tag that a word gets in an output tree, if the model wrote this leaf for it.

        If EVALB deletes a word of the hypothesis but not of the gold, the whole sentence is an error. So the leaf
        decides what is punctuation only for words that are ambiguous in the training data. For any other word, it is
        kept if it agrees with the training data about that, and else replaced by the word's punctuation tag or XX.
        """
        known = self._tag_of.get(word, XX)
        agreed = (leaf in PUNCTUATION_TAGS) == (known in PUNCTUATION_TAGS) or word in self._ambiguous
        return leaf if self.tags and agreed else known

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """Build the tree over these words from its ids, without `</s>`; words are escaped and tagged by `tag`.

        Raises ValueError saying what is wrong if there are not as many leaves as words, if brackets do not match, or
        if a constituent is empty.
        """
        if (leaves := sum(index in self.leaves for index in ids)) != len(words) or not words:
            raise ValueError(f"{leaves:,} leaves for {len(words):,} words")
        rest = map(escape, words)
        outer: list[tuple[str, list[Tree | str]]] = []  # label and children of the constituents around this one
        label, children = TOP, list[Tree | str]()
        for place, (index, symbol) in enumerate(zip(ids, self.pieces(ids), strict=True), 1):
            if index in self.leaves:
                word = next(rest)
                children.append(Tree(self.tag(word, symbol), (word,)))
            elif symbol[0] == "(":
                outer.append((label, children))
                label, children = symbol[1:], []
            elif not outer or symbol != f"){label}":
                raise ValueError(f"symbol {place:,} is {symbol}, where {f'({label}' if outer else 'nothing'} is open")
            elif not children:
                raise ValueError(f"symbol {place:,} is {symbol}, but nothing stands in it")
            else:
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
        if outer:
            raise ValueError(f"({label} is not closed")
        return Tree(TOP, tuple(children))


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _punctuation(tags: Counter[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Decide which words are punctuation, given how often each word had each tag.

    Returns a map from words to tags: if most tags of a word are ones that EVALB deletes, the most frequent of these; if
    not, XX for a word of PUNCTUATION. Also returns the words that are ambiguous by AMBIGUOUS.
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
    """Read a tokenizer, whose target is the symbols of trees if the directory has a `tree.json`.

    Raise UserError as `Tokenizer.load` does.
    """
    target = TreeVocabulary if TreeVocabulary.FILE in known_files(directory) else Vocabulary
    return Tokenizer.load(directory, target)
