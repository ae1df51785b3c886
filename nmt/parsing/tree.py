"""Constituency trees: read and written as Penn-style brackets, prepared for training, drawn for a terminal.

Only ASCII whitespace and brackets end words and labels. No function recurses, because trees may be arbitrarily deep.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from nmt.system.errors import UserError
from nmt.text.lines import read_lines

TOP = "TOP"
ROOTS = frozenset((TOP, "ROOT", "S1", ""))  # root labels of treebanks and parsers
EMPTY = "-NONE-"  # the tag of traces
LONGEST = 1 << 22  # maximum characters of a tree or a line of trees; parsing takes a hundred times as much memory


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent with subtrees, or a preterminal: a tag with its word.

    Only preterminals hold words, only constituents may have an empty label (an unnamed bracket), and labels and words
    contain neither ASCII whitespace nor brackets. The parser ensures this; code that builds trees must do so too.
    """

    label: str
    children: tuple[Tree | str, ...]

    @property
    def is_preterminal(self) -> bool:
        """Whether this is a tag with its word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def symbols(self) -> Iterator[tuple[str | None, str | None]]:
        """Yield (label, None) and (None, label) for opening and closing brackets, and (tag, word) for preterminals."""
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, str):
                yield None, node
                continue
            first = node.children[0] if node.children else None
            if isinstance(first, str):
                yield node.label, first
            else:
                yield node.label, None
                stack.append(node.label)
                stack.extend(node.children[::-1])

    def leaves(self) -> list[str]:
        """Return the words."""
        return [word for word, _ in self.pos()]

    def pos(self) -> list[tuple[str, str]]:
        """Return (word, tag) for every preterminal."""
        return [(word, tag) for tag, word in self.symbols() if tag and word]

    def pretty(self) -> str:
        """Draw the tree as an indented outline without tags, one constituent per line.

        Neighbouring words share a line; if a constituent has only words, they share the line of its label.
        """
        lines: list[str] = []
        stack: list[tuple[str, str, Tree | str]] = [("", "", self)]  # (indent, indent of its children, node)
        while stack:
            lead, below, node = stack.pop()
            if isinstance(node, str):
                lines.append(lead + node)
                continue
            parts: list[Tree | str] = []
            for is_word, run in groupby(node.children, lambda part: isinstance(part, str) or part.is_preterminal):
                if is_word:
                    parts.append(" ".join(map(_word_of, run)))
                else:
                    parts += run
            if len(parts) == 1 and isinstance(parts[0], str):
                lines.append(f"{lead}{node.label}  {parts[0]}")
                continue
            lines.append(lead + node.label)
            stack.extend((f"{below}└─ ", f"{below}   ", part) for part in parts[-1:])
            stack.extend((f"{below}├─ ", f"{below}│  ", part) for part in parts[-2::-1])
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the tree as one line that `parse_tree` reads back."""
        parts = []
        for label, word in self.symbols():
            if label is None:
                parts.append(")")
            elif word is None:
                parts.append(f" ({label}")
            else:
                parts.append(f" ({label} {word})")
        return "".join(parts).removeprefix(" ")

    def __repr__(self) -> str:
        return f"parse_tree({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def _word_of(part: Tree | str) -> str:
    """Return the word of a preterminal, or what is one already."""
    return part if isinstance(part, str) else str(part.children[0])


# --- reading ----------------------------------------------------------------------------------------------------

_SPACE = r"[\t-\r ]"
_ATOM = r"[^()\t-\r ]+"
_TOKEN = re.compile(rf"\(({_ATOM}){_SPACE}+({_ATOM}){_SPACE}*\)|(\()({_ATOM})?|(\))|({_ATOM})")
_COMMENT = re.compile(rf"{_SPACE}*(?:[%#;]|\*x\*)")  # *x* starts header lines in Switchboard
_FAILURE = re.compile(rf"{_SPACE}*(?:\((?:{'|'.join(ROOTS)}){_SPACE}*(?:\({_SPACE}*\){_SPACE}*)?\){_SPACE}*)?")


class MalformedTree(ValueError):
    """Malformed brackets at `line` and `column`, both 1-based."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line:,}, column {column:,}: {reason}")
        self.reason = reason
        self.line = line
        self.column = column


def parse_tree(text: str) -> Tree:
    """Parse a text of one or more lines; raise MalformedTree, a ValueError, unless it holds exactly one tree."""
    trees = [tree for _, tree in _parse(text.split("\n"))]
    if len(trees) != 1:
        raise MalformedTree(f"{len(trees):,} trees stand where one must", 1, 1)
    return trees[0]


def tree_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the path or, for a folder, the sorted .mrg files below it; raise UserError if there are none.

    Symbolic links are followed, but no folder is entered twice.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = list[Path]()
    seen = set[str]()
    for folder, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # links may form a circle
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        found += [Path(folder, name) for name in names if name.endswith(".mrg")]
    files = sorted(filter(Path.is_file, found))
    if not files:
        problem = f"{path}: no file in this folder or below ends in .mrg"
        raise UserError(problem, "name a file of trees, or a treebank's folder")
    return files


def read_trees(path: str | os.PathLike[str]) -> Iterator[Tree]:
    """Yield the trees of a file, or of the .mrg files below a folder; a tree may span lines.

    Blank lines and comments, which start with %, #, ; or *x*, may separate trees. Raise UserError naming file, line and
    column; also for discontinuous brackets, and for a file whose trees are all in comments.
    """
    for file in tree_files(path):
        for _, tree in read_trees_of(file):
            yield tree


def read_trees_of(file: Path) -> Iterator[tuple[int, Tree]]:
    """Yield the trees of one file as `read_trees` does, each with the line where it begins."""
    line = 0
    try:
        for line, tree in _parse(read_lines(file)):
            if _is_discontinuous(tree):
                problem = f"{file}:{line}: is in discontinuous brackets, with a number before each word"
                raise UserError(problem, "write it in the Penn Treebank's brackets, for example with discodop")
            yield line, tree
        if not line and any(_COMMENT.match(text) and "(" in text for text in read_lines(file)):
            raise MalformedTree("all trees are in comments, which begin with %, #, ; or *x*", 1, 1)
    except MalformedTree as error:
        hint = "correct it there; a tree looks like (TOP (S (NP (NNS trees)) (VP (VBP grow))))"
        raise UserError(f"{file}:{error.line}:{error.column}: {error.reason}", hint) from None


def _is_discontinuous(tree: Tree) -> bool:
    """Return whether each word has its number before it, as in 1=you 0=Are."""
    words = tree.leaves()
    numbers = {word[: word.find("=") + 1] for word in words}
    return numbers == {f"{number}=" for number in range(len(words))}


def read_tree_lines(lines: Iterable[str], name: str = "<stdin>") -> Iterator[Tree | None]:
    """Yield one tree per line; errors call the lines `name`.

    Yield None for a blank line, `()` or `(())`, by which parsers report a failure. Raise UserError naming file, line
    and column.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield None if _FAILURE.fullmatch(line) else parse_tree(line)
        except MalformedTree as error:
            hint = "write one whole tree on each line, or leave a line empty where there is none"
            raise UserError(f"{name}:{number}:{error.column}: {error.reason}", hint) from None


def _parse(lines: Iterable[str]) -> Iterator[tuple[int, Tree]]:
    """Yield each tree, with the line where it begins, at the end of the line that closes it.

    Raise MalformedTree for invalid brackets.
    """
    outer: list[tuple[str, list[Tree | str]]] = []  # labels and children of enclosing brackets
    label = ""  # of the innermost bracket, or of the file
    children = list[Tree | str]()
    begun = (0, 0)  # line and column of the outermost bracket
    size = 0  # characters of the lines since
    firsts: list[int] = []  # lines where the trees in `children` begin, while no bracket is open
    for number, line in enumerate(lines, 1):
        if not outer:
            begun = (number, 1)
            size = 0
        size += len(line)
        if size > LONGEST:
            raise MalformedTree(f"a tree has at most {LONGEST:,} characters", *begun)
        if not outer and _COMMENT.match(line):
            continue
        for token in _TOKEN.finditer(line):
            tag, word, opener, name, closer, atom = token.groups("")
            if not outer:
                firsts.append(number)
            has_word = bool(children) and isinstance(children[0], str)  # if so, the innermost bracket must close next
            if tag and not has_word:
                children.append(Tree(tag, (word,)))
            elif opener and not has_word:
                if not outer:
                    begun = (number, token.start() + 1)
                outer.append((label, children))
                label = name
                children = []
            elif closer and outer and children:
                closed = Tree(label, tuple(children))
                label, children = outer.pop()
                children.append(closed)
            elif atom and outer and not label and not children:  # a label apart from its bracket
                label = atom
            elif atom and outer and not children:
                children.append(atom)
            else:
                reason = _reason(closer, str(children[0]) if has_word else atom, bool(outer), label)
                raise MalformedTree(reason, number, token.start() + 1)
        if not outer:
            yield from zip(firsts, children, strict=True)
            children = []
            firsts = []
    if outer:
        raise MalformedTree("this bracket is never closed", *begun)


def _reason(closer: str, word: str, inside: bool, label: str) -> str:
    """Explain an unexpected `closer` or, if it is empty, `word`; `inside` tells whether a bracket is open."""
    shown = reprlib.repr(label if closer else word)  # escaped and abbreviated, in quotes
    plain = shown[1:-1]
    if closer and inside:
        return f"nothing stands in ({plain})"
    if closer:
        return "there is no bracket to close"
    if inside:
        return f"a word must stand alone with its tag: (TAG {plain})"
    return f"{shown} stands outside of brackets"


# --- preparation ------------------------------------------------------------------------------------------------

_BASIC = re.compile("[^-=]+|.*")  # a label up to its first - or =, or all of it if it starts with one


def prepare_tree(tree: Tree, functions: bool = False, traces: bool = False) -> Tree | None:
    """Prepare a tree for training; return None if no words remain.

    The result has a single root TOP and no unnamed brackets. Unless `functions`, functional tags are removed
    (NP-SBJ, NP=2 → NP; -LRB- stays). Unless `traces`, so are traces, with the constituents that they leave empty.
    """

    def name(label: str) -> str:
        return label if functions else _BASIC.findall(label)[0]

    top: list[Tree | str] = []
    outer = [("", top)]  # open constituents: label and children; removed ones share the list of their parent
    for label, word in tree.symbols():
        siblings = outer[-1][1]
        if label is None:
            opened, children = outer.pop()
            if children and children is not outer[-1][1]:
                outer[-1][1].append(Tree(opened, tuple(children)))
        elif word is None:
            renamed = name(label)
            if not renamed or (siblings is top and renamed in ROOTS):
                outer.append(("", siblings))
            else:
                outer.append((renamed, []))
        elif traces or label != EMPTY:
            siblings.append(Tree(name(label), (word,)))
    return Tree(TOP, tuple(top)) if top else None
