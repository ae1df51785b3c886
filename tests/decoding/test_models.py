"""How many workers search with saved models."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from nmt.decoding import models
from nmt.decoding.models import Saved
from nmt.recipe import Decoding


@pytest.mark.skipif(models.sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize(
    ("forks", "workers", "threads", "expected"),
    [(True, None, None, 6), (True, None, 3, 3), (True, 2, 3, 2), (False, None, 3, 1), (False, 2, None, 2)],
)
def test_a_search_on_a_cpu_has_a_forked_worker_for_each_thread_unless_told(
    monkeypatch: pytest.MonkeyPatch, forks: bool, workers: int | None, threads: int | None, expected: int
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(models, "cores", lambda: 6)
    monkeypatch.setattr(models, "choose_device", lambda *arguments: "cpu")

    def several(make: Any, count: int, fork: bool) -> AbstractContextManager[str]:
        counts.append(count)
        assert fork == forks
        return nullcontext("workers")

    monkeypatch.setattr(models, "Workers", several)
    monkeypatch.setattr("nmt.decoding.search.SearchEngine", lambda *arguments: "engine")
    saved = Saved([], "nmt", "cpu", workers, threads, forks, print)
    with saved.open(Decoding(), lambda: ([], None), annotated=False) as engine:
        assert engine == ("engine" if expected == 1 else "workers")
    assert counts == ([] if expected == 1 else [expected])
