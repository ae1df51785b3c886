"""Models and words to trees: what `nmt.load` gives for a parser.

Knows no files and prints nothing. A sentence's tree does not depend on what shares its batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import NoReturn

from nmt.decoding.constraints import TreeConstraint
from nmt.decoding.engine import SearchEngine
from nmt.decoding.parsing import Parse, Parsing
from nmt.decoding.pipeline import Pipeline, longest_served
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.text.tokenizer import Tokenizer
from nmt.text.tree import Tree


class Parser:
    """A model, or an ensemble of several, with its tokenizer and its way of searching (section 6.3 of the paper)."""

    def __init__(
        self,
        model: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: Decoding,
        constrained: bool = True,
    ) -> None:
        """Unless `constrained`, the search finds what the model says on its own, tree or not.

        Raises UserError where decoding.max_source is beyond what a model serves.
        """
        models = [model] if isinstance(model, Transformer) else list(model)
        positions = longest_served((model.config for model in models), decoding)
        self.tokenizer, self.decoding = tokenizer, decoding
        parsing = Parsing(tokenizer, decoding)
        engine = SearchEngine(models, decoding, partial(TreeConstraint, parsing.trees) if constrained else None)
        self._pipeline = Pipeline(parsing, decoding, engine, positions)

    def parse(self, lines: Sequence[str]) -> list[Tree | None]:
        """Parses sentences, each of Treebank tokens with a space between; one tree for each, in order.

        Its leaves are the sentence's words, its root TOP. None where a line is blank, and, without the constraint,
        where what was found is no tree over the words.
        """
        if isinstance(lines, str):
            raise TypeError("parse takes a list of sentences; for one: parse([sentence])")
        return [parse.trees[0] for parse in self.stream(lines)]

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Generator[Parse, None, None]:
        """Parses lines as they come, in bounded memory; one result for each, in order."""
        return self._pipeline.stream(lines, n_best)

    def translate(self, texts: Sequence[str]) -> NoReturn:
        """Raises UserError, as a translator's `parse` does."""
        raise UserError("this model is a parser, not a translator", "call model.parse([...])")
