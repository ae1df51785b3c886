"""Lines that become trees: their words as subwords, and what is known of each tree in the end.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from nmt.errors import UserError
from nmt.recipe import Decoding
from nmt.tasks.lines import Line, Part, distinct
from nmt.tasks.output import as_json
from nmt.text.linear import TreeVocabulary, escape
from nmt.text.tokenizer import Tokenizer
from nmt.text.tree import TOP, Tree


@dataclass(frozen=True)
class Parse:
    """What became of one line."""

    trees: list[Tree | None]
    """Best first, one unless more were asked for; no two are equal. None where a malformed output could not be mended,
    and of a blank line."""
    scores: list[float]
    """Length-normalised log-probability of each, in nats; of a line split into parts their sum."""
    malformed: list[bool]
    """Whether the model's own output was no tree over the words, which takes a search without constraint."""
    ids: list[list[int]]
    """Symbols of each, unmended, those of parts joined."""
    source: list[int]
    """Subwords of the line."""
    parts: int
    """How many pieces the line was split into; 0 where it is blank, more than one beyond decoding.max_source."""
    capped: bool
    """Whether the best output was cut off at its cap."""
    unknown: int
    """Characters of the line for which the vocabulary has no subword."""
    cut: int
    """Words that alone are beyond decoding.max_source, and of which the model saw the beginning."""

    @property
    def texts(self) -> list[str]:
        """The trees, each on a line; nothing where there is none."""
        return ["" if tree is None else str(tree) for tree in self.trees]

    @property
    def failed(self) -> bool:
        """Whether a line that is not blank has no tree."""
        return self.parts > 0 and self.trees[0] is None

    @property
    def mended(self) -> bool:
        """Whether the best output was malformed, and is a tree now."""
        return self.malformed[0] and self.trees[0] is not None


class Parsing:
    """Parsing as the task of a `Pipeline`."""

    aligned = False
    warnings: Mapping[str, Callable[[Parse], int]] = {
        "caps hit": lambda parse: parse.capped,
        "inputs split": lambda parse: parse.parts > 1,
        "words cut": lambda parse: parse.cut,
        "unknown characters": lambda parse: parse.unknown,
        "malformed": lambda parse: parse.malformed[0],
        "mended": lambda parse: parse.mended,
        "failed": lambda parse: parse.failed,
    }

    def __init__(self, tokenizer: Tokenizer, decoding: Decoding, constrained: bool = True) -> None:
        """Unless `constrained`, an output may be malformed. Raises UserError where decoding.min_length is set."""
        assert isinstance(tokenizer.target, TreeVocabulary), "the tokenizer of a parser knows the symbols of trees"
        if decoding.min_length:
            raise UserError(
                f"decoding.min_length: must be 0 for a parser; a tree is as long as its words ask for "
                f"(got {decoding.min_length})",
                "--set decoding.min_length=0",
            )
        self.tokenizer, self._trees, self._limit = tokenizer, tokenizer.target, decoding.max_source
        self.only_trees = self._trees if constrained else None

    def split(self, text: str) -> list[Part]:
        """See `Task`; a line beyond decoding.max_source subwords is split between words."""
        parts: list[Part] = []
        ids: list[int] = []
        count = 0
        for word in self._encode(words_of(text)):
            if count and len(ids) + len(word) > self._limit:
                parts.append(Part(ids, count))
                ids, count = [], 0
            ids += word[: self._limit]
            count += 1
        return [*parts, Part(ids, count)] if count else []

    def join(self, line: Line, n_best: int) -> Parse:
        """See `Task`; the trees of parts have one root."""
        source, words = line.source(), _words_of_parts(line)
        each = ((rank, *self._tree([part[rank].ids for part in line.hypotheses], words)) for rank in line.ranks())
        found = distinct(((tree, (rank, malformed)) for rank, tree, malformed in each), n_best)
        ranks = [rank for rank, _ in found.values()]
        return Parse(
            trees=list(found),
            scores=[line.score(rank) for rank in ranks],
            malformed=[malformed for _, malformed in found.values()],
            ids=[line.ids(rank) for rank in ranks],
            source=source,
            parts=len(line.parts),
            capped=line.capped(),
            unknown=self.tokenizer.source.count_unknown(source),
            cut=sum(map(self._is_cut, line.parts, words)),
        )

    def as_json(self, number: int, parse: Parse) -> str:
        """See `Task`; a tree is null where there is none."""
        hypotheses = [
            {
                "tree": text or None,
                "score": parse.scores[rank],
                "malformed": parse.malformed[rank],
                "tokens": self.tokenizer.target.pieces(parse.ids[rank]),
            }
            for rank, text in enumerate(parse.texts)
        ]
        return as_json(number, parse, self.tokenizer, hypotheses, cut=parse.cut)

    def _encode(self, words: Sequence[str]) -> list[list[int]]:
        """Subwords of each word as the model has learned it; no subword reaches from one word into the next."""
        return self.tokenizer.source.encode_all([escape(word) for word in words])

    def _tree(self, found: Sequence[list[int]], words: Sequence[list[str]]) -> tuple[Tree | None, bool]:
        """The tree of a line from the symbols and words of its parts, and whether those were malformed."""
        parts = list(map(self._mended, found, words))
        trees = [tree for tree, _ in parts if tree is not None]
        whole = bool(parts) and len(trees) == len(parts)
        malformed = any(malformed for _, malformed in parts)
        return Tree(TOP, tuple(child for tree in trees for child in tree.children)) if whole else None, malformed

    def _mended(self, ids: list[int], words: list[str]) -> tuple[Tree | None, bool]:
        """The tree over these words that the symbols are, mended if need be, and whether need was."""
        try:
            return self._trees.tree(ids, words), False
        except ValueError:
            if self._trees.count_leaves(ids) != len(words):  # which brackets would not change
                return None, True
        return self._trees.tree(self._trees.mend(ids), words), True

    def _is_cut(self, part: Part, words: list[str]) -> bool:
        """Whether the one word of a part has more subwords than the part."""
        return len(words) == 1 and len(part.ids) == self._limit < len(self._encode(words)[0])


def drawn(number: int, parse: Parse) -> str:
    """The best tree drawn over several lines, of which the last is empty; only that one where there is none."""
    tree = parse.trees[0]
    return "" if tree is None else f"{tree.pretty()}\n"


def words_of(text: str) -> list[str]:
    """The words of a line, between which ASCII whitespace stands; of what is no text, lone surrogates, '?' is left."""
    return [word.decode() for word in text.encode(errors="replace").split()]  # str.split would part at U+3000, too


def _words_of_parts(line: Line) -> list[list[str]]:
    words = iter(words_of(line.text))
    return [list(islice(words, part.words)) for part in line.parts]
