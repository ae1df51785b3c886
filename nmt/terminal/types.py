"""Types of options: what a value may be, and what the shell completes it to."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

WORKERS = click.IntRange(1, 256)  # more GPUs than a host has, and more shares than are worth cutting its CPU into


class Text(click.ParamType[Any]):
    """A string that is not empty: an empty one is a shell variable that was never set.

    `read` makes the value of it. The shell completes it to one of `words`, though others may be allowed.
    """

    name = "text"

    def __init__(self, *words: str, read: Callable[[str], Any] = str) -> None:
        self._words, self._read = words, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; fails with a usage error if the string is empty."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return self._read(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin like this."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class FilePath(Text):
    """A path that is not empty, which Python would take for the working directory."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell to find files."""
        return [CompletionItem(incomplete, type="file")]


class NumberOrAuto(click.IntRange):
    """A whole number, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number or "auto"; fails with a usage error on anything else."""
        return value if value == "auto" else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the word, if it begins like this."""
        return Text("auto").shell_complete(ctx, param, incomplete)


def shares(text: str) -> tuple[float, ...]:
    """Read numbers from 0 on with commas between them, at least one of them above 0."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= share < math.inf for share in found) or not 0 < sum(found) < math.inf:
        raise click.BadParameter(f"{text!r} are not numbers from 0 on, such as 0.3,0.7")
    return found


def layer(text: str) -> tuple[str, int]:
    """Read a layer, counted from 1, of encoder, decoder or cross: cross:5; without a kind, of the encoder."""
    found = re.fullmatch("(?:(encoder|decoder|cross):)?([1-9][0-9]{0,5})", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no layer, such as 5, encoder:5, decoder:5 or cross:5")
    return found[1] or "encoder", int(found[2])


def heads(text: str) -> tuple[int, ...]:
    """Read numbers of heads from 1 on with commas between them; returns them in order, each once."""
    if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", text):
        raise click.BadParameter(f"{text!r} are not numbers of heads from 1 on, such as 1,2")
    return tuple(sorted({int(head) for head in text.split(",")}))


TEXT, FILE = Text(), FilePath(read=Path)
