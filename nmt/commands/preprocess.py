"""`nmt preprocess`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt import recipe as recipes
from nmt.data.prepare import directory, prepare
from nmt.exchange.resolve import initial_bundle
from nmt.system.device import cores

if TYPE_CHECKING:
    from nmt.commands.options import PreprocessOptions


def preprocess(options: PreprocessOptions) -> None:
    """Train the tokenizer of a recipe and encode its data, unless they are up to date."""
    recipe = recipes.load(options.recipe, options.overrides)
    initial = initial_bundle(recipe)
    if not prepare(recipe, options.console, options.threads or cores(), initial.path if initial else None):
        options.console.say(f"nothing to do: {directory(recipe)} is up to date")
