"""What a trial of generated inputs is: inputs, a function that raises only on a finding, and what it covers."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.strategies import SearchStrategy

from nmt.system.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """One trial. Inputs are bytes, or plain values that `repr` writes and `ast.literal_eval` reads."""

    run: Callable[[Any], bool]
    """Tells whether an input was accepted; whatever it raises is a finding."""
    inputs: SearchStrategy[Any]
    covers: tuple[str, ...]
    """Modules that are tried; the report tells how much of them was reached."""
    in_bytes: bool = False
    """Whether inputs are bytes, so that an engine may also change them byte by byte."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.run.__name__.replace("_", "-")

    def write(self, value: Any) -> bytes:
        """An input as the content of a file."""
        return bytes(value) if self.in_bytes else repr(value).encode()

    def read(self, content: bytes) -> Any:
        """The input of which `write` gave the content."""
        return content if self.in_bytes else ast.literal_eval(content.decode())


def accepted(read: Callable[[], T]) -> T | None:
    """What a reader gives, or None if it refuses its file as readers must: by a UserError with a message and a hint."""
    try:
        return read()
    except UserError as refusal:
        if not (refusal.message.strip() and refusal.hint.strip()):
            raise ValueError(f"a message or a hint is lacking: {refusal.message!r}") from refusal
        return None


@cache
def folder() -> Path:
    """A folder of this process for the files of its trials, in memory where the system has such folders."""
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="nmt-fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def file(name: str, content: bytes) -> Path:
    """A file with this content; its folder is made if need be."""
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
