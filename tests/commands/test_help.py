"""Help texts: sections, examples and their width."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from nmt.cli import cli
from nmt.commands.command_line import Command

COMMANDS = {name: command for name, command in cli.commands.items() if isinstance(command, Command)}


def help_of(command: click.Command, name: str, width: int | None = None) -> str:
    with click.Context(command, info_name=name, terminal_width=width) as context:
        return command.get_help(context)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_help_text_once(name: str) -> None:
    command, text = COMMANDS[name], help_of(COMMANDS[name], name)
    parameters = command.get_params(click.Context(command))
    options = [parameter for parameter in parameters if isinstance(parameter, click.Option)]
    written = re.findall(r"^  (?:-h, )?(--[a-z-]+)(?= |$)", text.partition("\nDetails:\n")[0], re.M)
    assert sorted(written) == sorted(option.opts[-1] for option in options)


@pytest.mark.parametrize("name", [*COMMANDS, ""])
def test_help_fits_80_columns_and_uses_no_more(name: str) -> None:
    for width in (80, None):
        text = help_of(COMMANDS.get(name, cli), f"nmt {name}", width)
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_commands_that_exist(name: str) -> None:
    assert COMMANDS[name].examples
    for line, _ in (*COMMANDS[name].examples, *cli.examples):
        program, command, *rest = re.split(r" [<>] .*?(?= [<>-]|$)", line)[0].split()
        assert program == "nmt"
        COMMANDS[command].make_context(command, rest, resilient_parsing=False)


def test_help_loads_no_torch() -> None:
    code = "import sys; from nmt.cli import cli\nfor a in sys.argv[1:]: cli.main(a.split(), standalone_mode=False)\n"
    code += "heavy = {'torch', 'numpy', 'yaml', 'sentencepiece', 'rich', 'pydantic'} & set(sys.modules)\n"
    code += "assert not heavy, heavy"
    lines = ["--help", "translate --help"]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    for command in (b"preprocess", b"train", b"average", b"translate", b"score", b"parse"):
        assert command in done.stdout
