"""A translator or parser as a page: one HTML file that runs the model by itself, offline, in any browser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from nmt import __version__
from nmt.checkpoint.reading import Bundle
from nmt.exchange import javascript
from nmt.recipe import TaskName
from nmt.report.page import render
from nmt.report.record import read_run
from nmt.system.console import figure
from nmt.system.errors import UserError, counted
from nmt.system.files import whole_file

SUFFIX = ".html"
PAGES: dict[TaskName, tuple[str, ...]] = {
    "translate": ("colours", "elements", "attention", "views", "asking", "translator"),
    "parse": ("colours", "elements", "brackets", "asking", "parser"),
}
"""Parts of the page of each task; the last is the stem of its template"""
WORKER = "'wasm-unsafe-eval'; worker-src blob:"
"""What the page's policy allows besides its own scripts: WebAssembly, in a worker that it makes itself"""


def export_page(bundle: Bundle, path: Path, licence: str | None) -> None:
    """Export a translator or parser as a page; `licence`, if known, is named on it. An existing file is replaced.

    Raise UserError if a page cannot have the model, the bundle is damaged, or the file cannot be written.
    """
    javascript.check_expressible(bundle)
    values, block = javascript.described(bundle)
    parts = PAGES[bundle.info.task]
    before = []
    languages = ""
    title = "Parser"
    if bundle.info.task == "translate":
        before.append(javascript.script("joining"))
        sources, targets = zip(*bundle.recipe.data.directions, strict=True)
        languages = f"{', '.join(dict.fromkeys(sources))} to {', '.join(dict.fromkeys(targets))}"
        title = f"Translator, {languages}"
    html = render(
        f"{parts[-1]}.html",
        parts,
        before=before,
        allowed=WORKER,
        title=title,
        languages=languages,
        facts=list(_facts(bundle, licence)),
        content={"values": values},
        worker=javascript.script(*javascript.SCRIPTS[bundle.info.task]),
        products=javascript.compiled(),
        packed=block.packed(),
    )
    with whole_file(path) as stream:
        stream.write(html.encode())


def _facts(bundle: Bundle, licence: str | None) -> Iterator[tuple[str, str]]:
    """Yield what the page says of the model, as pairs of name and value."""
    yield "Name", bundle.recipe.name
    yield "Licence of the weights", licence or "not stated"
    pairs = _trained_pairs(bundle)
    if pairs is not None:
        yield "Trained on", counted(pairs, "pair")
    for name, value in bundle.scores.items():
        label = bundle.task.labels.get(name, name)
        yield f"Dev {label}", figure(value)
    yield "Parameters", f"{sum(weight.numel() for weight in bundle.weights().values()):,}, in 8 bits each"
    yield "Exported", f"{date.today().isoformat()}, by nmt {__version__}"


def _trained_pairs(bundle: Bundle) -> int | None:
    """Return how many pairs the run of a bundle was trained on, if its folder tells."""
    try:
        data = read_run(bundle.path.parent).about.data
    except UserError:
        return None
    return data["train"].kept if "train" in data else None
