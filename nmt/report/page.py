"""The page of one or more runs: a single file that works from disk, without a network.

Each section is a function that turns runs into plain values, and a Jinja template that shows them. The page holds the
scripts and styles that it needs. Its security policy lets nothing else run or load.

`python -m nmt.report.page RUN` writes the page of a run while it is trained: see `nmt/training/reporting.py`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from nmt.errors import UserError
from nmt.files import whole_file
from nmt.report import charts, dev_outputs, overview, provenance
from nmt.report.record import RunRecord, read_run
from nmt.training.samples import PAGE

TEMPLATES = Path(__file__).parent / "templates"
NICENESS = 10


class Section(NamedTuple):
    """A part of the page below the first screen, with an entry in its table of contents."""

    name: str
    """Of templates/NAME.html, of NAME.css and NAME.js if there are such files, and of the anchor"""
    title: str
    content: Callable[[Sequence[RunRecord]], Mapping[str, Any] | None]
    """Gives what the template finds as `content`; None leaves out the section"""


SECTIONS = (
    Section("curves", "Curves", charts.content),
    Section("sentences", "Dev sentences", dev_outputs.packed_sentences),
    Section("trees", "Trees by label and length", dev_outputs.tree_tables),
    Section("recipe", "Recipe and cost", provenance.recipes_and_costs),
    Section("data", "Data", provenance.prepared_data),
)
"""In the order of the page."""


def write_page(records: Sequence[RunRecord], path: Path) -> None:
    """Write one page about these runs, of which there is at least one; a page at `path` is replaced as a whole.

    Raises UserError if `path` cannot be written.
    """
    shown = [(section, content) for section in SECTIONS if (content := section.content(records)) is not None]
    html = render(
        "page.html",
        ["colours", "page", "brackets", *(section.name for section, _ in shown)],
        overview=overview.content(records),
        sections=[{"name": section.name, "title": section.title, "content": content} for section, content in shown],
        written=datetime.now(UTC),
    )
    with whole_file(path) as stream:
        stream.write(html.encode())


def render(template: str, parts: Sequence[str], **values: Any) -> str:
    """Fill a template with values, and with the styles and scripts of these parts, of which no others may run."""
    sources = {suffix: [(TEMPLATES / part).with_suffix(suffix) for part in parts] for suffix in (".css", ".js")}
    styles, scripts = ([path.read_text("utf-8") for path in paths if path.exists()] for paths in sources.values())
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return _environment().get_template(template).render(styles=styles, scripts=scripts, policy=policy, **values)


@cache
def _environment() -> jinja2.Environment:
    """Jinja with our templates, which are compiled once for all pages of a process."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # in the order of the values
    return environment


def attempt(out: Path) -> str | None:
    """Write the report.html of the run in a directory; return what went wrong, if something did."""
    try:
        write_page([read_run(out)], out / PAGE)
    except UserError as error:
        return f"{error.message}; {error.hint}"
    except Exception as error:  # a fault of ours, which is no reason to end a run
        return f"{type(error).__name__}: {error}"[:200]
    return None


def main(out: Path) -> None:
    """Write the page at a low priority; say in a last line, of JSON, its processor time and what went wrong."""
    os.nice(NICENESS)
    problem = attempt(out)
    print(json.dumps({"seconds": time.process_time(), "problem": problem}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
