"""Generated inputs: files, settings, trees, plans and searches, by grammars of our own and by changes of bytes.

    python verify/fuzz.py [--seconds 60] [--seed 1] [--only recipe ...] [--report FILE] [--findings FOLDER]
    python verify/fuzz.py --repeat FILE      one input again, as a finding is saved: TARGET-….input

`verify/fuzzing/` has the targets: what is tried, on which inputs, and what must hold. Each gets so many seconds of
CPU time in a process of its own, in which an input may take a gigabyte and ten seconds. Two engines share them: atheris
changes the bytes of inputs, guided by the branches that they reach, and hypothesis draws inputs from grammars and makes
what it finds as small as it can. Without atheris, hypothesis has all the time. The report has for each target the
inputs, how many of them were accepted, and how much of the code that it covers was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from processes import write_report

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "fuzzing"), str(HERE.parent / "tests" / "support"), str(HERE.parent)]
os.environ |= {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
ENGINES = ("atheris", "hypothesis")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="CPU time of each target; the default is 60")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="TARGET", help="these targets alone")
    parser.add_argument("--findings", type=Path, default=Path("runs/verify/fuzz"), help="where findings are saved")
    parser.add_argument("--report", type=Path, help="write the figures as JSON")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="try one saved input again")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def repeat(path: Path) -> None:
    """Try a saved input in this process; whatever it raises is shown with its traceback."""
    from targets import TARGETS

    name = path.name.rpartition("-")[0]
    target = next(target for target in TARGETS if target.name == name)
    print(f"{name}: {'accepted' if target.run(target.read(path.read_bytes())) else 'refused'}")


def run_engine(engine: str, given: argparse.Namespace, scratch: Path, seconds: float) -> dict[str, Any]:
    """The figures of all targets by one engine, in a new process: code is instrumented when it is imported."""
    command = [sys.executable, __file__, f"--seconds={seconds}", f"--seed={given.seed}", f"--findings={given.findings}"]
    command += ["--engine", engine, "--scratch", str(scratch), *(["--only", *given.only] if given.only else [])]
    given.findings.mkdir(parents=True, exist_ok=True)
    with (given.findings / f"{engine}.log").open("wb") as log:  # libFuzzer tells all that it does
        subprocess.run(command, check=True, stderr=log)
    return dict(json.loads((scratch / f"{engine}.json").read_text()))


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one target by all engines; the last one has measured what all inputs reached."""
    sums = {key: round(sum(part[key] for part in parts), 1) for key in ("inputs", "accepted", "cpu_seconds")}
    findings = {finding["file"]: finding for part in parts for finding in part["findings"]}
    return {**sums, "reached": parts[-1]["reached"], "findings": list(findings.values())}


def line(name: str, result: dict[str, Any]) -> str:
    """A row of the table."""
    reached = ", ".join(f"{module.removeprefix('nmt.')} {share}%" for module, share in result["reached"].items())
    share = result["accepted"] / max(1, result["inputs"])
    return (
        f"{name:16} {result['inputs']:>9,} inputs, {share:4.0%} accepted, {result['cpu_seconds'] / 60:5.1f} CPU min, "
        f"{len(result['findings'])} findings; reached: {reached}"
    )


def main() -> None:
    given = arguments()
    if given.repeat:
        return repeat(given.repeat)
    if given.engine:
        from measuring import run_all

        return run_all(given)
    engines = [engine for engine in ENGINES if find_spec(engine)]
    print(f"{' and '.join(engines)}: seed {given.seed}, {given.seconds:g} s of CPU time for each target", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        parts = [run_engine(engine, given, Path(scratch), given.seconds / len(engines)) for engine in engines]
    results = {name: merged([part[name] for part in parts]) for name in parts[0]}
    for name, result in results.items():
        print(line(name, result))
    for finding in (finding for result in results.values() for finding in result["findings"]):
        print(f"\n{finding['problem']}\n    python verify/fuzz.py --repeat {finding['file']}")
    write_report(given.report, {"seed": given.seed, "engines": engines, "targets": results})
    raise SystemExit(1 if any(result["findings"] for result in results.values()) else 0)


if __name__ == "__main__":
    main()
