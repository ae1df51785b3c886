"""Parsing pipeline: from a line to its tree. Imports no torch.

`Parser.split` encodes a line's words in parts, `Pipeline` searches the parts, and `Parser.join` joins their trees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast

from nmt.decoding.engine import Request, SplitLine
from nmt.decoding.pipeline import NOTHING, LineResult, Pipeline
from nmt.decoding.workers import Models
from nmt.parsing.linearization import TreeVocabulary, escape
from nmt.parsing.tree import TOP, Tree, read_tree_lines
from nmt.recipe import Decoding
from nmt.search.sources import Source
from nmt.system.errors import UserError, counted
from nmt.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nmt.model.transformer import Transformer
    from nmt.search.beam import SearchEngine

_UNTOKENISED = re.compile(r"\w(?:[,;?!]|n['’]t|['’](?:s|re|ve|ll|d|m))(?!\S)|[^\W\d_]{3}[.](?=\s*\Z)")
"""Pattern for words with an ending that is a Treebank token of its own; what ends a line may be an abbreviation, too"""


@dataclass(frozen=True, kw_only=True)
class Parse(LineResult):
    """Parse trees of one line; `texts` has each tree in bracket notation, "" for none."""

    trees: list[Tree | None]
    """A tree for each of `texts`; None for a blank line."""
    cut: int
    """Number of words truncated to decoding.max_source subwords."""
    untokenised: int
    """Number of words that seem to be several tokens, such as `sleeps.` and `don't`."""


class Parser(Pipeline[Parse]):
    """Parsing model or ensemble, with its tokenizer and decoding settings (section 6.3 of the paper)."""

    warnings: ClassVar = {
        "caps hit": lambda parse: parse.capped,
        "inputs split": lambda parse: parse.parts > 1,
        "words cut": lambda parse: parse.cut,
        "untokenised words": lambda parse: parse.untokenised,
        "no outputs": lambda parse: parse.failed,
        "unknown characters": lambda parse: parse.unknown,
    }

    def __init__(
        self, models: Transformer | Sequence[Transformer] | Models, tokenizer: Tokenizer, decoding: Decoding
    ) -> None:
        """Parse with a model or an ensemble."""
        self._trees = cast(TreeVocabulary, tokenizer.target)
        super().__init__(models, tokenizer, decoding, partial(self._make_engine, self._trees, decoding))

    def parse(self, lines: Sequence[str]) -> list[Tree | None]:
        """Parse sentences of space-separated Treebank tokens; return their trees, in order.

        A tree's leaves are the words of its sentence, and its root is TOP. A blank line yields None.
        """
        if isinstance(lines, str):
            raise TypeError("parse takes a list of sentences; for one: parse([sentence])")
        return [parse.trees[0] for parse in self.stream(lines)]

    def translate(self, texts: Sequence[str], **options: object) -> NoReturn:
        """Raise UserError: a parser does not translate."""
        raise UserError("this model is a parser, not a translator", "call model.parse([...])")

    def split(self, request: Request) -> list[Source]:
        """Encode a line in parts of at most decoding.max_source subwords, split between words."""
        words = words_of(request.text)
        limit = self.decoding.max_source
        parts: list[tuple[list[int], list[int]]] = []  # subwords, and the kinds of words
        for subwords, kind in zip(self._encode(words), self._trees.kinds(words), strict=True):
            if not parts or len(parts[-1][0]) + len(subwords) > limit:
                parts.append(([], []))
            ids, kinds = parts[-1]
            ids += subwords[:limit]
            kinds.append(kind)
        return [Source(0, ids, self._cap(len(ids)), kinds) for ids, kinds in parts]

    def _encode(self, words: Sequence[str]) -> list[list[int]]:
        """Encode each word as in training: escaped, with no subword that spans two words."""
        return self.tokenizer.source.encode_all(list(map(escape, words)))

    def _encode_pair(self, request: Request, output: str) -> list[tuple[list[int], list[int]]]:
        """Encode a line and a tree over its words, in bracket notation."""
        tree = next(read_tree_lines([output], "tree"))
        leaves = len(tree.leaves()) if tree else 0
        words = len(words_of(request.text))
        if leaves != words:
            problem = f"the tree has {leaves:,} leaves for a line of {counted(words, 'word')}: {output[:60]}"
            raise UserError(problem, "give a tree over the words of the line, as parse returns it")
        return [(part.ids, self._trees.encode(str(tree))) for part in self.split(request)]

    @staticmethod
    def _make_engine(
        vocabulary: TreeVocabulary, decoding: Decoding, models: Sequence[Transformer], say: Callable[[str], None]
    ) -> SearchEngine:
        """Make an engine whose outputs are trees over their sources' words."""
        from nmt.search.beam import SearchEngine
        from nmt.search.constraints import TreeConstraint

        return SearchEngine(models, decoding, [partial(TreeConstraint, vocabulary)], say)

    def _text(self, line: SplitLine, rank: int) -> str:
        """Join the trees of this `rank` from all parts, in bracket notation; "" for a blank line."""
        return str(self._tree(line, rank) or "")

    def join(self, line: SplitLine, found: Sequence[tuple[str, int]]) -> Parse:
        """Build the parse of a line from (text, rank) pairs, one per output."""
        trees = [self._tree(line, rank) for _, rank in found]
        cut = 0
        for words in _words_of_parts(line):
            if len(words) == 1:  # only a word that is longer than the limit is cut, and it is alone in its part
                (subwords,) = self._encode(words)
                cut += len(subwords) > self.decoding.max_source
        untokenised = len(_UNTOKENISED.findall(line.request.text))
        return Parse.of(line, found, self.tokenizer, trees=trees, cut=cut, untokenised=untokenised)

    def _tree(self, line: SplitLine, rank: int) -> Tree | None:
        """Join the trees of this `rank` from all parts under one root; return None if there are none."""
        found = line.of_rank(rank)
        if not found or NOTHING in found:
            return None
        children: list[Tree | str] = []
        for hypothesis, words in zip(found, _words_of_parts(line), strict=True):
            children += self._trees.tree(hypothesis.ids, words).children
        return Tree(TOP, tuple(children))

    def as_json(self, number: int, parse: Parse) -> str:
        """Format the parse of input line `number` as a JSON object on one line; a missing tree is null."""
        hypotheses = [
            {"tree": text or None, "score": score, "tokens": self.tokenizer.target.pieces(ids)}
            for text, score, ids in zip(parse.texts, parse.scores, parse.ids, strict=True)
        ]
        return self._json(number, parse, hypotheses, cut=parse.cut, untokenised=parse.untokenised)


def drawn(number: int, parse: Parse) -> str:
    """Draw the best tree over several lines, followed by a blank line; return "" if there is none."""
    tree = parse.trees[0]
    return f"{tree.pretty()}\n" if tree else ""


def words_of(text: str) -> list[str]:
    """Split a line at ASCII whitespace, replacing lone surrogates with "?"."""
    words = text.encode(errors="replace").split()  # str.split would also split at U+3000
    return list(map(bytes.decode, words))


def _words_of_parts(line: SplitLine) -> list[list[str]]:
    """Return each part's words."""
    words = iter(words_of(line.request.text))
    return [list(islice(words, part.words)) for part in line.parts]
