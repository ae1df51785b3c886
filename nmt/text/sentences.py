"""Split lines into sentences by rules for full stops, abbreviations, initials, numbers and quotation marks.

`TrainedLengths` has the lengths a translator was trained on, by which lines are split. In doubt, the rules keep
sentences together: a model translates two sentences better than half of one.
sentencex 1.0 is faster but fails on no-break spaces, and pysbd 0.3 takes half a millisecond for a line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_WIDE = "。｡！？．।॥۔؟።"  # end a sentence without a space behind them
_CLOSING = "\"'”’»›)]}」』】）〉》“‘«‹"  # the last four close a quotation in German
_OPENING = "\"'“‘«‹([{「『【（〈《„‚¿¡”»"  # the last two open one in Swedish and in German books
_END = re.compile(  # possessive, so that no line takes long
    rf"(?<![{_WIDE}.!?…])(?:(?P<wide>[.!?…]*+[{_WIDE}][{_WIDE}.!?…]*+)(?P<closed>[{re.escape(_CLOSING)}]*+)\s*+"
    rf"|(?P<stop>[.!?…]++)(?:\s»(?=\s|\Z)|[{re.escape(_CLOSING)}]*+)(?:\s++|\Z))"
    r"|[\u2028\u2029]\s*+"
)
_NEXT = re.compile(rf"[{re.escape(_OPENING)}\-–—•*\s]*(?P<word>\w+(?:['’]\w+)?)")
_LAST = re.compile(r"[\w.&'’\-]*\Z")  # the word before a full stop, with full stops inside it
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]\Z")  # J, J.-P, U.S
_LETTER, _LETTER_AND_STOP = re.compile(r"[^\W\d_]\Z"), re.compile(r"[^\W\d_]\.")
_ORDINAL = re.compile(r"\d{1,2}\Z|[IVXLC]+\Z")

LONGEST_WORD = 40  # characters before a full stop that are looked at

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Abbreviations and small words by language, which sentences.toml explains"""
_SMALL_WORD = re.compile(  # tried once for each word, and possessive, so that no line takes long
    r"(?<![\w'’\-])['’\-]*+(?P<small>\w[\w'’\-]*+)\s++(?=(?P<word>\w+))"
)
# Languages that write ordinal numbers with a full stop.
_ORDINALS = {"de", "da", "no", "nb", "nn", "fi", "is", "et", "lv", "cs", "sk", "sl", "hr", "sr", "bs", "hu", "pl", "tr"}


class SentenceSplitter:
    """The rules by which lines in one language are split into sentences."""

    def __init__(self, language: str) -> None:
        """Read the words of a language, a code such as de or de_AT; a language without its own has the general ones."""
        code = re.split(r"[-_]", language.lower())[0]

        def words(kind: str) -> set[str]:
            return {word for name in ("all", code) for word in WORDS.get(name, {}).get(kind, "").split()}

        self._before_more, self._before_numbers = words("before_more"), words("before_numbers")
        self._before_either, self._openers = words("before_either"), words("openers")
        self._starters = words("starters") or set(WORDS["en"]["starters"].split())
        self._never_last = self._starters | words("never_last")
        self._suffixes = ("str",) if code == "de" else ()
        self._ordinals = code in _ORDINALS

    def split(self, text: str) -> list[str]:
        """Return the sentences of a line, each with the space after it; joined they are the line."""
        starts = [0, *self._starts(text), len(text)]
        return [text[start:end] for start, end in pairwise(starts) if end > start]

    def split_unmarked(self, sentence: str) -> list[str]:
        """Split a sentence where another seems to begin without a mark: A man sings A dog barks.

        A name may look the same, so this is for long sentences.
        """
        if not self._openers:
            return [sentence]
        starts = [0]
        for found in _SMALL_WORD.finditer(sentence):
            small, word = found["small"], found["word"]
            begins = small[0].islower() and word[0].isupper() and word.lower() in self._openers
            if begins and small not in self._never_last:
                starts.append(found.end())
        return [sentence[start:end] for start, end in pairwise([*starts, len(sentence)])]

    def _starts(self, text: str) -> Iterator[int]:
        """Yield where the second sentence begins, the third, and so on."""
        has_case = text.lower() != text  # else small letters say nothing
        start = 0
        for end in _END.finditer(text):
            following = _NEXT.match(text, end.end())
            if following and self._ends(text, start, end, following["word"], has_case):
                start = end.end()
                yield start

    def _ends(self, text: str, start: int, end: re.Match[str], word: str, has_case: bool) -> bool:
        """Does the sentence that begins at `start` end at these marks, before `word`?"""
        if end["wide"]:
            # What follows a quotation at once, as in 「…。」と言った, belongs to the same sentence.
            return not end["closed"] or text[end.end()] in _OPENING or text[end.end() - 1].isspace()
        if not end["stop"]:
            return True  # a line separator
        if has_case and word[0].islower():
            return False
        before = _LAST.search(text, max(start, end.start() - LONGEST_WORD), end.start())
        last = before[0] if before else ""
        if end["stop"] in ("...", "…"):
            return word != last  # I... I do not know
        if end["stop"] != ".":
            return True
        if _LETTER.match(last) and _LETTER_AND_STOP.match(text, end.end()):
            return False  # A. B. Cole; z. B.
        return self._ends_at_full_stop(last, text.startswith(f"{last}.", start), word)

    def _ends_at_full_stop(self, last: str, first: bool, word: str) -> bool:
        """Does a full stop after the word `last` end a sentence, if `word` follows?

        `first` says that the sentence begins with `last`.
        """
        lower, starts = last.lower(), word.lower() in self._starters
        if first and last.isdigit():
            return False  # 1. First of a list
        if lower in self._before_more or lower.endswith(self._suffixes):
            return False
        if _INITIALS.match(last) and not (len(last) == 1 and last.islower()):
            return starts
        if lower in self._before_numbers:
            return not word[:1].isdigit()
        if lower in self._before_either or (self._ordinals and _ORDINAL.match(last)):
            return starts
        return True


# --- lengths ---------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=2**31)]
Ratio = Annotated[float, Field(ge=0, le=2**31)]


class TrainedLengths(BaseModel):
    """Quantiles over the training pairs, stored in bundle.json; lengths in subwords, without `</s>`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    language: str
    """Code of the source's language."""
    sentences: Count
    """99% of the sources have at most so many sentences."""
    usual_sentences: Count
    """Half of the sources have at most so many sentences."""
    source: Count
    """99% of the sources are at most so long."""
    longest_source: Count
    """99.9% of the sources are at most so long."""
    least_ratio: Ratio
    """The ratio (target + 1) / (source + 1) is at least this for 99.9% of the pairs."""
    greatest_ratio: Ratio
    """That ratio is at most this for 99.9% of the pairs."""

    @classmethod
    def of(
        cls, language: str, sources: Sequence[int], targets: Sequence[int], sentences: Sequence[int]
    ) -> TrainedLengths:
        """Compute the quantiles of at least one pair: lengths, and the number of sentences of the source."""
        ratios = sorted((target + 1) / (source + 1) for source, target in zip(sources, targets, strict=True))
        return cls(
            language=language,
            sentences=_quantile(sorted(sentences), 0.99),
            usual_sentences=_quantile(sorted(sentences), 0.5),
            source=_quantile(sorted(sources), 0.99),
            longest_source=_quantile(sorted(sources), 0.999),
            least_ratio=_quantile(ratios, 0.001),
            greatest_ratio=_quantile(ratios, 0.999),
        )

    def is_unusual(self, source: int, target: int) -> bool:
        """Is a target of this length shorter or longer than those of such sources in training?"""
        return not self.least_ratio <= (target + 1) / (source + 1) <= self.greatest_ratio


def _quantile(ordered: Sequence[Any], part: float) -> Any:
    """Return the least value that at least this part of all values do not exceed."""
    return ordered[max(0, ceil(part * len(ordered) - 1e-9) - 1)]  # less what rounding may have added
