"""Translation memory: the translations that stand in data sets, found again by their sources."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nmt.data.pairs import Pair, foreign_language, input_files, read_pairs
from nmt.formats.bilingual import BilingualFile
from nmt.formats.declared import check_language, content_of, kind_of, left_out
from nmt.recipe import Data, Dataset
from nmt.recipe.data import UNITS, format_of


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


class TranslationMemory:
    """The translations of the sources that are wanted."""

    def __init__(self, wanted: Iterable[str] | None, datasets: Iterable[Dataset], data: Data) -> None:
        """Read what data sets have for `wanted`, which are keys of `Remembered`; None means all."""
        keys = None if wanted is None else {*wanted}
        self._found = defaultdict[str, list[Remembered]](list)
        for dataset in datasets:
            for each in _read(dataset, data):
                if (keys is None or each.key in keys) and each.key and each.target.strip():
                    self._found[each.key].append(each)

    def recall(self, key: str, source: str, context: str = "", file: str = "") -> Remembered | None:
        """Return a translation of exactly this source or, if there is none, of its key; None if there is none either.

        Of several, it is the one in the same context, else in a file of this name, else the most frequent one.
        """
        found = self._found.get(key, [])
        found = [each for each in found if each.source == source] or found
        counts = Counter(each.target for each in found)

        def nearness(each: Remembered) -> tuple[bool, bool, int]:
            return each.context == context != "", each.file == file, counts[each.target]

        return max(found, key=nearness, default=None)


def _read(dataset: Dataset, data: Data) -> Iterator[Remembered]:
    """Yield the translations of a data set that is here; those of translators' files as they are."""
    if dataset.file is None:
        if dataset.target and all(path.exists() for path in input_files(dataset, data)):
            yield from map(_of_pair, read_pairs(dataset, data))
        return
    for path in input_files(dataset, data):
        if not path.exists() or foreign_language(path, data):
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
        files = {path: foreign_language(path, data) for path in input_files(dataset, data)}
        if all(files.values()):
            path = next(iter(files))
            check_language(path, content_of(path), kind_of(path), data.languages)
        foreign += [f"{path} ({code})" for path, code in files.items() if code]
    if foreign:
        say(f"--memory: {left_out(foreign, 'for they are in other languages')}")


def _of_pair(pair: Pair) -> Remembered:
    return Remembered(pair[0].strip(), pair[0], pair[-1], pair[-1])


def _of_file(file: BilingualFile, name: str) -> Iterator[Remembered]:
    for unit in file.units:
        for form, (source, target) in enumerate(zip(unit.sources, unit.targets, strict=False)):
            if target and not unit.needs_review:
                body = file.accelerators.split(source)[0]
                bare = file.accelerators.split(target, body != source)[0]
                yield Remembered(body.strip(), source, target, bare, unit.context_of(form), name)
