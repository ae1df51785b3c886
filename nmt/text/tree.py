"""Constituency trees: read from and written as Penn-style brackets, prepared for training, drawn for a terminal.

Words and labels end at ASCII whitespace and brackets, and nowhere else. Nothing here recurses: input may be as deep
as it is long. Knows nothing of vocabularies or scores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import UserError
from nmt.text.lines import read_lines

TOP = "TOP"
ROOTS = frozenset((TOP, "ROOT", "S1", ""))  # what treebanks and parsers call the root, or leave unnamed
EMPTY = "-NONE-"  # the tag of traces and other words that nobody says
FAILURES = ("", "()", "(())")  # how parsers write that they found no tree


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent over other constituents, or a preterminal: a tag over the one word that it is the tag of.

    A label may be empty (an unnamed bracket). Labels and words hold no whitespace and no brackets, else `str` would
    read back as another tree; nothing here checks that.
    """

    label: str
    children: tuple[Tree | str, ...]

    @property
    def is_preterminal(self) -> bool:
        """Whether this is a tag over a word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def leaves(self) -> list[str]:
        """The words."""
        return [node for node in self._preorder() if isinstance(node, str)]

    def pos(self) -> list[tuple[str, str]]:
        """(word, tag) of every preterminal."""
        return [
            (node.children[0], node.label)
            for node in self._preorder()
            if isinstance(node, Tree) and len(node.children) == 1 and isinstance(node.children[0], str)
        ]

    def spans(self) -> list[tuple[str, int, int]]:
        """(label, start, end) of every constituent over words start to end - 1, a parent before its children and
        the root first; preterminals are none."""
        spans: list[tuple[str, int, int]] = []
        stack: list[Tree | str | int] = [self]
        words = 0
        while stack:
            node = stack.pop()
            if isinstance(node, int):  # the constituent at this place of the list has ended
                spans[node] = (*spans[node][:2], words)
            elif isinstance(node, str) or node.is_preterminal:
                words += 1
            else:
                stack.append(len(spans))
                stack.extend(reversed(node.children))
                spans.append((node.label, words, words))
        return spans

    def pretty(self) -> str:
        """A drawing for a terminal: a constituent per line below its parent; one of words alone stands on one line."""
        lines: list[str] = []
        stack: list[tuple[Tree | str, str, str]] = [(self, "", "")]
        while stack:
            node, lead, below = stack.pop()
            if isinstance(node, str) or all(isinstance(c, str) or c.is_preterminal for c in node.children):
                lines.append(f"{lead}{_flat(node)}")
                continue
            lines.append(f"{lead}{node.label}")
            last = len(node.children) - 1
            stack.extend(
                (child, below + ("└─ " if n == last else "├─ "), below + ("   " if n == last else "│  "))
                for n, child in reversed(list(enumerate(node.children)))
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        """One line, which `parse_tree` reads back as this very tree."""
        parts: list[str] = []
        stack: list[Tree | str | None] = [self]
        while stack:
            node = stack.pop()
            if node is None:
                parts.append(")")
            elif isinstance(node, str):
                parts.append(f" {node}")
            elif len(node.children) == 1 and isinstance(node.children[0], str):
                parts.append(f" ({node.label} {node.children[0]})")
            else:
                parts.append(f" ({node.label}")
                stack.append(None)
                stack.extend(reversed(node.children))
        return "".join(parts)[1:]

    def __repr__(self) -> str:
        return f"parse_tree({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._flat() == other._flat() if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._flat()))

    def _flat(self) -> list[str | tuple[str, int]]:
        """A list that no other tree has."""
        return [node if isinstance(node, str) else (node.label, len(node.children)) for node in self._preorder()]

    def _preorder(self) -> Iterator[Tree | str]:
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node, Tree):
                stack.extend(reversed(node.children))


def _flat(node: Tree | str) -> str:
    if isinstance(node, str):
        return node
    return " ".join((node.label, *(_flat(child) for child in node.children)))


# --- reading ----------------------------------------------------------------------------------------------------

_ATOM = r"[^()\x09-\x0d ]+"
_SPACE = r"[\x09-\x0d ]"
_TOKEN = re.compile(rf"\(({_ATOM}){_SPACE}+({_ATOM}){_SPACE}*\)|(\()({_ATOM})?|(\))|({_ATOM})")
_COMMENT = re.compile(rf"{_SPACE}*(?:[%#;]|\*x\*)")  # between trees; *x* are the headers of Switchboard


class MalformedTree(ValueError):
    """Brackets that are no tree; `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line:,}, column {column:,}: {reason}" if line > 1 else f"column {column:,}: {reason}")
        self.reason, self.line, self.column = reason, line, column


def parse_tree(text: str) -> Tree:
    """The one tree that stands in a text of one line or many; raises MalformedTree, a ValueError, where it does not."""
    trees = _parse(text.split("\n"))
    tree = next(trees, None)
    if tree is None:
        raise MalformedTree("there is no tree", 1, 1)
    if next(trees, None) is not None:
        raise MalformedTree("more than one tree", 1, 1)
    return tree


def tree_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files that `read_trees` reads: the path itself, or all below a folder that end in .mrg, sorted."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    if files := sorted(file for file in path.rglob("*.mrg") if file.is_file()):
        return files
    raise UserError(f"{path}: no file below this folder ends in .mrg", "name a file, or a folder of a Treebank")


def read_trees(path: str | os.PathLike[str]) -> Iterator[Tree]:
    """The trees of a file, or of all .mrg files below a folder, however they are broken over lines; .gz is read too.

    Lines between trees that are blank or begin with %, #, ; or *x* are passed over. Raises UserError naming file,
    line and column.
    """
    for file in tree_files(path):
        try:
            yield from _parse(_unmarked(read_lines(file)))
        except MalformedTree as error:
            raise UserError(f"{file}:{error.line}:{error.column}: {error.reason}") from None


def read_tree_lines(source: str | os.PathLike[str] | Iterable[str], name: str = "<stdin>") -> Iterator[Tree | None]:
    """The trees of a file, or of lines that errors call `name`, one on each line; None where the line is empty, `()`
    or `(())`, as parsers write that they failed. Raises UserError naming file, line and column."""
    if isinstance(source, str | os.PathLike):
        name, source = str(source), read_lines(source)
    for number, line in enumerate(_unmarked(source), 1):
        if "".join(line.split()) in FAILURES:
            yield None
            continue
        try:
            yield parse_tree(line)
        except MalformedTree as error:
            raise UserError(f"{name}:{number}:{error.column}: {error.reason}", "one tree on each line") from None


def _unmarked(lines: Iterable[str]) -> Iterator[str]:
    """The lines without a byte order mark at the very beginning."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _parse(lines: Iterable[str]) -> Iterator[Tree]:
    """Trees as they close; raises MalformedTree."""
    stack: list[tuple[str, list[Tree | str]]] = []  # the open constituents around the innermost, which is:
    label, children = "", list[Tree | str]()
    depth, begun, has_word = 0, (1, 1), False
    number, line = 0, ""

    def malformed(index: int, reason: str) -> MalformedTree:
        starts = [match.start() for match in _TOKEN.finditer(line)]
        return MalformedTree(reason, number, starts[index] + 1)

    for number, line in enumerate(lines, 1):
        if not depth and _COMMENT.match(line):
            continue
        for index, (tag, word, opener, name, closer, atom) in enumerate(_TOKEN.findall(line)):
            if tag:
                if has_word:
                    raise malformed(index, f"the word {children[0]!r} has a bracket beside it")
                if depth:
                    children.append(Tree(tag, (word,)))
                else:
                    yield Tree(tag, (word,))
            elif opener:
                if has_word:
                    raise malformed(index, f"the word {children[0]!r} has a bracket beside it")
                if depth:
                    stack.append((label, children))
                else:
                    begun = number, index
                label, children = name, []
                depth += 1
            elif closer:
                if not children:
                    what = "there is no bracket to close" if not depth else f"nothing stands in ({label})"
                    raise malformed(index, what)
                tree = Tree(label, tuple(children))
                has_word = False
                depth -= 1
                if depth:
                    label, children = stack.pop()
                    children.append(tree)
                else:
                    label, children = "", []
                    yield tree
            elif not depth:
                raise malformed(index, f"{atom!r} stands outside of brackets")
            elif children:
                raise malformed(index, f"the word {atom!r} needs brackets of its own: (TAG {atom})")
            elif label:
                children, has_word = [atom], True
            else:
                label = atom
    if depth:
        raise MalformedTree("this bracket is never closed", *begun)


# --- preparation ------------------------------------------------------------------------------------------------


def prepare_tree(tree: Tree, functions: bool = False, traces: bool = False) -> Tree | None:
    """The tree with one root TOP, without functional tags (NP-SBJ, NP=2 → NP; -LRB- stays) and without -NONE- and
    the constituents it empties; None where no word is left. `functions` and `traces` keep what they name."""
    stack: list[tuple[str, Iterator[Tree | str], list[Tree | str]]] = []
    top: list[Tree | str] = []
    stack.append((TOP, iter((tree,)), top))
    while True:
        label, rest, done = stack[-1]
        child = next(rest, None)
        if child is None:
            stack.pop()
            if not stack:
                return Tree(TOP, tuple(top)) if top else None
            if done is not top and done:
                stack[-1][2].append(Tree(label, tuple(done)))
        elif isinstance(child, str):
            done.append(child)
        elif child.label == EMPTY and child.is_preterminal and not traces:
            continue
        elif done is top and child.label in ROOTS and not child.is_preterminal:
            stack.append((TOP, iter(child.children), top))  # whatever stands above the root, its children are TOP's
        else:
            stack.append((child.label if functions else _bare(child.label), iter(child.children), []))


def _bare(label: str) -> str:
    """The label without functional tags and indices: up to its first - or =, if anything stands before that."""
    return re.split("[-=]", label, maxsplit=1)[0] or label
