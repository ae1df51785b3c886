"""Trees as sequences of symbols, as in Vinyals et al. 2015: `(S (NP XX XX )NP (VP XX )VP )S`.

Each of these symbols is one entry of the vocabulary, which is the target side of a parser. The root TOP itself is not
written: a sequence is that of TOP's children. Words and tags are not in it, so that giving them back needs the words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nmt.errors import UserError
from nmt.text.symbols import EOS, UNK
from nmt.text.tree import TOP, Tree, parse_tree

LEAF = 4  # id of XX, which stands for any word
FIRST_LABEL = 5  # id of the first opening bracket; the bracket that closes it is as many ids on as there are labels
XX = "XX"  # the tag of words that are not punctuation

PUNCTUATION_TAGS = (",", ":", "``", "''", ".")  # those that EVALB deletes: a tree with others is no match for it
PUNCTUATION = {  # as the Treebank tags them, for words that training has not seen
    **dict.fromkeys((",", "،", "，", "、"), ","),
    **dict.fromkeys((":", ";", "-", "--", "---", "–", "—", "...", "..", "…", "：", "；"), ":"),
    **dict.fromkeys(("``", "`", "“", "‘", "«", "„", "‚"), "``"),
    **dict.fromkeys(("''", "'", "”", "’", "»", '"'), "''"),
    **dict.fromkeys((".", "?", "!", "?!", "!?", "??", "!!", "!!!", "???", "。", "？", "！"), "."),
}


def escape(word: str) -> str:
    """The word as a Treebank spells it: its brackets would else be those of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


class TreeVocabulary:
    """The symbols of linear trees: <pad> <unk> <s> </s>, XX, an opening bracket for each label, then the closing ones.

    `labels` are the constituents' labels, the most frequent first; `longest_run` is the most opening brackets in a
    row that training had; `punctuation` gives words the tags that EVALB deletes, or XX where training had another.
    """

    def __init__(self, serialized: bytes, name: str) -> None:
        """`name` is what errors call it. Raises UserError where the bytes are no tree vocabulary of ours."""
        self.serialized = serialized
        content = _checked(serialized, name)
        self.labels: tuple[str, ...] = tuple(content["labels"])
        self.longest_run: int = content["longest_run"]
        self.punctuation: dict[str, str] = content["punctuation"]
        self._openers = {label: FIRST_LABEL + n for n, label in enumerate(self.labels)}
        brackets = (*(f"({label}" for label in self.labels), *(f"){label}" for label in self.labels))
        self._symbols = ["<pad>", "<unk>", "<s>", "</s>", XX, *brackets]
        self._tags: dict[str, str] = PUNCTUATION | self.punctuation

    @classmethod
    def train(cls, trees: Iterable[str | Tree]) -> TreeVocabulary:
        """The vocabulary of prepared trees. Raises UserError where they hold no constituent below TOP."""
        labels: Counter[str] = Counter()
        tags: dict[str, Counter[str]] = {}
        longest_run = 0
        for tree in trees:
            tree = parse_tree(tree) if isinstance(tree, str) else tree
            run = 0
            for symbol in _walk(tree):
                run = run + 1 if isinstance(symbol, Tree) else 0
                longest_run = max(longest_run, run)
                if isinstance(symbol, Tree):
                    labels[symbol.label] += 1
            for word, tag in tree.pos():
                tags.setdefault(word, Counter())[tag] += 1
        if not labels:
            raise UserError("data.train: holds no constituents to train a parser on")
        majority = {word: counts.most_common(1)[0][0] for word, counts in tags.items()}
        content = {
            "labels": [label for label, _ in sorted(labels.items(), key=lambda item: (-item[1], item[0]))],
            "longest_run": longest_run,
            "punctuation": {
                word: tag if tag in PUNCTUATION_TAGS else XX
                for word, tag in sorted(majority.items())
                if tag in PUNCTUATION_TAGS or word in PUNCTUATION
            },
        }
        return cls(json.dumps(content, ensure_ascii=False, indent=1).encode(), "the trained tree vocabulary")

    def __len__(self) -> int:
        return len(self._symbols)

    def encode(self, text: str) -> list[int]:
        """Ids of a prepared tree that stands on one line, without `</s>`, none of a blank line; brackets with a label
        that training had not are <unk>. Raises ValueError where it is no tree."""
        if not text:
            return []
        ids = []
        for symbol in _walk(parse_tree(text)):
            if isinstance(symbol, Tree):
                ids.append(self._openers.get(symbol.label, UNK))
            elif symbol is None:
                ids.append(LEAF)
            else:
                opener = self._openers.get(symbol, UNK)
                ids.append(opener if opener == UNK else opener + len(self.labels))
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many trees."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The linear form, its symbols separated by spaces; control symbols among them give nothing."""
        return " ".join(self.pieces([i for i in ids if i > EOS]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The symbols of ids."""
        return [self._symbols[i] for i in ids]

    def listing(self) -> list[str]:
        """All symbols, by id."""
        return list(self._symbols)

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many symbols are brackets with a label that training had not."""
        return sum(index == UNK for index in ids)

    def tag(self, word: str) -> str:
        """The tag of a word in a tree that is put out: punctuation's own, so that EVALB deletes it, else XX."""
        return self._tags.get(word, XX)

    def tree(self, ids: Sequence[int], words: Sequence[str]) -> Tree:
        """The tree over these words whose linear form is `ids`, without `</s>`, with the root TOP.

        Raises ValueError saying what is wrong where there is none: brackets that do not balance, an empty
        constituent, another number of leaves than there are words.
        """
        stack: list[tuple[int, list[Tree | str]]] = [(0, [])]  # the closing bracket awaited, the children so far
        closers = FIRST_LABEL + len(self.labels)
        used = 0
        for place, index in enumerate(ids, 1):
            if not LEAF <= index < len(self):
                raise ValueError(f"symbol {place}: id {index} is no part of a tree")
            if index == LEAF:
                if used < len(words):
                    word = escape(words[used])
                    stack[-1][1].append(Tree(self.tag(word), (word,)))
                used += 1
            elif index < closers:
                stack.append((index + len(self.labels), []))
            else:
                awaited, children = stack[-1]
                if index != awaited:
                    expected = f"{self._symbols[awaited]} is awaited" if len(stack) > 1 else "no bracket is open"
                    raise ValueError(f"symbol {place}: {self._symbols[index]} where {expected}")
                if not children and used <= len(words):
                    raise ValueError(f"symbol {place}: {self._symbols[index]} closes an empty constituent")
                stack.pop()
                stack[-1][1].append(Tree(self._symbols[index][1:], tuple(children)))
        if len(stack) > 1:
            raise ValueError(f"{self._symbols[stack[-1][0]]} is missing at the end")
        if used != len(words) or not used:
            raise ValueError(f"{used:,} leaves for {len(words):,} words")
        return Tree(TOP, tuple(stack[0][1]))

    def mend(self, ids: Sequence[int]) -> list[int]:
        """The sequence with its brackets balanced and none of them empty, at the cost of as few additions and
        removals of brackets as there can be; symbols that are neither brackets nor leaves are left out.

        Of brackets without a partner those around a word get one, as early or as late as the constituents around
        them allow (Vinyals et al. added brackets at the ends of the sequence); the others are removed.
        """
        half = len(self.labels)
        ids = [index for index in ids if LEAF <= index < len(self)]
        partnered = _partnered(np.array(ids), half)
        # What is open: the opening bracket, what stands in it so far, whether its closing bracket is there.
        stack: list[tuple[int, list[int], bool]] = [(0, [], True)]

        def close() -> None:
            opener, inside, _ = stack.pop()
            if inside:
                stack[-1][1].extend((opener, *inside, opener + half))

        for place, index in enumerate(ids):
            if index == LEAF:
                stack[-1][1].append(index)
            elif index < FIRST_LABEL + half:
                stack.append((index, [], partnered[place]))
            else:
                while not stack[-1][2]:
                    close()
                if partnered[place]:
                    close()
                elif inside := stack[-1][1]:
                    inside[:] = [index - half, *inside, index]
        while len(stack) > 1:
            close()
        return stack[0][1]


def _walk(tree: Tree) -> Iterable[Tree | str | None]:
    """The linear form: a constituent where it opens, its label where it closes, None for a leaf."""
    stack: list[tuple[Tree | str, bool]] = [(child, True) for child in reversed(tree.children)]
    while stack:
        node, opens = stack.pop()
        if isinstance(node, str):
            yield None if opens else node
        elif node.is_preterminal:
            yield None
        else:
            yield node
            stack.append((node.label, False))
            stack.extend((child, True) for child in reversed(node.children))


def _partnered(ids: np.ndarray[Any, np.dtype[np.int64]], half: int) -> list[bool]:
    """Which brackets have a partner in the largest set of pairs that nest and have a leaf within."""
    n = len(ids)
    words = np.concatenate(([0], np.cumsum(ids == LEAF)))
    # most[i, j] is the number of pairs in ids[i:j]; a row needs only those below it.
    most = np.zeros((n + 2, n + 2), dtype=np.int32)
    for i in range(n - 1, -1, -1):
        most[i] = most[i + 1]
        for k in _closers(ids, words, i, n, half):
            np.maximum(most[i, k + 1 :], most[i + 1, k] + 1 + most[k + 1, k + 1 :], out=most[i, k + 1 :])
    partnered = [False] * n
    parts = [(0, n)]
    while parts:
        i, j = parts.pop()
        while i < j and most[i, j] == most[i + 1, j]:
            i += 1
        for k in _closers(ids, words, i, j, half) if i < j else ():
            if most[i, j] == most[i + 1, k] + 1 + most[k + 1, j]:
                partnered[i] = partnered[k] = True
                parts += [(i + 1, k), (k + 1, j)]
                break
    return partnered


def _closers(ids: Any, words: Any, i: int, j: int, half: int) -> list[int]:
    """Where in ids[i:j] the bracket at i can be closed."""
    if not FIRST_LABEL <= ids[i] < FIRST_LABEL + half:
        return []
    return [int(k) for k in np.flatnonzero(ids[i:j] == ids[i] + half) + i if words[k] > words[i]]


def _checked(serialized: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(serialized)
        labels, longest_run, punctuation = (content[key] for key in ("labels", "longest_run", "punctuation"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{name}: is not a vocabulary of trees") from None
    if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
        raise UserError(f"{name}: labels must be a list of strings")
    if bad := [label for label in labels if not re.fullmatch(r"[^()\x09-\x0d ]*", label)] or [
        label for label, count in Counter(labels).items() if count > 1
    ]:
        raise UserError(f"{name}: labels: {bad[0]!r} holds a space or bracket, or stands there twice")
    if type(longest_run) is not int or longest_run < 1:
        raise UserError(f"{name}: longest_run must be a positive integer, is {longest_run!r}")
    if not isinstance(punctuation, dict) or not set(map(str, punctuation.values())) <= {XX, *PUNCTUATION_TAGS}:
        raise UserError(f"{name}: punctuation must give words one of {' '.join(PUNCTUATION_TAGS)} {XX}")
    return dict(content)
