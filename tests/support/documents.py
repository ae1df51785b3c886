"""The pages of the documents as a Markdown parser sees them: blocks of code with their markers, and links."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *(ROOT / "docs").rglob("*.md")]
)
"""What people read to learn and to look up."""
PROGRAMS = ("sh", "console", "python")
"""Languages of the blocks that are run unless a marker says otherwise."""

COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
COMMAND = re.compile(r"^(\$ |nmt |make |python3? |pip |torchrun |srun )", re.MULTILINE)
MARKERS = ("not run", "run", "needs", "output not compared", "file", "setup")


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    """Of its first line of code, from 1"""
    language: str
    """The word after the fence; without a fence, sh if there are commands in it, else text"""
    text: str
    markers: tuple[tuple[str, str], ...] = ()
    """What the comments right before the block say: `not run` to a reason, and so on"""

    @property
    def where(self) -> str:
        """PAGE:LINE, as errors name it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def marker(self, name: str) -> str | None:
        """What a marker says; None if the block does not have it."""
        return dict(self.markers).get(name)

    @property
    def is_program(self) -> bool:
        """Whether it is in a language that can be run."""
        return self.language in PROGRAMS

    @property
    def speed(self) -> Literal["quick", "slow", "not run"]:
        """Which target runs the block: `make test`, `make test-slow` or none."""
        if self.marker("not run") is not None:
            return "not run"
        return "slow" if self.marker("run") == "slow" else "quick"


@cache
def tokens(page: Path) -> list[Token]:
    """The page as markdown-it parses it."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def comments(token: Token) -> list[tuple[str, str]]:
    """The comments of a piece of HTML as pairs of what stands before the first colon and after it."""
    found = (text.partition(":") for text in COMMENT.findall(token.content))
    return [(name.strip(), value.strip()) for name, _, value in found]


def blocks(page: Path) -> list[Block]:
    """All blocks of code of a page, in order."""
    found, markers = [], list[tuple[str, str]]()
    for token in tokens(page):
        if token.type == "html_block":
            markers += [pair for pair in comments(token) if pair[0] in MARKERS]
        elif token.type in ("fence", "code_block"):
            assert token.map is not None
            fenced = token.type == "fence"
            language = token.info.strip() if fenced else "sh" if COMMAND.search(token.content) else "text"
            found.append(Block(page, token.map[0] + 1 + fenced, language, token.content, tuple(markers)))
            markers = []
        elif token.type in ("inline", "heading_open"):  # a marker belongs to the block right after it
            markers = []
    return found


def begins_with(page: Path) -> list[str]:
    """What the page's folder holds at its beginning: the names in its comment `begins with`."""
    said = dict(pair for token in tokens(page) if token.type == "html_block" for pair in comments(token))
    return [name.strip() for name in said.get("begins with", "").split(",") if name.strip()]


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that follows it; `> ` begins a further line of one."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif not found:
            raise ValueError(f"{block.where}: a console block begins with a command after `$ `")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def matches(expected: str, output: str) -> bool:
    """Whether an output is the expected one, in which `…` stands for any text and space at ends of lines is nothing."""
    pattern = ".*".join(map(re.escape, re.sub(r" +$", "", expected.strip(), flags=re.MULTILINE).split("…")))
    return re.fullmatch(pattern, re.sub(r" +$", "", output.strip(), flags=re.MULTILINE), re.DOTALL) is not None


def anchors(page: Path) -> list[str]:
    """The headings of a page as links name them, in order."""
    found = Counter[str]()
    names = []
    for token, before in zip(tokens(page)[1:], tokens(page), strict=False):
        if before.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", token.content.lower()).replace(" ", "-")
            names.append(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
    return names


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead, in Markdown and in HTML."""
    found = []
    for token in tokens(page):
        pieces = [token, *(token.children or ())]
        found += [str(piece.attrs[key]) for piece in pieces for key in ("href", "src") if key in piece.attrs]
        if token.type == "html_block":
            found += re.findall(r"(?:href|src|srcset)=\"([^\"]+)\"", token.content)
    return [unquote(link) for link in found]


def broken_links(page: Path) -> list[str]:
    """Links to files and headings that do not exist, and addresses of other hosts that are not well-formed."""
    broken = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            parts = urlsplit(link)
            if parts.scheme not in ("https", "http", "mailto") or not (parts.hostname or parts.path):
                broken.append(link)
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            broken.append(link)
    return broken
