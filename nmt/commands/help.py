"""Help texts of commands: what the command does, examples, options in sections, and at the end the details."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click

Example = tuple[str, str]
"""A command line, and what it does."""

MACHINE, MORE = LAST = ("Machine", "More")
"""Sections that come after all others, in this order; `More` has the options that belong to no section."""


class Option(click.Option):
    """An option that knows its section of the help text."""

    def __init__(self, *arguments: Any, section: str = MORE, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.section = section


class Command(click.Command):
    """A command whose help text shows what people need first at its beginning.

    The first paragraph of its docstring and the examples come before the options, the other paragraphs after them.
    """

    def __init__(self, *arguments: Any, examples: Sequence[Example] = (), **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples

    def sections(self, context: click.Context) -> dict[str, list[click.Parameter]]:
        """The options by section, in the order in which the help text has them."""
        found: dict[str, list[click.Parameter]] = {}
        for parameter in self.get_params(context):
            if isinstance(parameter, click.Option):
                found.setdefault(getattr(parameter, "section", MORE), []).append(parameter)
        return {name: found[name] for name in [*(name for name in found if name not in LAST), *LAST] if name in found}

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes what the command does, and examples."""
        beginning, _ = self._paragraphs()
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(beginning)
        write_examples(formatter, "Examples", self.examples)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options in their sections."""
        for name, parameters in self.sections(context).items():
            records = [parameter.get_help_record(context) for parameter in parameters]
            with formatter.section(name):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the details."""
        _, details = self._paragraphs()
        if details:
            with formatter.section("Details"):
                formatter.write_text(details)

    def _paragraphs(self) -> tuple[str, str]:
        beginning, _, rest = inspect.cleandoc(self.help or "").partition("\n\n")
        return beginning, rest


class LineCommand(Command):
    """A command that reads lines from stdin or a file. It takes no arguments, and newcomers give it sentences."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; fails with a usage error that says where lines come from if there are arguments."""
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            what = f"{extra[0]!r} is an argument, but lines come from stdin or --input"
            ctx.fail(f'{what}: echo "A sentence." | nmt {self.name}, or nmt {self.name} --input FILE')
        return extra


class Group(click.Group):
    """A group of such commands, which its help text lists in the order of their definition."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: Sequence[Example] = (), **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples

    def list_commands(self, context: click.Context) -> list[str]:
        """The names of the commands as they were defined."""
        return list(self.commands)

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes what the commands are for, and how they follow on each other."""
        super().format_help_text(context, formatter)
        write_examples(formatter, "From text to a translation", self.examples)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes where the options are explained."""
        formatter.write_paragraph()
        formatter.write_text(f"{context.command_path} COMMAND --help has examples and the options of a command.")


def write_examples(formatter: click.HelpFormatter, title: str, examples: Sequence[Example]) -> None:
    """Writes command lines under a title, each with what it does beside or below it."""
    if examples:
        with formatter.section(title):
            formatter.write_dl(examples, col_max=44)
