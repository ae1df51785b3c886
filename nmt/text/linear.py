"""Trees as sequences of symbols, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each of these symbols is one entry of the vocabulary, which is the target side of a parser. The root TOP itself is not
written: a sequence is that of TOP's children. XX stands for any word. In its place a word's part-of-speech tag may
stand, as in the code that the paper's authors released: `(S (NP DT NN )NP (VP VBZ )VP )S`. A model learns that faster,
since tags tell it how far it has come among the words. Words are not in it, so that giving a tree back needs them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from nmt.errors import UserError
from nmt.text.symbols import EOS, UNK
from nmt.text.tree import TOP, Tree, parse_tree

LEAF = 4  # id of XX, or of the first tag
XX = "XX"  # the tag of words that are not punctuation

DAMAGED = "the file is damaged; take it from another copy of the model"
AMBIGUOUS = 0.05  # share of a word's tags
LONGEST_RUN = 10**9  # at most, so that a damaged number overflows no arithmetic
_LABEL = re.compile(r"[^()\t-\r \ud800-\udfff]+")  # nor half a surrogate pair, which JSON can spell and no file hold

PUNCTUATION_TAGS = (",", ":", "``", "''", ".")  # those that EVALB deletes: a tree with others is no match for it
PUNCTUATION = {  # as the Treebank tags them, for words that training has not seen
    **dict.fromkeys((",", "،", "，", "、"), ","),
    **dict.fromkeys((":", ";", "-", "--", "---", "–", "—", "...", "..", "…", "：", "；"), ":"),
    **dict.fromkeys(("``", "`", "“", "‘", "«", "„", "‚"), "``"),
    **dict.fromkeys(("''", "'", "”", "’", "»", '"'), "''"),
    **dict.fromkeys((".", "?", "!", "?!", "!?", "??", "!!", "!!!", "???", "。", "？", "！"), "."),
}


def escape(word: str) -> str:
    """The word as a Treebank spells it: its brackets would be taken for those of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearise(tree: Tree, pos_tags: bool = False) -> list[str]:
    """The symbols of a prepared tree, those of the children of its root: leaves are XX, or tags with `pos_tags`."""
    symbols = [
        f"){word}" if label is None else f"({label}" if word is None else label if pos_tags else XX
        for label, word in tree.symbols()
    ]
    return symbols[1:-1]


class TreeVocabulary:
    """The symbols of linear trees: <pad> <unk> <s> </s>, leaves, an opening bracket for each label, then the closing
    ones in the same order.

    `tags` are those that leaves have, none where XX is the one leaf; `labels` are those of the constituents; the most
    frequent come first. `longest_run` is the most opening brackets in a row that training had. `punctuation` gives
    words the tags that EVALB deletes, or XX to words of `PUNCTUATION` that were mostly something else in training;
    `ambiguous` words were often enough either.
    """

    FILE = "tree.json"
    """Name of the file that holds the vocabulary."""
    UNSEEN = "trees with a label unseen in training"
    """What reports call targets with symbols that are not in the vocabulary."""

    def __init__(self, serialized: bytes, name: str) -> None:
        """`name` is what errors call it. Raises UserError if the bytes are no tree vocabulary of ours."""
        self.serialized = serialized
        self.tags, self.labels, self.longest_run, self.punctuation, ambiguous = _read(serialized, name)
        brackets = (*(f"({label}" for label in self.labels), *(f"){label}" for label in self.labels))
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", *(self.tags or (XX,)), *brackets]
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._tag_of = PUNCTUATION | self.punctuation
        self._ambiguous = frozenset(ambiguous)

    @classmethod
    def train(cls, trees: Iterable[str | Tree], pos_tags: bool = False) -> TreeVocabulary:
        """The vocabulary of prepared trees, its leaves XX or, with `pos_tags`, tags. Raises UserError where no tree has
        a constituent below TOP."""
        labels: Counter[str] = Counter()
        tagged: Counter[tuple[str, str]] = Counter()
        longest_run = 0
        for tree in trees:
            tree = parse_tree(tree) if isinstance(tree, str) else tree
            tagged.update(tree.pos())
            run = 0
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

    @property
    def leaves(self) -> range:
        """Ids of the symbols that stand for a word."""
        return range(LEAF, LEAF + (len(self.tags) or 1))

    @property
    def openers(self) -> range:
        """Ids of the opening brackets, by label."""
        return range(self.leaves.stop, self.leaves.stop + len(self.labels))

    @property
    def closers(self) -> range:
        """Ids of the closing brackets, by label."""
        return range(self.openers.stop, self.openers.stop + len(self.labels))

    def __len__(self) -> int:
        return len(self._symbols)

    def starts(self) -> list[bool]:
        """Of every symbol, by id, whether it stands for a word."""
        return [index in self.leaves for index in range(len(self))]

    def encode(self, text: str) -> list[int]:
        """Ids of a prepared tree, without `</s>`, and none of a blank text; labels and tags that training has not seen
        are <unk>. Raises ValueError where the text is no tree."""
        symbols = linearise(parse_tree(text), bool(self.tags)) if text else []
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many trees."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The symbols with spaces between them; control symbols among them give nothing."""
        return " ".join(self.pieces([index for index in ids if index > EOS]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The symbols."""
        return [self._symbols[index] for index in ids]

    def listing(self) -> list[str]:
        """All symbols, by id."""
        return list(self._symbols)

    def tag(self, word: str, leaf: str = XX) -> str:
        """The tag of a word in a tree that is put out, where the model wrote this leaf for it.

        What is punctuation depends on the word: one that EVALB deletes by mistake, or does not, costs the sentence. So
        a leaf counts that agrees with training about that, or where training had the word as either; else the word
        has punctuation's own tag, or XX.
        """
        known = self._tag_of.get(word, XX)
        agreed = (leaf in PUNCTUATION_TAGS) == (known in PUNCTUATION_TAGS) or word in self._ambiguous
        return leaf if self.tags and agreed else known

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """The tree over the words whose ids these are, without `</s>`: under TOP, each word escaped, with the
        tag that `tag` gives it.

        Raises ValueError saying what is wrong where there is none: as many leaves as words, brackets that match, no
        empty constituent.
        """
        if (leaves := self.count_leaves(ids)) != len(words) or not words:
            raise ValueError(f"{leaves:,} leaves for {len(words):,} words")
        rest = map(escape, words)
        outer: list[tuple[str, list[Tree | str]]] = []  # label and children of what is around this constituent:
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

    def count_leaves(self, ids: Sequence[int]) -> int:
        """How many of the ids stand for a word."""
        leaves = self.leaves
        return sum(index in leaves for index in ids)

    def mend(self, ids: Sequence[int]) -> list[int]:
        """The ids with all brackets balanced and none empty, by the fewest additions and removals of brackets, without
        control symbols: as many leaves as before."""
        from nmt.text.mending import mend  # which imports numpy; a translator's start need not wait for that

        partner = dict(zip(self.openers, self.closers, strict=True))
        return mend([index for index in ids if index > EOS], partner)


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _punctuation(tags: Counter[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Words to tags, from how often a word had a tag: its most frequent one of those that EVALB deletes, where they
    are most of its tags; XX where they are not, but would be taken for that. And words of which AMBIGUOUS are not what
    most are."""
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


def _read(serialized: bytes, name: str) -> tuple[tuple[str, ...], tuple[str, ...], int, dict[str, str], list[str]]:
    """Read what `train` writes; raises UserError if it is anything else."""
    try:
        content = json.loads(serialized)
        tags, labels, longest_run, punctuation, ambiguous = (
            content[key] for key in ("tags", "labels", "longest_run", "punctuation", "ambiguous")
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{name}: is not a vocabulary of trees", DAMAGED) from None
    known = (XX, *PUNCTUATION_TAGS)
    names = {"tags": tags, "labels": labels, "ambiguous": ambiguous}
    problems = {
        **{f"{key} must be a list of strings": not _are_strings(given) for key, given in names.items()},
        **{f"{key} must differ, and hold no spaces and no brackets": not _are_names(names[key]) for key in names},
        "labels must not be empty": not labels,
        f"longest_run must be a positive integer, at most {LONGEST_RUN:,}, is {repr(longest_run)[:40]}": (
            type(longest_run) is not int or not 1 <= longest_run <= LONGEST_RUN
        ),
        f"punctuation must give words one of {' '.join(PUNCTUATION_TAGS)} {XX}": (
            not isinstance(punctuation, dict) or not all(tag in known for tag in punctuation.values())
        ),
    }
    if found := [problem for problem, occurs in problems.items() if occurs]:
        raise UserError(f"{name}: {found[0]}", DAMAGED)
    return tuple(tags), tuple(labels), longest_run, punctuation, ambiguous


def _are_strings(names: object) -> TypeGuard[list[str]]:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _are_names(names: object) -> bool:
    return _are_strings(names) and len(set(names)) == len(names) and all(map(_LABEL.fullmatch, names))
