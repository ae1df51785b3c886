"""Types of options: what a value may be, and what the shell completes it to."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

WORKERS = click.IntRange(1, 256)  # more GPUs than a host has, and more shares than are worth cutting its CPU into


class NumberOrAuto(click.IntRange):
    """A whole number from 1 on, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number or "auto"; fails with a usage error on anything else."""
        if value == "auto":
            return value
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither auto nor a whole number from {self.min} on", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The word, if it begins like this."""
        return Word("auto").shell_complete(ctx, param, incomplete)


class Text(click.ParamType[Any]):
    """A string that is not empty: an empty one is a shell variable that was never set."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The string; fails with a usage error if it is empty."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return value


class Word(Text):
    """A string that is not empty; the shell completes it to one of some values, though others may be allowed."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The values that begin like this."""
        return [CompletionItem(value) for value in self._values if value.startswith(incomplete)]


class FilePath(Text):
    """A path that is not empty, which Python would take for the working directory."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path; fails with a usage error if it is empty."""
        return Path(super().convert(value, param, ctx))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leaves it to the shell to find files."""
        return [CompletionItem(incomplete, type="file")]


class Shares(Text):
    """Numbers from 0 on with commas between them, at least one of them above 0."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers; fails with a usage error on anything else."""
        try:
            shares = tuple(map(float, super().convert(value, param, ctx).split(",")))
        except ValueError:
            shares = ()
        if not shares or not all(0 <= share < math.inf for share in shares) or not 0 < sum(shares) < math.inf:
            self.fail(f"{value!r} are not numbers from 0 on, such as 0.3,0.7", param, ctx)
        return shares


class LayerOf(Text):
    """A layer, counted from 1, of encoder, decoder or cross: cross:5; without a kind, of the encoder."""

    name = "layer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The kind and the number; fails with a usage error on anything else."""
        found = re.fullmatch("(?:(encoder|decoder|cross):)?([1-9][0-9]{0,5})", super().convert(value, param, ctx))
        if not found:
            self.fail(f"{value!r} is no layer, such as 5, encoder:5, decoder:5 or cross:5", param, ctx)
        return found[1] or "encoder", int(found[2])


class Heads(Text):
    """Numbers of heads from 1 on with commas between them."""

    name = "heads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers in order, each once; fails with a usage error on anything else."""
        if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", super().convert(value, param, ctx)):
            self.fail(f"{value!r} are not numbers of heads from 1 on, such as 1,2", param, ctx)
        return tuple(sorted({int(head) for head in value.split(",")}))


TEXT, FILE = Text(), FilePath()
