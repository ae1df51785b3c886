"""Do the other trials find anything? Ten mends of old faults are taken back, one at a time.

    python verify/taken_back.py [--only NAME ...] [--report FILE]

Each mend was made after somebody found the fault by hand. Here its lines are changed back in a copy of the project,
and a trial runs there which knows nothing of the mend: faults at every write, kills or generated inputs. The trial must
find something in that copy, and nothing in a copy in which all mends stand.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOUND, NOTHING = 1, 0  # exit codes of a trial


class Mend(NamedTuple):
    """A mend, and the trial that should miss it."""

    name: str
    file: str
    mended: str
    """Part of the file as it is"""
    taken_back: str
    """What stood there before, or what has the same effect"""
    trial: str
    """A command of `verify/`"""


KILLS = "kills.py --no-pairs --only train --kills"
MENDS = [
    Mend(
        "what killed processes left is removed",
        "nmt/files.py",
        'elif locked or owner in ("old", "gone") or _is_gone(owner):',
        "elif locked:",
        "faults.py --only translate --first 12 --drawn 0",
    ),
    Mend(
        "a directory that was set aside when its writer was killed is put back",
        "nmt/files.py",
        'if owner == "old" and not (folder / whole).exists():',
        "if False:",
        "faults.py --only average --first 12 --drawn 0",
    ),
    Mend(
        "SIGHUP stops a command as SIGTERM does",
        "nmt/terminal/process.py",
        "for number in (signal.SIGINT, signal.SIGHUP):",
        "for number in (signal.SIGINT,):",
        "kills.py --no-pairs --only translate --kills 30",
    ),
    Mend(
        "a run goes on from its newest whole checkpoint",
        "nmt/training/resume.py",
        "            damaged[path] = error.message\n",
        "            raise\n",
        f"{KILLS} 60",
    ),
    Mend(
        "files are compared with their hashes",
        "nmt/integrity.py",
        "if hash_file(path) != expected[path.name]:",
        "if False:",
        f"{KILLS} 60",
    ),
    Mend(
        "memory that cannot be had is an error with a hint",
        "nmt/terminal/process.py",
        "if known := memory_error(error) or device_error(error):",
        "if known := device_error(error):",
        "faults.py --only average translate --first 12 --drawn 0",
    ),
    Mend(
        "weights that are no numbers are refused",
        "nmt/bundle/reading.py",
        "    if not all(abs(extreme) <= MOST for extreme in extremes):  # false for NaN\n",
        "    if False:\n",
        "fuzz.py --seconds 20 --only safetensors",
    ),
    Mend(
        "figures of the wrong kind in bundle.json are refused",
        "nmt/bundle/reading.py",
        "isinstance(scores, dict) and all(map(_is_score, scores.values()))",
        "True",
        "fuzz.py --seconds 20 --only manifest",
    ),
    Mend(
        "recipes that are nested deeply are refused",
        "nmt/recipe/files.py",
        "if len(path) > MOST_LEVELS:",
        "if False:",
        "fuzz.py --seconds 20 --only recipe setting",
    ),
    Mend(
        "an n-best list contains each text once",
        "nmt/tasks/lines.py",
        "        if self.samples:\n",
        "        if True:\n",
        "fuzz.py --seconds 30 --only constraints",
    ),
]


def copied(folder: Path) -> Path:
    """A copy of the project's files, and of its compiled kernels, in a folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in [*listed.split("\0")[:-1], *(str(path.relative_to(ROOT)) for path in ROOT.glob("nmt/native/*.so"))]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def trial(command: str, mend: Mend | None = None) -> tuple[int, str]:
    """The exit code and the output of a trial in a copy of the project, in which a mend is taken back."""
    with tempfile.TemporaryDirectory() as name:
        folder = copied(Path(name))
        if mend is not None:
            file = folder / mend.file
            text = file.read_text()
            if text.count(mend.mended) != 1:
                raise SystemExit(f"{mend.file} does not hold once what mends it: {mend.mended}")
            file.write_text(text.replace(mend.mended, mend.taken_back))
        script, *rest = shlex.split(command)
        ended = subprocess.run(
            [sys.executable, f"verify/{script}", *rest],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.returncode, ended.stdout


def main() -> None:
    """Prints a line for each mend; exits with 1 if a trial misses one, or finds something without any taken back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mends whose names contain one of these")
    parser.add_argument("--report", type=Path, help="write what was found as JSON")
    given = parser.parse_args()
    mends = [mend for mend in MENDS if not given.only or any(word in mend.name for word in given.only)]
    rows, quiet = [], {command: trial(command) for command in dict.fromkeys(mend.trial for mend in mends)}
    for command, (code, said) in quiet.items():
        if code != NOTHING:
            raise SystemExit(f"{command} finds something where all mends stand:\n{said}")
    for mend in mends:
        code, said = trial(mend.trial, mend)
        first = next((line.strip() for line in said.splitlines() if line.strip()), "")
        rows.append({"mend": mend.name, "trial": mend.trial, "found": code == FOUND, "says": said[-2000:]})
        print(f"{'found' if code == FOUND else 'MISSED'}: {mend.name}: {mend.trial}: {first}", flush=True)
    found = sum(bool(row["found"]) for row in rows)
    print(f"{found} of {len(rows)} found")
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(rows, indent=2))
    raise SystemExit(found < len(rows))


if __name__ == "__main__":
    main()
