"""What a command has left in its folder: the content of every file, apart from times, and what should not be there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMED = {"cost", "seconds", "device_seconds", "devices", "estimated_flops", "tokens_per_second"}
TIMED |= {"seconds_per_update", "data_wait", "flops_per_second", "memory_bytes", "run", "hashes"}
"""Keys of JSON that differ between two undisturbed runs: times, the name of a run, and hashes, which are checked."""


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of its content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(_without_times(path)).hexdigest()[:12] for path in files}


def _without_times(path: Path) -> bytes:
    """The content of a file, without what differs between two undisturbed runs."""
    if path.name == "report.html" or path.name.endswith(".lock"):  # which show times, and who held it
        return b""
    content = path.read_bytes()
    if path.name == "metrics.jsonl":  # lines of checkpoints, which a thread writes, come between any others
        lines = [_untimed(_parsed(line)) for line in content.splitlines()]
        return "\n".join(sorted({json.dumps(line) for line in lines if line.keys() - {"step", "tokens"}})).encode()
    return json.dumps(_untimed(_parsed(content))).encode() if path.suffix == ".json" else content


def _parsed(content: bytes) -> Any:
    """Plain values; empty where JSON was cut short, as a killed process may leave the last line of metrics.jsonl.

    Readers pass it over. Other files of JSON have hashes, see `damaged`, or are replaced as a whole.
    """
    try:
        return json.loads(content)
    except ValueError:
        return {}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(part) for key, part in value.items() if key not in TIMED}
    return [_untimed(part) for part in value] if isinstance(value, list) else value


def is_temporary(name: str) -> bool:
    """Whether a file, named from the folder of the command, is one that the command removes."""
    return name.startswith("tmp/") or any(
        re.fullmatch(r"\..*(@.*\.tmp|\.tmp)|.*\.tmp", part) for part in name.split("/")
    )


def damaged(folder: Path) -> Iterator[str]:
    """Directories of ours in which a file is not as their manifest says, and directories without one."""
    from nmt.system.errors import UserError
    from nmt.system.integrity import MANIFESTS, hash_file, read_manifest

    for manifest in (path for name in MANIFESTS for path in folder.rglob(name)):
        if is_temporary(str(manifest.relative_to(folder))):
            continue
        try:
            hashes = read_manifest(manifest)["hashes"]
        except (UserError, KeyError) as error:
            yield f"{manifest.relative_to(folder)}: {error}"
            continue
        for name, expected in hashes.items():
            file = manifest.with_name(name)
            if file != manifest and (not file.is_file() or hash_file(file) != expected):
                yield f"{file.relative_to(folder)} is damaged or missing"
