"""Terms and kept text in translations: put where they belong, by the alignment of a translation without them.

A search translates a source as if it had no terms. Each term is then written over the word that attends to its source
words. If none does clearly, it goes over or beside the word that attends to them most; of several possible texts, the
most probable one wins. A search that continues behind the term does worse: models go astray after words that they never
saw, and find it probable.

A model copies text to keep if it knows such text. If it garbles it, the rest of the sentence suffers too, so the source
is translated again without it, and it is put between the words that align with its neighbours. A hypothesis with text
of this kind that the source does not have loses against others; if all have such text, it is deleted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, islice, product
from operator import itemgetter

import torch

from nmt.decoding.forced import TOKENS, attention_of, log_probabilities_of
from nmt.formats.alignment import GLUE, Aligned, Site
from nmt.formats.terms import (
    Edit,
    Phrase,
    Span,
    Terms,
    capitalised,
    find_copies,
    in_order,
    missing,
    spaced_like,
    written,
)
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.choosing import length_penalty
from nmt.search.sources import Found, Hypothesis, Prefix, Source
from nmt.text.scripts import has_words, joins
from nmt.text.vocabulary import EOS, SPACE_MARK, Vocabulary

MOST_VARIANTS = 16  # texts to score for one hypothesis
_SIGN = re.compile(r"[%{$@:<]|ww|^\u2581?w$")  # some subword of any text that FORMATS match


Pair = tuple[Source, Hypothesis]


class Placer:
    """Completes what a search found by the phrases of its source."""

    def __init__(
        self, source: Vocabulary, target: Vocabulary, decoding: Decoding, models: Sequence[Transformer]
    ) -> None:
        self._source, self._target, self._alpha, self._models = source, target, decoding.alpha, models
        self._formats = Terms(common=decoding.keep)
        # Most hypotheses have none of these, and need not be decoded.
        self._signs = {index for index, piece in enumerate(target.listing()) if decoding.keep and _SIGN.search(piece)}

    def place(self, found: Sequence[Found], n_best: int) -> tuple[list[Found], list[Source]]:
        """Return results that have their phrases and invent none, and sources that must be searched again first."""
        again: list[Source] = []
        ready: list[Pair] = []
        for source, hypotheses in found:
            right = [each for each in hypotheses if self.copies(source, each)]
            if not right and not source.whole and (bare := self._without_kept(source)):
                again.append(bare)
                continue
            best = [self._without_invented(source, each) for each in (right or hypotheses)[:n_best]]
            if not (source.whole or source.prefix) and any(each.kept for each in self._missing(source, best[0])):
                best = [self._with_text(best[0], source.text)]  # it has nothing else
            ready += [(source, each) for each in best]
        for step in (self._with_terms, self._with_kept, self._in_order, self._with_alignment):
            ready = step(ready)
        done: dict[int, Found] = {}
        for source, each in ready:
            done.setdefault(source.number, (source, []))[1].append(each)
        return list(done.values()), again

    def copies(self, source: Source, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis has what its source keeps, and nothing else of this kind."""
        return not self._invented(source, hypothesis) and not any(
            phrase.kept for phrase in self._missing(source, hypothesis)
        )

    def _missing(self, source: Source, hypothesis: Hypothesis) -> list[Phrase]:
        text = hypothesis.decoded(self._target.decode) if source.phrases else ""
        return missing(source.phrases, source.text, text)

    def _invented(self, source: Source, hypothesis: Hypothesis) -> list[Phrase]:
        """Return text of the kind to keep that neither the source nor a term has."""
        if self._signs.isdisjoint(hypothesis.ids):
            return []
        kept = [phrase for phrase in source.phrases if phrase.kept]
        known = Counter(phrase.source for phrase in kept)
        terms = " ".join(target for phrase in source.phrases if not phrase.kept for target in phrase.targets)
        text, invented, fixed = hypothesis.decoded(self._target.decode), [], self._fixed(source.prefix)
        for phrase in self._formats.phrases(text, find_copies(text, [phrase.source for phrase in kept])):
            if phrase.start < fixed:
                continue
            known[phrase.source] -= 1
            if known[phrase.source] < 0 and phrase.source not in terms:
                invented.append(phrase)
        return invented

    def _without_invented(self, source: Source, hypothesis: Hypothesis) -> Hypothesis:
        if not (invented := self._invented(source, hypothesis)):
            return hypothesis
        text, _ = without(hypothesis.decoded(self._target.decode), invented)
        return replace(self._with_text(hypothesis, text), deleted=[phrase.source for phrase in invented])

    def _in_order(self, found: Sequence[Pair]) -> list[Pair]:
        """Put placeholders without names in the source's order, and what is kept beside words as it is there."""
        done = []
        for source, each in found:
            kept = [phrase for phrase in source.phrases if phrase.kept]
            if kept and not source.prefix:
                text = each.decoded(self._target.decode)
                new = spaced_like(in_order(text, [phrase.source for phrase in kept]), source.text, kept)
                each = each if new == text else self._with_text(each, new)
            done.append((source, each))
        return done

    # --- terms

    def _with_terms(self, found: Sequence[Pair]) -> list[Pair]:
        """Write the terms into each hypothesis that lacks some; its score and rank stay as they were without them."""
        lacks = [bool(self._missing(*pair)) for pair in found]
        lacking = list(compress(found, lacks))
        texts = [
            list(islice(self._variants(each, source), MOST_VARIANTS))
            for (source, _), each in zip(lacking, self._aligned(lacking), strict=True)
        ]
        several = zip(lacking, texts, strict=True)
        scores = iter(self._scores([(source, text) for (source, _), of in several if len(of) > 1 for text in of]))
        best = (max(of, key=lambda text: next(scores)) if len(of) > 1 else of[0] for of in texts)
        return [
            (source, self._with_text(each, next(best)) if is_lacking else each)
            for (source, each), is_lacking in zip(found, lacks, strict=True)
        ]

    def _with_alignment(self, found: Sequence[Pair]) -> list[Pair]:
        """Add the alignment of words where it is asked for; a term stands for its source words."""
        aligned = iter(self._aligned([pair for pair in found if pair[0].aligned], GLUE))
        return [
            (source, replace(each, aligned=next(aligned).pinned(source.phrases)) if source.aligned else each)
            for source, each in found
        ]

    def _with_text(self, hypothesis: Hypothesis, text: str) -> Hypothesis:
        return replace(hypothesis, ids=self._target.encode_like(text, hypothesis.ids), text=text)

    def _aligned(self, found: Sequence[Pair], glue: frozenset[str] = frozenset()) -> list[Aligned]:
        weights = attention_of(self._models, [(source.ids, each.ids) for source, each in found])
        return [
            Aligned.of(
                *(source.text, self._source.ends_in(source.text, source.ids)),
                *(text := each.decoded(self._target.decode), self._target.ends_in(text, each.ids[: len(of_pair)])),
                of_pair.double().numpy(),
                glue,
                source.phrases,
            )
            for (source, each), of_pair in zip(found, weights, strict=True)
        ]

    def _variants(self, aligned: Aligned, source: Source) -> Iterator[str]:
        """Yield the output with all terms written into it: at each possible site, in each translation."""
        fixed = self._fixed(source.prefix)
        kept = find_copies(aligned.output, [phrase.source for phrase in source.phrases if phrase.kept])
        taken = {j for j, word in enumerate(aligned.words) if word.start < fixed or word in kept}
        options = []
        for phrase in source.phrases:
            if not phrase.kept:
                sites = list(aligned.sites(phrase.span, taken))
                options.append([self._edit(phrase, target, site) for site in sites for target in phrase.targets])
        for edits in product(*options):
            yield written(aligned.output, edits)

    @staticmethod
    def _edit(phrase: Phrase, target: str, site: Site) -> Edit:
        begins = site.span.start == 0 and not site.before.strip() and not phrase.case
        return site.span, site.before + (capitalised(target) if begins else target) + site.after

    def _fixed(self, prefix: Prefix | None) -> int:
        """Return the length of a prefix in characters."""
        return len((self._target.decode(prefix.ids) + prefix.rest.replace(SPACE_MARK, " ")).strip()) if prefix else 0

    def _scores(self, texts: Sequence[tuple[Source, str]]) -> list[float]:
        """Return the scores that a search would give, of as many symbols as the models support."""
        targets = self._target.encode_all([text for _, text in texts])
        pairs = [(source.ids, [*source.first, *each, EOS]) for (source, _), each in zip(texts, targets, strict=True)]
        found = log_probabilities_of(self._models, pairs, TOKENS)
        totals = [each[len(source.first) :] for (source, _), each in zip(texts, found, strict=True)]
        lengths = torch.tensor(list(map(len, totals)))
        penalties = length_penalty(lengths, self._alpha).tolist()
        return [float(total.sum()) / penalty for total, penalty in zip(totals, penalties, strict=True)]

    # --- kept text

    def _without_kept(self, source: Source) -> Source | None:
        """Return the source without its text to keep, or None if there is nothing else to translate."""
        text, cuts = without(source.text, source.phrases)
        if not cuts or not has_words(text):
            return None
        terms = [
            replace(phrase, start=phrase.start - sum(cut.end - cut.start for cut in cuts if cut.start < phrase.start))
            for phrase in source.phrases
            if not phrase.kept
        ]
        ids = self._source.encode_like(text, source.ids)
        return replace(source, ids=ids, text=text, phrases=terms, whole=source)

    def _with_kept(self, found: Sequence[Pair]) -> list[Pair]:
        """Put text to keep back where it was left out; return the sources as they were first asked for."""
        aligned = iter(self._aligned([pair for pair in found if pair[0].whole]))
        done = []
        for source, each in found:
            whole = source.whole
            done.append((whole, self._with_text(each, self._insert(whole, next(aligned)))) if whole else (source, each))
        return done

    def _insert(self, whole: Source, aligned: Aligned) -> str:
        fixed, removed, edits = self._fixed(whole.prefix), 0, []
        kept, padded = [phrase for phrase in whole.phrases if phrase.kept], f" {whole.text} "
        for phrase, cut in zip(kept, without(whole.text, kept)[1], strict=True):
            bound = (not padded[phrase.start].isspace(), not padded[phrase.end + 1].isspace())
            edits.append(aligned.between(cut.start - removed, phrase.source, bound, fixed))
            removed += cut.end - cut.start
        found, last = "", 0
        for at, new in sorted(edits, key=itemgetter(0)):
            apart = " " if found and at == last and not (found[-1].isspace() or new[0].isspace()) else ""
            found, last = found + aligned.output[last:at] + apart + new, at
        return found + aligned.output[last:]


def without(text: str, phrases: Sequence[Phrase]) -> tuple[str, list[Span]]:
    """Return a text without what is kept, nor the space that would be left beside it, and the spans taken out."""
    cuts, rest, last = [], "", 0
    for phrase in phrases:
        if not phrase.kept:
            continue
        start, end = phrase.start, phrase.end
        if start > last and text[start - 1] == " " and not (end < len(text) and joins(text[end])):
            start -= 1
        elif start == 0 and text[end : end + 1] == " ":
            end += 1
        cuts.append(Span(start, end))
        rest, last = rest + text[last:start], end
    return rest + text[last:], cuts
