"""Trees as sequences of symbols, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each of these symbols is one entry of the vocabulary, which is the target side of a parser. The root TOP itself is not
written: a sequence is that of TOP's children. Words and tags are not in it, so that giving them back needs the words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from nmt.errors import UserError
from nmt.text.symbols import EOS, UNK
from nmt.text.tree import TOP, Tree, parse_tree

LEAF = 4  # id of XX, which stands for any word
FIRST_LABEL = 5  # id of the first opening bracket; the bracket that closes it is as many ids on as there are labels
XX = "XX"  # the tag of words that are not punctuation

_LABEL = re.compile(r"[^()\t-\r ]+")

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


def linearise(tree: Tree) -> list[str]:
    """The symbols of a prepared tree: those of the children of its root."""
    symbols: list[str] = []
    stack: list[Tree | str] = list(reversed(tree.children))
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            symbols.append(node)
        elif node.is_preterminal:
            symbols.append(XX)
        else:
            symbols.append(f"({node.label}")
            stack.append(f"){node.label}")
            stack.extend(reversed(node.children))
    return symbols


class TreeVocabulary:
    """The symbols of linear trees: <pad> <unk> <s> </s>, XX, an opening bracket for each label, then the closing ones.

    `labels` are those of the constituents, the most frequent first; `longest_run` is the most opening brackets in a
    row that training had; `punctuation` gives words the tags that EVALB deletes, or XX to words of `PUNCTUATION` that
    were mostly something else in training.
    """

    def __init__(self, serialized: bytes, name: str) -> None:
        """`name` is what errors call it. Raises UserError where the bytes are no tree vocabulary of ours."""
        self.serialized = serialized
        self.labels, self.longest_run, self.punctuation = _read(serialized, name)
        brackets = (*(f"({label}" for label in self.labels), *(f"){label}" for label in self.labels))
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", XX, *brackets]
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._tags = PUNCTUATION | self.punctuation

    @classmethod
    def train(cls, trees: Iterable[str | Tree]) -> TreeVocabulary:
        """The vocabulary of prepared trees. Raises UserError where none has a constituent below TOP."""
        labels: Counter[str] = Counter()
        tags: Counter[tuple[str, str]] = Counter()
        longest_run = 0
        for tree in trees:
            tree = parse_tree(tree) if isinstance(tree, str) else tree
            tags.update(tree.pos())
            run = 0
            for symbol in linearise(tree):
                if symbol[0] != "(":
                    run = 0
                    continue
                labels[symbol[1:]] += 1
                run += 1
                longest_run = max(longest_run, run)
        if not labels:
            raise UserError("data.train: holds no tree with a constituent to train a parser on")
        content = {
            "labels": sorted(labels, key=lambda label: (-labels[label], label)),
            "longest_run": longest_run,
            "punctuation": _punctuation(tags),
        }
        return cls(json.dumps(content, ensure_ascii=False, indent=1).encode(), "the trained tree vocabulary")

    def __len__(self) -> int:
        return len(self._symbols)

    def encode(self, text: str) -> list[int]:
        """Ids of a prepared tree, without `</s>`, and none of a blank text; brackets whose label training has not seen
        are <unk>. Raises ValueError where the text is no tree."""
        return [self._ids.get(symbol, UNK) for symbol in linearise(parse_tree(text))] if text else []

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

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many are brackets whose label training has not seen."""
        return sum(index == UNK for index in ids)

    def tag(self, word: str) -> str:
        """The tag of a word in a tree that is put out: punctuation's own, so that EVALB deletes it, else XX."""
        return self._tags.get(word, XX)

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """The tree over the words whose ids these are, without `</s>`: under TOP, each word escaped, with its tag if
        it is punctuation, else XX.

        Raises ValueError saying what is wrong where there is none: as many leaves as words, brackets that match, no
        empty constituent.
        """
        if (leaves := sum(index == LEAF for index in ids)) != len(words) or not words:
            raise ValueError(f"{leaves:,} leaves for {len(words):,} words")
        rest = map(escape, words)
        outer: list[tuple[str, list[Tree | str]]] = []  # label and children of what is around this constituent:
        label, children = TOP, list[Tree | str]()
        for place, symbol in enumerate(self.pieces(ids), 1):
            if symbol == XX:
                word = next(rest)
                children.append(Tree(self.tag(word), (word,)))
            elif symbol[0] == "(":
                outer.append((label, children))
                label, children = symbol[1:], []
            elif not outer or symbol != f"){label}":
                raise ValueError(
                    f"symbol {place:,} is {symbol}, where " + (f"({label} is open" if outer else "nothing is open")
                )
            elif not children:
                raise ValueError(f"symbol {place:,} is {symbol}, but nothing stands in it")
            else:
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
        if outer:
            raise ValueError(f"({label} is not closed")
        return Tree(TOP, tuple(children))

    def mend(self, ids: Sequence[int]) -> list[int]:
        """The sequence with its brackets balanced and none of them empty, by the fewest additions and removals of
        brackets; control symbols are left out. It has as many leaves as before."""
        from nmt.text.mending import mend  # which imports numpy; a translator's start need not wait for that

        half = len(self.labels)
        partner = {index: index + half for index in range(FIRST_LABEL, FIRST_LABEL + half)}
        return mend([index for index in ids if index > EOS], partner)


def _punctuation(tags: Counter[tuple[str, str]]) -> dict[str, str]:
    """Words to tags, from how often a word had a tag: its most frequent one of those that EVALB deletes, where they
    are most of its tags; XX where they are not, but would be taken for that."""
    votes: dict[str, Counter[str]] = {}
    for (word, tag), count in sorted(tags.items()):
        votes.setdefault(word, Counter())[tag if tag in PUNCTUATION_TAGS else XX] += count
    table = {}
    for word, counts in votes.items():
        others = counts.pop(XX, 0)
        if counts.total() > others:
            table[word] = counts.most_common(1)[0][0]
        elif word in PUNCTUATION:
            table[word] = XX
    return table


def _read(serialized: bytes, name: str) -> tuple[tuple[str, ...], int, dict[str, str]]:
    """Labels, longest run and punctuation; raises UserError where they are not such as `train` writes."""
    try:
        content = json.loads(serialized)
        labels, longest_run, punctuation = (content[key] for key in ("labels", "longest_run", "punctuation"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{name}: is not a vocabulary of trees") from None
    problem = ""
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        problem = "labels must be a list of strings"
    elif len(set(labels)) < len(labels) or not all(map(_LABEL.fullmatch, labels)):
        problem = "labels must differ, and hold no spaces and no brackets"
    elif type(longest_run) is not int or longest_run < 1:
        problem = f"longest_run must be a positive integer, is {longest_run!r}"
    elif not isinstance(punctuation, dict) or any(tag not in (XX, *PUNCTUATION_TAGS) for tag in punctuation.values()):
        problem = f"punctuation must give words one of {' '.join(PUNCTUATION_TAGS)} {XX}"
    if problem:
        raise UserError(f"{name}: {problem}")
    return tuple(labels), longest_run, punctuation
