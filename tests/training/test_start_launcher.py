"""How often a host starts its workers again."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from torch.distributed.launcher import api

from nmt.checkpoint.reading import checkpoint_path
from nmt.system.console import Console
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError
from nmt.system.processes import SAFE, command
from nmt.training import start as launcher
from nmt.training.start import launch

KILLED, BROKEN, NOTHING = {1: -9}, {0: TRY_AGAIN, 1: -15}, None


def run(ends: Iterable[tuple[dict[int, int], int | None]], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches groups that end like this, each after it has written the checkpoint of a step, or none."""
    groups = iter(ends)

    def run_group(workers: int, arguments: object) -> dict[int, int]:
        codes, step = next(groups)
        if step is not None:
            checkpoint_path(out, step).mkdir(parents=True)
        return codes

    monkeypatch.setattr(launcher, "_run_group", run_group)
    launch(2, ["train"], out, Console())
    assert next(groups, None) is None


def test_a_group_is_restarted_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run([(BROKEN, NOTHING), (KILLED, NOTHING), (BROKEN, NOTHING), ({}, 1)], tmp_path, monkeypatch)
    assert capsys.readouterr().err.splitlines() == [
        "the group broke: restart 1 of 3, from the last checkpoint",
        "rank 1 was killed by SIGKILL: restart 2 of 3, from the last checkpoint",
        "the group broke: restart 3 of 3, from the last checkpoint",
    ]
    run([({0: 143, 1: -9}, NOTHING), ({0: 143, 1: TRY_AGAIN}, NOTHING), ({}, NOTHING)], tmp_path, monkeypatch)
    assert capsys.readouterr().err.splitlines() == [
        "rank 1 was killed by SIGKILL: restart 1 of 3, from the last checkpoint",
        "the group broke: restart 2 of 3, from the last checkpoint",
    ]
    with pytest.raises(UserError, match="the group broke, after 3 restarts without another checkpoint"):
        run([(BROKEN, NOTHING)] * 4, tmp_path, monkeypatch)


def test_restarts_are_counted_anew_after_another_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [5, NOTHING, 10, NOTHING, NOTHING]
    run([*((KILLED, step) for step in steps), ({}, 15)], tmp_path, monkeypatch)
    assert re.findall(r"restart (\d) of 3", capsys.readouterr().err) == ["1", "2", "1", "2", "3"]


def test_what_can_only_fail_again_and_signals_are_no_reason_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GroupError):
        run([({0: 1, 1: TRY_AGAIN}, 5)], tmp_path, monkeypatch)
    for others in (143, -15, 129, TRY_AGAIN):  # 143 and -15 of ranks that the launcher ended after the first
        with pytest.raises(Interrupted) as stop:
            run([({0: 129, 1: others}, NOTHING)], tmp_path, monkeypatch)
        assert stop.value.signal_number == signal.SIGHUP
    for others in (143, -15):
        with pytest.raises(Interrupted) as stop:
            run([({0: 143, 1: others}, NOTHING)], tmp_path, monkeypatch)
        assert stop.value.signal_number == signal.SIGTERM


def keep_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what a launcher sets be taken back."""
    for name in ("LOGLEVEL", "TORCH_CPP_LOG_LEVEL", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "OMP_NUM_THREADS", SAFE):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


def test_ranks_are_children_of_this_nmt(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_environment(monkeypatch)
    monkeypatch.delenv(SAFE)
    ranks: list[list[str]] = []

    def launched(config: api.LaunchConfig, python: str) -> Callable[..., None]:
        return lambda *arguments: ranks.append([os.environ[SAFE], python, *arguments])

    monkeypatch.setattr(api, "elastic_launch", launched)
    launch(2, ["train", "recipe.yaml"], Path("ckpts"), Console())
    assert ranks == [["1", *command("nmt", "train", "recipe.yaml")]]


@pytest.mark.parametrize("given", [None, "7"])
def test_workers_have_time_to_save_after_a_signal(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    keep_environment(monkeypatch)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", given or "")
    if given is None:
        monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")

    def launched(config: api.LaunchConfig, entrypoint: str) -> None:
        assert os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == given or str(launcher.TO_SAVE)
        if hasattr(config, "shutdown_timeout"):
            assert config.shutdown_timeout == int(given or launcher.TO_SAVE)
        raise api.SignalException("", signal.SIGTERM)

    monkeypatch.setattr(api, "elastic_launch", launched)
    with pytest.raises(Interrupted):
        launch(2, [], Path("ckpts"), Console())
