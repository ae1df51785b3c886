"""Translation pipeline: from a line to its translation. Imports no torch.

`Translator.split` encodes a line in parts, `Pipeline` searches the parts, and `Translator.join` joins their hypotheses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, repeat
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn, cast, overload

from nmt.decoding.engine import Prefix
from nmt.decoding.models import Models
from nmt.decoding.pipeline import NOTHING, LineResult, Pipeline
from nmt.decoding.read_ahead import Line, Part, Request
from nmt.decoding.splitter import LineSplitter, clean, joined
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.alignment import Aligned, AlignedLine
from nmt.text.lines import one_line
from nmt.text.markup import Markup
from nmt.text.numbers import compare
from nmt.text.sentences import TrainedLengths
from nmt.text.terms import Phrase, Term, Terms, missing
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nmt.decoding.constraints import MakeConstraint
    from nmt.decoding.models import MakePlacer
    from nmt.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Translation(LineResult):
    """Translations of one line."""

    alignments: list[list[int]]
    """For each subword of each output, the index of its most attended subword in `source`; empty unless requested."""
    log_probabilities: list[list[float]]
    """For each subword of each output, its log-probability given those before it, in nats; empty unless requested."""
    unusual_length: bool
    """Whether a part's output-to-source length ratio is outside the usual range of the training pairs."""
    missing: list[Phrase]
    """Required phrases that the best output lacks."""
    kept_from_repeating: bool
    """Whether `decoding.no_repeat` forbade the most probable subword at some step of the best output."""
    lost: list[str]
    """Numbers, and names with digits, that the best output lacks; terms and what is kept do not count."""
    invented: list[str]
    """Numbers, names with digits, and placeholders or URLs, that the best output has and the line has not."""
    deleted: list[str]
    """Placeholders, URLs and addresses that the model invented and that were taken out of the best output."""
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
        changes = {"lost": self.lost, "invented": self.invented, "deleted": self.deleted}
        changes["loop"] = [self.loop] if self.loop else []
        changed = [f"{what}: {', '.join(texts)}" for what, texts in changes.items() if texts]
        return [f"missing: {phrase}" for phrase in self.missing] + ["; ".join(changed)] * bool(changed)

    @property
    def empty(self) -> bool:
        """Whether a non-blank line has an empty translation, which the search found."""
        return self.parts > 0 and not self.texts[0].strip() and not self.failed


class Translator(Pipeline[Translation]):
    """Translation model or ensemble, with its tokenizer and decoding settings."""

    def __init__(
        self,
        models: Transformer | Sequence[Transformer] | Models,
        tokenizer: Tokenizer,
        decoding: Decoding,
        lengths: TrainedLengths | None = None,
        annotated: bool = False,
        terms: Terms | None = None,
        language: str = "",
    ) -> None:
        """Translate with `models`; `lengths` are statistics of the training pairs, if known; else `language` may be.

        `terms` apply to requests without their own; the default is `decoding.keep` alone.
        """
        self.annotated, self._lengths = annotated, lengths
        self._target = cast(Vocabulary, tokenizer.target)  # translations are not trees
        self._formats = Terms(common=decoding.keep)
        self._terms = terms or self._formats
        self._splitter = LineSplitter(tokenizer.source, decoding, lengths, language)
        super().__init__(models, tokenizer, decoding)

    @staticmethod
    def warnings(decoding: Decoding) -> Mapping[str, Callable[[Translation], int]]:
        """Map the name of each warning to a function that counts its occurrences in a translation."""
        warnings: dict[str, Callable[[Translation], int]] = {
            "caps hit": lambda translation: translation.capped,
            "inputs split": lambda translation: translation.parts > 1,
            "unknown characters": lambda translation: translation.unknown,
            "empty outputs": lambda translation: translation.empty,
            "no outputs": lambda translation: translation.failed,
            "unusual lengths": lambda translation: translation.unusual_length,
            "missing terms": lambda translation: len(translation.missing),
            "placeholders invented": lambda translation: len(translation.deleted),
            "numbers changed": lambda translation: bool(translation.lost or translation.invented),
            "loops": lambda translation: bool(translation.loop),
        }
        if decoding.no_repeat is not None:
            warnings["repetitions avoided"] = lambda translation: int(translation.kept_from_repeating)
        return warnings

    @overload
    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        sample: None = None,
        markup: bool = False,
    ) -> list[str]: ...

    @overload
    def translate(
        self, texts: Sequence[str], prefix: Sequence[str] | None = None, *, sample: int
    ) -> list[list[str]]: ...

    def translate(
        self,
        texts: Sequence[str],
        prefix: Sequence[str] | None = None,
        terms: Iterable[tuple[str, str]] = (),
        keep: Iterable[str] = (),
        sample: int | None = None,
        markup: bool = False,
    ) -> list[str] | list[list[str]]:
        """Translate raw sentences; return their translations, in order. A blank sentence has a blank translation;
        the indentation of others is kept. The lines of a text with newlines are translated one by one.

        `prefix` holds the beginning of each translation's first line, or "". `terms` are pairs (source, target): where
        a sentence contains the source term, its translation must contain the target term; pairs with the same one are
        alternatives. Matches of the regular expressions `keep` are copied. With `markup`, tags of HTML or XML are put
        around the words that stand for theirs. With `sample`, return a list of that many random translations per
        sentence; `terms`, `keep` and `markup` cannot be combined with it.
        """
        if isinstance(texts, str) or isinstance(prefix, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        if isinstance(keep, str):
            raise TypeError("keep takes a list of regular expressions; for one: keep=[pattern]")
        if prefix is not None and len(prefix) != len(texts):
            raise ValueError(f'there are {len(prefix)} prefixes and {len(texts)} texts: give one, or "", for each')
        if sample is not None and (terms or keep or markup):
            raise TypeError("sample does not go with terms, keep and markup, which samples do not know")
        asked = Terms(map(_term, terms), keep, self.decoding.keep)
        prefixes = repeat("", len(texts)) if prefix is None else prefix
        lines = [
            replace(request, text=line, prefix="" if number else request.prefix)
            for request in (Request(text, begin, asked) for text, begin in zip(texts, prefixes, strict=True))
            for number, line in enumerate(re.split(r"\r?\n", request.text))
        ]
        found = self.stream([line.without_tags() for line in lines] if markup else lines, sample=sample)
        of_lines = [[line.texts for line in islice(found, text.count("\n") + 1)] for text in texts]
        # For each text, its outputs: the joined first outputs of its lines, the joined second ones, and so on
        ends = [[*re.findall(r"\r?\n", text), ""] for text in texts]
        outputs = [
            ["".join(map(add, each, of_text)) for each in zip(*lines, strict=False)]
            for lines, of_text in zip(of_lines, ends, strict=True)
        ]
        return [first for first, *_ in outputs] if sample is None else outputs

    def parse(self, lines: Sequence[str]) -> NoReturn:
        """Raise UserError: a translator does not parse."""
        raise UserError("this model is a translator, not a parser", "call model.translate([...])")

    @staticmethod
    def constraints(tokenizer: Tokenizer, decoding: Decoding) -> list[MakeConstraint]:
        """Return the constraints on translations: minimum length, prefix and no repeated n-grams."""
        from nmt.decoding.constraints import MinLength, NoRepeat, PrefixConstraint

        target = cast(Vocabulary, tokenizer.target)
        rules: list[MakeConstraint] = [partial(MinLength, decoding.min_length), partial(PrefixConstraint, target)]
        if decoding.no_repeat is not None:
            rules.append(partial(NoRepeat, decoding.no_repeat))  # last: the others take precedence
        return rules

    @staticmethod
    def placer(tokenizer: Tokenizer, decoding: Decoding) -> MakePlacer:
        from nmt.decoding.placement import Placer

        return partial(Placer, tokenizer.source, cast(Vocabulary, tokenizer.target), decoding)

    def split(self, request: Request) -> list[Part]:
        """Encode a line in parts; a line with a prefix is not split."""
        terms, markup = request.terms or self._terms, request.markup
        phrases = terms.phrases(request.text, *((markup.kept, markup.walls) if markup else ()))
        if request.prefix.strip():
            parts, phrases = self._with_prefix(request), _beyond(terms.phrases(request.prefix), phrases)
        else:
            parts = self._splitter.split(request.text, phrases)
        aligned = markup is not None and markup.has_tags
        return [
            replace(
                part,
                phrases=[
                    replace(phrase, start=phrase.start - part.start)
                    for phrase in phrases
                    if part.start <= phrase.start and phrase.end <= part.end
                ],
                aligned=aligned,
            )
            for part in parts
        ]

    def encode_pair(self, source: str, output: str) -> tuple[list[int], list[int]]:
        """Encode an unsplit line and a translation of it."""
        return self._splitter.encode_whole(source), self._target.encode(clean(output))

    def _with_prefix(self, request: Request) -> list[Part]:
        """Encode a line as one part with its prefix; raise UserError if either is too long."""
        beginning = Prefix(*self._target.encode_beginning(request.prefix), request.prefix)
        if beginning.longest > self.decoding.max_source:
            raise UserError(
                f"prefix: may need {beginning.longest:,} subwords, more than decoding.max_source "
                f"{self.decoding.max_source:,}: {request.prefix[:60]} …",
                "shorten the prefix, or raise decoding.max_source",
            )
        ids, text = self._splitter.encode_whole(request.text), clean(request.text).strip()
        return [Part(ids, start=clean(request.text).index(text), text=text, prefix=beginning)] if ids else []

    def text(self, line: Line, rank: int) -> str:
        """Put the translations of this `rank` in place of the line's parts."""
        return one_line(joined(line.text, line.parts, self._texts(line, rank))[0])

    def _texts(self, line: Line, rank: int) -> list[str]:
        """Return the parts' translations, without spaces that a model adds at their ends."""
        return [part[rank].decoded(self._target.decode).strip(" ") for part in line.hypotheses]

    def _with_tags(self, line: Line, markup: Markup, text: str, rank: int) -> str:
        """Put the line's tags into `text`, the joined translations of this `rank`."""
        if not line.parts:
            return markup.line
        texts = self._texts(line, rank)
        starts = [*joined(line.text, line.parts, texts)[1], len(text)]
        ends = [0, *(start + len(own) for start, own in zip(starts, texts, strict=False))]
        aligned, last = list[tuple[int, int, Aligned]](), 0
        for end, start, part, of_part in zip(ends, starts, [*line.parts, None], [*line.hypotheses, []], strict=True):
            copied = line.text[last : part.start if part else None]
            if copied.strip():
                walls = [wall - last for wall in markup.walls]
                aligned.append((last, max(end, start - len(copied)), Aligned.copied(copied, walls)))
            if part:
                if own := of_part[rank].aligned:
                    aligned.append((part.start, start - len(own.output) + len(own.output.lstrip(" ")), own))
                last = part.end
        return markup.put(AlignedLine(text, aligned))

    def join(self, line: Line, found: Sequence[tuple[str, int]]) -> Translation:
        """Build the translation of a line from (text, rank) pairs, one per output."""
        lengths, text = self._lengths, found[0][0]
        phrases = [phrase for part in line.parts for phrase in part.phrases]
        asked = " ".join(text for phrase in phrases for text in (phrase.source, *phrase.targets))
        changes, known = compare(line.text, text, asked), asked + line.text
        new = [each for span in self._formats.spans(text, linked=False) if (each := text[slice(*span)]) not in known]
        tagged = [(self._with_tags(line, line.markup, *each), each[1]) for each in found] if line.markup else found
        return Translation.of(
            line,
            tagged,
            self.tokenizer,
            alignments=[_alignment(line, rank) for _, rank in found],
            log_probabilities=[
                [score for part in line.hypotheses for score in part[rank].log_probabilities] for _, rank in found
            ],
            unusual_length=lengths is not None
            and any(lengths.is_unusual(len(part.ids), len(best.ids)) for part, best in line.best),
            missing=[
                phrase
                for part, best in line.best
                if part.phrases
                for phrase in missing(part.phrases, part.text, best.decoded(self._target.decode))
            ],
            kept_from_repeating=any(best.kept_from_repeating for _, best in line.best),
            deleted=[each for _, best in line.best for each in best.deleted],
            unspelled=self._unspelled(line),
            **changes._replace(invented=changes.invented + new)._asdict(),
        )

    def _unspelled(self, line: Line) -> str:
        prefixes = (part.prefix for part, best in line.best if best is NOTHING)
        given = "".join(prefix.text for prefix in prefixes if prefix)
        lost = (each for each in given if self._target.decode(self._target.encode(each)).strip() != each.strip())
        return "".join(dict.fromkeys(lost))

    def as_json(self, number: int, translation: Translation) -> str:
        """Format the translation of input line `number` as a JSON object on one line."""
        hypotheses: list[dict[str, Any]] = [
            {"text": text, "score": score, "tokens": self.tokenizer.target.pieces(ids)}
            for text, score, ids in zip(translation.texts, translation.scores, translation.ids, strict=True)
        ]
        if self.annotated:
            for hypothesis, alignment, scores in zip(
                hypotheses, translation.alignments, translation.log_probabilities, strict=True
            ):
                hypothesis |= {"alignment": alignment, "log_probabilities": [round(score, 4) for score in scores]}
        return self._json(
            number,
            translation,
            hypotheses,
            unusual_length=translation.unusual_length,
            missing=list(map(str, translation.missing)),
            kept_from_repeating=translation.kept_from_repeating,
            lost=translation.lost,
            invented=translation.invented,
            deleted=translation.deleted,
            loop=translation.loop,
        )


def _beyond(placed: Sequence[Phrase], phrases: Sequence[Phrase]) -> list[Phrase]:
    """Return the phrases of a line without those to keep that are `placed` already, in its prefix."""
    known, found = Counter(phrase.source for phrase in placed if phrase.kept), list[Phrase]()
    for phrase in phrases:
        if phrase.kept and known[phrase.source] > 0:
            known[phrase.source] -= 1
        else:
            found.append(phrase)
    return found


def _alignment(line: Line, rank: int) -> list[int]:
    """Join the alignments of this `rank` from all parts, as indices into the whole source."""
    starts = accumulate((len(part.ids) for part in line.parts), initial=0)
    return [start + i for start, part in zip(starts, line.hypotheses, strict=False) for i in part[rank].alignment]


def _term(pair: tuple[str, ...]) -> Term:
    """Make a term from a pair of strings; raise TypeError for anything else, such as a single string."""
    if not isinstance(pair, tuple | list) or len(pair) < 2 or not all(isinstance(text, str) for text in pair[:2]):
        raise TypeError(f"terms takes pairs of a source term and a target term, not {pair!r}")
    source, target = (one_line(text).encode(errors="replace").decode() for text in pair[:2])  # like input lines
    return Term(source, target, *map(bool, pair[2:]))
