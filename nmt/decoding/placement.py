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
from itertools import islice, product
from operator import itemgetter

import torch

from nmt.decoding.forced import TOKENS_AT_ONCE, attention_of, log_probabilities_of
from nmt.formats.alignment import GLUE, Aligned, Site
from nmt.formats.letter_case import inside_sentence
from nmt.formats.numbers import PLAIN, with_numbers_of
from nmt.formats.placeholders import PICTOGRAPH
from nmt.formats.sentences import end_of, with_end_of
from nmt.formats.terms import (
    Edit,
    Phrase,
    Span,
    Terms,
    capitalised,
    find_copies,
    in_order,
    in_translation,
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
PAIRS = frozenset(('""', "''", "``", "()", "[]", "{}", "“”", "‘’", "«»", "„“", "””", "»«", "「」", "『』", "（）"))
"""Quotation marks and brackets that open and close"""
_SIGN = re.compile(r"[%{$@:<]|ww|^\u2581?w$")  # some subword of any text that FORMATS match


Pair = tuple[Source, Hypothesis]


class Placer:
    """Writer of a source's terms and kept text into what a search found for it."""

    def __init__(
        self, source: Vocabulary, target: Vocabulary, decoding: Decoding, models: Sequence[Transformer]
    ) -> None:
        self._source = source
        self._target = target
        self._alpha = decoding.alpha
        self._models = models
        self._keeps = decoding.keep
        self._formats = Terms(common=decoding.keep, names=False)
        self._signs = set[int]()  # most hypotheses have none of these subwords, and need not be decoded
        if decoding.keep:
            self._signs.update(index for index, piece in enumerate(target.listing()) if _SIGN.search(piece))

    def place(self, found: Sequence[Found], n_best: int) -> tuple[list[Found], list[Source]]:
        """Return results that have their phrases and invent none, and sources that must be searched again first."""
        again: list[Source] = []
        ready: list[Pair] = []  # from here on, one hypothesis each, in order of rank
        for source, hypotheses in found:
            if self.mends(source):
                hypotheses = [self._mended(source, each) for each in hypotheses]
            right = [each for each in hypotheses if self.copies(source, each)]
            if not right and not source.whole:
                bare = self._without_kept(source)
                if bare:
                    again.append(bare)
                    continue
            chosen = right or hypotheses
            best = [self._without_invented(source, each) for each in chosen[:n_best]]
            if not (source.whole or source.prefix) and self._lacks_kept(source, best[0]):
                best = [self._with_text(best[0], source.text)]  # the source is nothing but text to keep
            ready += [(source, each) for each in best]
        ready = self._with_terms(ready)
        ready = self._with_kept(ready)
        ready = self._in_order(ready)
        ready = self._with_terms_for_kept(ready)
        ready = self._with_alignment(ready)
        done: dict[int, Found] = {}
        for source, each in ready:
            _, hypotheses = done.setdefault(source.number, (source, []))
            hypotheses.append(each)
        return list(done.values()), again

    def mends(self, source: Source) -> bool:
        """Return whether a source has a number, or an end, that its hypotheses must have."""
        if not self._keeps or source.prefix:
            return False
        return end_of(source.text) is not None or PLAIN.search(source.text) is not None

    def _mended(self, source: Source, hypothesis: Hypothesis) -> Hypothesis:
        """Return a hypothesis with its source's numbers in place of those that the model made of them, and its end."""
        text = self._decoded(hypothesis)
        new = with_end_of(source.text, with_numbers_of(source.text, text))
        return hypothesis if new == text else self._with_text(hypothesis, new)

    def copies(self, source: Source, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis has what its source keeps, and nothing else of this kind."""
        return not self._invented(source, hypothesis) and not self._lacks_kept(source, hypothesis)

    def _lacks_kept(self, source: Source, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis lacks text to keep."""
        return any(phrase.kept for phrase in self._missing(source, hypothesis))

    def _missing(self, source: Source, hypothesis: Hypothesis) -> list[Phrase]:
        """Return the phrases of its source that a hypothesis lacks."""
        if not source.phrases:
            return []
        return missing(source.phrases, source.text, self._decoded(hypothesis))

    def _decoded(self, hypothesis: Hypothesis) -> str:
        return hypothesis.decoded(self._target.decode)

    def _invented(self, source: Source, hypothesis: Hypothesis) -> list[Phrase]:
        """Return text of the kind to keep that neither the source nor a term has."""
        if self._signs.isdisjoint(hypothesis.ids):
            return []
        copies = list[str]()
        targets = list[str]()  # of terms
        for phrase in source.phrases:
            if phrase.kept:
                copies.append(phrase.source)
            else:
                targets += phrase.targets
        terms = " ".join(targets)
        left = Counter(copies)  # what the output may still have
        text = self._decoded(hypothesis)
        fixed = self._fixed(source.prefix)
        invented = []
        for phrase in self._formats.phrases(text, find_copies(text, copies)):
            if phrase.start < fixed:
                continue
            left[phrase.source] -= 1
            is_known = left[phrase.source] >= 0 or phrase.source in terms
            if not (is_known or PICTOGRAPH.fullmatch(phrase.source)):
                invented.append(phrase)
        return invented

    def _without_invented(self, source: Source, hypothesis: Hypothesis) -> Hypothesis:
        """Delete text of the kind to keep that neither the source nor a term has."""
        invented = self._invented(source, hypothesis)
        if not invented:
            return hypothesis
        text, _ = without(self._decoded(hypothesis), invented)
        return replace(self._with_text(hypothesis, text), deleted=[phrase.source for phrase in invented])

    def _in_order(self, found: Sequence[Pair]) -> list[Pair]:
        """Put placeholders without names in the source's order, and what is kept beside words as it is there."""
        done = []
        for source, each in found:
            kept = _kept_in(source)
            if kept and not source.prefix:
                text = self._decoded(each)
                ordered = in_order(text, [phrase.source for phrase in kept])
                new = spaced_like(ordered, source.text, kept)
                if new != text:
                    each = self._with_text(each, new)
            done.append((source, each))
        return done

    # --- terms

    def _with_terms_for_kept(self, found: Sequence[Pair]) -> list[Pair]:
        """Replace text to keep by the term that there is for it."""
        done = []
        for source, each in found:
            terms = {phrase.source: phrase.term for phrase in source.phrases if phrase.term}
            if terms:
                text = self._decoded(each)
                fixed = self._fixed(source.prefix)
                edits = list[Edit]()
                for span in find_copies(text, [phrase.source for phrase in _kept_in(source)]):
                    term = terms.get(span.text_in(text))
                    if term and span.start >= fixed:
                        edits.append((span, term))
                each = self._with_text(each, written(text, edits))
                source = replace(source, phrases=in_translation(source.phrases))
            done.append((source, each))
        return done

    def _with_terms(self, found: Sequence[Pair]) -> list[Pair]:
        """Write the terms into each hypothesis that lacks some; its score and rank stay as they were without them."""
        lacking = [index for index, pair in enumerate(found) if self._missing(*pair)]
        variants: dict[int, list[str]] = {}  # by index
        choices: list[tuple[int, str]] = []  # indices and texts, where there are several
        for index, aligned in self._aligned(found, lacking).items():
            source, _ = found[index]
            texts = list(islice(self._variants(aligned, source), MOST_VARIANTS))
            variants[index] = texts
            if len(texts) > 1:
                choices += [(index, text) for text in texts]
        scores = self._scores([(found[index][0], text) for index, text in choices])
        score_of = dict(zip(choices, scores, strict=True))
        done = list(found)
        for index, texts in variants.items():
            source, each = found[index]
            best = texts[0]
            for text in texts[1:]:
                if score_of[index, text] > score_of[index, best]:
                    best = text
            done[index] = (source, self._with_text(each, best))
        return done

    def _with_alignment(self, found: Sequence[Pair]) -> list[Pair]:
        """Add the alignment of words where it is asked for; a term stands for its source words."""
        asking = [index for index, (source, _) in enumerate(found) if source.aligned]
        done = list(found)
        for index, aligned in self._aligned(found, asking, GLUE).items():
            source, each = found[index]
            done[index] = (source, replace(each, aligned=aligned.pinned(source.phrases)))
        return done

    def _with_text(self, hypothesis: Hypothesis, text: str) -> Hypothesis:
        return replace(hypothesis, ids=self._target.encode_like(text, hypothesis.ids), text=text)

    def _aligned(
        self, found: Sequence[Pair], indices: Sequence[int], glue: frozenset[str] = frozenset()
    ) -> dict[int, Aligned]:
        """Return the alignments of some of the pairs, by their indices."""
        chosen = [found[index] for index in indices]
        weights = attention_of(self._models, [(source.ids, each.ids) for source, each in chosen])
        aligned = {}
        for index, (source, each), of_subwords in zip(indices, chosen, weights, strict=True):
            text = self._decoded(each)
            aligned[index] = Aligned.of(
                source.text,
                self._source.ends_in(source.text, source.ids),
                text,
                self._target.ends_in(text, each.ids[: len(of_subwords)]),
                of_subwords.double().numpy(),  # (output subwords, source subwords)
                glue,
                source.phrases,
            )
        return aligned

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
        if not prefix:
            return 0
        text = self._target.decode(prefix.ids) + prefix.rest.replace(SPACE_MARK, " ")
        return len(text.strip())

    def _scores(self, texts: Sequence[tuple[Source, str]]) -> list[float]:
        """Return the scores that a search would give, of as many symbols as the models support."""
        targets = self._target.encode_all([text for _, text in texts])
        pairs = [(source.ids, [*source.first, *ids, EOS]) for (source, _), ids in zip(texts, targets, strict=True)]
        found = log_probabilities_of(self._models, pairs, TOKENS_AT_ONCE)
        scored = [each[len(source.first) :] for (source, _), each in zip(texts, found, strict=True)]
        lengths = torch.tensor(list(map(len, scored)))
        penalties = length_penalty(lengths, self._alpha).tolist()
        return [float(each.sum()) / penalty for each, penalty in zip(scored, penalties, strict=True)]

    # --- kept text

    def _without_kept(self, source: Source) -> Source | None:
        """Return the source without its text to keep, or None if there is nothing else to translate."""
        text, cuts = without(source.text, _quoted_in(source))
        if not cuts or not has_words(text):
            return None
        terms = []
        for phrase in source.phrases:
            if not phrase.kept:
                before = [cut for cut in cuts if cut.start < phrase.start]
                removed = sum(cut.end - cut.start for cut in before)
                terms.append(replace(phrase, start=phrase.start - removed))
        ids = self._source.encode_like(text + source.full_stop, source.ids)
        return replace(source, ids=ids, text=text, phrases=terms, whole=source)

    def _with_kept(self, found: Sequence[Pair]) -> list[Pair]:
        """Put text to keep back where it was left out; return the sources as they were first asked for."""
        wholes = {index: source.whole for index, (source, _) in enumerate(found) if source.whole}
        done = list(found)
        for index, aligned in self._aligned(found, list(wholes)).items():
            _, each = found[index]
            whole = wholes[index]
            done[index] = (whole, self._with_text(each, self._insert(whole, aligned)))
        return done

    def _insert(self, whole: Source, aligned: Aligned) -> str:
        """Return the output of a source without its text to keep, with this text between the words where it belongs."""
        kept = _quoted_in(whole)
        rest, cuts = without(whole.text, kept)
        padded = f" {whole.text} "  # padded[i] is the character before offset i
        fixed = self._fixed(whole.prefix)
        removed = 0  # characters before, of the source
        edits = []
        for phrase, cut in zip(kept, cuts, strict=True):
            # Whether text stands directly before and behind it.
            bound = (not padded[phrase.start].isspace(), not padded[phrase.end + 1].isspace())
            edits.append(aligned.between(cut.start - removed, phrase.source, bound, fixed))
            removed += cut.end - cut.start
        edits.sort(key=itemgetter(0))
        output = aligned.output
        first, _ = edits[0]
        begins = not (has_words(rest[: cuts[0].start]) or has_words(output[:first]))
        if begins and rest[cuts[0].start :].lstrip()[:1].islower():  # config.ini is missing
            output = output[:first] + inside_sentence(output[first:], self._target)
        found = ""
        last = 0
        for at, new in edits:
            if found and at == last and not (found[-1].isspace() or new[0].isspace()):
                new = f" {new}"
            found += output[last:at] + new
            last = at
        return found + output[last:]


def _kept_in(source: Source) -> list[Phrase]:
    """Return the text to keep of a source."""
    return [phrase for phrase in source.phrases if phrase.kept]


def _quoted_in(source: Source) -> list[Phrase]:
    """Return the text to keep of a source, with the quotation marks or brackets around it: "config.ini".

    Without it, a model would see an empty pair of them, and lose one.
    """
    text = source.text
    found = list[Phrase]()
    last = 0  # offset behind the phrase before
    for phrase in _kept_in(source):
        start, end = phrase.span
        while start > last and text[start - 1] + text[end : end + 1] in PAIRS:
            start -= 1
            end += 1
        found.append(replace(phrase, source=text[start:end], start=start))
        last = end
    return found


def without(text: str, phrases: Sequence[Phrase]) -> tuple[str, list[Span]]:
    """Return a text without what is kept, nor the space that would be left beside it, and the spans taken out."""
    cuts = []
    rest = ""
    last = 0
    for phrase in phrases:
        if not phrase.kept:
            continue
        start = phrase.start
        end = phrase.end
        if start > last and text[start - 1] == " " and not (end < len(text) and joins(text[end])):
            start -= 1
        elif start == 0 and text[end : end + 1] == " ":
            end += 1
        cuts.append(Span(start, end))
        rest += text[last:start]
        last = end
    return rest + text[last:], cuts
