"""The way from a line to its translation: split, encode, search, join. Imports no torch.

`Translator.split` divides a line into parts and encodes them; it runs ahead of the search, in a thread.
`Pipeline.stream` searches the parts with the engine that `_make_engine` makes. `Translator.join` puts the parts' best
hypotheses in place of the parts, and tells what became of the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast, overload

from nmt.decoding.engine import Request, SplitLine, read_tagged
from nmt.decoding.pipeline import NOTHING, LineResult, Pipeline
from nmt.decoding.splitter import LineSplitter, clean, joined
from nmt.decoding.workers import Loaded, MakeSearch, Models
from nmt.formats.alignment import Aligned, AlignedLine
from nmt.formats.numbers import compare
from nmt.formats.segments import Segment, read_line, with_spaces_of
from nmt.formats.sentences import TrainedLengths
from nmt.formats.terms import MESSAGE, Phrase, Term, Terms, beyond, find_copies, missing
from nmt.formats.tokens import SPECIAL_SPACE
from nmt.recipe import Decoding
from nmt.search.sources import Engine, Prefix, Source
from nmt.system.errors import UserError
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
    """For each subword of each output, the index of its most attended subword in `source`; empty unless requested. None
    for subwords beyond the model's last position, as below."""
    log_probabilities: list[list[float | None]]
    """For each subword of each output, its log-probability given those before it, in nats; empty unless requested."""
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
    unspelled: str = ""
    """Characters of the prefix that the vocabulary cannot spell, if no output was found."""

    @property
    def complaints(self) -> list[str]:
        """Why there is no output; otherwise one message per missing phrase, and one for changes and a loop."""
        if self.failed:
            reason = f"no output: the vocabulary cannot spell {self.unspelled} of the prefix"
            return [reason] if self.unspelled else super().complaints
        changes = {"lost": self.lost, "invented": self.invented, "deleted": self.deleted, "left as they are": self.left}
        changes["loop"] = [self.loop] if self.loop else []
        changed = [f"{what}: {', '.join(texts)}" for what, texts in changes.items() if texts]
        return [f"missing: {phrase}" for phrase in self.missing] + ["; ".join(changed)] * bool(changed)

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
    ) -> None:
        """Translate with `models`; `lengths` are statistics of the training pairs, if known.

        `terms` apply to requests without their own; the default is `decoding.keep` alone. `directions` are the pairs of
        languages that the models were trained on, and `direction` is that of requests without their own.
        """
        self.annotated, self._lengths = annotated, lengths
        self.directions = list(directions)
        """Pairs of source and target language that the models were trained on"""
        self._ways: dict[Direction, tuple[LineSplitter, list[int]]] = {}
        self._target = cast(Vocabulary, tokenizer.target)  # translations are not trees
        self._models = models if isinstance(models, Models) else Loaded(models)
        self._formats = Terms(common=decoding.keep)
        self._terms, self._direction = terms or self._formats, direction
        self.tokenizer, self.decoding = tokenizer, decoding
        older = tokenizer.of(direction[1]) if direction[1] else tokenizer
        own, make = self._of(older)
        super().__init__(own, tokenizer, decoding, make)
        self._engines = {older: self.engine}  # made as needed

    @overload
    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        markup: bool = False,
        to: str | None = None,
        source: str | None = None,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        *,
        to: str | None = None,
        source: str | None = None,
        sample: int,
    ) -> list[list[str]]: ...

    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
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
        if prefix is not None and len(prefix) != len(texts):
            raise ValueError(f'there are {len(prefix)} prefixes and {len(texts)} texts: give one, or "", for each')
        terms = list(terms)
        keep = list(keep)
        if sample is not None and (terms or keep or markup):
            raise ValueError("sample cannot be combined with terms, keep or markup: they are not forced into samples")
        direction = self._asked(source, to)
        asked = Terms(map(_term, terms), keep, self.decoding.keep)
        prefixes = repeat("", len(texts)) if prefix is None else prefix
        requests = [
            Request(text, begin, asked, direction=direction) for text, begin in zip(texts, prefixes, strict=True)
        ]
        lines = [
            replace(request, text=line, prefix="" if number else request.prefix)
            for request in requests
            for number, line in enumerate(LINE_END.split(request.text))
        ]
        found = iter(list(self.stream(read_tagged(lines) if markup else lines, sample=sample)))
        samples = list[list[str]]()
        for text in texts:
            ends = [*LINE_END.findall(text), ""]
            results = [next(found) for _ in ends]
            samples.append([_with_ends(results, rank, ends) for rank in range(sample or 1)])
        if sample is None:
            return [best for (best,) in samples]
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
            direction = self._asked(source, to)
            requests = map(Request.of, lines)
            lines = (each if any(each.direction) else replace(each, direction=direction) for each in requests)
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
        direction = source or self._direction[0], to or self._direction[1]
        self.direction_of(direction)
        return direction

    def direction_of(self, given: Direction) -> Direction:
        """Complete a pair of source and target language as `Tokenizer.complete` does."""
        return self.tokenizer.complete(given, self.directions)

    def _way(self, given: Direction) -> tuple[LineSplitter, list[int]]:
        """Return the splitter of the lines of a direction, and the symbols that their translations begin with."""
        given = given if any(given) else self._direction
        if given not in self._ways:
            source, to = self.direction_of(given)
            symbols, first = self.tokenizer.first((source, to))
            own = self.tokenizer.of(source).source
            self._ways[given] = LineSplitter(own, self.decoding, self._lengths, source or "", symbols), first
        return self._ways[given]

    def _request(self, line: str | Request) -> Request:
        request = Request.of(line)
        is_read = request.segment is not None or request.prefix.strip() != ""
        if is_read or not SPECIAL_SPACE.search(request.text.strip()):
            return request
        return request.of_segment(read_line(one_line(request.text)))

    def split(self, request: Request) -> list[Source]:
        """Encode a line in parts; a line with a prefix is not split."""
        terms, segment = request.terms or self._terms, request.segment
        codes = (segment.kept, segment.walls, segment.ends) if segment else ()
        phrases = terms.phrases(request.text, *codes)
        if request.prefix.strip():
            parts, phrases = self._with_prefix(request), beyond(terms.phrases(request.prefix), phrases)
        else:
            parts = self._way(request.direction)[0].split(request.text, phrases, segment.ends if segment else ())
        first = self._way(request.direction)[1]
        return [
            replace(
                part,
                first=first,
                cap=self._cap(len(first) + max(len(part.ids), part.prefix.longest if part.prefix else 0)),
                phrases=[
                    replace(phrase, start=phrase.start - part.start)
                    for phrase in phrases
                    if part.start <= phrase.start and phrase.end <= part.end
                ],
                aligned=segment is not None and bool(segment.walls),
            )
            for part in parts
        ]

    def _with_prefix(self, request: Request) -> list[Source]:
        """Encode a line as one part with its prefix; raise UserError if either is too long."""
        vocabulary = cast(Vocabulary, self._older(request.direction).target)
        beginning = Prefix(*vocabulary.encode_beginning(request.prefix), request.prefix)
        if beginning.longest > self.decoding.max_source:
            raise UserError(
                f"prefix: may need {beginning.longest:,} subwords, more than decoding.max_source "
                f"{self.decoding.max_source:,}: {request.prefix[:60]} …",
                "shorten the prefix, or raise decoding.max_source",
            )
        ids, text = self._way(request.direction)[0].encode_whole(request.text), clean(request.text)
        start = len(text) - len(text.lstrip())
        return [Source(0, ids, 0, text=text.strip(), start=start, prefix=beginning)] if ids else []

    def _encode_pair(self, request: Request, output: str) -> list[tuple[list[int], list[int]]]:
        """Encode an unsplit line and a translation of it."""
        splitter, first = self._way(request.direction)
        ids = splitter.encode_whole(request.text)
        return [(ids, first + self._older(request.direction).target.encode(clean(output)))] if ids else []

    # --- search

    def _engine_for(self, request: Request) -> Engine:
        """Return the engine that outputs what the tokenizer of a request's target language has, made when needed."""
        older = self._older(request.direction)
        if older not in self._engines:
            models, make = self._of(older)
            self._engines[older] = self._held.enter_context(models.open(self.decoding, make))
        return self._engines[older]

    def _older(self, given: Direction) -> Tokenizer:
        whole = self.tokenizer
        return whole.of(self.direction_of(given if any(given) else self._direction)[1]) if whole.older else whole

    def _of(self, older: Tokenizer) -> tuple[Models, MakeSearch]:
        models = self._models if older is self.tokenizer else self._models.narrowed(len(older.target))
        tokenizer = Tokenizer(self.tokenizer.source, older.target)
        return models, partial(self._make_engine, tokenizer, self.decoding, self.annotated)

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
        least = decoding.min_length + tokenizer.forced
        rules: list[MakeConstraint] = [partial(MinLength, least), partial(PrefixConstraint, target)]
        if decoding.no_repeat is not None:
            rules.append(partial(NoRepeat, decoding.no_repeat))  # last: the others take precedence
        placer = partial(Placer, tokenizer.source, target, decoding)
        return Completion(models, decoding, rules, say, annotated, placer)

    # --- join

    def _text(self, line: SplitLine, rank: int) -> str:
        """Put the translations of this `rank` in place of the line's parts."""
        text = joined(line.text, line.parts, self._texts(line, rank))[0]
        copies = [phrase.source for part in line.parts for phrase in part.phrases if "\n" in phrase.source]
        return with_spaces_of(line.text, _one_line(text, copies))

    def _texts(self, line: SplitLine, rank: int) -> list[str]:
        """Return the parts' translations, without spaces that a model adds at their ends."""
        return [each.decoded(self._target.decode).strip(" ") for each in line.of_rank(rank)]

    def _with_codes(self, line: SplitLine, segment: Segment, text: str, rank: int) -> str:
        """Put the line's codes into `text`, the joined translations of this `rank`."""
        if not line.parts:
            return segment.raw
        texts = self._texts(line, rank)
        starts = [*joined(line.text, line.parts, texts)[1], len(text)]
        ends = [0, *(start + len(own) for start, own in zip(starts, texts, strict=False))]
        aligned, last = list[tuple[int, int, Aligned]](), 0
        for end, start, part, of_part in zip(ends, starts, [*line.parts, None], [*line.hypotheses, []], strict=True):
            copied = line.text[last : part.start if part else None]
            if copied.strip():
                walls = [wall - last for wall in segment.walls]
                aligned.append((last, max(end, start - len(copied)), Aligned.copied(copied, walls)))
            if part:
                if own := of_part[rank].aligned:
                    aligned.append((part.start, start - len(own.output) + len(own.output.lstrip(" ")), own))
                last = part.end
        return segment.put(AlignedLine(text, aligned))

    def join(self, line: SplitLine, found: Sequence[tuple[str, int]]) -> Translation:
        """Build the translation of a line from (text, rank) pairs, one per output."""
        lengths, text = self._lengths, found[0][0]
        phrases = [phrase for part in line.parts for phrase in part.phrases]
        asked = " ".join(text for phrase in phrases for text in (phrase.source, *phrase.targets))
        changes, known = compare(line.text, text, asked), asked + line.text
        new = [each for span in self._formats.spans(text, linked=False) if (each := text[slice(*span)]) not in known]
        tagged = found
        if line.segment:
            tagged = [(self._with_codes(line, line.segment, *each), each[1]) for each in found]
        return Translation.of(
            line,
            tagged,
            self.tokenizer,
            alignments=[_alignment(line, rank) for _, rank in found],
            log_probabilities=[
                [score for each in line.of_rank(rank) for score in each.log_probabilities] for _, rank in found
            ],
            unusual_length=lengths is not None
            and any(lengths.is_unusual(len(part.ids), len(best.ids)) for part, best in line.best),
            missing=[
                phrase
                for part, best in line.best
                if part.phrases
                for phrase in missing(part.phrases, part.text, best.decoded(self._target.decode))
            ],
            deleted=[each for _, best in line.best for each in best.deleted],
            left=[phrase.source for phrase in phrases if phrase.kept and MESSAGE.match(phrase.source)],
            unspelled=self._unspelled(line),
            **changes._replace(invented=changes.invented + new)._asdict(),
        )

    def _unspelled(self, line: SplitLine) -> str:
        prefixes = (part.prefix for part, best in line.best if best is NOTHING)
        given = "".join(prefix.text for prefix in prefixes if prefix)
        lost = (each for each in given if self._target.decode(self._target.encode(each)).strip() != each.strip())
        return "".join(dict.fromkeys(lost))

    def as_json(self, number: int, translation: Translation) -> str:
        """Format the translation of input line `number` as a JSON object on one line."""
        hypotheses, said = [], (translation.alignments, translation.log_probabilities)
        for text, score, ids, alignment, scores in zip(
            translation.texts, translation.scores, translation.ids, *said, strict=True
        ):
            rounded = [None if score is None else round(score, 4) for score in scores]
            annotation = {"alignment": alignment, "log_probabilities": rounded}
            tokens = self.tokenizer.target.pieces(ids)
            hypotheses.append({"text": text, "score": score, "tokens": tokens} | (annotation if self.annotated else {}))
        own = {name: getattr(translation, name) for name in JSON_FIELDS}
        return self._json(number, translation, hypotheses, **own | {"missing": list(map(str, translation.missing))})


def _with_ends(lines: Sequence[Translation], rank: int, ends: Sequence[str]) -> str:
    """Join the translations of this `rank` of a text's lines, each followed by the end of its line."""
    return "".join(line.texts[rank] + end for line, end in zip(lines, ends, strict=True))


def _one_line(text: str, copies: Sequence[str]) -> str:
    """Replace line breaks with spaces, but for those in what is copied."""
    found, last = "", 0
    for start, end in find_copies(text, copies):
        found, last = found + one_line(text[last:start]) + text[start:end], end
    return found + one_line(text[last:])


def _alignment(line: SplitLine, rank: int) -> list[int | None]:
    """Join the alignments of this `rank` from all parts, as indices into the whole source."""
    starts = accumulate((len(part.ids) for part in line.parts), initial=0)
    parts = zip(starts, line.of_rank(rank), strict=False)
    return [None if at is None else start + at for start, each in parts for at in each.alignment]


def _term(pair: tuple[str, ...]) -> Term:
    """Make a term from a pair of strings; raise TypeError for anything else, such as a single string."""
    if not isinstance(pair, tuple | list) or len(pair) < 2 or not all(isinstance(text, str) for text in pair[:2]):
        raise TypeError(f"terms takes pairs of a source term and a target term, not {pair!r}")
    source, target = (clean(one_line(text)) for text in pair[:2])  # like input lines
    return Term(source, target, *map(bool, pair[2:]))
