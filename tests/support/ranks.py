"""The processes of a group, as /proc lists them."""

from __future__ import annotations

from pathlib import Path


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes that a launcher has started: rank to process id."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            if parent == launcher:
                found |= {int(each[5:]): int(entry.name) for each in variables if each.startswith(b"RANK=")}
    return found
