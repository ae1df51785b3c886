"""nmt: train and run your own Transformer.

    import nmt
    model = nmt.load("ckpts/")
    model.translate(["I like trees."])  # a parser: model.parse(["I like trees ."])

Nothing is printed, and a line's result does not depend on the rest of its batch. Names are imported on first use, so
the command line can answer before torch loads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.decoding.parser import Parser
    from nmt.decoding.translator import Translator
    from nmt.model.transformer import Transformer
    from nmt.parsing.tree import Tree
    from nmt.recipe import Model, Recipe
    from nmt.system.errors import UserError

__version__ = "0.1.0"
__all__ = ["Model", "Parser", "Recipe", "Transformer", "Translator", "Tree", "UserError", "__version__", "load"]

ModelPath = str | os.PathLike[str]
_HOMES = {
    "Translator": "nmt.decoding.translator",
    "Parser": "nmt.decoding.parser",
    "Transformer": "nmt.model.transformer",
    "Tree": "nmt.parsing.tree",
    "Model": "nmt.recipe",
    "Recipe": "nmt.recipe",
    "UserError": "nmt.system.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nmt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def load(
    path: ModelPath | Sequence[ModelPath],
    device: str = "auto",
    *,
    workers: int = 1,
    threads: int | None = None,
    to: str | None = None,
    source: str | None = None,
    **decoding: object,
) -> Translator | Parser:
    """Load a bundle or a run's directory, as in `nmt.load("ckpts/", beam=8)`; several paths form an ensemble.

    Other keywords override the first bundle's decoding settings, such as `beam` and `precision`. `device` is auto, cpu,
    cuda or cuda:N. If `workers` is above 1, that many spawned processes share the lines and, on a CPU, the `threads`;
    the program's main module must then be importable (`if __name__ == "__main__":`). `close` or leaving a `with` block
    stops them. A model of several languages translates `to` one of them, from the language `source`, unless a call says
    otherwise.

    Raise UserError if a model, key, value, language or device does not exist, or if the tokenizers differ.
    """
    from nmt.checkpoint.reading import common_tokenizer, confidence_of
    from nmt.decoding.parser import Parser
    from nmt.decoding.translator import Translator
    from nmt.decoding.workers import Saved
    from nmt.exchange.resolve import resolve
    from nmt.recipe import TaskName, override_decoding
    from nmt.system.errors import UserError
    from nmt.system.parallelism import check_counts

    check_counts(workers, threads)
    paths = [path] if isinstance(path, str | os.PathLike) else path
    if not paths:
        raise UserError("load: no path is given", 'name a bundle or a run\'s directory, such as load("ckpts/")')
    bundles = [resolve(Path(path))[0] for path in paths]
    tokenizer = common_tokenizer(bundles)
    task: TaskName = "parse" if bundles[0].task.has_trees else "translate"
    for bundle in bundles:
        bundle.check_task(task)
    # JSON, which is YAML as well, is how overrides are written.
    settings = override_decoding(bundles[0].recipe, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    if task == "parse" and (to or source):
        raise UserError(f"{to or source}: a parser has no choice of languages", "leave to and source out")
    if to or source:  # only to raise now, not at the first call
        tokenizer.complete((source, to), bundles[0].recipe.data.directions)
    models = Saved(bundles, device, workers, threads, forks=False, say=_silent)
    if task == "parse":
        return Parser(models, tokenizer, settings)
    data = bundles[0].recipe.data
    return Translator(
        models,
        tokenizer,
        settings,
        bundles[0].lengths,
        directions=data.directions,
        direction=(source, to),
        confidence=confidence_of(bundles),
        titles=data.has_titles,
    )


def _silent(line: str) -> None:
    """Discard a message. Spawned workers import this function by name, so it is not a lambda."""
