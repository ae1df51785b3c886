"""Layout of `--help`: summary, examples, options in sections, details."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click

MACHINE, MORE = "Machine", "More"  # sections of several commands; options without a section go under `MORE`


class Option(click.Option):
    """An option that belongs to a section of the help text."""

    def __init__(self, *arguments: Any, section: str = MORE, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.section = section


class Command(click.Command):
    """A command whose help shows the docstring's first paragraph, examples, options, and the docstring's rest."""

    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]], **keywords: Any) -> None:
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
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)):
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

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; raise BadArgumentUsage, which names --input, if there are positional arguments."""
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            what = f"{extra[0]!r} is an argument, but lines come from stdin or --input"
            raise click.BadArgumentUsage(what, ctx)
        return extra


class Group(click.Group):
    """A group whose help text lists its commands in definition order."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]], **keywords: Any) -> None:
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


def write_examples(formatter: click.HelpFormatter, title: str, examples: Sequence[tuple[str, str]]) -> None:
    """Write a section of command lines, each with its explanation beside or below it."""
    with formatter.section(title):
        formatter.write_dl(examples, col_max=44)
