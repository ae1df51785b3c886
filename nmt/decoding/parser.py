"""From a line to its tree. Imports no torch.

`Parser.split` encodes the words of a line in parts, `Pipeline` searches them, `Parser.join` joins their trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, cast

from nmt.decoding.models import Models
from nmt.decoding.pipeline import LineResult, Pipeline
from nmt.decoding.read_ahead import Line, Part, Request
from nmt.parsing.linearization import TreeVocabulary, escape
from nmt.parsing.tree import TOP, Tree, read_tree_lines
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nmt.decoding.constraints import MakeConstraint
    from nmt.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Parse(LineResult):
    """The trees of one line; `texts` has each on one line, "" for no tree."""

    trees: list[Tree | None]
    """None for a blank line."""
    cut: int
    """Number of words cut to decoding.max_source subwords."""


class Parser(Pipeline[Parse]):
    """A model, or an ensemble of several, with its tokenizer and its decoding settings (section 6.3 of the paper)."""

    def __init__(
        self, models: Transformer | Sequence[Transformer] | Models, tokenizer: Tokenizer, decoding: Decoding
    ) -> None:
        assert isinstance(tokenizer.target, TreeVocabulary), "the tokenizer of a parser knows the symbols of trees"
        self._trees, self._limit = tokenizer.target, decoding.max_source
        super().__init__(models, tokenizer, decoding)

    @staticmethod
    def warnings(decoding: Decoding) -> Mapping[str, Callable[[Parse], int]]:
        """Return for each warning, by name, the function that counts it in a parse."""
        return {
            "caps hit": lambda parse: parse.capped,
            "inputs split": lambda parse: parse.parts > 1,
            "words cut": lambda parse: parse.cut,
            "unknown characters": lambda parse: parse.unknown,
        }

    def parse(self, lines: Sequence[str]) -> list[Tree | None]:
        """Parse sentences of Treebank tokens separated by spaces; return a tree of each, in order.

        The leaves of a tree are the words of its sentence, and its root is TOP. A blank line has None.
        """
        if isinstance(lines, str):
            raise TypeError("parse takes a list of sentences; for one: parse([sentence])")
        return [parse.trees[0] for parse in self.stream(lines)]

    def translate(self, texts: Sequence[str]) -> NoReturn:
        """Raise UserError: only translators translate."""
        raise UserError("this model is a parser, not a translator", "call model.parse([...])")

    @staticmethod
    def constraints(tokenizer: Tokenizer, decoding: Decoding) -> list[MakeConstraint]:
        """Return the rule that every output is a tree over the words of its source."""
        from nmt.decoding.constraints import TreeConstraint

        return [partial(TreeConstraint, cast(TreeVocabulary, tokenizer.target))]

    def split(self, request: Request) -> list[Part]:
        """Return the parts of a line, encoded: it is split between words beyond decoding.max_source subwords."""
        parts: list[Part] = []
        ids: list[int] = []
        count = 0
        for word in self._encode(words_of(request.text)):
            if count and len(ids) + len(word) > self._limit:
                parts.append(Part(ids, count))
                ids, count = [], 0
            ids += word[: self._limit]
            count += 1
        return [*parts, Part(ids, count)] if count else []

    def encode_pair(self, source: str, output: str) -> tuple[list[int], list[int]]:
        """Encode a line, without splitting it, and a tree over it, in brackets."""
        parts, tree = self.split(Request(source)), next(read_tree_lines([output], "tree"))
        if len(parts) > 1:
            raise UserError(
                f"a line that may not be split has more subwords than decoding.max_source {self._limit:,}: "
                f"{source[:60]} …",
                "raise decoding.max_source, or parse a shorter sentence",
            )
        leaves = 0 if tree is None else len(tree.leaves())
        if tree is None or leaves != sum(part.words for part in parts):
            raise UserError(
                f"the tree has {leaves:,} leaves for a line of {len(words_of(source)):,} words: {output[:60]}",
                "give a tree over the words of the line, as parse returns it",
            )
        return [symbol for part in parts for symbol in part.ids], self._trees.encode(str(tree))

    def text(self, line: Line, rank: int) -> str:
        """Join the trees of this rank of all parts of a line, on one line; "" for a blank line."""
        return str(self._tree(line, rank) or "")

    def join(self, line: Line, found: Sequence[tuple[str, int]]) -> Parse:
        """Make the parse of a line whose outputs have these texts and ranks."""
        trees = [self._tree(line, rank) for _, rank in found]
        return Parse.of(line, found, self.tokenizer, trees=trees, cut=sum(map(self._is_cut, _words_of_parts(line))))

    def as_json(self, number: int, parse: Parse) -> str:
        """Format the parse of input line `number` as a JSON object on one line; no tree is null."""
        hypotheses = [
            {"tree": text or None, "score": score, "malformed": False, "tokens": self.tokenizer.target.pieces(ids)}
            for text, score, ids in zip(parse.texts, parse.scores, parse.ids, strict=True)
        ]
        return self._json(number, parse, hypotheses, cut=parse.cut)

    def _encode(self, words: Sequence[str]) -> list[list[int]]:
        """Encode each word as in training: escaped, and with no subword that spans two words."""
        return self.tokenizer.source.encode_all([escape(word) for word in words])

    def _tree(self, line: Line, rank: int) -> Tree | None:
        """Join the trees of this rank of all parts of a line under one root; return None for a blank line."""
        found = zip(line.hypotheses, _words_of_parts(line), strict=True)
        trees = [self._trees.tree(part[rank].ids, words) for part, words in found]
        return Tree(TOP, tuple(child for tree in trees for child in tree.children)) if trees else None

    def _is_cut(self, words: list[str]) -> bool:
        """Return whether a part of these words is a single word of too many subwords."""
        return len(words) == 1 and len(self._encode(words)[0]) > self._limit


def drawn(number: int, parse: Parse) -> str:
    """Draw the best tree over several lines, with an empty line after it; return "" if there is no tree."""
    tree = parse.trees[0]
    return "" if tree is None else f"{tree.pretty()}\n"


def words_of(text: str) -> list[str]:
    """Split a line at ASCII whitespace; lone surrogates become "?"."""
    return [word.decode() for word in text.encode(errors="replace").split()]  # str.split would also split at U+3000


def _words_of_parts(line: Line) -> list[list[str]]:
    """Return the words of each part of a line."""
    words = iter(words_of(line.text))
    return [list(islice(words, part.words)) for part in line.parts]
