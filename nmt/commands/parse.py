"""`nmt parse`: print a bracketed tree for each line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.checkpoint.reading import common_tokenizer
from nmt.commands.streams import Statistics
from nmt.commands.translate import LineSearch
from nmt.decoding.parser import Parser

if TYPE_CHECKING:
    from nmt.commands.options import ParseOptions


def parse(options: ParseOptions) -> None:
    """Parse lines with the models named by the options."""
    search = LineSearch(options, "parse")
    tokenizer, decoding = common_tokenizer(search.bundles), search.decoding
    search.run(
        lambda models: Parser(models, tokenizer, decoding),
        Statistics("parsing", Parser.warnings(decoding)),
        {"--pretty": options.pretty, "--unconstrained": False},  # the latter key keeps older blocks.json valid
    )
