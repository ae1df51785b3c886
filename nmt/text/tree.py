"""Constituency trees: read from and written as Penn-style brackets, prepared for training, drawn for a terminal.

Words and labels end at ASCII whitespace and at brackets, and nowhere else. Nothing here recurses: a tree may be as
deep as its file is long. Knows nothing of vocabularies or scores.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from nmt.errors import UserError
from nmt.text.lines import read_lines

TOP = "TOP"
ROOTS = frozenset((TOP, "ROOT", "S1", ""))  # what treebanks and parsers call the root, or leave unnamed
EMPTY = "-NONE-"  # the tag of traces, which nobody says


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent over other constituents, or a preterminal: a tag over the one word that it is the tag of.

    What is read from text keeps to this, and what is built must: words stand in preterminals only, only a constituent
    may have an empty label (an unnamed bracket), and labels and words hold no ASCII whitespace and no brackets.
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
        trees = (node for node in self._preorder() if isinstance(node, Tree))
        return [(str(node.children[0]), node.label) for node in trees if node.is_preterminal]

    def spans(self) -> list[tuple[str, int, int]]:
        """(label, start, end) of every constituent over words start to end - 1, the root first and each before those
        within it; preterminals are none."""
        spans: list[tuple[str, int, int]] = []
        stack: list[Tree | str | int] = [self]
        words = 0
        while stack:
            node = stack.pop()
            if isinstance(node, int):  # the constituent at this place of `spans` ends here
                spans[node] = (*spans[node][:2], words)
            elif isinstance(node, str) or node.is_preterminal:
                words += 1
            else:
                stack.append(len(spans))
                stack.extend(reversed(node.children))
                spans.append((node.label, words, words))
        return spans

    def pretty(self) -> str:
        """A drawing for a terminal: each constituent on a line below its parent, words that stand side by side on one
        line, beside the label where there is nothing else. Tags are left out."""
        lines: list[str] = []
        stack: list[tuple[str, str, Tree | str]] = [("", "", self)]  # what stands before it, what before those below
        while stack:
            lead, below, node = stack.pop()
            if isinstance(node, str):
                lines.append(lead + node)
                continue
            parts: list[Tree | str] = []
            for is_word, run in groupby(node.children, _is_word):
                group = list(run)
                parts += [" ".join(map(_word, group))] if is_word else group
            if len(parts) == 1 and isinstance(parts[0], str):
                lines.append(f"{lead}{node.label}  {parts[0]}")
                continue
            lines.append(lead + node.label)
            stack.append((f"{below}└─ ", f"{below}   ", parts[-1]))
            stack.extend((f"{below}├─ ", f"{below}│  ", part) for part in parts[-2::-1])
        return "\n".join(lines)

    def __str__(self) -> str:
        """One line, which `parse_tree` reads back as this very tree."""
        parts: list[str] = []
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, str):
                parts.append(node)
            elif node.is_preterminal:
                parts.append(f" ({node.label} {node.children[0]})")
            else:
                parts.append(f" ({node.label}")
                stack.append(")")
                stack.extend(reversed(node.children))
        return "".join(parts).removeprefix(" ")

    def __repr__(self) -> str:
        return f"parse_tree({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def _preorder(self) -> Iterator[Tree | str]:
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node, Tree):
                stack.extend(reversed(node.children))


def _is_word(node: Tree | str) -> bool:
    return isinstance(node, str) or node.is_preterminal


def _word(node: Tree | str) -> str:
    return node if isinstance(node, str) else str(node.children[0])


# --- reading ----------------------------------------------------------------------------------------------------

_SPACE = r"[\t-\r ]"
_ATOM = r"[^()\t-\r ]+"
_TOKEN = re.compile(rf"\(({_ATOM}){_SPACE}+({_ATOM}){_SPACE}*\)|(\()({_ATOM})?|(\))|({_ATOM})")
_COMMENT = re.compile(rf"{_SPACE}*(?:[%#;]|\*x\*)")  # *x* begins the lines of Switchboard's headers
_FAILURE = re.compile(rf"{_SPACE}*(?:\({_SPACE}*(?:\({_SPACE}*\){_SPACE}*)?\){_SPACE}*)?")


class MalformedTree(ValueError):
    """Brackets that are no tree; `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line:,}, column {column:,}: {reason}")
        self.reason, self.line, self.column = reason, line, column


def parse_tree(text: str) -> Tree:
    """The one tree that stands in the text, on a line or more; raises MalformedTree, a ValueError, where none does."""
    trees = list(_parse(text.split("\n")))
    if len(trees) != 1:
        raise MalformedTree(f"{len(trees):,} trees stand where one must", 1, 1)
    return trees[0]


def tree_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files that `read_trees` reads: the path, or those below the folder that end in .mrg, sorted."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    if files := sorted(file for file in path.rglob("*.mrg") if file.is_file()):
        return files
    raise UserError(
        f"{path}: no file in this folder or below ends in .mrg", "name a file of trees, or a treebank's folder"
    )


def read_trees(path: str | os.PathLike[str]) -> Iterator[Tree]:
    """The trees of a file, or of the .mrg files below a folder, however they stand on lines; .gz is read too.

    Between trees a line may be blank or a comment that begins with %, #, ; or *x*. Raises UserError naming file, line
    and column.
    """
    for file in tree_files(path):
        try:
            yield from _parse(_unmarked(read_lines(file)))
        except MalformedTree as error:
            raise UserError(
                f"{file}:{error.line}:{error.column}: {error.reason}",
                "correct it there; a tree looks like (TOP (S (NP (NNS trees)) (VP (VBP grow))))",
            ) from None


def read_tree_lines(source: str | os.PathLike[str] | Iterable[str], name: str = "<stdin>") -> Iterator[Tree | None]:
    """The trees of a file, or of lines that errors call `name`, one on each; None for a line that is blank, `()` or
    `(())`, which is how parsers say that they found none. Raises UserError naming file, line and column."""
    if isinstance(source, str | os.PathLike):
        name, source = str(source), read_lines(source)
    for number, line in enumerate(_unmarked(source), 1):
        try:
            yield None if _FAILURE.fullmatch(line) else parse_tree(line)
        except MalformedTree as error:
            raise UserError(
                f"{name}:{number}:{error.column}: {error.reason}",
                "write one whole tree on each line, or leave a line empty where there is none",
            ) from None


def _unmarked(lines: Iterable[str]) -> Iterator[str]:
    """The lines without a byte order mark before them."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _parse(lines: Iterable[str]) -> Iterator[Tree]:
    """Yield the trees, each at the end of the line where it closes; raises MalformedTree."""
    brackets = _Brackets()
    for number, line in enumerate(lines, 1):
        if brackets.outer or not _COMMENT.match(line):
            yield from brackets.read(line, number)
    if brackets.outer:
        line, number, index = brackets.begun
        raise MalformedTree("this bracket is never closed", number, _column(line, index))


class _Brackets:
    """Trees that are read line by line, and what is open of a tree between two lines."""

    def __init__(self) -> None:
        self.outer: list[tuple[str, list[Tree | str]]] = []
        """Label and children of the open brackets, each in the entry after its own; the first entry is a file's"""
        self.begun = "", 0, 0
        """Where the outermost of them stands: the line, its number, and which of its tokens"""
        self._label, self._children = "", list[Tree | str]()  # of the innermost bracket
        self._has_word = False  # the innermost bracket is a preterminal, which can only close

    def read(self, line: str, number: int) -> list[Tree]:
        """Return the trees that end on this line; raises MalformedTree."""
        outer, label, children, has_word = self.outer, self._label, self._children, self._has_word
        for index, (tag, word, opener, name, closer, atom) in enumerate(_TOKEN.findall(line)):
            if tag and not has_word:
                children.append(Tree(tag, (word,)))
            elif opener and not has_word:
                if not outer:
                    self.begun = line, number, index
                outer.append((label, children))
                label, children = name, []
            elif closer and outer and children:
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
                has_word = False
            elif atom and outer and not label and not children:
                label = atom
            elif atom and outer and not children:
                children.append(atom)
                has_word = True
            else:
                reason = _reason(closer, str(children[0]) if has_word else atom, bool(outer), label)
                raise MalformedTree(reason, number, _column(line, index))
        trees, children = ([], children) if outer else (children, [])
        self._label, self._children, self._has_word = label, children, has_word
        return trees  # type: ignore[return-value]


def _reason(closer: str, word: str, inside: bool, label: str) -> str:
    """Say what is wrong with a closing bracket, or else with a word, which is inside of a bracket or not."""
    if closer:
        return f"nothing stands in ({_shown(label)})" if inside else "there is no bracket to close"
    if inside:
        return f"a word must stand alone with its tag: (TAG {_shown(word)})"
    return f"{reprlib.repr(word)} stands outside of brackets"


def _shown(text: str) -> str:
    """A label or a word in a message: without what a terminal would obey, the middle of a long one left out."""
    return reprlib.repr(text)[1:-1]


def _column(line: str, index: int) -> int:
    """Where a token of the line begins, from 1."""
    return next(islice(_TOKEN.finditer(line), index, None)).start() + 1


# --- preparation ------------------------------------------------------------------------------------------------

_BASIC = re.compile("[^-=]+|.*")  # a label up to its first - or =, all of it where it begins with one


def prepare_tree(tree: Tree, functions: bool = False, traces: bool = False) -> Tree | None:
    """The tree as parsers are trained on it, None where no word is left of it: under one root TOP, unnamed brackets
    undone, without functional tags (NP-SBJ, NP=2 → NP; -LRB- stays) and without -NONE- and what that empties.

    `functions` and `traces` keep what they name.
    """
    top: list[Tree | str] = []
    # Label of an open constituent, what of its children is to come, and where those go that are done: `top` is where
    # the children of a root go, whatever stands above it.
    stack: list[tuple[str, Iterator[Tree | str], list[Tree | str]]] = [(TOP, iter((tree,)), top)]
    while stack:
        label, rest, done = stack[-1]
        child = next(rest, None)
        if child is None:
            stack.pop()
            if done and stack and done is not stack[-1][2]:
                stack[-1][2].append(Tree(label, tuple(done)))
            continue
        if isinstance(child, str):
            done.append(child)
            continue
        name = child.label if functions else _BASIC.findall(child.label)[0]
        if child.is_preterminal:
            if traces or child.label != EMPTY:
                done.append(Tree(name, child.children))
        elif not name or (done is top and name in ROOTS):
            stack.append((label, iter(child.children), done))
        else:
            stack.append((name, iter(child.children), []))
    return Tree(TOP, tuple(top)) if top else None
