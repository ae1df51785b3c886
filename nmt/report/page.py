"""The page of one or more runs: a single file that works from disk, without a network.

Each section is a function that turns runs into plain values, and a Jinja template that shows them. The page holds the
scripts and styles that it needs. Its security policy lets nothing else run or load.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from nmt.files import whole_file
from nmt.report import charts, hygiene, overview, recipe, sentences, trees
from nmt.report.record import RunRecord

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """A part of the page below the first screen, with an entry in its table of contents."""

    name: str
    """Of templates/NAME.html, of NAME.css and NAME.js if there are such files, and of the anchor"""
    title: str
    content: Callable[[Sequence[RunRecord]], Mapping[str, Any] | None]
    """Gives what the template finds as `content`; None leaves out the section"""


SECTIONS = (
    Section("curves", "Curves", charts.content),
    Section("sentences", "Dev sentences", sentences.content),
    Section("trees", "Trees by label and length", trees.content),
    Section("recipe", "Recipe and cost", recipe.content),
    Section("hygiene", "Data", hygiene.content),
)
"""In the order of the page."""


def write_page(records: Sequence[RunRecord], path: Path) -> None:
    """Write one page about these runs, of which there is at least one; a page at `path` is replaced as a whole.

    Raises UserError if `path` cannot be written.
    """
    shown = [(section, content) for section in SECTIONS if (content := section.content(records)) is not None]
    names = ["colours", "page", "brackets", *(section.name for section, _ in shown)]
    scripts = _sources(names, ".js")
    html = (
        _environment()
        .get_template("page.html")
        .render(
            overview=overview.content(records),
            sections=[{"name": section.name, "title": section.title, "content": content} for section, content in shown],
            styles="\n".join(_sources(names, ".css")),
            scripts=scripts,
            policy=_policy(scripts),
            written=datetime.now(UTC),
        )
    )
    with whole_file(path) as stream:
        stream.write(html.encode())


@cache
def _environment() -> jinja2.Environment:
    """Jinja with our templates, which are compiled once for all pages of a process."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sources(names: Sequence[str], suffix: str) -> list[str]:
    """The files templates/NAME.suffix that there are."""
    paths = [(TEMPLATES / name).with_suffix(suffix) for name in names]
    return [path.read_text(encoding="utf-8") for path in paths if path.exists()]


def _policy(scripts: Sequence[str]) -> str:
    """A Content-Security-Policy under which only these scripts run, and nothing off the page is loaded."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
