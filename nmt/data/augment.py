"""Text drawn anew in every epoch, as `data.augment` says: an update's pairs, some with changed text or another tree.

What a pair becomes is a pure function of the seed, the epoch and its line. The text of a pair is what its ids decode
to, since vocabularies keep all text, so nothing is stored and the data is prepared as without it. The plan of an epoch
counts the prepared lengths; all that follows, the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np

from nmt.data.constituents import Sentence, with_others
from nmt.data.corpus import ChangedPairs, Corpus, Ids, Rows, concatenate, pair_encoder
from nmt.data.epochs import Update
from nmt.data.variants import in_a_row, with_typos, without_final_mark
from nmt.formats.letter_case import in_capitals, in_title_case
from nmt.parsing.linearization import TreeVocabulary
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import TargetVocabulary

DONORS = 4  # trees whose constituents may stand in another one
ROOM = 10  # an update may exceed training.batch_tokens by the tenth part of it
Subwords = list[list[int]]
"""Ids of both sides of a pair"""


class _Side(NamedTuple):
    """One side of a training set."""

    decoder: TargetVocabulary
    encoder: TargetVocabulary
    symbols: Sequence[int]
    """Symbols of languages that begin it"""
    language: str


class _Drawn(NamedTuple):
    """A pair with changed text."""

    turn: float
    """When it gets of the tokens that its update has left; random, so that no pair is preferred"""
    place: int
    """Among the pairs of its update"""
    new: Subwords


class Augmenter:
    """Changes the texts of an update's pairs."""

    def __init__(self, recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, sizes: Sequence[int]) -> None:
        """Prepare to change pairs of `corpus`, which has so many pairs of each training set, in their order."""
        data = recipe.data
        self._corpus = corpus
        self._shares = data.augment
        self._seed = recipe.training.seed
        self._firsts = np.cumsum([0, *sizes]).tolist()
        """The first row of each training set, and the end of the last"""
        self._sides = list[list[_Side]]()
        """Source and target by training set"""
        encoder = pair_encoder(data, "train", tokenizer)
        for index, dataset in enumerate(data.train):
            languages = data.of(dataset).languages
            both = zip(encoder.vocabularies, encoder.encoders(index), encoder.before(index), languages, strict=True)
            self._sides.append([_Side(*each) for each in both])
        self.longest = data.max_length
        """Maximum subwords on either side of a pair, excluding `</s>`"""
        self.most_tokens = recipe.training.batch_tokens + recipe.training.batch_tokens // ROOM
        """Maximum tokens on either side of an update, including `</s>`"""

    def augmented(self, update: Update) -> Update:
        """Return an update with what its pairs become in its epoch.

        Pairs that would be longer than `longest`, or lead beyond `most_tokens`, stay as they are.
        """
        pairs = self._prepared(update.rows)
        drawn = list[_Drawn]()
        for place, row in enumerate(update.rows.tolist()):
            # Of Python's generator, only random() is the same in all versions.
            found = self._draw(place, row, pairs[place], Random(self._seed << 96 | update.epoch << 48 | row))
            if found is not None:
                drawn.append(found)
        if not drawn:
            return update
        tokens = [update.lengths.source_tokens, update.lengths.target_tokens]
        for each in sorted(drawn):
            before = pairs[each.place]
            more = [len(side) - len(side_before) for side, side_before in zip(each.new, before, strict=True)]
            fits = max(map(len, each.new)) <= self.longest
            for total, growth in zip(tokens, more, strict=True):
                fits &= growth <= 0 or total + growth <= self.most_tokens
            if fits:
                pairs[each.place] = each.new
                tokens = [total + growth for total, growth in zip(tokens, more, strict=True)]
        sources, targets = zip(*pairs, strict=True)
        changed = ChangedPairs(concatenate(sources), concatenate(targets))
        return replace(update, lengths=changed.lengths, changed=changed)

    def _draw(self, place: int, row: int, prepared: Subwords, random: Random) -> _Drawn | None:
        """Draw what a pair of an update becomes, which is `prepared` in a row of the corpus; None if it stays so."""
        shares = self._shares
        if shares.constituents:
            return self._exchange(place, row, prepared, random)
        turn, joined, typos, unpunctuated, case = [random.random() for _ in range(5)]  # for all lines the same ones
        changes = list[Callable[[str, str], str]]()
        if unpunctuated < shares.unpunctuated:
            changes.append(without_final_mark)
        if case < shares.upper:
            changes.append(in_capitals)
        elif case < shares.upper + shares.title:
            changes.append(in_title_case)
        is_joined = joined < shares.joined
        has_typos = typos < shares.typos
        if not (changes or is_joined or has_typos):
            return None

        dataset = self._dataset_of(row)
        in_row = [prepared]
        if is_joined:
            in_row += self._others(dataset, 1 + int(3 * random.random()), random)
        sides = self._sides[dataset]
        before = list[str]()
        in_rows = list[str]()
        for number, side in enumerate(sides):
            texts = [side.decoder.decode(pair[number][len(side.symbols) :]) for pair in in_row]
            before.append(texts[0])
            in_rows.append(in_a_row(texts))
        source, target = in_rows
        if has_typos:
            source = with_typos(source, random, at_least=1)
        for change in changes:
            changed = change(source, sides[0].language)
            if changed != source:  # else nothing in the source, such as Chinese, would tell how to write the target
                source = changed
                target = change(target, sides[1].language)
        new: Subwords = []
        for number, (side, text) in enumerate(zip(sides, (source, target), strict=True)):
            if text == before[number]:
                new.append(prepared[number])
            else:
                new.append([*side.symbols, *side.encoder.encode(text)])
        return None if new == prepared else _Drawn(turn, place, new)

    def _exchange(self, place: int, row: int, prepared: Subwords, random: Random) -> _Drawn | None:
        """Draw what the tree of an update becomes with constituents of others; None if it stays as it is."""
        turn, changed = [random.random() for _ in range(2)]
        if changed >= self._shares.constituents:
            return None
        dataset = self._dataset_of(row)
        source, target = self._sides[dataset]
        assert isinstance(target.decoder, TreeVocabulary)
        trees = target.decoder
        own, *others = [
            Sentence(source.decoder.decode(subwords[len(source.symbols) :]).split(" "), symbols[len(target.symbols) :])
            for subwords, symbols in [prepared, *self._others(dataset, DONORS, random)]
        ]
        words, symbols = with_others(own, others, random, trees)
        if words == own.words and symbols == own.symbols:
            return None
        return _Drawn(
            turn, place, [[*source.symbols, *source.encoder.encode(" ".join(words))], [*target.symbols, *symbols]]
        )

    def _dataset_of(self, row: int) -> int:
        """Return the index of the training set that a row is of."""
        return int(np.searchsorted(self._firsts, row, side="right")) - 1

    def _others(self, dataset: int, count: int, random: Random) -> list[Subwords]:
        """Return pairs of a training set that are drawn."""
        first = self._firsts[dataset]
        size = self._firsts[dataset + 1] - first
        return self._prepared(np.array([first + int(size * random.random()) for _ in range(count)]))

    def _prepared(self, rows: Rows) -> list[Subwords]:
        """Return the ids of pairs of the corpus."""
        sources = _lists(*self._corpus.sources(rows))
        targets = _lists(*self._corpus.targets(rows))
        return [[source, target] for source, target in zip(sources, targets, strict=True)]


def _lists(ids: Rows, lengths: Ids) -> list[list[int]]:
    """Return padded ids (rows, longest) without padding."""
    return [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]
