"""Mutants that cosmic-ray can make of some modules, drawn by seed."""

from __future__ import annotations

import ast
import difflib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "search": ["nmt/decoding/*.py"],  # without the files of the next group
    "constraints": ["nmt/decoding/constraints.py", "nmt/decoding/phrases.py", "nmt/text/terms.py"],
    "loss, schedule": ["nmt/training/loss.py", "nmt/training/optimizer.py"],
    "batches, plan": ["nmt/data/batch.py", "nmt/data/epochs.py", "nmt/training/batches.py"],
    "brackets": ["nmt/parsing/brackets.py", "nmt/parsing/tree.py"],
    "bundle": ["nmt/checkpoint/*.py", "nmt/exchange/*.py"],
    "files": ["nmt/system/files.py", "nmt/system/integrity.py"],
}
PART = 15  # each group has at least one of so many mutants
IDENTITY = {frozenset(("Eq", "Is")), frozenset(("NotEq", "IsNot"))}
UNCHANGED = {"name", "string", "newline", "endmarker", "trailer", "fstring_string", "fstring_start", "fstring_end"}
"""What the syntax has most of, and no operator of cosmic-ray changes"""


@dataclass(frozen=True)
class Mutant:
    """A change that cosmic-ray can make."""

    group: str
    module: str
    operator: str
    occurrence: int
    line: int
    column: int

    def apply(self, source: str) -> str | None:
        """The changed module; None where it would not compile or would mean the same, or there is no such change."""
        try:
            changed: str | None = mutate_code(source, get_operator(self.operator)(), self.occurrence)
            same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except (SyntaxError, AttributeError):  # the latter by cosmic-ray, at `except module.Name`
            return None
        return None if same else changed

    @property
    def place(self) -> tuple[str, str, int, int]:
        """What it changes: all replacements of one operator are at one place."""
        return self.module, self.operator.split("_")[0], self.line, self.column


def modules() -> dict[str, str]:
    """The group of each module."""
    found: dict[str, str] = {}
    for group, patterns in GROUPS.items():
        found |= {str(path.relative_to(ROOT)): group for pattern in patterns for path in sorted(ROOT.glob(pattern))}
    return found


def mutants(module: str, group: str) -> Iterator[Mutant]:
    """All mutants of a module that the rules allow."""
    source = (ROOT / module).read_text()
    nodes = [node for node in ast_nodes(get_ast(source)) if node.type not in UNCHANGED]
    skipped = list(_skipped(source))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or frozenset(name.split("_")[1:]) in IDENTITY:
            continue
        positions = (start for node in nodes for start, _ in operator().mutation_positions(node))
        for occurrence, (line, column) in enumerate(positions):
            if not any(first <= (line, column) < end for first, end in skipped):
                yield Mutant(group, module, name, occurrence, line, column)


def _skipped(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the rules allow no mutant: begin and end, each a line and a column."""
    for node in ast.walk(ast.parse(source)):
        inside: list[ast.expr | ast.stmt | None] = []
        match node:
            case ast.AnnAssign() | ast.arg():
                inside = [node.annotation]
            case ast.FunctionDef():
                inside = [node.returns]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                inside = [node]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="kill")):
                inside = [node]
            case ast.Call(func=ast.Name(id="zip")):
                inside = [keyword.value for keyword in node.keywords]
        for part in inside:
            if part is not None:
                assert part.end_lineno is not None
                assert part.end_col_offset is not None
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def shares(places: Counter[str], count: int) -> dict[str, int]:
    """How many mutants each group gets of `count`: as its places are, but at least a PART of them."""
    fewest = count // PART
    few = {group for group, number in places.items() if number * count < fewest * places.total()}
    rest = sum(number for group, number in places.items() if group not in few)
    left = count - fewest * len(few)
    exact = {group: left * number / rest for group, number in places.items() if group not in few}
    found = dict.fromkeys(few, fewest) | {group: math.floor(share) for group, share in exact.items()}
    for group in sorted(exact, key=lambda group: exact[group] % 1, reverse=True)[: count - sum(found.values())]:
        found[group] += 1
    return found


def draw(count: int, seed: int) -> list[Mutant]:
    """Mutants by seed, in an order drawn by seed."""
    by_place = defaultdict(list)
    for module, group in modules().items():
        for mutant in mutants(module, group):
            by_place[mutant.place].append(mutant)
    wanted = shares(Counter(there[0].group for there in by_place.values()), count)
    random_ = random.Random(seed)
    found: list[Mutant] = []
    for place in random_.sample(sorted(by_place), len(by_place)):
        one = random_.choice(by_place[place])
        if wanted[one.group] and one.apply((ROOT / one.module).read_text()) is not None:
            wanted[one.group] -= 1
            found.append(one)
    return found


def difference(source: str, changed: str) -> tuple[str, str]:
    """The lines that differ, but for empty ones."""
    lines = list(difflib.ndiff(source.splitlines(), changed.splitlines()))
    was, now = (" ".join(line[2:].strip() for line in lines if line[:2] == sign).strip() for sign in ("- ", "+ "))
    return was, now
