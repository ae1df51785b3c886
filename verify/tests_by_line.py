"""Which tests run a line, and how long they take: all quick tests, one file of tests after another, under coverage."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import coverage
import pytest
from warm_pytest import Stage, start

PACKAGES = "checkpoint", "data", "decoding", "exchange", "parsing", "text", "training"
FILES = (
    *(f"tests/{package}/test_*.py" for package in PACKAGES),
    "tests/commands/test_resume.py",
    "tests/native/test_kernels.py",
    "tests/system/test_files.py",
    "tests/system/test_integrity.py",
    "tests/test_*.py",
)
"""Tests of the modules that are mutated, and of what stands right above them."""
OTHERS = (
    *(f"tests/test_{name}" for name in ("docs", "layout", "metrics", "recipes")),
    "tests/training/test_distributed_runs.py",
)
"""Those among them that hardly run these modules, or run them in other processes."""


class Measuring:
    """A plugin of pytest that notes which test runs which lines of some modules in its own process."""

    def __init__(self, tree: Path, modules: Sequence[str], path: Path) -> None:
        self._tree, self._modules, self._path = tree, modules, path
        include = [str(tree / module) for module in modules]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self._coverage.start()

    def pytest_collection_finish(self) -> None:
        for module in self._modules:  # so that no test is taken for the one that runs the lines of an import
            import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._coverage.stop()
        data, found = self._coverage.get_data(), {}
        for name in data.measured_files():
            lines = data.contexts_by_lineno(name).items()
            found[str(Path(name).relative_to(self._tree))] = {
                line: [test for test in tests if test] for line, tests in lines
            }
        self._path.write_text(json.dumps(found))


def measure(tree: Path, modules: Sequence[str], folder: Path, jobs: int) -> None:
    """Runs the quick tests of a tree, and writes for each file of theirs what they take and which lines they run."""
    found = sorted({str(path.relative_to(tree)) for pattern in FILES for path in tree.glob(pattern)})
    ours = [name for name in found if not name.startswith(OTHERS) and not name.endswith("_slow.py")]
    running: dict[int, tuple[str, Path]] = {}
    places = [folder / f"job{number}" for number in range(jobs)]
    (folder / "shared").mkdir(parents=True, exist_ok=True)
    while ours or running:
        while ours and places:
            name, place = ours.pop(), places.pop()
            place.mkdir(parents=True, exist_ok=True)
            stage = Stage([name], None, 1800, partial(Measuring, tree, modules, place / "lines.json"))
            running[start(tree, place, folder / "shared" / place.name, [stage])] = name, place
        name, place = running.pop(os.wait()[0])
        places.append(place)
        told = json.loads((place / "told.json").read_text())
        passed = {test: seconds for test, seconds in told["tests"].items() if test not in told["all_failed"]}
        lines = json.loads((place / "lines.json").read_text()) if told["code"] in (0, 1) else {}
        print(
            f"{name}: {len(passed)} tests, {sum(passed.values()):.1f} s{told['failed'] and '; ' + told['failed']}",
            flush=True,
        )
        (folder / f"{name.replace('/', '.')}.json").write_text(json.dumps({"tests": passed, "lines": lines}))
    for number in range(jobs):
        shutil.rmtree(folder / "shared" / f"job{number}", ignore_errors=True)


class Tests:
    """The tests of lines, as `measure` has found them."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._lines: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._modules: dict[str, set[str]] = defaultdict(set)
        for path in folder.glob("tests.*.json"):
            found = json.loads(path.read_text())
            self.seconds |= found["tests"]
            for module, lines in found["lines"].items():
                for line, tests in lines.items():
                    self._lines[module, int(line)].update(tests)
                    self._modules[module].update(tests)

    def of(self, module: str, lines: Sequence[int]) -> set[str]:
        """The tests that run one of these lines."""
        return self.seconds.keys() & set().union(*(self._lines[module, line] for line in lines))

    def of_module(self, module: str) -> set[str]:
        """The tests that run anything of a module, once it is imported."""
        return self.seconds.keys() & self._modules[module]

    def stages(self, module: str, line: int, source: str, seconds: float) -> list[Stage]:
        """What to run for a mutant on a line of a module: tests beside it, then others, which took so many seconds.

        Other tests of the same files come last: they may use what one test has made for all. Lines that only other
        processes run have the tests beside the module.
        """
        lines, at_import = statement(source, line)
        near, package = ({test for test in self.seconds if nearness(test, module) <= far} for far in (0, 1))
        running = (self.of_module(module) if at_import else self.of(module, lines)) or near or package
        files = {file_of(test) for test in running}
        mates = {test for test in self.seconds if file_of(test) in files}
        order = sorted(mates, key=lambda test: (test not in running, nearness(test, module), self.seconds[test], test))
        parts: list[list[str]] = [[], []]
        for test in order:
            if not any(parts) or seconds >= self.seconds[test]:
                parts[test not in running or nearness(test, module) == 2].append(test)
                seconds -= self.seconds[test]
        return [Stage.of(_by_file(part), self.seconds) for part in parts if part]


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def statement(source: str, line: int) -> tuple[range, bool]:
    """The lines of the statement on a line, of a compound one only its head, and whether it runs at import."""
    lines, at_import, size = range(line, line + 1), True, math.inf
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt | ast.ExceptHandler) or node.end_lineno is None:
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        body: list[ast.stmt] = getattr(node, "body", [])
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
        if isinstance(node, ast.FunctionDef) and body[0].lineno <= line <= node.end_lineno:
            at_import = False
        if first <= line <= last and last - first < size:
            lines, size = range(first, last + 1), last - first
    return lines, at_import


def nearness(test: str, module: str) -> int:
    """0 for a test that mirrors a module, 1 for one that mirrors its package, 2 for others."""
    package, name = Path(module).parts[1:-1], Path(module).stem
    file = file_of(test)
    if re.match(f"tests/{'/'.join(package)}/test_{name}(_[a-z_]+)?.py", file):
        return 0
    beside = bool(package) and (file.startswith(f"tests/{package[0]}/") or file == f"tests/test_{package[0]}.py")
    return 1 if beside else 2


def _by_file(tests: Sequence[str]) -> list[str]:
    """Tests of a file one after another, as they may share what is costly to make; files as they first come."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(file_of(test), []).append(test)
    return [test for part in files.values() for test in part]
