"""The way from a line to its translation: split, encode, search, join. Imports no torch.

`Translator.split` divides a line into parts and encodes them; it runs ahead of the search, in a thread.
`Pipeline.stream` searches the parts with the engine that `_make_engine` makes. `Translator.join` puts the parts' best
hypotheses in place of the parts, and tells what became of the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast, overload

from nmt.decoding.engine import Request, SplitLine, read_tagged
from nmt.decoding.pipeline import NOTHING, LineResult, Pipeline
from nmt.decoding.splitter import LineSplitter, clean, joined
from nmt.decoding.workers import Loaded, MakeEngine, Models
from nmt.formats.alignment import Aligned, AlignedLine
from nmt.formats.confidence import Confidence, signs_of
from nmt.formats.letter_case import (
    as_usual,
    capitals,
    in_capitals,
    inside_sentence,
    is_in_capitals,
    is_in_title_case,
    pair_as_usual,
    title_case,
    without_capitals,
)
from nmt.formats.numbers import ALONE, Changes, compare
from nmt.formats.placeholders import MESSAGE, PICTOGRAPH
from nmt.formats.segments import Segment, read_line, with_spaces_of
from nmt.formats.sentences import TrainedLengths
from nmt.formats.terms import Phrase, Span, Term, Terms, beyond, find_copies, in_translation, missing
from nmt.formats.tokens import SPECIAL_SPACE
from nmt.recipe import Decoding
from nmt.search.sources import Engine, Prefix, Source
from nmt.system.errors import UserError, counted
from nmt.text.lines import one_line
from nmt.text.tokenizer import Direction, Tokenizer
from nmt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nmt.decoding.completion import Completion
    from nmt.decoding.forced import Attention
    from nmt.model.transformer import Transformer
    from nmt.search.constraints import MakeConstraint

JSON_FIELDS = ("unusual_length", "missing", "lost", "invented", "deleted", "left", "loop")
LINE_END = re.compile(r"\r?\n")


@dataclass(frozen=True, kw_only=True)
class Translation(LineResult):
    """Translations of one line."""

    alignments: list[list[int | None]]
    """For each subword of each output, the index of its most attended subword in `source`; empty unless requested, and
    None for subwords beyond the model's last position."""
    log_probabilities: list[list[float | None]]
    """For each subword of each output, its log-probability given those before it, in nats; empty or None as above."""
    unusual_length: bool
    """Whether a part's output-to-source length ratio is outside the usual range of the training pairs."""
    missing: list[Phrase]
    """Required phrases that the best output lacks."""
    lost: list[str]
    """Numbers, and names with digits, that the best output lacks; terms and what is kept do not count."""
    invented: list[str]
    """Numbers, names with digits, and placeholders or URLs, that the best output has and the line has not."""
    deleted: list[str]
    """Placeholders, URLs and addresses that the model invented and that were taken out of the best output."""
    left: list[str]
    """Messages of ICU, such as plurals, that were copied with the texts inside"""
    loop: str
    """What the best output repeats more than twice as often in a row as the line repeats anything; "" for nothing."""
    confidence: float | None = None
    """Probability that the best output, or the first sample, has a chrF of at least 80; None if the model does not know
    it."""
    unspelled: str = ""
    """Characters of the prefix that the vocabulary cannot spell, if no output was found."""

    @property
    def complaints(self) -> list[str]:
        """Why there is no output; otherwise one message per missing phrase, and one for all else that is suspicious."""
        if self.failed:
            if self.unspelled:
                return [f"no output: the vocabulary cannot spell {self.unspelled} of the prefix"]
            return super().complaints
        changes = {"lost": self.lost, "invented": self.invented, "deleted": self.deleted, "left as they are": self.left}
        changed = []
        for what, texts in changes.items():
            if texts:
                changed.append(f"{what}: {', '.join(texts)}")
        if self.loop:
            changed.append(f"loop: {self.loop}")
        if self.unusual_length:
            changed.append("unusual length")
        complaints = [f"missing: {phrase}" for phrase in self.missing]
        if changed:
            complaints.append("; ".join(changed))
        return complaints

    @property
    def empty(self) -> bool:
        """Whether a non-blank line has an empty translation, which the search found."""
        return self.parts > 0 and not self.texts[0].strip() and not self.failed


class Translator(Pipeline[Translation]):
    """Translation model or ensemble, with its tokenizer and decoding settings."""

    warnings: ClassVar = {
        "caps hit": lambda translation: translation.capped,
        "inputs split": lambda translation: translation.parts > 1,
        "unknown characters": lambda translation: translation.unknown,
        "empty outputs": lambda translation: translation.empty,
        "no outputs": lambda translation: translation.failed,
        "unusual lengths": lambda translation: translation.unusual_length,
        "missing terms": lambda translation: len(translation.missing),
        "placeholders invented": lambda translation: len(translation.deleted),
        "messages left": lambda translation: len(translation.left),
        "numbers changed": lambda translation: bool(translation.lost or translation.invented),
        "loops": lambda translation: bool(translation.loop),
    }

    def __init__(
        self,
        models: Transformer | Sequence[Transformer] | Models,
        tokenizer: Tokenizer,
        decoding: Decoding,
        lengths: TrainedLengths | None = None,
        annotated: bool = False,
        terms: Terms | None = None,
        directions: Sequence[tuple[str, ...]] = (),
        direction: Direction = (None, None),
        confidence: Confidence | None = None,
        titles: bool = False,
    ) -> None:
        """Translate with `models`; `lengths` are statistics of the training pairs, if known, and so is `confidence`.

        `terms` apply to requests without their own; the default is `decoding.keep` alone. `directions` are the pairs of
        languages that the models were trained on, and `direction` is that of requests without their own. With `titles`,
        translations of lines in title case are in title case, as `data.augment.title` has it.
        """
        self._titles = titles
        self.annotated = annotated
        self._lengths = lengths
        self._confidence = confidence
        self.directions = list(directions)
        """Pairs of source and target language that the models were trained on"""
        self._splitters: dict[Direction, tuple[LineSplitter, list[int]]] = {}
        self._target = cast(Vocabulary, tokenizer.target)  # translations are not trees
        self._models = models if isinstance(models, Models) else Loaded(models)
        self._formats = Terms(common=decoding.keep, names=False)
        self._terms = terms or Terms(common=decoding.keep)
        self._direction = direction
        self.tokenizer = tokenizer
        self.decoding = decoding
        _, to = direction
        own = tokenizer.of(to) if to else tokenizer
        narrowed, make = self._search_of(own)
        super().__init__(narrowed, tokenizer, decoding, make)
        self._engines = {own: self.engine}  # by tokenizer, made as needed

    @overload
    def translate(
        self,
        texts: Iterable[str],
        prefix: Iterable[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        markup: bool = False,
        to: str | None = None,
        source: str | None = None,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        prefix: Iterable[str] | None = None,
        *,
        to: str | None = None,
        source: str | None = None,
        sample: int,
    ) -> list[list[str]]: ...

    def translate(
        self,
        texts: Iterable[str],
        prefix: Iterable[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        markup: bool = False,
        to: str | None = None,
        source: str | None = None,
        sample: int | None = None,
    ) -> list[str] | list[list[str]]:
        """Translate raw sentences; return their translations, in order. A blank sentence has a blank translation;
        the indentation of others is kept. The lines of a text with newlines are translated one by one.

        `prefix` holds the beginning of each translation's first line, or "". `terms` are pairs (source, target): where
        a sentence contains the source term, its translation must contain the target term; pairs with the same one are
        alternatives. Matches of the regular expressions `keep` are copied. With `markup`, tags of HTML or XML are put
        around the words that stand for theirs. A model of several languages translates `to` one of them, from the
        language `source`, by default one that it was trained on for `to`. With `sample`, return a list of that many
        random translations for each text; `terms`, `keep` and `markup` do not go with it. For scores and n-best lists,
        see `stream`.
        """
        if isinstance(texts, str) or isinstance(prefix, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        if isinstance(keep, str):
            raise TypeError("keep takes a list of regular expressions; for one: keep=[pattern]")
        texts = list(texts)
        prefixes = [""] * len(texts) if prefix is None else list(prefix)
        if len(prefixes) != len(texts):
            raise ValueError(
                f'there are {len(prefixes)} prefixes for {counted(len(texts), "text")}: give one, or "", for each'
            )
        terms = list(terms)
        keep = list(keep)
        if sample is not None and (terms or keep or markup):
            raise ValueError("sample cannot be combined with terms, keep or markup: they are not forced into samples")
        direction = self._asked(source, to)
        asked = Terms(map(_term, terms), keep, self.decoding.keep)
        lines = list[Request]()
        for number, (text, beginning) in enumerate(zip(texts, prefixes, strict=True)):
            whole = Request(text, beginning, asked, direction=direction)
            ends = [*LINE_END.findall(whole.text), ""]
            for line, end in zip(LINE_END.split(whole.text), ends, strict=True):
                lines.append(replace(whole, text=line, prefix=beginning, origin=(number, end)))
                beginning = ""  # it is that of the first line
        found: list[list[Translation]] = [[] for _ in texts]  # of each text's lines
        for result in self.stream(read_tagged(lines) if markup else lines, sample=sample):
            number, _ = result.origin
            found[number].append(result)
        if sample is None:
            return [_joined(results, 0) for results in found]
        samples = list[list[str]]()
        for results in found:
            samples.append([_joined(results, rank) for rank in range(sample)])
        return samples

    def stream(
        self,
        lines: Iterable[str | Request],
        n_best: int = 1,
        sample: int | None = None,
        searched: Callable[[int], None] = lambda tokens: None,
        before: int = 0,
        *,
        to: str | None = None,
        source: str | None = None,
    ) -> Generator[Translation, None, None]:
        """Translate lines as they arrive, as `Pipeline.stream` says; `to` and `source` are as in `translate`."""
        if to or source:
            lines = _with_direction(lines, self._asked(source, to))
        return super().stream(lines, n_best, sample, searched, before)

    def attention(
        self, sentence: str, target: str | None = None, *, to: str | None = None, source: str | None = None
    ) -> Attention:
        """Return attention weights, as `Pipeline.attention` says; `to` and `source` are as in `translate`."""
        return self._attend(sentence, target, self._asked(source, to))

    def parse(self, lines: Sequence[str]) -> NoReturn:
        """Raise UserError: a translator does not parse."""
        raise UserError("this model is a translator, not a parser", "call model.translate([...])")

    # --- split and encode

    def _asked(self, source: str | None, to: str | None) -> Direction:
        """Return a direction, with what it leaves open as for all lines; raise UserError if the model lacks it."""
        direction = (source or self._direction[0], to or self._direction[1])
        self.direction_of(direction)
        return direction

    def direction_of(self, given: Direction) -> Direction:
        """Complete a pair of source and target language, by default that of all lines, as `Tokenizer.complete` does."""
        if not any(given):
            given = self._direction
        return self.tokenizer.complete(given, self.directions)

    def _splitter_of(self, given: Direction) -> tuple[LineSplitter, list[int]]:
        """Return the splitter of the lines of a direction, and the symbols that their translations begin with."""
        if given not in self._splitters:
            source, to = self.direction_of(given)
            symbols, first = self.tokenizer.first((source, to))
            own = self.tokenizer.of(source).source
            splitter = LineSplitter(own, self.decoding, self._lengths, source or "", symbols)
            self._splitters[given] = (splitter, first)
        return self._splitters[given]

    def _request(self, line: str | Request) -> Request:
        """Return the request for a line; in a plain one, special white space becomes codes, which are put back."""
        request = Request.of(line)
        is_read = request.segment is not None or request.prefix.strip() != ""
        if is_read or not SPECIAL_SPACE.search(request.text.strip()):
            return request
        return request.of_segment(read_line(one_line(request.text)))

    def split(self, request: Request) -> list[Source]:
        """Encode a line in parts; a line with a prefix is not split."""
        splitter, first = self._splitter_of(request.direction)
        terms = request.terms or self._terms
        segment = request.segment
        signs = [Span(*found.span()) for found in splitter.lacking.finditer(request.text)]
        if segment is None:
            ends: Sequence[int] = ()
            phrases = terms.phrases(request.text, signs)
        else:
            ends = segment.ends
            phrases = terms.phrases(request.text, [*segment.kept, *signs], segment.walls, ends)
        has_walls = segment is not None and bool(segment.walls)
        kept = [phrase.span for phrase in phrases if phrase.kept]
        bounds = splitter.ends_around_others(request.text, phrases)
        usual = self._as_usual(request, kept, bounds)
        if request.prefix.strip():
            parts = self._with_prefix(usual, splitter)
            phrases = beyond(terms.phrases(request.prefix), phrases)
        else:
            # A model has seldom seen a number alone, in a cell or a line, and invents words for it.
            copies_numbers = has_walls or (self.decoding.keep and ALONE.fullmatch(request.text) is not None)
            parts = splitter.split(usual.text, phrases, sorted({*ends, *bounds}), copies_numbers)
        return [self._prepared(part, first, phrases, has_walls) for part in parts]

    def _as_usual(self, request: Request, kept: Sequence[Span], ends: Sequence[int]) -> Request:
        """Return a request as its line would usually be written, and its prefix if the translation is in capitals.

        What is between two offsets of `ends` is written as if it were a line.
        """
        source, target = self.direction_of(request.direction)
        vocabulary = self.tokenizer.of(source).source
        start = self._start(request)
        usual = request.text[:start]
        for at, stop in pairwise([start, *ends, len(request.text)]):
            inside = [Span(first - at, end - at) for first, end in kept if at <= first < stop]
            usual += as_usual(request.text[at:stop], vocabulary, source or "", inside)
        prefix = request.prefix
        if usual != request.text and self._is_for_capitals(request, kept):
            prefix = without_capitals(prefix, self._tokenizer_of(request.direction).target, target or "")
        return replace(request, text=usual, prefix=prefix)

    def _start(self, request: Request) -> int:
        """Return where the text of a request begins: behind a language's symbol that was typed, such as >>fra<<."""
        source, _ = self.direction_of(request.direction)
        text = request.text.lstrip()
        return len(request.text) - len(text) + len(self.tokenizer.of(source).source.language(text))

    def _is_for_capitals(self, request: Request, kept: Sequence[Span]) -> bool:
        """Return whether a request's line is in capitals, and what its translation is to begin with."""
        _, target = self.direction_of(request.direction)
        start = self._start(request)
        symbol = [Span(0, start)] if start else []
        is_whole = is_in_capitals(request.text, [*symbol, *kept])
        return is_whole and in_capitals(request.prefix, target or "") == request.prefix

    def _kept_in(self, request: Request) -> list[Span]:
        """Return the spans of text to keep in a request's line."""
        terms = request.terms or self._terms
        if request.segment is None:
            return terms.spans(request.text)
        return terms.spans(request.text, request.segment.kept, request.segment.walls)

    def _prepared(self, part: Source, first: Sequence[int], phrases: Iterable[Phrase], aligned: bool) -> Source:
        """Return a part of a line with what its translation begins with and must contain, and its cap."""
        own = []
        for phrase in phrases:
            if part.start <= phrase.start and phrase.end <= part.end:
                own.append(replace(phrase, start=phrase.start - part.start))
        longest = len(part.ids)
        if part.prefix:
            longest = max(longest, part.prefix.longest)
        return replace(part, first=first, cap=self._cap(len(first) + longest), phrases=own, aligned=aligned)

    def _with_prefix(self, request: Request, splitter: LineSplitter) -> list[Source]:
        """Encode a line as one part with its prefix; raise UserError if either is too long."""
        vocabulary = cast(Vocabulary, self._tokenizer_of(request.direction).target)
        beginning = Prefix(*vocabulary.encode_beginning(request.prefix), request.prefix)
        if beginning.longest > self.decoding.max_source:
            raise UserError(
                f"prefix: may need {beginning.longest:,} subwords, more than decoding.max_source "
                f"{self.decoding.max_source:,}: {request.prefix[:60]} …",
                "shorten the prefix, or raise decoding.max_source",
            )
        ids = splitter.encode_whole(request.text)
        if not ids:
            return []
        text = request.text
        start = len(text) - len(text.lstrip())
        return [Source(0, ids, 0, text=text.strip(), start=start, prefix=beginning)]

    def _encode_pair(self, request: Request, output: str) -> list[tuple[list[int], list[int]]]:
        """Encode an unsplit line and a translation of it."""
        splitter, first = self._splitter_of(request.direction)
        source, target = self.direction_of(request.direction)
        vocabularies = (self.tokenizer.of(source).source, self._tokenizer_of(request.direction).target)
        text, output = pair_as_usual((request.text, clean(output)), vocabularies, (source, target))
        ids = splitter.encode_whole(text)
        if not ids:
            return []
        return [(ids, first + vocabularies[1].encode(output))]

    # --- search

    def _engine_for(self, request: Request) -> Engine:
        """Return the engine that outputs what the tokenizer of a request's target language has, made when needed."""
        own = self._tokenizer_of(request.direction)
        if own not in self._engines:
            models, make = self._search_of(own)
            self._engines[own] = self._opened.enter_context(models.open(make))
        return self._engines[own]

    def _tokenizer_of(self, given: Direction) -> Tokenizer:
        """Return the tokenizer of a direction's target language: one from before others were added, if that has it."""
        if not self.tokenizer.older:
            return self.tokenizer
        _, to = self.direction_of(given)
        return self.tokenizer.of(to)

    def _search_of(self, tokenizer: Tokenizer) -> tuple[Models, MakeEngine]:
        """Return the models that output the symbols of a tokenizer alone, and what makes their engine."""
        models = self._models
        if tokenizer is not self.tokenizer:
            models = models.narrowed(len(tokenizer.target))
        own = Tokenizer(self.tokenizer.source, tokenizer.target)
        return models, partial(self._make_engine, own, self.decoding, self.annotated)

    @staticmethod
    def _make_engine(
        tokenizer: Tokenizer,
        decoding: Decoding,
        annotated: bool,
        models: Sequence[Transformer],
        say: Callable[[str], None],
    ) -> Completion:
        """Make an engine whose outputs are long enough, have their prefixes and phrases, and no n-gram twice."""
        from nmt.decoding.completion import Completion
        from nmt.decoding.placement import Placer
        from nmt.search.constraints import MinLength, NoRepeat, PrefixConstraint

        target = cast(Vocabulary, tokenizer.target)
        rules: list[MakeConstraint] = [partial(PrefixConstraint, target)]
        if tokenizer.forced:  # the symbol of the language comes first, and does not count
            rules.insert(0, partial(MinLength, decoding.min_length + 1))
        if decoding.no_repeat is not None:
            rules.append(partial(NoRepeat, decoding.no_repeat))  # last: the others take precedence
        placer = partial(Placer, tokenizer.source, target, decoding)
        return Completion(models, decoding, rules, say, annotated, placer)

    # --- join

    def _text(self, line: SplitLine, rank: int) -> str:
        """Put the translations of this `rank` in place of the line's parts."""
        return with_spaces_of(line.request.text, "".join(self._characters(line, rank)))

    def _characters(self, line: SplitLine, rank: int) -> list[str]:
        """Return the characters of the joined translations of this `rank`, as the line is written; ß may be SS."""
        request = line.request
        texts = self._texts(line, rank)
        text, starts = joined(request.text, line.parts, texts)
        phrases = _phrases_of(line)
        text = _one_line(text, [phrase.source for phrase in phrases if "\n" in phrase.source])
        is_changed = any(part.text != request.text[part.start : part.end] for part in line.parts)
        if not (is_changed or (self._titles and line.parts)):
            return [*text]
        kept = self._kept_in(request)
        copies = [span.text_in(request.text) for span in kept]
        for phrase in phrases:
            if phrase.case:
                copies += phrase.targets
        _, target = self.direction_of(request.direction)
        is_whole = is_changed and self._is_for_capitals(request, kept)
        if self._titles and not is_whole and is_in_title_case(request.text, kept):
            return title_case(text, target or "", copies)
        found = [*text]
        for part, start, own in zip(line.parts, starts, texts, strict=True):
            source = request.text[part.start : part.end]
            if is_whole or (part.text != source and is_in_capitals(source) and not request.prefix):
                span = slice(start, start + len(own))
                found[span] = capitals(text[span], target or "", copies)
        return found

    def _texts(self, line: SplitLine, rank: int) -> list[str]:
        """Return the parts' translations, without the spaces and capitals that a model adds at their ends."""
        _, target = self.direction_of(line.request.direction)
        texts = list[str]()
        for part, each in zip(line.parts, line.of_rank(rank), strict=True):
            text = each.decoded(self._target.decode).strip(" ")
            texts.append(inside_sentence(text, self._target, target or "") if part.is_small else text)
        return texts

    def _with_codes(self, line: SplitLine, segment: Segment, rank: int) -> str:
        """Put the line's codes into the joined translations of this `rank`."""
        if not line.parts:
            return segment.raw
        source = line.request.text
        characters = self._characters(line, rank)
        longer = {at: text for at, text in enumerate(characters) if len(text) > 1}
        text = with_spaces_of(source, "".join(character[0] for character in characters))
        texts = self._texts(line, rank)
        _, starts = joined(source, line.parts, texts)
        aligned = list[tuple[int, int, Aligned]]()
        last = 0  # offset behind the last part, in the source
        end = 0  # offset behind its translation

        def align_copied(stop: int, start: int) -> None:
            """Align what no part has before an offset of the source, and of the translation."""
            copied = source[last:stop]
            if copied.strip():
                walls = [wall - last for wall in segment.walls]
                aligned.append((last, max(end, start - len(copied)), Aligned.copied(copied, walls)))

        for part, hypothesis, own, start in zip(line.parts, line.of_rank(rank), texts, starts, strict=True):
            align_copied(part.start, start)
            if hypothesis.aligned:
                output = hypothesis.aligned.output
                stripped = len(output) - len(output.lstrip(" "))
                aligned.append((part.start, start - stripped, hypothesis.aligned))
            last = part.end
            end = start + len(own)
        align_copied(len(source), len(text))
        return segment.put(AlignedLine(text, aligned), longer)

    def join(self, line: SplitLine, found: Sequence[tuple[str, int]]) -> Translation:
        """Build the translation of a line from (text, rank) pairs, one per output."""
        source = line.request.text
        text, _ = found[0]
        asked = list[str]()
        for phrase in _phrases_of(line):
            asked += [phrase.source, *phrase.targets]
        copies = [span.text_in(source) for span in self._kept_in(line.request)] if "{" in source else []
        left = [*filter(MESSAGE.match, copies)]  # some are longer than any part, or no part has them
        known = " ".join(asked)  # what the output may have although the line lacks it
        changes = compare(source, text, known)
        lacking = list[Phrase]()
        deleted = list[str]()
        is_unusual = False
        for part, best in line.best:
            if part.phrases:
                lacking += missing(in_translation(part.phrases), part.text, best.decoded(self._target.decode))
            deleted += best.deleted
            if self._lengths is not None and self._lengths.is_unusual(len(part.ids), len(best.ids)):
                is_unusual = True
        signs = self._signs(line, text, changes, is_unusual)
        tagged = found
        segment = line.request.segment
        if segment:
            tagged = [(self._with_codes(line, segment, rank), rank) for _, rank in found]
        elif line.request.prefix.strip():
            tagged = [(self._with_given_beginning(text, line.request), rank) for text, rank in found]
        return Translation.of(
            line,
            tagged,
            self.tokenizer,
            signs=signs,
            confidence=self._sureness(line, signs),
            alignments=[_alignment(line, rank) for _, rank in found],
            log_probabilities=[_log_probabilities(line, rank) for _, rank in found],
            unusual_length=is_unusual,
            missing=lacking,
            lost=changes.lost,
            invented=changes.invented + self._new_copies(text, known + source),
            deleted=deleted,
            left=left,
            loop=changes.loop,
            unspelled=self._unspelled(line),
        )

    def _with_given_beginning(self, text: str, request: Request) -> str:
        """Return a translation that begins with its prefix as it was given, where a vocabulary has other white space
        or leaves characters out."""
        given = one_line(clean(request.prefix)).lstrip()
        vocabulary = cast(Vocabulary, self._tokenizer_of(request.direction).target)
        spelled = vocabulary.plain(request.prefix).lstrip()
        start = len(text) - len(text.lstrip())
        if not text.startswith(spelled, start):
            return text
        return text[:start] + given + text[start + len(spelled) :]

    def _signs(self, line: SplitLine, text: str, changes: Changes, is_unusual: bool) -> list[float]:
        """Return what the confidence of a line's best output follows from; nothing if it is blank or has no output."""
        log_probability = 0.0
        subwords = 0
        symbols = 0
        unknown = 0
        for part, best in line.best:
            if best is NOTHING:
                return []
            log_probability += best.log_probability(self.decoding.alpha)
            subwords += len(part.ids)
            symbols += best.symbols
            unknown += self.tokenizer.source.count_unknown(part.ids)
        if not symbols:
            return []
        return signs_of(line.request.text, text, (subwords, symbols), log_probability, unknown, changes, is_unusual)

    def _sureness(self, line: SplitLine, signs: Sequence[float]) -> float | None:
        """Return the confidence of a line's best output; that of a blank line is 1, and without an output it is 0."""
        if self._confidence is None:
            return None
        if not signs:
            return 0.0 if line.parts else 1.0
        return self._confidence(signs)

    def _new_copies(self, text: str, known: str) -> list[str]:
        """Return the placeholders, URLs and the like in a text that are not `known`."""
        new = []
        for start, end in self._formats.spans(text, linked=False):
            copy = text[start:end]
            if copy not in known and not PICTOGRAPH.fullmatch(copy):
                new.append(copy)
        return new

    def _unspelled(self, line: SplitLine) -> str:
        """Return the characters of the prefix that the vocabulary cannot spell, if no output was found."""
        lost = dict[str, None]()  # in order, each once
        for part, best in line.best:
            if best is NOTHING and part.prefix:
                for character in part.prefix.text:
                    spelled = self._target.decode(self._target.encode(character))
                    if spelled.strip() != character.strip():
                        lost[character] = None
        return "".join(lost)

    def as_json(self, number: int, translation: Translation) -> str:
        """Format the translation of input line `number` as a JSON object on one line."""
        hypotheses = []
        for rank, text in enumerate(translation.texts):
            tokens = self.tokenizer.target.pieces(translation.ids[rank])
            hypothesis: dict[str, Any] = {"text": text, "score": translation.scores[rank], "tokens": tokens}
            if self.annotated:
                hypothesis["alignment"] = translation.alignments[rank]
                hypothesis["log_probabilities"] = [
                    None if each is None else round(each, 4) for each in translation.log_probabilities[rank]
                ]
            hypotheses.append(hypothesis)
        own = {name: getattr(translation, name) for name in JSON_FIELDS}
        own["missing"] = list(map(str, translation.missing))
        if translation.confidence is not None:
            own["confidence"] = round(translation.confidence, 4)
        return self._json(number, translation, hypotheses, **own)


def _with_direction(lines: Iterable[str | Request], direction: Direction) -> Iterator[Request]:
    """Yield requests, those without a direction in this one."""
    for line in lines:
        request = Request.of(line)
        yield request if any(request.direction) else replace(request, direction=direction)


def _phrases_of(line: SplitLine) -> list[Phrase]:
    """Return the phrases of all parts."""
    phrases = list[Phrase]()
    for part in line.parts:
        phrases += in_translation(part.phrases)
    return phrases


def _joined(lines: Sequence[Translation], rank: int) -> str:
    """Join the translations of this `rank` of a text's lines, each followed by the end of its line."""
    text = ""
    for line in lines:
        _, end = line.origin
        text += line.texts[rank] + end
    return text


def _one_line(text: str, copies: Sequence[str]) -> str:
    """Replace line breaks with spaces, but for those in what is copied."""
    found = ""
    last = 0
    for start, end in find_copies(text, copies):
        found += one_line(text[last:start]) + text[start:end]
        last = end
    return found + one_line(text[last:])


def _alignment(line: SplitLine, rank: int) -> list[int | None]:
    """Join the alignments of this `rank` from all parts, as indices into the whole source."""
    joint: list[int | None] = []
    start = 0
    for part, hypothesis in zip(line.parts, line.of_rank(rank), strict=True):
        joint += [None if at is None else start + at for at in hypothesis.alignment]
        start += len(part.ids)
    return joint


def _log_probabilities(line: SplitLine, rank: int) -> list[float | None]:
    """Join the log-probabilities of this `rank` from all parts."""
    joint: list[float | None] = []
    for hypothesis in line.of_rank(rank):
        joint += hypothesis.log_probabilities
    return joint


def _term(pair: tuple[str, ...]) -> Term:
    """Make a term from a pair of strings; raise TypeError for anything else, such as a single string."""
    match pair:
        case [str(source), str(target), *flags]:
            cleaned = (clean(one_line(source)), clean(one_line(target)))  # like input lines
            return Term(*cleaned, *map(bool, flags))
    raise TypeError(f"terms takes pairs of a source term and a target term, not {pair!r}")
