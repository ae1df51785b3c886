"""Translation memory: look up the translation of a source in training data and in files named by --memory."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.pairs import Pair, foreign_language, input_files, read_pairs
from nmt.formats.bilingual import BilingualFile
from nmt.formats.declared import NAMED, check_language, content_of, kind_of, left_out
from nmt.formats.letter_case import in_capitals, in_small_letters, in_title_case, is_in_capitals, letters_of
from nmt.formats.plurals import telling_number
from nmt.formats.sentences import FULL_STOPS
from nmt.formats.strings import Accelerators, ProgramString, placeholders
from nmt.formats.units import Numbers, Unit
from nmt.recipe import Data, Dataset
from nmt.recipe.data import UNITS, format_of
from nmt.text.scripts import is_wide

# Final punctuation, with the space that French puts before it
_END = re.compile(rf"(?<!\s)(\s*)(\.{{3}}|[{FULL_STOPS}:…!：！])\Z")
_WIDE_ENDS = {".": "。", ":": "：", "!": "！"}  # of texts in Chinese and Japanese
_NARROW_ENDS = {wide: narrow for narrow, wide in _WIDE_ENDS.items()} | dict.fromkeys(FULL_STOPS, ".")
_POSITION = re.compile(r"%\d\$")  # of an argument, as in %2$s


class Remembered(NamedTuple):
    """A translation in a memory."""

    key: str
    """Source without its accelerator and surrounding whitespace"""
    source: str
    target: str
    bare: str
    """Target without its accelerator"""
    context: str = ""
    file: str = ""
    """Name of its file without the ending"""
    numbers: Numbers = ()
    """The numbers that take this plural form (see `units.Numbers`); empty if the text is no plural"""
    is_own: bool = True
    """Whether the source is that of this plural form (msgid for the singular), not of another form of its unit"""
    is_named: bool = False
    """Whether it is of a file that was named as memory, not of training data"""
    place: int = 0
    """Place of its data set among those of corrections, which go before what was learned earlier; else 0"""

    def fits(self, numbers: Numbers) -> bool:
        """Return whether it can translate the plural form for `numbers`; without numbers, a text that is no plural."""
        if not numbers:
            return self.is_own
        is_whole = len(self.numbers) != 1 or len(numbers) == 1  # it may lack the placeholder of its only number
        return not self.numbers or (telling_number(numbers) in self.numbers and is_whole)

    def nearness(self, source: str, context: str, file: str, numbers: Numbers) -> tuple[int, ...]:
        """Return a sort key, most important first: how well this translation suits a source.

        Is it a plural like the source? In the same context? From a file named as memory? From newer corrections? With
        an accelerator and final punctuation like the source's? From a file of this name?
        """
        is_of_kind = bool(self.numbers) == bool(numbers)
        has_mark = (self.target != self.bare) == (self.source.strip() != self.key)
        has_end = bool(_END.search(self.bare)) == bool(_END.search(source))
        return is_of_kind, self.context == context, self.is_named, -self.place, has_mark, has_end, self.file == file


class TranslationMemory:
    """The translations of the sources that are wanted."""

    def __init__(
        self,
        wanted: Iterable[ProgramString] | None,
        named: Sequence[Dataset],
        data: Data,
        trained: Sequence[Dataset] = (),
    ) -> None:
        """Read what data sets have for `wanted`, those named as memory and those of the training; None means all.

        With data.memory, what comes first goes before: corrections before what the model was trained on earlier.
        """
        self._languages = data.languages
        self._found = defaultdict[str, list[Remembered]](list)
        keys = None
        if wanted is not None:
            keys = set[str]()
            for string in wanted:
                keys |= {string.body.strip(), string.text.strip()}
        for dataset in named:
            self._remember(dataset, data, keys, is_named=True)
        for place, dataset in enumerate(trained):
            self._remember(dataset, data, keys, place=place if data.memory else 0)

    def _remember(self, dataset: Dataset, data: Data, keys: Collection[str] | None, **about: Any) -> None:
        """Keep the translations of a data set under their keys and sources, if these are among `keys`."""
        for each in _read(dataset, data):
            if each.key and each.target.strip():
                known = each._replace(**about)
                for key in {each.key, each.source.strip()}:
                    if keys is None or key in keys:
                        self._found[key].append(known)

    def recall(
        self, key: str, source: str, context: str = "", file: str = "", numbers: Numbers = ()
    ) -> Remembered | None:
        """Return a translation of exactly this source or, if there is none, of its key; None if there is none either.

        Of several, it is the one in the same context, if any; else of a named file; else one with an accelerator and an
        end if the source has them; else in a file of this name; else the most frequent one. Of plurals, it is the form
        for these numbers. Newer corrections go before older ones and what was learned before them.
        """
        found = [each for each in self._found.get(source.strip(), ()) if each.source == source and each.fits(numbers)]
        if not found:
            found = [each for each in self._found.get(key, ()) if each.key == key and each.fits(numbers)]
        counts = Counter(each.target for each in found)

        def rank(each: Remembered) -> tuple[int, ...]:
            return *each.nearness(source, context, file, numbers), counts[each.target]

        return max(found, key=rank, default=None)

    def recall_form(self, unit: Unit, form: int, string: ProgramString, file: str) -> tuple[Remembered, str] | None:
        """Look up `string`, a plural form of a unit; return the entry and its text as adapted, or None if nothing fits.

        Where several forms have this source, a translation that is no plural does not say which form it is.
        """
        is_shared = unit.sources.count(string.text) > 1
        found = self.recall(string.body.strip(), string.text, unit.context, file, unit.numbers_of(form))
        if found is None or (is_shared and not found.numbers):
            return None
        text = found.target if found.source == string.text else ""
        if not text or string.mark not in text:
            text = string.dressed(found.bare) or text
        return (found, text) if text else None

    def recall_line(self, line: str) -> str | None:
        """Return the translation of a line, between its edges; None if there is none.

        If nothing has exactly this source, one that differs in case and in the end (`.`, `:`, `…`, `!` or nothing) is
        given the line's capitals and end.
        """
        text = line.strip()
        if not text:
            return None
        before, _, after = line.partition(text)
        known = self.recall(text, line)
        if known is None:
            found = self._recall_alike(text)
        else:
            found = known.target if known.source.strip() == text else known.bare
        return before + found.strip() + after if found else None

    def _recall_alike(self, text: str) -> str:
        """Return a translation of a source that differs in case and end, given those of the text; empty if none."""
        for each in self._alike(text):
            dressed = _dressed(each, text, self._languages)
            if dressed:
                return dressed
        return ""

    def _alike(self, text: str) -> list[Remembered]:
        """Return the translations of sources that differ in case and end: those with this end first, then by count."""
        found = self._by_words[self._words(text)]
        counts = Counter(each.target for each in found)
        _, end = _parted(text)

        def rank(each: Remembered) -> tuple[bool, int]:
            has_other_end = _parted(each.key)[1] != end
            return has_other_end, -counts[each.target]

        return sorted(found, key=rank)

    @cached_property
    def _by_words(self) -> defaultdict[str, list[Remembered]]:
        by_words = defaultdict[str, list[Remembered]](list)
        for key, found in self._found.items():
            by_words[self._words(key)] += [each for each in found if each.key == key and each.is_own]
        return by_words

    def _words(self, text: str) -> str:
        return letters_of(_parted(text)[0], self._languages[0])


def _parted(text: str) -> tuple[str, str]:
    """Return a text without its end, and the end."""
    end = _END.search(text)
    if end is None or end.start() == 0:
        return text, ""
    return text[: end.start()], end[0]


def _dressed(known: Remembered, line: str, languages: tuple[str, str]) -> str:
    """Return a translation with the capitals and the end of a line.

    It is empty if it has capitals that cannot be undone, or if sources differ in accents, which Greek capitals lack.
    """
    of_source, of_target = languages
    source, source_end = _parted(known.key)
    target, target_end = _parted(known.bare.strip())
    body, end = _parted(line)
    if body != source and is_in_capitals(source, fewest=2):
        return ""
    if body != source and is_in_capitals(body, fewest=2):
        target = in_capitals(target, of_target)
    elif in_small_letters(body, of_source).casefold() != in_small_letters(source, of_source).casefold():
        return ""
    elif body[0].isupper() and not source[0].isupper():
        target = in_title_case(target[:1], of_target) + target[1:]
    dressed = ProgramString(body, Accelerators(())).dressed(target)
    return dressed and dressed + _end_of_translation(target, end, source_end, target_end)


def _end_of_translation(target: str, end: str, source_end: str, target_end: str) -> str:
    """Return the end of a translation in place of its own, `target_end`, where the source ends in another way."""
    if end == source_end:
        return target_end
    if end and is_wide(target[-1]):
        return _WIDE_ENDS.get(end, end)
    end = _NARROW_ENDS.get(end, end)
    own = _END.search(target_end)
    if own and end in (":", "!"):
        return own[1] + end  # after a space in French
    return end


def _read(dataset: Dataset, data: Data) -> Iterator[Remembered]:
    """Yield the translations of a data set that is here; those of translators' files as they are."""
    if dataset.file is None:
        if dataset.target and all(path.exists() for path in input_files(dataset, data)):
            yield from map(_of_pair, read_pairs(dataset, data))
        return
    for path in input_files(dataset, data):
        if not path.exists() or foreign_language(path, dataset, data):
            continue
        if format_of(path) in UNITS:
            yield from _of_file(BilingualFile(path, data.languages), path.stem)
        else:
            yield from map(_of_pair, read_pairs(dataset, data, files=[path]))


def say_foreign(datasets: Iterable[Dataset], data: Data, say: Callable[[str], None]) -> None:
    """Say which files of translators declare other languages than those of `data`, for they are left out.

    Raise UserError if those are all files of a data set.
    """
    foreign = list[str]()
    for dataset in datasets:
        files = {path: foreign_language(path, dataset, data) for path in input_files(dataset, data)}
        if all(files.values()):
            path = next(iter(files))
            check_language(path, content_of(path), kind_of(path), data.languages)
        foreign += [f"{path} ({code})" for path, code in files.items() if code]
    if foreign:
        say(f"--memory: {left_out(foreign, 'for they are in other languages')}")


def say_missing(datasets: Iterable[Dataset], data: Data, say: Callable[[str], None]) -> None:
    """Say which files of data sets that a model was trained on are not here, so that the memory lacks them."""
    files = list(chain.from_iterable(input_files(dataset, data) for dataset in datasets))
    missing = [path for path in files if not path.exists()]
    if missing:
        named = ", ".join(map(str, missing[:NAMED]))
        if len(missing) > NAMED:
            named += "…"
        hint = f"run this where the model was trained, not in {Path.cwd()}, or name them by --memory"
        say(f"memory: {len(missing):,} of {len(files):,} training files are not here ({named}); {hint}")


def _of_pair(pair: Pair) -> Remembered:
    return Remembered(pair.source.strip(), pair.source, pair.target, pair.target)


def _of_file(file: BilingualFile, name: str) -> Iterator[Remembered]:
    for unit in file.units:
        for form, (own, target) in enumerate(zip(unit.sources, unit.targets, strict=False)):
            numbers = unit.numbers_of(form)
            # A form for several numbers must show the number: "one file" would be wrong where the form also takes 21.
            if not target or unit.needs_review or (len(numbers) > 1 and not _has_placeholders(unit, target)):
                continue
            # A plural form is found by the source of any form; `dict.fromkeys` drops repeated sources in order.
            for source in dict.fromkeys([own, *unit.sources] if numbers else [own]):
                body = file.accelerators.split(source)[0]
                bare = file.accelerators.split(target, body != source)[0]
                yield Remembered(body.strip(), source, target, bare, unit.context, name, numbers, source == own)


def _has_placeholders(unit: Unit, target: str) -> bool:
    """Return whether a form of a plural has all placeholders of its unit, whatever their order."""
    of_sources = [_kinds_of_placeholders(source) for source in unit.sources]
    return _kinds_of_placeholders(target) == max(of_sources, key=len)


def _kinds_of_placeholders(text: str) -> list[str]:
    return sorted(_POSITION.sub("%", placeholder) for placeholder in placeholders(text))
