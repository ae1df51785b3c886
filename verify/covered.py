"""What the tests reach, by package, from the report of `make coverage`; fails below 92% of branches or of lines.

    python verify/covered.py runs/verify/coverage.json

Modules that stand beside the packages are one row. A branch is an arc of coverage.py: from a line that decides to one
of the lines that may follow.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

LEAST = 92.0  # per cent


def package(file: str) -> str:
    """`nmt/search/engine.py` belongs to `search`."""
    folders = Path(file).parts[1:-1]
    return folders[0] if folders else "modules beside them"


def share(counts: Counter[str], what: str) -> float:
    """Per cent; a package without branches lacks none."""
    return 100.0 * counts[f"covered_{what}"] / counts[f"num_{what}"] if counts[f"num_{what}"] else 100.0


def row(name: str, counts: Counter[str]) -> str:
    """A line of the table."""
    cells = (f"{counts[f'num_{what}']:,} | {share(counts, what):.1f}%" for what in ("lines", "branches"))
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, and what is short."""
    packages: dict[str, Counter[str]] = {}
    for file, report in json.loads(Path(sys.argv[1]).read_text())["files"].items():
        summary = report["summary"]
        counts = {name: summary[name] for name in ("num_branches", "covered_branches", "excluded_lines")}
        counts |= {"num_lines": summary["num_statements"], "covered_lines": summary["covered_lines"]}
        packages.setdefault(package(file), Counter()).update(counts)
    whole = sum(packages.values(), Counter())
    print("| package | lines | of them run | branches | of them taken |", "|---|---|---|---|---|", sep="\n")
    for name in sorted(packages, key=lambda name: (name == "modules beside them", name)):
        print(row(name, packages[name]))
    print(row("**nmt**", whole))
    print(f"\n{whole['excluded_lines']} lines are excluded: imports that only serve types.")
    short = [what for what in ("lines", "branches") if share(whole, what) < LEAST]
    raise SystemExit(f"below {LEAST}%: {', '.join(short)}" if short else 0)


if __name__ == "__main__":
    main()
