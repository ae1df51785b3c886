"""Constituency trees: read and written as Penn-style brackets, prepared for training, drawn for a terminal.

Words and labels end at ASCII whitespace and at brackets, and nowhere else. Nothing recurses, because a tree may be as
deep as its file is long.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from nmt.system.errors import UserError
from nmt.text.lines import read_lines

TOP = "TOP"
ROOTS = frozenset((TOP, "ROOT", "S1", ""))  # labels that treebanks and parsers give the root
EMPTY = "-NONE-"  # the tag of traces
LONGEST = 1 << 22  # characters of a tree, or of a line with trees; its brackets take a hundred times as much memory


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent over other constituents, or a preterminal: a tag over its word.

    Words stand in preterminals only, only a constituent may have an empty label (an unnamed bracket), and labels and
    words hold no ASCII whitespace and no brackets. Reading ensures this; code that builds a tree must ensure it.
    """

    label: str
    children: tuple[Tree | str, ...]

    @property
    def is_preterminal(self) -> bool:
        """Whether this is a tag over a word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def symbols(self) -> Iterator[tuple[str | None, str | None]]:
        """Yield (label, None) and (None, label) where a constituent opens and closes, (tag, word) for preterminals."""
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, str):
                yield None, node
            elif node.children and isinstance(word := node.children[0], str):
                yield node.label, word
            else:
                yield node.label, None
                stack.append(node.label)
                stack.extend(node.children[::-1])

    def leaves(self) -> list[str]:
        """Return the words."""
        return [word for tag, word in self.symbols() if tag and word]

    def pos(self) -> list[tuple[str, str]]:
        """Return (word, tag) of every preterminal."""
        return [(word, tag) for tag, word in self.symbols() if tag and word]

    def pretty(self) -> str:
        """Draw the tree for a terminal, without tags: each constituent on a line below its parent.

        Neighbouring words share a line, which is that of the label if there is nothing else below it.
        """
        lines: list[str] = []
        stack: list[tuple[str, str, Tree | str]] = [("", "", self)]  # indents of a node and of those below, the node
        while stack:
            lead, below, node = stack.pop()
            if isinstance(node, str):
                lines.append(lead + node)
                continue
            parts: list[Tree | str] = []
            for is_word, run in groupby(node.children, lambda part: isinstance(part, str) or part.is_preterminal):
                group = list(run)
                words = (str(part if isinstance(part, str) else part.children[0]) for part in group)
                parts += [" ".join(words)] if is_word else group
            if len(parts) == 1 and isinstance(parts[0], str):
                lines.append(f"{lead}{node.label}  {parts[0]}")
                continue
            lines.append(lead + node.label)
            stack.extend((f"{below}└─ ", f"{below}   ", part) for part in parts[-1:])
            stack.extend((f"{below}├─ ", f"{below}│  ", part) for part in parts[-2::-1])
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the tree as one line, from which `parse_tree` reads an equal tree."""
        parts = (
            ")" if label is None else f" ({label}" if word is None else f" ({label} {word})"
            for label, word in self.symbols()
        )
        return "".join(parts).removeprefix(" ")

    def __repr__(self) -> str:
        return f"parse_tree({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))


# --- reading ----------------------------------------------------------------------------------------------------

_SPACE = r"[\t-\r ]"
_ATOM = r"[^()\t-\r ]+"
_TOKEN = re.compile(rf"\(({_ATOM}){_SPACE}+({_ATOM}){_SPACE}*\)|(\()({_ATOM})?|(\))|({_ATOM})")
_COMMENT = re.compile(rf"{_SPACE}*(?:[%#;]|\*x\*)")  # *x* begins the lines of Switchboard's headers
_FAILURE = re.compile(rf"{_SPACE}*(?:\({_SPACE}*(?:\({_SPACE}*\){_SPACE}*)?\){_SPACE}*)?")


class MalformedTree(ValueError):
    """Brackets are no tree; `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line:,}, column {column:,}: {reason}")
        self.reason, self.line, self.column = reason, line, column


def parse_tree(text: str) -> Tree:
    """Read the one tree of a text of one line or more; raises MalformedTree, a ValueError, if there is not one."""
    trees = list(_parse(text.split("\n")))
    if len(trees) != 1:
        raise MalformedTree(f"{len(trees):,} trees stand where one must", 1, 1)
    return trees[0]


def tree_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files that `read_trees` reads: the path, or those below the folder that end in .mrg, sorted."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    if files := sorted(file for file in path.rglob("*.mrg") if file.is_file()):
        return files
    raise UserError(
        f"{path}: no file in this folder or below ends in .mrg", "name a file of trees, or a treebank's folder"
    )


def read_trees(path: str | os.PathLike[str]) -> Iterator[Tree]:
    """Yield the trees of a file, plain or .gz, or of the .mrg files below a folder; a tree may span lines.

    Between trees there may be blank lines and comments, which begin with %, #, ; or *x*. Raises UserError naming file,
    line and column.
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
    """Yield the trees of a file, or of lines that errors call `name`, one on each line.

    A blank line, `()` and `(())` are how parsers say that they found no tree, and give None. Raises UserError naming
    file, line and column.
    """
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
    """Remove a byte order mark from the first line."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _parse(lines: Iterable[str]) -> Iterator[Tree]:
    """Yield the trees, each at the end of the line where it closes; raises MalformedTree."""
    outer: list[tuple[str, list[Tree | str]]] = []  # of the open brackets: what is in the one around it
    label, children = "", list[Tree | str]()  # of the innermost bracket, or of the file
    has_word = False  # the innermost bracket is a preterminal, which can only close
    begun, size = ("", 0, 0), 0  # where the outermost bracket stands: the line, its number, and which of its tokens
    for number, line in enumerate(lines, 1):
        size = len(line) + (size if outer else 0)
        if size > LONGEST:
            raise MalformedTree(f"a tree has at most {LONGEST:,} characters", number, 1)
        if not outer and _COMMENT.match(line):
            continue
        for index, (tag, word, opener, name, closer, atom) in enumerate(_TOKEN.findall(line)):
            if tag and not has_word:
                children.append(Tree(tag, (word,)))
            elif opener and not has_word:
                begun = begun if outer else (line, number, index)
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
        if not outer:
            yield from children  # type: ignore[misc]
            children = []
    if outer:
        line, number, index = begun
        raise MalformedTree("this bracket is never closed", number, _column(line, index))


def _reason(closer: str, word: str, inside: bool, label: str) -> str:
    """Say what is wrong with a closing bracket, or else with a word, which is inside of a bracket or not."""
    if closer:
        return f"nothing stands in ({_shown(label)})" if inside else "there is no bracket to close"
    if inside:
        return f"a word must stand alone with its tag: (TAG {_shown(word)})"
    return f"{reprlib.repr(word)} stands outside of brackets"


def _shown(text: str) -> str:
    """Show a label or word in a message: escaped, and without the middle if it is long."""
    return reprlib.repr(text)[1:-1]


def _column(line: str, index: int) -> int:
    """Return the column, from 1, at which a token of the line begins."""
    return next(islice(_TOKEN.finditer(line), index, None)).start() + 1


# --- preparation ------------------------------------------------------------------------------------------------

_BASIC = re.compile("[^-=]+|.*")  # a label up to its first - or =, all of it where it begins with one


def prepare_tree(tree: Tree, functions: bool = False, traces: bool = False) -> Tree | None:
    """Prepare a tree for the training of a parser; returns None if no word is left of it.

    There is one root TOP, unnamed brackets are removed, and so are functional tags (NP-SBJ, NP=2 → NP; -LRB- stays)
    unless `functions`, and traces with the constituents that they leave empty unless `traces`.
    """
    top: list[Tree | str] = []
    # Of each open constituent: its label, its children that are still to come, and the list for those that are done.
    # That list is `top` for the children of a root, whatever stands above it.
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
