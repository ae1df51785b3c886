"""A console whose lines a test reads."""

from __future__ import annotations

from nmt.system.console import Console


class Lines(Console):
    """What was said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str, best: bool = False) -> None:
        self.said.append(text)
