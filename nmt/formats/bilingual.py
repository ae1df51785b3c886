"""Files that translators work on: PO, MO, XLIFF 1.2, TMX, Qt's TS and Android's strings.xml.

What is written replaces exactly the translations. The Translate Toolkit, of the extra `files`, is imported when such a
file is opened: it has the plural forms of languages and the punctuation that they use, and reads MO.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from nmt.formats.android import AndroidFile
from nmt.formats.gettext import MoFile, PoFile
from nmt.formats.qt_linguist import TsFile
from nmt.formats.strings import Accelerators, ProgramString, plain_pairs
from nmt.formats.tmx import TmxFile
from nmt.formats.units import Unit
from nmt.formats.xliff import XliffFile
from nmt.system.compression import open_input
from nmt.system.errors import UserError

LARGEST_FILE = 1 << 26  # bytes: their tree takes ten times as much memory
FORMATS = {
    ".po": PoFile,
    ".mo": MoFile,
    ".xliff": XliffFile,
    ".xlf": XliffFile,
    ".tmx": TmxFile,
    ".ts": TsFile,
    ".xml": AndroidFile,
}
"""By the endings of files' names"""
SAME_AS = {"nb": "no", "nn": "no", "iw": "he", "in": "id"}
"""Codes of languages that others stand for, too"""


class BilingualFile:
    """A file of translation units; of a TMX, `lacking` units have no variant in one of the languages, `complete`
    ones have both, and `codes` are those of all variants. `unfilled` is what can have no translation here."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        """Read a file in the languages source and target; raise UserError if it is unreadable, or not what its name
        says."""
        self.path, self._suffix, self._languages = path, path.suffix.lower(), languages
        with open_input(path) as stream:
            raw = stream.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise UserError(f"{path}: has more than {LARGEST_FILE:,} bytes", "divide it into several files")
        try:
            import_module("translate.lang.data")
        except ImportError as error:
            hint = "pip install 'nmtkit[files]' installs it"
            raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None
        try:
            self._file = FORMATS[self._suffix](raw, languages)
        except Exception as error:  # of many types
            reason = " ".join(str(error).split())[:200] or "it is of another kind"
            hint = "see that it is complete, in the encoding that it names, and of the format of its name (XLIFF: 1.2)"
            raise UserError(f"{path}: cannot be read as {self._suffix}: {reason}", hint) from None
        self.units: Sequence[Unit] = self._file.units
        self.unfilled: Sequence[str] = self._file.unfilled
        self.lacking, self.complete, self.codes = 0, 0, dict[str, None]()
        if isinstance(self._file, TmxFile):
            self.lacking, self.complete, self.codes = self._file.lacking, self._file.complete, self._file.codes
        marked = () if self._suffix == ".xml" else self.units
        sources = (source for unit in marked for source in unit.sources)
        self.accelerators = Accelerators(sources, self._file.accelerator or "&" * (self._suffix == ".ts"))

    def string(self, source: str) -> ProgramString:
        """Take apart a source of this file."""
        from translate.lang.factory import getlanguage

        return ProgramString(source, self.accelerators, getlanguage(self._languages[-1]).punctranslate)

    def pairs(self) -> Iterator[tuple[str, ...]]:
        """Yield sources and translations as a model sees them, without those that need review."""
        for unit in self.units:
            if not unit.needs_review:
                for source, target in zip(unit.sources, unit.targets, strict=False):
                    if target:
                        yield from plain_pairs(source, target, self.accelerators)

    def check_language(self) -> None:
        """Raise UserError if the file says that its translations are in another language than it was opened for."""
        if self._suffix == ".tmx":  # which has several, from which those of the recipe are taken
            return
        said = self._file.language
        codes = [re.split("[-_@.]", code.strip().lower())[0] for code in (said or "", self._languages[-1])]
        said_as, wanted = (SAME_AS.get(code, code) for code in codes)
        if said_as != wanted and len(said_as) == len(wanted):  # else one is of ISO 639-1 and one of 639-3
            problem = (
                f"{self.path}: says that its translations are in {said}, but data are to be in {self._languages[-1]}"
            )
            raise UserError(problem, "name files of one language, such as po/de.po, or correct what this one says")

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._file.content()
