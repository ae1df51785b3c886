"""Options as fields of dataclasses: how they are declared, what values they accept, and how `--help` shows them.

A help text has a summary, examples, the options in sections, and details.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from nmt import __version__
from nmt.system.console import Console

MORE = "More"  # section of options without one
# Keys of a field's metadata: click's decorator, the flag's name, and the one command that has the option, if not all
DECLARE = "declare"
FLAG = "flag"
ONLY = "only"
Examples = Sequence[tuple[str, str]]
"""Command lines, each with its explanation"""

# --- values -----------------------------------------------------------------------------------------------------


class Text(click.ParamType[Any]):
    """A non-empty string: an empty one usually comes from an unset shell variable.

    `read` converts the string. Shell completion suggests `words`; other values are allowed.
    """

    name = "text"

    def __init__(self, *words: str, read: Callable[[str], Any] = str) -> None:
        self._words = words
        self._read = read

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


class NumberOrAuto(click.IntRange):
    """An integer or `auto`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer or `"auto"`; raise a usage error for anything else."""
        if value == "auto":
            return value
        return super().convert(value, param, ctx)


TEXT = Text()
FILE = FilePath(read=Path)
BY_METAVAR = {"": None, "N": click.IntRange(min=1), "FILE": FILE, "FOLDER": FILE, "PATH": FILE}
"""The type of an option's value by the word for it in the help text; None for a flag, which has no value"""

# --- declarations -----------------------------------------------------------------------------------------------


class Option(click.Option):
    """An option that belongs to a section of the help text."""

    def __init__(self, *arguments: Any, section: str, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.section = section


def option(described: str, type: Any = None, section: str = MORE, only: str = "", **keywords: Any) -> Any:
    """Declare a dataclass field as a command-line option in a section of the help text.

    `described` is a line of that text: the flag, a word for its value if it takes one, two spaces, and what it means,
    such as `--beam N  Beam size`. `type` defaults to that of the word: `TEXT`, or what `BY_METAVAR` says. `only`
    names the one command that has this option, if several share the dataclass.
    """
    usage, _, help = described.partition("  ")
    flag, _, metavar = usage.partition(" ")
    type = type or BY_METAVAR.get(metavar, TEXT)
    keywords |= {"help": help, "type": type, "metavar": metavar or None, "section": section}
    keywords["is_flag"] = type is None or None  # if False, click would accept the flag without its value
    keywords["show_default"] = "default" in keywords
    if "default" in keywords:
        unset = keywords["default"]
    elif keywords.get("multiple"):
        unset = ()
    else:
        unset = None if type else False
    declare = partial(click.option, flag, cls=Option, **keywords)
    return field(default=unset, metadata={DECLARE: declare, FLAG: flag, ONLY: only})


def argument(**keywords: Any) -> Any:
    """Declare a dataclass field as a positional argument; `keywords` are those of `click.argument`."""
    return field(metadata={DECLARE: partial(click.argument, **keywords), ONLY: ""})


version_option = click.version_option(__version__, message="nmt %(version)s")
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors on stderr.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all commands are given."""

    console: Console
    """Shows messages and progress; quiet with --quiet"""
    command: str
    """The command's name"""


def accepts(kind: type[Options]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Return a decorator that makes a command, named as its function, accept the options of dataclass `kind`.

    The function gets one instance of it. Fields that only another command has keep their defaults.
    """

    def decorate(function: Callable[[Any], None]) -> Callable[..., None]:
        name = function.__name__

        @quiet_option
        @debug_option
        @version_option
        @wraps(function)
        def command(quiet: bool, **given: Any) -> None:
            function(kind(console=Console(quiet), command=name, **given))

        for each in reversed(fields(kind)):  # reversed, as decorators apply bottom-up; --help keeps field order
            if _is_of(each, name):
                command = each.metadata[DECLARE](each.name)(command)
        return command

    return decorate


def _is_of(declared: Field[Any], command: str) -> bool:
    """Return whether a field is an option or argument of a command."""
    return declared.metadata.get(ONLY) in ("", command)


def flags_of(options: Options) -> dict[str, str]:
    """Return the flags of a command's options by the names of their fields."""
    flags = {}
    for each in fields(options):
        if FLAG in each.metadata and _is_of(each, options.command):
            flags[each.name] = each.metadata[FLAG]
    return flags


def refuse(options: Options, names: str, why: str, when: object = True) -> None:
    """Raise UsageError, giving `why`, for the first option set among the fields in space-separated `names`.

    Do nothing unless `when` is true.
    """
    refused = names.split()
    _check_names(options, refused)  # always, so that a misspelt name does not go unnoticed
    if not when:
        return
    for name, flag in flags_of(options).items():
        if name in refused and getattr(options, name):
            raise click.UsageError(f"{flag} {why}")


def values_without(options: Options, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's options by flag, without those of the fields in `names`."""
    _check_names(options, names)
    return {flag: getattr(options, name) for name, flag in flags_of(options).items() if name not in names}


def _check_names(options: Options, names: Sequence[str]) -> None:
    """Assert that all names are those of options, of this command or of another one of its kind."""
    known = [each.name for each in fields(options) if FLAG in each.metadata]
    assert set(names).issubset(known), f"no such options: {', '.join(names)}"


# --- help texts -------------------------------------------------------------------------------------------------


class Command(click.Command):
    """A command whose help shows the docstring's first paragraph, examples, options, and the docstring's rest."""

    def __init__(self, *arguments: Any, examples: Examples, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples
        self._beginning, _, self._details = inspect.cleandoc(self.help or "").partition("\n\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; name the command in usage errors, which click does not do for all."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summary and the examples."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self._beginning)
        write_examples(formatter, "Examples", self.examples)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            if record:
                sections.setdefault(getattr(parameter, "section", MORE), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring's other paragraphs."""
        if self._details:
            with formatter.section("Details"):
                formatter.write_text(self._details)


class LineCommand(Command):
    """A command that reads lines from stdin or a file, and says so if sentences are passed as arguments."""

    allow_extra_args = True  # click leaves them to `parse_args`

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; raise BadArgumentUsage, which names --input, if there are positional arguments."""
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            what = f"{extra[0]!r} is an argument, but lines come from stdin or --input"
            if "--input" in args:
                what += ", which takes a pattern in quotes"
            raise click.BadArgumentUsage(what, ctx)
        return extra


class CommandGroup(click.Group):
    """A group whose help text lists its commands in definition order."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: Examples, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the command names in definition order."""
        return list(self.commands)

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the group's help text and the examples of a typical workflow."""
        super().format_help_text(context, formatter)
        write_examples(formatter, "From text to a translation", self.examples)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how to get help on a command."""
        formatter.write_paragraph()
        formatter.write_text(f"{context.command_path} COMMAND --help has examples and the options of a command.")


def write_examples(formatter: click.HelpFormatter, title: str, examples: Examples) -> None:
    """Write a section of command lines, each with its explanation beside or below it."""
    with formatter.section(title):
        formatter.write_dl(examples, col_max=44)  # explanations of longer commands stand below
