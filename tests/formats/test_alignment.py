"""Where the words of an output stand for those of its source: places of terms, and of text that was left out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nmt.formats.alignment import Aligned, words_of
from nmt.formats.terms import Span


def aligned(
    source: str, output: str, weights: dict[tuple[str, str], float], splits: dict[str, int] | None = None
) -> Aligned:
    """Align texts whose subwords are words; `splits` says after how many characters a word has another subword."""
    sides = []
    for text in (source, output):
        ends = [word.end for word in words_of(text)]
        ends += [text.index(word) + at for word, at in (splits or {}).items() if text is output]
        sides.append(sorted(ends))
    found = np.full((len(sides[1]), len(sides[0])), 0.01)
    starts = [[0, *ends] for ends in sides]
    subwords = [
        [text[a:b].strip() for a, b in pairwise(each)] for text, each in zip((source, output), starts, strict=True)
    ]
    for (one, other), weight in weights.items():
        found[subwords[1].index(one), subwords[0].index(other)] = weight
    return Aligned.of(source, sides[0], output, sides[1], found)


def sites(pair: Aligned, text: str, taken: set[int] | None = None) -> list[tuple[str, str, str]]:
    start = pair.source.index(text)
    found = pair.sites(Span(start, start + len(text)), set() if taken is None else taken)
    return [(site.before, pair.output[slice(*site.span)], site.after) for site in found]


def test_words_are_runs_of_letters_and_single_other_characters() -> None:
    text = "It's 小犬, e-mail"
    assert [text[slice(*word)] for word in words_of(text)] == ["It", "'", "s", "小", "犬", ",", "e", "-", "mail"]


def test_an_article_that_attends_to_its_noun_stays() -> None:
    weights = {("die", "dogs"): 0.6, ("Hunde", "dogs"): 0.9, ("sehen", "see"): 0.9}
    assert sites(aligned("the dogs see", "die Hunde sehen", weights), "dogs") == [("", "Hunde", "")]


@pytest.mark.parametrize(
    ("text", "found"), [("kitchen", ("", "Küchentisch", "-Tisch")), ("table", ("Küchen-", "Küchentisch", ""))]
)
def test_one_part_of_a_compound_leaves_the_other(text: str, found: tuple[str, str, str]) -> None:
    weights = {("Küchen", "kitchen"): 0.9, ("tisch", "table"): 0.9, ("ein", "a"): 0.9}
    assert sites(aligned("a kitchen table", "ein Küchentisch", weights, {"Küchentisch": 6}), text) == [found]


def test_what_no_word_stands_for_goes_beside_or_over_the_word_that_attends_to_it_most() -> None:
    weights = {("Ball", "soccer"): 0.6, ("Ball", "ball"): 0.35, ("rot", "red"): 0.9}
    taken: set[int] = set()
    pair = aligned("red soccer ball", "rot Ball", weights)
    assert sites(pair, "ball", taken) == [("", "Ball", ""), ("", "", " "), (" ", "", "")]
    assert sites(pair, "soccer", taken) == [("", "", " "), (" ", "", "")]  # beside the other word
    assert sites(aligned("dog", "", {}), "dog") == [(" ", "", "")]


@pytest.mark.parametrize(
    ("source", "at", "output", "bound", "found"),
    [
        ("We see in it", 6, "Wir sehen darin", (False, False), "Wir sehen X darin"),
        ("See it ().", 8, "Sieh es ().", (True, True), "Sieh es (X)."),
        ("See it ().", 8, "Sieh es.", (True, True), "Sieh es X."),
        ("see", 0, "sehen", (False, False), "X sehen"),
        ("see", 3, "sehen", (False, False), "sehen X"),
        ("see.", 3, "sehen.", (False, True), "sehen X."),
        ("see", 3, "sehen-wir", (False, False), "sehen-wir X"),  # c'est, dit-elle, s'il
        ("see", 0, "si'sehen", (False, False), "X si'sehen"),
        ("see's", 3, "sehen's", (True, True), "sehen X's"),
        ("see (it)", 3, "sehen (es)", (False, False), "sehen X (es)"),
        ("See in", 4, "Sieh-du", (False, False), "Sieh-du X"),  # no word is parted
        ("a see", 2, "l'sehen", (False, False), "X l'sehen"),
        ("山川。", 1, "山川。", (True, True), "山X川。"),  # of a script without spaces
    ],
)
def test_text_that_was_left_out_goes_between_the_words_of_its_neighbours(
    source: str, at: int, output: str, bound: tuple[bool, bool], found: str
) -> None:
    same = {"see": "sehen", "See": "Sieh", "We": "Wir", "in": "darin", "it": "es" if "es" in output else "darin"}
    words = [source[slice(*word)] for word in words_of(source)]
    weights = {(same.get(word, word), word): 0.8 for word in words if same.get(word, word) in output}
    place, text = aligned(source, output, weights).between(at, "X", bound, fixed=0)
    assert output[:place] + text + output[place:] == found


@pytest.mark.parametrize(
    ("source", "at", "output", "found"),
    [
        ("We see in.", 9, "Wir sehen.", "Wir sehen X."),
        ("We see in!", 9, "Wir sehen ihn.”", "Wir sehen ihn X.”"),
        ("We see. in", 7, "Wir sehen.", "Wir sehen. X"),
        ("We see in", 9, "Wir sehen.", "Wir sehen X."),
    ],
)
def test_only_what_stood_behind_a_full_stop_goes_behind_one(source: str, at: int, output: str, found: str) -> None:
    weights = {(".", word): 0.9 for word in ("see", "in")}
    place, text = aligned(source, output, weights).between(at, "X", (False, False), fixed=0)
    assert output[:place] + text + output[place:] == found
