"""Trees in which constituents stand in the place of others with the same label (Shi, Livescu and Gimpel 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from nmt.parsing.linearization import TreeVocabulary
from nmt.text.vocabulary import EOS

REPLACED = 0.2  # probability that a constituent is replaced by one that fits, if none around it is
LONGER = 0.4  # by which share of its words another may be longer or shorter, or by two words


class Sentence(NamedTuple):
    """Words and their linearised tree."""

    words: Sequence[str]
    symbols: Sequence[int]
    """Ids of brackets and leaves, of which each leaf is a word's"""


class Constituent(NamedTuple):
    """A part of a sentence."""

    kind: tuple[int, int]
    """Opening brackets of its label and of the label around it, or `</s>` below the root"""
    symbols: slice[int, int, None]
    """Its symbols, brackets included"""
    words: slice[int, int, None]

    @property
    def length(self) -> int:
        """The number of its words."""
        return self.words.stop - self.words.start


def with_others(sentence: Sentence, donors: Sequence[Sentence], random: Random, trees: TreeVocabulary) -> Sentence:
    """Return a sentence in which some constituents are replaced by some of `donors`, which need about as many words.

    Those of all words stay, and with them what kind of sentence it is.
    """
    by_kind = dict[tuple[int, int], list[tuple[Sentence, Constituent]]]()
    for donor in donors:
        for found in constituents(donor.symbols, trees):
            by_kind.setdefault(found.kind, []).append((donor, found))
    words = list[str]()
    symbols = list[int]()
    words_done = symbols_done = 0
    for each in constituents(sentence.symbols, trees):
        if each.symbols.start < symbols_done or each.length == len(sentence.words) or random.random() >= REPLACED:
            continue
        spare = max(2, LONGER * each.length)
        known = by_kind.get(each.kind, [])
        fitting = [place for place, (_, other) in enumerate(known) if abs(other.length - each.length) <= spare]
        if not fitting:
            continue
        donor, other = known[fitting[int(len(fitting) * random.random())]]
        words += [*sentence.words[words_done : each.words.start], *donor.words[other.words]]
        symbols += [*sentence.symbols[symbols_done : each.symbols.start], *donor.symbols[other.symbols]]
        words_done = each.words.stop
        symbols_done = each.symbols.stop
    return Sentence([*words, *sentence.words[words_done:]], [*symbols, *sentence.symbols[symbols_done:]])


def constituents(symbols: Sequence[int], trees: TreeVocabulary) -> list[Constituent]:
    """Return the constituents of a tree, each before those within; none if a label or tag has no symbol."""
    found = list[Constituent | None]()
    opened = list[tuple[int, int, int]]()  # place in `found`, and in symbols and words
    leaves = 0
    for place, symbol in enumerate(symbols):
        if symbol in trees.leaves:
            leaves += 1
        elif symbol in trees.openers:
            opened.append((len(found), place, leaves))
            found.append(None)
        elif symbol in trees.closers:
            index, start, first = opened.pop()
            around = symbols[opened[-1][1]] if opened else EOS
            found[index] = Constituent((symbols[start], around), slice(start, place + 1), slice(first, leaves))
        else:
            return []
    return [each for each in found if each is not None]
