"""Has `make coverage` count what workers of a search run, which else are killed before they can save what they ran."""

from __future__ import annotations

import os

from nmt.decoding.workers import Workers

SECONDS = 20.0
"""The longest that a worker may take to save."""


def let_workers_save() -> None:
    """Has the workers of this process end by themselves, if coverage is measured; those that do not are killed."""
    if "COVERAGE_PROCESS_CONFIG" not in os.environ:
        return
    kill = Workers.close

    def close(self: Workers) -> None:
        for worker in self._workers:
            worker.connection.close()  # as the end of this process would; the worker then calls os._exit
        for worker in self._workers:
            worker.process.join(SECONDS)
        kill(self)

    Workers.close = close  # type: ignore[method-assign]
