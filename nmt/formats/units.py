"""Units of translators' files, and changes to a file that leave everything around them as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

Numbers = Collection[int]
"""Those that take a plural form, of a sample"""


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
    write: Callable[[Sequence[str], bool], None]
    """Set the forms, and mark them for review or not; raise ValueError or ExpatError if they cannot be written"""
    numbers: Sequence[Numbers] = ()
    """The numbers that take each form of a plural"""

    @property
    def gaps(self) -> int:
        """Number of forms without a translation; white space alone is none, unless the source is."""
        pairs = zip_longest(self.sources, self.targets[: len(self.sources)], fillvalue="")
        return sum(not target or (not target.strip() and source.strip() != "") for source, target in pairs)

    @property
    def is_open(self) -> bool:
        """Whether it is not translated yet."""
        return self.gaps == len(self.sources)

    def numbers_of(self, form: int) -> Numbers:
        """Return the numbers that take a form; none if it is not known, or no plural."""
        return self.numbers[form] if self.numbers else ()


class UnitFile:
    """What a file of any format has: units, and what else it says."""

    def __init__(self) -> None:
        """Begin with a file without units."""
        self.units: list[Unit] = []
        self.unfilled: list[str] = []
        """What is to be translated, but has no source here"""
        self.language = ""
        """Code of the language of its translations; empty if it does not say it"""
        self.accelerator = ""
        """Mark of accelerators; empty if it does not say it"""

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        raise NotImplementedError


class Edits:
    """Changes to a text; a later one at the same offset replaces the earlier one."""

    def __init__(self) -> None:
        self._edits = dict[int, tuple[int, str]]()

    def replace(self, start: int, end: int, new: str) -> None:
        """Put `new` where `text[start:end]` is."""
        self._edits[start] = end, new

    def applied(self, text: str) -> str:
        """Return the text with all changes."""
        parts, at = list[str](), 0
        for start, (end, new) in sorted(self._edits.items()):
            parts += [text[at:start], new]
            at = end
        return "".join([*parts, text[at:]])
