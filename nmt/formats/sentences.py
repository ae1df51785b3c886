"""Split lines into sentences by rules for full stops, abbreviations, initials, numbers and quotation marks.

`TrainedLengths` holds quantiles of a translator's training lengths, which determine the lines to split. In doubt, the
rules keep sentences together: a model translates two sentences better than half of one. Alternatives considered:
sentencex 1.0 is faster but fails on no-break spaces; pysbd 0.3 takes half a millisecond per line.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from nmt.text.language_codes import Language
from nmt.text.scripts import UNSPACED, has_words, joins


def _characters(ranges: str) -> str:
    """Return the characters whose code points, in hexadecimal, `ranges` lists: 41 43-45 is ACDE."""
    characters = ""
    for each in ranges.split():
        low, _, high = each.partition("-")
        for code in range(int(low, 16), int(high or low, 16) + 1):
            characters += chr(code)
    return characters


WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Abbreviations and function words by language, and marks; sentences.toml explains the keys"""
WIDE = _characters(WORDS["marks"]["wide"])
"""Marks that end a sentence even without a following space"""
STOPS = ".!?…" + _characters(WORDS["marks"]["stops"])
"""Marks that end a sentence only before a space: there may be one in a number, a name or an address"""
FULL_STOPS = "." + "".join(each for each in WIDE if not re.search("QUESTION|EXCLAMATION", unicodedata.name(each, "")))
"""Full stops of all scripts, such as 。 and । and ۔"""
ABBREVIATIONS = frozenset[str]().union(
    *(
        words.get(kind, "").split()
        for words in WORDS.values()
        for kind in ("before_more", "before_numbers", "before_either")
    )
)
"""Abbreviations of all languages, in lower case and without their final full stop"""
ELLIPSES = ("...", "…")
EMPHATIC = re.compile(r"[!?！？]{2,}\Z")
NEARLY_ALL = 0.95  # of the training sources: those that end in a mark
HARDLY_ANY = 0.005  # of the training sources: those with a mark that the model is not shown then
DASH = "–"
_ENTITIES = "".join(f"(?<!&{name})" for name in ("amp", "lt", "gt", "quot", "apos", "nbsp", "#39"))
CLAUSE_MARKS = {
    ";": re.compile(rf"(?<=[^\s;]){_ENTITIES}\s?;(?=\s+\S)"),
    ":": re.compile(r"(?<=[^\s:])\s?:(?=\s+\S)(?!(?<=\d:)\s+\d)"),  # not in 10: 30
    "…": re.compile(r"(?<=[^\s.…])\s?(?:\.{3}|…)(?=\s+\S)"),
    "/": re.compile(r"(?<=[^\s\d])\s+/(?=\s+[^\W\d_])"),
    "&": re.compile(r"(?<=[^\s\d])\s+&(?=\s+[^\W\d_])"),
    DASH: re.compile(r"(?<=[^\s\d])\s+[–—-]{1,2}(?=\s+[^\W\d_])"),
}
"""Patterns of marks between clauses, or words, with the space before them"""
CLOSING = "\"'”’»›)]}」』】）〉》“‘«‹"  # the last four close quotations in German
"""Marks that may stand behind the end of a sentence: closing quotation marks and brackets"""
_EXCLAMATION = re.compile(r"(?<=\S)\s*[!！]+\Z")
_SPACES = " \t\u00a0\u2009\u202f\u3000"
_BEHIND = tuple(")]}」』】>”’»\"' …")  # no name ends with these: behind them, .The begins a sentence
_BEFORE_NAME = ("$", ")", "%")  # of a placeholder: %(count)d
_OPENING = "\"'“‘«‹([{「『【（〈《„‚¿¡”»"  # the last two open quotations in Swedish and in German books
# Arrows, signs and emoji with what joins and modifies them
_SYMBOLS = "©®\u200d\ufe0f\u20e3\u2022\u2023\u2190-\u2bff\U0001f000-\U0001faff\U000e0020-\U000e007f"
_EMOJI = "\U0001f000-\U0001faff\u2600-\u27bf\u200d\ufe0f"
# What begins a sentence in lower case: @name, #tag, `code`, %s, {name}, $name, a list's a), an address, or a sign
_BEGINS = re.compile(
    rf"[{re.escape(_OPENING)}]*(?:[@#`]\w|%[\w(]|\{{+\w|\$[^\W\d]|\$\{{|\(?[a-z]\)\s|https?://|www\.|[{_SYMBOLS}])"
)
_LATIN = "0-9A-Za-z０-９Ａ-Ｚａ-ｚ"
_INSIDE = re.compile(rf"(?<=[{_LATIN}])[．﹒](?=[{_LATIN}])|។ល(?=។)")  # of numbers and names; Khmer's etc.

# Letters of scripts whose sentences do not begin with capitals, Georgian among them
_CASELESS = re.compile(r"[\u0590-\u139f\u1400-\u1c7f\u2d00-\u2dff\u2e80-\ua63f\ua800-\uab2f\uabc0-\ufaff]")


def stops_of(language: str) -> str:
    """Return the marks of a language that end a sentence before a space, such as the semicolon of Greek."""
    return STOPS + str(WORDS.get(Language.of(language).base, {}).get("stops", ""))


@lru_cache(maxsize=256)
def listed(kind: str, language: str) -> frozenset[str]:
    """Return a language's own list of words of a kind, in lower case; empty if it has none."""
    return frozenset(str(WORDS.get(Language.of(language).base, {}).get(kind, "")).split())


def _ends_by(stops: str) -> re.Pattern[str]:
    """Return an expression for possible ends of sentences; possessive quantifiers prevent catastrophic backtracking.

    Its groups are `wide`, marks that need no space, with the quotes behind in `closed`; `stop`, those that need one,
    with what is behind them in `tail`, and `glued` if a letter follows instead; `emoji`; none for a line separator.
    """
    closing = re.escape(CLOSING)
    tail = rf"(?:[{closing}{_SYMBOLS}¹²³⁰-⁹]|\[\d{{1,3}}\]|</\w{{1,20}}>)*+"  # quotes, emoji, footnotes, tags
    return re.compile(
        rf"(?<![{WIDE}{stops}])(?:(?P<wide>[{stops}]*+[{WIDE}][{WIDE}{stops}]*+)(?P<closed>[{closing}]*+)\s*+"
        rf"|(?P<stop>[{stops}]++)(?:\s»(?=\s|\Z)|(?P<tail>{tail}))(?:\s++|\Z|(?P<glued>)(?=[^\W\d_])))"
        rf"|(?:(?<=[^\W_])|(?<=[^\W_]\s))(?P<emoji>[{_EMOJI}]++)\s++"
        r"|[\u2028\u2029]\s*+"
    )


_TAG = r"<[^<>\s][^<>]{0,200}>|&#?\w{1,8};"
_NEXT = re.compile(rf"(?:{_TAG}|[^\w{STOPS}{WIDE}\u2028\u2029]|\.(?=\w))*+(?P<word>\w+(?:['’]\w+)?)")
_LAST = re.compile(r"[\w.&'’\-]*\Z")  # the word before a full stop, including any full stops inside it
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]\Z")  # J, J.-P, U.S
_LETTER = re.compile(r"[^\W\d_]\Z")
_LETTER_AND_STOP = re.compile(r"[^\W\d_]\.")
_ORDINAL = re.compile(r"\d{1,2}\Z|[IVXLC]+\Z")

LONGEST_WORD = 40  # maximum characters examined before a full stop

_SMALL_WORD = re.compile(  # the lookbehind and possessive quantifiers prevent catastrophic backtracking
    r"(?<![\w'’\-])['’\-]*+(?P<small>\w[\w'’\-]*+)\s++(?=(?P<word>\w+))"
)


class SentenceSplitter:
    """Rule-based sentence splitter for one language."""

    def __init__(self, language: str) -> None:
        """Load the word lists for a language code: de, de_AT or deu; unlisted languages use the general lists."""
        code = Language.of(language).base
        own = WORDS.get(code, {})

        def words(kind: str) -> set[str]:
            general = WORDS["all"].get(kind, "").split()
            return {*general, *own.get(kind, "").split()}

        self._before_more = words("before_more")
        self._before_numbers = words("before_numbers")
        self._before_either = words("before_either")
        self._openers = words("openers")
        self._starters = words("starters") or set(WORDS["en"]["starters"].split())
        self._never_last = self._starters | words("never_last")
        self._stops = stops_of(language)
        self._language = language
        self._end = _ends_by(self._stops)
        self._suffixes = tuple(words("suffixes"))
        self._ordinals = code in WORDS["marks"]["ordinals"].split()

    def table(self) -> dict[str, Any]:
        """Return all marks and word lists of the rules, as plain values for nmt/exchange/html/sentences.js."""
        return {
            "stops": self._stops,
            "wide": WIDE,
            "closing": CLOSING,
            "opening": _OPENING,
            "behind": "".join(_BEHIND),
            "symbols": _SYMBOLS,
            "emoji": _EMOJI,
            "caseless": _CASELESS.pattern,
            "inside": _INSIDE.pattern,
            "beforeMore": sorted(self._before_more),
            "beforeNumbers": sorted(self._before_numbers),
            "beforeEither": sorted(self._before_either),
            "openers": sorted(self._openers),
            "starters": sorted(self._starters),
            "neverLast": sorted(self._never_last),
            "suffixes": sorted(self._suffixes),
            "ordinals": self._ordinals,
            "emphasised": sorted(listed("emphasised", self._language)),
            "abbreviations": sorted(listed("abbreviations", self._language)),
            "functionWords": sorted(listed("starters", self._language)),
        }

    def split(self, text: str) -> list[str]:
        """Return a line's sentences, each with its trailing space; concatenated, they equal the line."""
        starts = [0, *self._starts(text), len(text)]
        return [text[start:end] for start, end in pairwise(starts) if end > start]

    def split_unmarked(self, sentence: str) -> list[str]:
        """Split where another sentence seems to begin without punctuation: A man sings A dog barks.

        Use this on long sentences only, because a name can look like a new sentence.
        """
        starts = [0]
        for found in _SMALL_WORD.finditer(sentence):
            small = found["small"]
            word = found["word"]
            may_end = small[0].islower() and small not in self._never_last
            if may_end and word[0].isupper() and word.lower() in self._openers:
                starts.append(found.end())
        return [sentence[start:end] for start, end in pairwise([*starts, len(sentence)])]

    def _starts(self, text: str) -> Iterator[int]:
        """Yield the start offsets of all sentences but the first."""
        has_case = text.lower() != text  # without capitals in the line, a lower-case word may start a sentence
        start = 0
        for end in self._end.finditer(text):
            following = _NEXT.match(text, end.end())
            if following and self._ends(text, start, end, following["word"], has_case):
                start = end.end()
                yield start

    def _ends(self, text: str, start: int, end: re.Match[str], word: str, has_case: bool) -> bool:
        """Return whether the sentence that starts at `start` ends at the punctuation `end`, before `word`."""
        if end["wide"]:  # text directly after a quotation, as in 「…。」と言った, continues the sentence
            is_apart = not end["closed"] or text[end.end()] in _OPENING or text[end.end() - 1].isspace()
            return is_apart and not _INSIDE.match(text, end.start())
        if end["emoji"]:  # in place of a full stop
            return word[0].isupper() and word.lower() in self._starters
        if not end["stop"]:
            return True  # a line or paragraph separator
        if end["glued"] is not None and not self._ends_without_space(text, end, word):
            return False
        of_cased_script = not _CASELESS.match(text, end.start() - 1) and not _CASELESS.match(word)
        if has_case and word.islower() and of_cased_script and not _BEGINS.match(text, end.end()):
            return False
        last = _word_before(end.start(), text, start)
        if end["stop"] in ("...", "…"):
            return word != last  # I... I do not know
        if end["stop"] != ".":
            return word.lower() not in self._before_either  # Yahoo! Inc
        if _LETTER.match(last) and _LETTER_AND_STOP.match(text, end.end()):
            return False  # A. B. Cole; z. B.
        return self._ends_at_full_stop(last, text.startswith(f"{last}.", start), word)

    def _ends_without_space(self, text: str, end: re.Match[str], word: str) -> bool:
        """Return whether punctuation with no space behind it may end a sentence: The cat.The dog, but not os.Path.

        Behind a full stop alone, a function word must follow.
        """
        mark = end["stop"][-1]
        if mark not in ".!?…":  # no names, numbers or addresses have such marks
            return True
        if not (word[0].isupper() and (word[1:].islower() or len(word) == 1)):
            return False
        stop = end.start()
        last = _word_before(stop, text)
        behind_bracket = text[stop - 1 : stop] in _BEHIND
        if mark != ".":
            return behind_bracket or last[-1:].isalnum()
        start = stop - len(last)
        is_placeholder = text[start - 1 : start] in _BEFORE_NAME or text[stop - 1] in "}–—"
        is_word = len(last) > 1 and last.islower() and last.isalpha()
        if not (behind_bracket or is_placeholder or is_word):
            return False
        return bool(end["tail"]) or word.lower() in self._starters

    def _ends_at_full_stop(self, last: str, is_first: bool, word: str) -> bool:
        """Return whether a full stop between the words `last` and `word` ends a sentence.

        `is_first` tells whether `last` is the first word of its sentence.
        """
        lower = last.lower()
        starts = word.lower() in self._starters
        if is_first and last.isdigit():
            return False  # 1. First of a list
        if lower in self._before_more or lower.endswith(self._suffixes):
            return False
        if _INITIALS.match(last) and not (len(last) == 1 and last.islower()):
            return starts
        if lower in self._before_numbers:
            return not word[:1].isdigit()
        may_go_on = lower in self._before_either or (self._ordinals and _ORDINAL.match(last))
        return starts or not may_go_on


def end_of(source: str) -> str | None:
    """Return what ends a translation in place of a full stop, as in its source: a comma, a colon, an ellipsis, several
    marks such as ?!, or nothing.

    Return None if it may have one: behind other punctuation, and in scripts without spaces, which often have none
    themselves.
    """
    bare = source.rstrip(CLOSING + _SPACES)
    last = bare[-1:]
    for ellipsis in ELLIPSES:
        if bare.endswith(ellipsis):
            return ellipsis
    emphatic = EMPHATIC.search(bare)
    if emphatic:
        return emphatic[0]
    if not last or last in STOPS + WIDE + ";" or UNSPACED.match(last):  # ; asks in Greek
        return None
    return last if last in ",:" else ""


def as_sentence(text: str, full_stop: str) -> str:
    """Return a text that ends as a sentence does.

    Behind a word, or in place of a comma or colon, it gets the full stop. Of several marks it keeps one, a question
    mark if it has one: Really? for Really?!
    """
    end = end_of(text)
    if end == "" and joins(text.rstrip(CLOSING + _SPACES)[-1:]):
        return text + full_stop
    if not end or not text.endswith(end):
        return text
    bare = text.removesuffix(end)
    if EMPHATIC.fullmatch(end):
        question = re.search("[?？]", end)
        return bare + (question[0] if question else end[0])
    return bare.rstrip() + full_stop if end in (",", ":") else text


def usual_stop(texts: Sequence[str]) -> str:
    """Return the full stop that ends most of `texts` if nearly all of them end in a mark of sentences; else ""."""
    marks = Counter(text.rstrip(CLOSING + _SPACES)[-1:] for text in texts)
    ended = sum(times for mark, times in marks.items() if mark and mark in STOPS + WIDE)
    if ended < NEARLY_ALL * len(texts):
        return ""
    mark = max(marks, key=marks.__getitem__)
    return mark if mark in FULL_STOPS else ""


def unseen_marks(texts: Sequence[str]) -> str:
    """Return the marks between clauses, of those in CLAUSE_MARKS, that hardly any of `texts` has."""
    unseen = ""
    for mark, pattern in CLAUSE_MARKS.items():
        seen = sum(pattern.search(text) is not None for text in texts)
        if seen < HARDLY_ANY * len(texts):
            unseen += mark
    return unseen


def clauses(sentence: str, marks: str) -> list[int]:
    """Return where clauses of a sentence end and begin: before and behind each mark between them, of those in `marks`.

    Dashes may enclose what is put in, so only one that is alone counts.
    """
    cuts = list[int]()
    for mark in marks:
        found = [*CLAUSE_MARKS[mark].finditer(sentence)]
        if mark == DASH and len(found) > 1:
            continue
        for each in found:
            cuts += each.span()
    return sorted(cuts)


def with_end_of(source: str, output: str) -> str:
    """Return an output that ends as its source does: in a full stop or exclamation mark only if this has one.

    Many models have learnt from sentences alone. The full stop of an abbreviation or an ordinal number stays.
    """
    end = end_of(source)
    if end is None:
        return output
    whole = output.rstrip()
    text = without_exclamation(source, whole)
    tail = output[len(whole) :]
    if EMPHATIC.fullmatch(end):
        bare = text.rstrip(STOPS)
        may_end_so = has_words(bare) and not bare.endswith(tuple(CLOSING + WIDE))
        return bare + end + tail if may_end_so else output
    if end in ELLIPSES and text and (joins(text[-1]) or (text[-1] == "." and text[-2:-1] not in STOPS)):
        return text.removesuffix(".") + end + tail
    if text != whole:
        return text + ("" if text.endswith((",", ":")) else end) + tail
    if text[-1:] not in FULL_STOPS or text[-2:-1] in STOPS:
        return output
    word = _word_before(len(text) - 1, text)
    is_ordinal = word.isdigit() and not source.rstrip(CLOSING + _SPACES).endswith(word)
    is_initial = len(word) == 1 and joins(word) and not word.isdigit() and not word.islower()
    if is_ordinal or is_initial or "." in word or word.lower() in ABBREVIATIONS:
        return output
    rest = text[:-1].rstrip()
    if end in (",", ":") and rest[-1:] in (",", ":"):
        end = ""
    return rest + end + tail


def without_exclamation(source: str, output: str) -> str:
    """Return an output without the exclamation mark at its end, if its source has none anywhere."""
    if "!" in source or "！" in source or "¡" in output:
        return output
    return _EXCLAMATION.sub("", output)


def _word_before(end: int, text: str, start: int = 0) -> str:
    """Return the last characters of text[start:end] that are of a word, at most LONGEST_WORD."""
    found = _LAST.search(text, max(start, end - LONGEST_WORD), end)
    return found[0] if found else ""


# --- lengths ---------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=2**31)]
Ratio = Annotated[float, Field(ge=0, le=2**31)]


class TrainedLengths(BaseModel):
    """Length quantiles of the training pairs, and how sources end, stored in bundle.json.

    Lengths are in subwords, without `</s>`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    language: str
    """Source language code"""
    sentences: Count
    """95th percentile of the number of sentences per source"""
    usual_sentences: Count
    """Median number of sentences per source"""
    source: Count
    """99th percentile of source lengths"""
    longest_source: Count
    """99.9th percentile of source lengths"""
    least_ratio: Ratio
    """0.1th percentile of the length ratio (target + 1) / (source + 1)"""
    greatest_ratio: Ratio
    """99.9th percentile of the length ratio"""
    full_stop: str = ""
    """What ends most sources, if nearly all end in a mark: the model has seen hardly anything but whole sentences"""
    unseen: str = ""
    """Marks between clauses that hardly any source has"""

    @classmethod
    def of(
        cls,
        language: str,
        sources: Sequence[int],
        targets: Sequence[int],
        sentences: Sequence[int],
        full_stop: str = "",
        unseen: str = "",
    ) -> Self:
        """Compute the quantiles from the lengths and source sentence counts of at least one pair."""
        ratios = sorted((target + 1) / (source + 1) for source, target in zip(sources, targets, strict=True))
        counts = sorted(sentences)
        lengths = sorted(sources)
        return cls(
            language=language,
            sentences=_quantile(counts, 0.95),
            usual_sentences=_quantile(counts, 0.5),
            source=_quantile(lengths, 0.99),
            longest_source=_quantile(lengths, 0.999),
            least_ratio=_quantile(ratios, 0.001),
            greatest_ratio=_quantile(ratios, 0.999),
            full_stop=full_stop,
            unseen=unseen,
        )

    def is_unusual(self, source: int, target: int) -> bool:
        """Return whether the length ratio is outside the range of the central 99.8% of training pairs."""
        return not self.least_ratio <= (target + 1) / (source + 1) <= self.greatest_ratio


def _quantile(ordered: Sequence[Any], part: float) -> Any:
    """Return the smallest value that is no less than a fraction `part` of the values."""
    rank = ceil(part * len(ordered) - 1e-9)  # 1e-9 absorbs rounding errors
    return ordered[max(0, rank - 1)]
