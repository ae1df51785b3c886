"""Options by name: which are refused, which identify a job of --resume, and which a command lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import pytest

from nmt.commands.command_line import option, refuse
from nmt.commands.options import SearchOptions
from nmt.system.console import Console


def given(command: str, kind: type[SearchOptions] = SearchOptions, **values: Any) -> SearchOptions:
    return kind(console=Console(quiet=True), command=command, **values)


def test_the_first_option_that_is_set_is_refused_by_its_flag() -> None:
    options = given("translate", as_json=True, markup=True)
    refuse(options, "markup as_json", "is refused", when=False)
    refuse(options, "sample n_best", "is refused")
    with pytest.raises(click.UsageError, match="--json is refused"):
        refuse(options, "markup as_json", "is refused")


@pytest.mark.parametrize("when", [False, True])
def test_an_option_that_does_not_exist_cannot_be_refused(when: bool) -> None:
    for names in ("as_jsn", "as_json command"):
        with pytest.raises(AssertionError, match="no such options"):
            refuse(given("translate"), names, "is refused", when)


def test_a_job_is_identified_by_every_option_that_is_not_known_to_be_irrelevant() -> None:
    @dataclass(frozen=True)
    class More(SearchOptions):
        new: int | None = option("--new N  Something new.")

    options = given("translate", More, new=3, beam=8, threads=2, keep=("x",))
    own = {"--to": None, "--from": None, "--sample": None, "--keep": ("x",), "--markup": False, "--all": False}
    assert options.identity == {"--n-best": None, "--json": False, **own, "--new": 3}
    assert given("parse", pretty=True).identity == {"--n-best": None, "--json": False, "--pretty": True}


@pytest.mark.parametrize("flag", ["--to", "--from", "--sample", "--ledger"])
def test_parse_has_no_options_of_translate(nmt: Callable[..., Any], flag: str) -> None:
    done = nmt("parse", flag, "1")
    assert done.code == 2
    assert done.err.startswith(f"error: no such option '{flag}'")
