"""`nmt.load`: a translator or a parser for Python programs.

Nothing is printed. The result of a line does not depend on the other lines of its batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmt.checkpoint.reading import common_tokenizer
from nmt.decoding.models import Saved
from nmt.decoding.parser import Parser
from nmt.decoding.translator import Translator
from nmt.exchange.resolve import resolve
from nmt.recipe import TaskName, override_decoding

ModelPath = str | os.PathLike[str]

PIPELINES: dict[TaskName, type[Translator] | type[Parser]] = {"translate": Translator, "parse": Parser}
"""The pipeline of each task; language models have none, since they only score."""


def load(
    path: ModelPath | Sequence[ModelPath],
    device: str = "auto",
    *,
    engine: Literal["nmt", "ctranslate2"] = "nmt",
    workers: int = 1,
    threads: int | None = None,
    **decoding: object,
) -> Translator | Parser:
    """Load the model of a bundle or a run's directory, as in `nmt.load("ckpts/", beam=8)`; of several, an ensemble.

    Other keywords replace keys of the (first) bundle's decoding settings, `precision` among them. `device` is auto,
    cpu, cuda or cuda:N. Several `workers`, which are processes, share the lines, and on a CPU `threads`. They are
    spawned, so the program's main module must be importable (`if __name__ == "__main__":`), and end with `close` or
    with the block of a `with`.

    Raise UserError if there is no such model, key, value or device, if models have different tokenizers, or if one is
    a language model, which only `nmt score` uses.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    bundles = [resolve(Path(path))[0] for path in paths]
    tokenizer = common_tokenizer(bundles)
    task: TaskName = "parse" if bundles[0].task.has_trees else "translate"
    for bundle in bundles:
        bundle.check_task(task)
    settings = override_decoding(bundles[0].recipe, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    models = Saved(bundles, engine, device, workers, threads, forks=False, say=_silent)
    if task == "parse":
        return Parser(models, tokenizer, settings)
    return Translator(models, tokenizer, settings, bundles[0].lengths)


def _silent(line: str) -> None:
    """Print nothing; a function that workers can import by name."""
