"""Types of options' values: what they accept, convert to and suggest to a shell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from glob import escape, glob
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


class Text(click.ParamType[Any]):
    """A non-empty string: an empty one usually comes from an unset shell variable.

    `read` converts the string. Shell completion suggests `words`; other values are allowed.
    """

    name = "text"

    def __init__(self, *words: str, read: Callable[[str], Any] = str) -> None:
        self._words, self._read = words, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the converted value; raise a usage error for an empty string."""
        if value == "":
            self.fail("must not be empty", param, ctx)
        return self._read(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Suggest the words that start with `incomplete`."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class FilePath(Text):
    """A non-empty path; Python would take an empty one for the working directory."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete file names."""
        return [CompletionItem(incomplete, type="file")]


class RecipePath(FilePath):
    """A path to a recipe, or the name of one that comes with nmt."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Suggest names of recipes if no file name starts with `incomplete`; else let the shell complete file names."""
        from nmt.recipe.yaml_files import shipped_recipes  # imports yaml, which --help does not need

        if incomplete and not glob(f"{escape(incomplete)}*"):
            return Text(*shipped_recipes()).shell_complete(ctx, param, incomplete)
        return super().shell_complete(ctx, param, incomplete)


class NumberOrAuto(click.IntRange):
    """An integer or `auto`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer or `"auto"`; raise a usage error for anything else."""
        return value if value == "auto" else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Suggest `auto` if it starts with `incomplete`."""
        return Text("auto").shell_complete(ctx, param, incomplete)


def shares(text: str) -> tuple[float, ...]:
    """Parse comma-separated weights: finite, non-negative, with a positive sum."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= share < math.inf for share in found) or not 0 < sum(found) < math.inf:
        raise click.BadParameter(f"{text!r} is not a list of non-negative numbers, such as 0.3,0.7")
    return found


def licence(text: str) -> str:
    """Return the identifier of a licence as the Hugging Face hub spells it, in lower case."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9.+-]*", text):
        raise click.BadParameter(f"{text!r} is no identifier of a licence, such as cc-by-4.0")
    return text.lower()


def layer(text: str) -> tuple[str, int]:
    """Parse a 1-based layer such as `5` or `encoder:5`; without a prefix it is that of cross-attention."""
    found = re.fullmatch("(?:(encoder|decoder|cross):)?([1-9][0-9]{0,5})", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no layer, such as 5, cross:5, encoder:5 or decoder:5")
    return found[1] or "cross", int(found[2])


def heads(text: str) -> tuple[int, ...]:
    """Parse comma-separated 1-based heads; return them sorted, without duplicates."""
    if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", text):
        raise click.BadParameter(f"{text!r} are not numbers of heads from 1 on, such as 1,2")
    return tuple(sorted({int(head) for head in text.split(",")}))


TEXT, FILE, RECIPE = Text(), FilePath(read=Path), RecipePath(read=Path)
DEVICE, FORMAT, TOKENS = Text("auto", "cpu", "cuda"), Text("auto", "fp32", "bf16", "fp16", "int8"), Text("auto")
