"""What somebody sees who watches a run."""

from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmt.data.corpus import Lengths
from nmt.system.console import Console
from nmt.system.device import World
from nmt.system.errors import UserError
from nmt.system.files import JsonLines
from nmt.training.distributed import Group
from nmt.training.progress import Meter, Progress, Sums
from nmt.training.run_files import RunState, forget_after

FIGURES = {"step": 20, "loss": 2.5, "perplexity": 12.1825, "learning_rate": 5e-4, "tokens_per_second": 12345.6}


class Seen:
    """The progress line of a terminal."""

    def __init__(self) -> None:
        self.done, self.figures, self.left = 0, "", 0.0

    def __call__(self, more: int, figures: str | None = None, left: float | None = None) -> None:
        self.done += more
        self.figures = self.figures if figures is None else figures
        self.left = self.left if left is None else left


@pytest.mark.parametrize("failing", ["nmt.system.files._sync", "pathlib.Path.replace"])
def test_lines_that_cannot_be_removed_stay_and_nothing_is_left_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def fail(*given: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(failing, fail)
        with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: Input/output"):
            forget_after(path, 1)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert list(tmp_path.iterdir()) == [path]


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


@pytest.mark.parametrize(("platform", "bytes_per_unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_every_system(
    platform: str, bytes_per_unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(RunState(step=1, epoch=0, offset=1), Group(World(), 1), torch.float32)
    meter.add(Sums(1.0, 1.0, 8), Lengths(np.array([3]), np.array([3])), 1.0, torch.ones(()))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=123_456))
    assert meter.figures()["memory_bytes"] == 123_456 * bytes_per_unit
