"""Units of translators' files, and changes to a file that leave everything around them as it is.

No format is known here: how a unit is written, its file says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, Protocol

Origin = Literal["", "memory", "near memory", "model"]
"""Where a translation comes from; empty for that of a person.

"memory" has exactly this string, "near memory" one that differs in little, such as its accelerator.
"""
ORIGINS: tuple[Origin, ...] = ("memory", "near memory", "model")


def origin_of(text: str) -> Origin:
    """Return the origin that a file names by this text; an empty one if it is none."""
    for origin in ORIGINS:
        if origin == text.strip():
            return origin
    return ""


class Write(Protocol):
    """The function that writes a unit."""

    def __call__(self, texts: Sequence[str], review: bool, origin: Origin = "") -> None:
        """Set the forms, mark them for review or not, and note where they come from.

        Raise ValueError or ExpatError if they cannot be written.
        """


Numbers = Collection[int]
"""Those numbers of a sample (plurals.SAMPLE) that take a plural form: in English, {1} and {0, 2, 3, …}"""


@dataclass(eq=False)
class Unit:
    """A translation unit: the source of each form of its translation, and the forms, which may be empty or missing.

    Sources are as a reader sees them: white space that the format does not keep is one space. Texts are XML where the
    source has elements inside.
    """

    sources: Sequence[str]
    targets: Sequence[str]
    context: str
    needs_review: bool
    write: Write
    numbers: Sequence[Numbers] = ()
    """The numbers that take each form of a plural"""
    name: str = ""
    """Key or id in its file; empty if the format has none"""
    message: Sequence[str] = ()
    """Texts that it has in every version of its file, if these are not the sources: singular and plural"""
    is_locked: bool = False
    """Whether its file says that nobody is to change it"""
    notes: str = ""
    """What else translators write to it: comments, and states of other kinds"""
    origin: Origin = ""
    """What the file says of where its translation comes from"""
    start: int = 0
    """Offset in its file"""
    place: Any = None
    """What its format needs to write it, such as its XML elements; no other module looks inside"""

    @property
    def filled(self) -> list[str]:
        """The forms, with "" for each gap: a missing one, or white space alone unless the source is that, too."""
        targets = self.targets[: len(self.sources)]
        filled = []
        for source, target in zip_longest(self.sources, targets, fillvalue=""):
            is_gap = source.strip() and not target.strip()
            filled.append("" if is_gap else target)
        return filled

    @property
    def gaps(self) -> int:
        """Number of forms without a translation."""
        return self.filled.count("")

    @property
    def is_open(self) -> bool:
        """Whether no form is translated yet."""
        return self.gaps == len(self.sources)

    def numbers_of(self, form: int) -> Numbers:
        """Return the numbers that take a form; none if it is not known, or no plural."""
        if not self.numbers:
            return ()
        return self.numbers[form]


class Edits:
    """Changes to a text; a later one at the same offset replaces the earlier one of its order."""

    def __init__(self) -> None:
        self._edits: dict[tuple[int, int], tuple[int, str]] = {}
        """The end and the new text of each, by its start and order"""

    def replace(self, start: int, end: int, new: str, order: int = 0) -> None:
        """Put `new` where `text[start:end]` is; of several at an offset, insertions of a lower `order` come first."""
        self._edits[start, order] = end, new

    def applied(self, text: str) -> str:
        """Return the text with all changes."""
        parts: list[str] = []
        at = 0
        for (start, _), (end, new) in sorted(self._edits.items()):
            parts += [text[at:start], new]
            at = max(at, end)
        return "".join(parts) + text[at:]

    def around(self, text: str) -> str:
        """Return the text without all that is replaced."""
        parts = []
        at = 0
        for (start, _), (end, _) in sorted(self._edits.items()):
            parts.append(text[at:start])
            at = max(at, end)
        return "".join(parts) + text[at:]


class UnitFile:
    """What a file of any format has: units, and what else it says."""

    def __init__(self, text: str, edits: Edits) -> None:
        """Begin with a text, changes to it that are still to come, and no units."""
        self.text = text
        self.edits = edits
        self.units: list[Unit] = []
        self.locked: list[Unit] = []
        """Units that stay as they are"""
        self.headers: list[Unit] = []
        self.unfilled: list[str] = []
        """What is to be translated but cannot be, for a message: ids without a source, items that may be no text"""
        self.accelerator = ""
        """Mark of accelerators, such as & in &File, if the file or its format names it"""

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there.

        This is the same unit, or that of another file of this format. If it `is_reviewed`, the note of its origin goes.
        """
        raise NotImplementedError

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        raise NotImplementedError
