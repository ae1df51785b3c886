"""The messages that docs/troubleshooting.md quotes are those of the code."""

from __future__ import annotations

import ast
import re

import pytest
from test_layout import PACKAGE

PAGE = PACKAGE.parent / "docs" / "troubleshooting.md"


def quoted(page: str) -> list[str]:
    """The headings below `By the text of the message` that are a message; `…` stands for what varies."""
    part = page.partition("\n## By the text of the message\n")[2]
    return re.findall(r"^#### `(.+)`$", part, re.MULTILINE)


def texts(code: str) -> list[str]:
    """All strings of a module, with `…` in the place of values; strings that are added to each other are apart."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


SAID = [text for path in sorted(PACKAGE.rglob("*.py")) for text in texts(path.read_text(encoding="utf-8"))]


def is_said(message: str) -> bool:
    """Whether a string of the code has these words in this order, values being anything."""
    words = ".*".join(map(re.escape, message.split("…")))
    return any(re.search(words, text) for text in SAID)


@pytest.mark.parametrize("message", quoted(PAGE.read_text(encoding="utf-8")))
def test_a_message_that_is_explained_is_one_that_nmt_prints(message: str) -> None:
    assert is_said(message)
