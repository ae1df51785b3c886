"""The site of the documents, which `make docs` builds: every page is plain Markdown that also reads on a code host.

The sources of the site are the Markdown files of the whole repository, so that a link such as `../CHANGELOG.md` leads
to a page there too. `docs/index.md` is the navigation: a heading and the list of links below it become one part of it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "nmt"
author = "The nmt maintainers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "build", "ckpts", "data", "runs"]
myst_heading_anchors = 4  # links to headings, as code hosts name them
nitpicky = True

html_theme = "furo"
html_title = "nmt"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_permalinks_icon = "#"
smartquotes = False  # two hyphens begin an option
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

TRANSLATOR = Path(__file__).parents[1] / "runs/demo/translator.html"
"""What `make demo` has made, if it was run: the page that docs/deploy.md then leads to"""
TRY_HERE = "<!-- the demo's translator, on the site -->"
TRY = '<a class="try" href="translator.html">Try the demo\'s translator, in this browser</a>'

PART = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^[-*] \[([^\]]+)\]\(([^)#:]+)\.md\)", re.MULTILINE)


def navigation(index: str) -> str:
    """The index with a hidden table of contents for each of its parts, from the links that its lists begin with."""
    parts = []
    for title, body in PART.findall(re.sub("<!--.*?-->", "", index, flags=re.DOTALL)):
        entries = "\n".join(f"{name} <{page}>" for name, page in ENTRY.findall(body))
        if entries:
            parts.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n")
    return "\n\n".join([index, *parts])


def _add_to_source(_site: Sphinx, page: str, source: list[str]) -> None:
    """Give the index its navigation, and pages that name the demo's translator a link to it, if it was made."""
    if page == root_doc:
        source[0] = navigation(source[0])
    if TRANSLATOR.is_file():
        source[0] = source[0].replace(TRY_HERE, TRY)


def _adapt_page(site: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Give the parts of the navigation a level, let the keyboard scroll wide code, and name an empty icon."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    context["body"] = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["metatags"] = context.get("metatags", "") + '<link rel="icon" href="data:,">'
    if page == "search":
        site.add_js_file("texts.js")


def sections(document: Any) -> list[tuple[str, str, str]]:
    """The anchor, the heading and the text of each section of a page."""
    for hidden in list(document.findall(lambda node: node.tagname in ("raw", "comment"))):
        hidden.parent.remove(hidden)
    found = []
    for section in document.findall(lambda node: node.tagname == "section"):
        title, *body = section.children
        text = " ".join(part.astext() for part in body if part.tagname != "section")
        found.append((section["ids"][0], title.astext(), text))
    return found


def _finish(site: Sphinx, failure: Exception | None) -> None:
    """Write what the search reads, the pictures of raw HTML, and an index.html at the top, where people look for it."""
    if failure is None:
        texts = {page: sections(site.env.get_doctree(page)) for page in sorted(site.env.found_docs)}
        written = f"const TEXTS = {json.dumps(texts, ensure_ascii=False)};\n"
        (Path(site.outdir) / "_static" / "texts.js").write_text(written, encoding="utf-8")
        drawn, shown = Path(__file__).with_name("pictures"), Path(site.outdir) / "docs" / "pictures"
        shutil.copytree(drawn, shown, ignore=shutil.ignore_patterns("*.py"), dirs_exist_ok=True)
        if TRANSLATOR.is_file():
            shutil.copy(TRANSLATOR, Path(site.outdir) / "docs" / TRANSLATOR.name)
        page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{project}</title>\n'
        page += (
            f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n<a href="{root_doc}.html">{project}</a>\n'
        )
        (Path(site.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(site: Sphinx) -> None:
    """Connect what this file adds to Sphinx."""
    site.connect("source-read", _add_to_source)
    site.connect("html-page-context", _adapt_page, priority=900)  # after the theme
    site.connect("build-finished", _finish)
