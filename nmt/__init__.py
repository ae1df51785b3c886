"""nmt: train and run your own Transformer.

    import nmt
    model = nmt.load("ckpts/")
    model.translate(["I like trees."])  # a parser: model.parse(["I like trees ."])

Names are imported on first use, so the command line can answer before torch loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "load": "nmt.api",
    "Translator": "nmt.decoding.translator",
    "Parser": "nmt.decoding.parser",
    "Transformer": "nmt.model.transformer",
    "Tree": "nmt.parsing.tree",
    "Model": "nmt.recipe",
    "Recipe": "nmt.recipe",
    "UserError": "nmt.system.errors",
}

__all__ = ["Model", "Parser", "Recipe", "Transformer", "Translator", "Tree", "UserError", "__version__", "load"]

if TYPE_CHECKING:
    from nmt.api import load
    from nmt.decoding.parser import Parser
    from nmt.decoding.translator import Translator
    from nmt.model.transformer import Transformer
    from nmt.parsing.tree import Tree
    from nmt.recipe import Model, Recipe
    from nmt.system.errors import UserError


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nmt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
