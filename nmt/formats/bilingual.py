"""Files that translators work on: PO, MO, XLIFF 1.2, TMX, Qt's TS and Android's strings.xml.

What is written replaces exactly the translations. The Translate Toolkit, of the extra `files`, is imported when such a
file is opened: it has the plural forms of languages and the punctuation that they use, and reads MO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from nmt.formats.android import AndroidFile
from nmt.formats.catalogs import catalog_of
from nmt.formats.declared import check_kind, check_language, content_of, ending_of, kind_of
from nmt.formats.gettext import MoFile, PoFile
from nmt.formats.plurals import PluralString, pair_with_number
from nmt.formats.qt_linguist import TsFile
from nmt.formats.segments import Segment
from nmt.formats.strings import Accelerators, ProgramString, plain_pairs, read_string
from nmt.formats.tmx import TmxFile
from nmt.formats.units import Unit
from nmt.formats.xliff import XliffFile
from nmt.system.errors import UserError
from nmt.text.language_codes import Language

FORMATS = {".po": PoFile, ".mo": MoFile, ".xlf": XliffFile, ".tmx": TmxFile, ".ts": TsFile, ".xml": AndroidFile}
"""By the kinds of files"""
READING = 3  # version of `BilingualFile.pairs`: data prepared with another one is prepared anew


def check_toolkit(path: Path) -> None:
    """Raise UserError unless the package is installed that files of translators need."""
    try:
        import_module("translate.lang.data")
    except ImportError as error:
        hint = "pip install translate-toolkit"
        raise UserError(f"{path}: needs the package translate-toolkit: {error}", hint) from None


class BilingualFile:
    """A file of translation units."""

    def __init__(
        self, path: Path, languages: Sequence[str], content: bytes | None = None, kind: str | None = None
    ) -> None:
        """Read a file in the languages source and target, or its `content` of a `kind`; raise UserError if it is
        unreadable, or not what its name says."""
        self.path = path
        self._languages = languages
        _, self._target = languages
        self._kind = kind_of(path) if kind is None else kind
        self._raw = content_of(path) if content is None else content
        check_kind(path, self._raw, self._kind)
        check_toolkit(path)
        try:
            if ending_of(path) == ".pot":
                self._raw = catalog_of(self._raw, self._target)
            self._file = FORMATS[self._kind](self._raw, languages)
        except Exception as error:  # of many types
            reason = " ".join(str(error).split())[:200] or "it is of another kind"
            hint = "see that it is complete, in the encoding that it names, and of the format of its name"
            raise UserError(f"{path}: cannot be read as {self._kind}: {reason}", hint) from None
        self.units: Sequence[Unit] = self._file.units
        self.locked: Sequence[Unit] = self._file.locked
        """Units that stay as they are, and that nothing is learned from"""
        self.headers: Sequence[Unit] = self._file.headers
        """Units with the headers of a PO, whose source is empty"""
        self.unfilled: Sequence[str] = self._file.unfilled
        """Texts or names of what cannot be translated here, as `UnitFile.unfilled`"""
        self.lacking = 0
        """Units of a TMX without a variant in one of the languages"""
        self.complete = 0
        """Those that have both"""
        self.codes: dict[str, str] = {}
        """Codes of the languages of a TMX, in lower case, each with how it is written"""
        if isinstance(self._file, TmxFile):
            self.lacking = self._file.lacking
            self.complete = self._file.complete
            self.codes = self._file.codes
        sources: list[str] = []
        if self._kind != ".xml":
            for unit in self.units:
                sources += unit.sources
        self.accelerators = Accelerators(sources, self._file.accelerator)

    def segment(self, text: str) -> Segment:
        """Take apart a text of a string; programs show columns, which XLIFF and TMX do not have."""
        return read_string(text, self._kind not in (".xlf", ".tmx"))

    def string(self, unit: Unit, form: int = 0) -> ProgramString:
        """Take apart the source of a form of a unit of this file."""
        from translate.lang.factory import getlanguage

        punctuation = getlanguage(Language.of(self._target).tag).punctranslate
        source = unit.sources[form]
        numbers = unit.numbers_of(form)
        may_wrap = self._kind != ".xml"
        if numbers:
            return PluralString(source, numbers, self.accelerators, punctuation, may_wrap)
        return ProgramString(source, self.accelerators, punctuation, may_wrap)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield sources and translations as a model sees them, without those that need review."""
        for _, source, target in self.placed_pairs():
            yield source, target

    def placed_pairs(self) -> Iterator[tuple[int, str, str]]:
        """Yield what `pairs` does, each after the line in which its unit begins; 1 in an MO, which has none."""
        line = 1
        counted = 0
        for unit in self.units:
            if unit.needs_review:
                continue
            line += self._line_breaks(counted, unit.start)
            counted = unit.start
            for form, (source, target) in enumerate(zip(unit.sources, unit.targets, strict=False)):
                if target:
                    source, target = pair_with_number(source, target, unit.numbers_of(form))
                    for pair in plain_pairs(source, target, self.accelerators):
                        yield line, *pair

    def check_language(self) -> None:
        """Raise UserError if the file declares another language than it was opened for."""
        check_language(self.path, self._raw, self._kind, self._languages)

    def other(self, path: Path, content: bytes) -> BilingualFile:
        """Return the content of another file of this kind."""
        return BilingualFile(path, self._languages, content, self._kind)

    def divide_as(self, other: BilingualFile, theirs: Collection[Unit]) -> None:
        """Divide units as another version of this file does, whose units and headers that are `theirs` people wrote.

        XLIFF has segments only if those of the other are divided, or not translated; PO has the plural forms of headers
        that people wrote.
        """
        if isinstance(self._file, XliffFile) and isinstance(other._file, XliffFile):
            self._file.divide_as(other._file)
        elif isinstance(self._file, PoFile) and isinstance(other._file, PoFile):
            self._file.divide_as(other._file, theirs)
        self.units = self._file.units
        self.locked = self._file.locked
        self.headers = self._file.headers

    @property
    def has_sources(self) -> bool:
        """Whether it has the sources beside the translations."""
        return self._kind != ".xml"

    def keep(self, unit: Unit, other: Unit, is_reviewed: bool) -> None:
        """Give a unit the translation, the marks and the comments of `other`, as they are written there.

        This is the same unit, or that of another file of this format. If it `is_reviewed`, the note of its origin goes.
        """
        self._file.keep(unit, other, is_reviewed)

    @property
    def rest(self) -> str:
        """The file without what people do in its units: translations, marks and comments. It cannot be written then."""
        for unit in (*self.units, *self.headers):
            self._file.keep(unit, unit, False)
        return self._file.edits.around(self._file.text)

    @property
    def has_marks(self) -> bool:
        """Whether its units have marks for review."""
        return self._kind not in (".tmx", ".xml")

    @property
    def has_own_notes(self) -> bool:
        """Whether only nmt writes the notes of origins that it writes."""
        return self._kind != ".xlf"

    def place_of(self, unit: Unit) -> str:
        """Return what names a unit to people: its name or, if it has none, its line."""
        return unit.name or f"line {1 + self._line_breaks(0, unit.start)}"

    def _line_breaks(self, start: int, end: int) -> int:
        """Count the line breaks from one offset to another; they are negative if the other comes first."""
        if end < start:
            return -self._line_breaks(end, start)
        return self._file.text.count("\n", start, end)

    def content(self) -> bytes:
        """Return the file with all that was written to its units."""
        return self._file.content()
