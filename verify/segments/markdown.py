"""Blocks of Markdown documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .pieces import ALONE, COPIED, HOLDER, SPACE, WORD, Piece

if TYPE_CHECKING:
    from .generator import Writer

WIDTH = 60


def block(writer: Writer) -> list[Piece]:
    """Return a block without the blank lines around it."""
    drawn = writer.draw.random()
    if drawn < 0.30:
        return writer.text()
    if drawn < 0.48:
        return _wrapped(writer.text(), "")
    if drawn < 0.58:
        mark = writer.draw.choice(("# ", "## ", "### "))
        return [Piece(ALONE, mark, breaks=True), *writer.sentence(4, "")]
    if drawn < 0.72:
        mark = writer.draw.choice(("- ", "+ ", "1. ", "- [ ] "))
        pieces: list[Piece] = []
        for index in range(writer.draw.randint(2, 3)):
            raw = "\n" * (index > 0) + (mark if mark != "1. " else f"{index + 1}. ")
            pieces += [Piece(ALONE, raw, breaks=True), *writer.sentence(4, writer.draw.choice(("", ".")))]
        return pieces
    if drawn < 0.78:
        return [Piece(ALONE, "> ", breaks=True), *_wrapped(writer.text(), "> ")]
    if drawn < 0.88:
        return _table(writer)
    if drawn < 0.92:
        first, second = writer.sentence(4, "."), writer.sentence(4, ".")
        return [*first, Piece(SPACE, writer.draw.choice(("  \n", "\\\n")), breaks=True), *second]
    if drawn < 0.95:
        return [Piece(COPIED, "```python\nif the_dog < 3:\n    print('the dog sees')\n```")]
    if drawn < 0.97:
        return [Piece(ALONE, "[^1]: ", breaks=True), *writer.sentence(4, ".")]
    return [Piece(COPIED, writer.draw.choice(('[cat]: https://x.org/cat "A cat"', "---", "    x = the_dog(1)")))]


def _table(writer: Writer) -> list[Piece]:
    pieces: list[Piece] = []
    for row in range(3):
        if row == 1:
            pieces.append(Piece(ALONE, "|---|---|\n", breaks=True))
            continue
        for cell in range(2):
            pieces += [Piece(ALONE, "| " if cell == 0 else " | ", breaks=True)]
            words = writer.sentence(2, "")
            pieces += [piece for piece in words if "|" not in piece.raw]
        pieces.append(Piece(ALONE, " |" + "\n" * (row == 0), breaks=True))
    return pieces


def _wrapped(pieces: list[Piece], before: str) -> list[Piece]:
    """Wrap a text at single spaces, outside codes."""
    found, column = list[Piece](), 0
    for index, piece in enumerate(pieces):
        following = pieces[index + 1] if index + 1 < len(pieces) else None
        is_place = piece.raw == " " and following is not None and following.kind in (WORD, HOLDER)
        if is_place and following and column + 1 + len(following.raw) > WIDTH:
            found.append(replace(piece, raw="\n" + before, soft=True))
            column = len(before)
        else:
            found.append(piece)
            column += len(piece.raw)
    return found
