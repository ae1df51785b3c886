"""A standard error that is a terminal."""

from __future__ import annotations

import io
import sys

import pytest


class Terminal(io.StringIO):
    """Takes what is shown."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of stderr that somebody watches, whatever the machine that runs the tests sets."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal
