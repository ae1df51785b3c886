"""Observations made while a split is read: where each file begins, examples of what is dropped, other languages."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from nmt.data.corpus import EXAMPLES
from nmt.data.languages import LanguageJudge, LanguageSample
from nmt.data.pairs import Pair, Part, name_of
from nmt.recipe import Data

LACKING = "units without one of the languages"
SHOWN = 60  # characters of each side of an example


class Findings:
    """Observations about a split, collected in the one pass that reads it."""

    def __init__(self, data: Data, split: str, judge: LanguageJudge | None) -> None:
        self._data = data
        self._datasets = data.splits[split]
        self._judge = judge
        self.samples = [LanguageSample() for _ in self._datasets]
        self.examples: dict[str, list[str]] = defaultdict(list)
        self._read = 0  # pairs
        self._lacking = 0  # units
        self._begins: list[int] = []  # for each part, the number of pairs before it
        self._parts: list[Part] = []

    def read(self, parts: Iterable[Part]) -> Iterator[Pair]:
        """Yield the pairs of the next parts."""
        for part in parts:
            self._begins.append(self._read)
            self._parts.append(part._replace(pairs=iter(())))  # keeps names and places, not the text
            for pair in part.pairs:
                self._read += 1
                yield pair
            if part.lacking:
                self._lacking += part.lacking
                if len(self.examples[LACKING]) < EXAMPLES:
                    codes = ", ".join(part.codes)
                    self.examples[LACKING].append(f"{part.name}: {part.lacking:,} units; languages {codes}")

    def show(self, reason: str, line: int, pair: Pair, note: str = "") -> None:
        """Add an example, with its file and line, unless there are enough; `line` is 1-based in the split."""
        if len(self.examples[reason]) == EXAMPLES:
            return
        index = bisect_right(self._begins, line - 1) - 1
        part = self._parts[index]
        place, tree = part.find(line - 1 - self._begins[index])
        texts: tuple[str, ...] = pair
        if tree and not any(pair):
            texts = (tree,)
        shown = " ||| ".join(map(_shortened, texts))
        self.examples[reason].append(f"{part.name}:{place}: {note}{shown}")

    def of_units(self) -> dict[str, int]:
        """Return how many units of translators' files have no text in one of the languages, if some have none."""
        return {LACKING: self._lacking} if self._lacking else {}

    def of_languages(self) -> dict[str, list[int]]:
        """Return how many pairs of each set were judged by language, and how many look like others; show some.

        What is taken from the training sets is judged there.
        """
        if self._judge is None:
            return {}
        judged = list[int]()
        others = list[int]()
        for dataset, sample in zip(self._datasets, self.samples, strict=True):
            languages = self._data.of(dataset).languages
            if dataset.take is not None:
                judged.append(0)
                others.append(0)
                continue
            count, odd = sample.judged(self._judge, languages)
            judged.append(count)
            others.append(len(odd))
            found = f"{len(odd):,} of {count:,} pairs judged look like another language than {'-'.join(languages)}"
            for each in odd:
                self.show(f"{name_of(dataset)}: {found}", each.line, each.pair, f"{each.why}: ")
        return {"judged by language": judged, "looking like another language": others}


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
