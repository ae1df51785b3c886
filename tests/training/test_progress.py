"""What somebody sees who watches a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nmt.system.console import Console, JsonLines
from nmt.training.progress import Progress

FIGURES = {"step": 20, "loss": 2.5, "perplexity": 12.1825, "learning_rate": 5e-4, "tokens_per_second": 12345.6}


class Seen:
    """The progress line of a terminal."""

    def __init__(self) -> None:
        self.done, self.figures, self.left = 0, "", 0.0

    def __call__(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        self.done += more
        self.figures = self.figures if figures is None else figures
        self.left = self.left if left is None else left


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_shows_figures_where_a_log_has_lines(live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console, seen = Console(), Seen()
    console.live = live
    progress = Progress(console, JsonLines(Path(os.devnull), console.say), "/400", seen)
    progress.log(FIGURES, 7200.0)
    assert seen.figures == ("loss 2.500  12,346 tok/s  ppl 12.18  lr 5.00e-04" if live else "")
    line = "update 20/400  loss 2.500  ppl 12.18  lr 5.00e-04  12,346 tok/s  2h00m left\n"
    assert capsys.readouterr().err == ("" if live else line)
    before = seen.figures
    with progress.validating():
        assert seen.figures == "scoring the dev set"
    assert seen.figures == before
