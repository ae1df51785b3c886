"""Damage that is planted into right results, to see that the counter finds it, and nothing where there is none."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from .counter import faults
from .generator import FORMS, draw_segment
from .pieces import (
    ALONE,
    CLOSE,
    CODES,
    COPIED,
    ENTITY,
    HOLDER,
    KEY,
    MARK,
    OPEN,
    SPACE,
    WORD,
    Piece,
    Segment,
    translated,
)

Pieces = list[Piece]
Damage = Callable[[Pieces, random.Random, Segment], Pieces | None]
CALLS = "αβγδ", "δγβα"  # signatures of two calls


def _at(pieces: Pieces, draw: random.Random, *kinds: str) -> int | None:
    places = [at for at, piece in enumerate(pieces) if piece.kind in kinds]
    return draw.choice(places) if places else None


def _dropped(*kinds: str) -> Damage:
    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        at = _at(pieces, draw, *kinds)
        return None if at is None else pieces[:at] + pieces[at + 1 :]

    return damage


def _doubled(*kinds: str) -> Damage:
    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        at = _at(pieces, draw, *kinds)
        return None if at is None else [*pieces[:at], pieces[at], *pieces[at:]]

    return damage


def _changed(change: Callable[[str], str], *kinds: str) -> Damage:
    """Change the raw form of a piece, if `change` changes it."""

    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        at = _at(
            [replace(piece, kind="") if piece.soft and piece.raw != " " else piece for piece in pieces], draw, *kinds
        )
        if at is None or (raw := change(pieces[at].raw)) == pieces[at].raw:
            return None
        return [*pieces[:at], replace(pieces[at], raw=raw), *pieces[at + 1 :]]

    return damage


def _inserted(raw: str, *beside: str, forms: Sequence[str] = FORMS) -> Damage:
    """Insert something behind a piece of one of some kinds."""

    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        at = _at(pieces, draw, *beside)
        return (
            None
            if at is None or segment.form not in forms
            else [*pieces[: at + 1], Piece(MARK, raw), *pieces[at + 1 :]]
        )

    return damage


def _between(pieces: Pieces, draw: random.Random, first: Sequence[str], second: Sequence[str]) -> int | None:
    places = [at for at, (one, other) in enumerate(pairwise(pieces)) if one.kind in first and other.kind in second]
    return draw.choice(places) if places else None


def _parted(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """A space between a word and a placeholder that touch."""
    once = [HOLDER] if len({piece.raw for piece in pieces if piece.kind == HOLDER}) else []
    at = _between(pieces, draw, [WORD, *once], [WORD, *once])
    if at is None or any(
        piece.raw == other.raw for piece in pieces[at : at + 2] for other in pieces if other is not piece
    ):
        return None
    return [*pieces[: at + 1], Piece(SPACE, " "), *pieces[at + 1 :]]


def _joined(*kinds: str) -> Damage:
    """Take out the space between two pieces, one of which is of these kinds."""

    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        places = [
            at
            for at in range(1, len(pieces) - 1)
            if pieces[at].kind == SPACE
            and {pieces[at - 1].kind, pieces[at + 1].kind} <= {WORD, *kinds}
            and not ({pieces[at - 1].kind, pieces[at + 1].kind}.isdisjoint(kinds))
            and all(sum(each.raw == pieces[at + step].raw for each in pieces) == 1 for step in (-1, 1))
        ]
        if not places:
            return None
        at = draw.choice(places)
        return pieces[:at] + pieces[at + 1 :]

    return damage


def _crossed(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """Two elements that overlap: of one inside another, the closings are exchanged."""
    places = [
        at
        for at, (one, other) in enumerate(pairwise(pieces))
        if one.kind == CLOSE == other.kind and one.raw != other.raw
    ]
    if not places or segment.form == "tmx":
        return None
    at = draw.choice(places)
    return [*pieces[:at], pieces[at + 1], pieces[at], *pieces[at + 2 :]]


def _reversed_pair(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """A closing code before its opening one."""
    at = _at(pieces, draw, OPEN)
    if at is None:
        return None
    end = next(index for index, piece in enumerate(pieces) if piece.kind == CLOSE and piece.pair == pieces[at].pair)
    if pieces[at].raw == pieces[end].raw:
        return None
    swapped = list(pieces)
    swapped[at], swapped[end] = pieces[end], pieces[at]
    return swapped


def _moved_out(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """A code or copied element that stood inside an element stands in front of all."""
    depth, places = 0, []
    for at, piece in enumerate(pieces):
        depth += (piece.kind == OPEN) - (piece.kind == CLOSE)
        if depth and piece.kind in (ALONE, COPIED):
            places.append(at)
    if not places:
        return None
    at = draw.choice(places)
    return [pieces[at], *pieces[:at], *pieces[at + 1 :]]


def _around_other(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """An opening code moves over the word before it; not where an element may have columns."""
    if segment.form in ("po", "ts") and re.search(r"\t|\s{2}", segment.raw):
        return None
    places = [
        at
        for at in range(2, len(pieces))
        if pieces[at].kind == OPEN and pieces[at - 1].kind == SPACE and pieces[at - 2].kind == WORD
    ]
    if not places:
        return None
    at = draw.choice(places)
    return [*pieces[: at - 2], pieces[at], pieces[at - 2], pieces[at - 1], *pieces[at + 1 :]]


def _edge(add: str, begin: bool) -> Damage:
    def damage(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
        side = pieces[0] if begin else pieces[-1]
        if not add:
            own = pieces[1:] if begin else pieces[:-1]
            is_counted = segment.form != "android" or side.raw == "\u00a0"
            return own if side.kind == SPACE and own and is_counted else None
        return [Piece(SPACE, add), *pieces] if begin else [*pieces, Piece(SPACE, add)]

    return damage


def _inside_lost(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    at = _between(pieces, draw, [OPEN], [SPACE])
    return None if at is None else pieces[: at + 1] + pieces[at + 2 :]


def _inside_invented(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    at = _between(pieces, draw, [OPEN], [WORD, HOLDER, COPIED, ALONE, OPEN])
    return None if at is None else [*pieces[: at + 1], Piece(SPACE, " "), *pieces[at + 1 :]]


def _exchanged(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    """The words on both sides of a code that ends a sentence change places."""
    breaks = [at for at, piece in enumerate(pieces) if piece.breaks and piece.kind in CODES]
    words = [at for at, piece in enumerate(pieces) if piece.kind == WORD]
    places = [
        (max(w for w in words if w < at), min(w for w in words if w > at))
        for at in breaks
        if words and words[0] < at < words[-1]
    ]
    if not places:
        return None
    one, other = draw.choice(places)
    swapped = list(pieces)
    swapped[one], swapped[other] = pieces[other], pieces[one]
    return swapped


def _untranslated(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    places = [at for at, piece in enumerate(pieces) if piece.kind == WORD]
    if not places:
        return None
    at = draw.choice(places)
    return [*pieces[:at], replace(pieces[at], raw=translated(pieces[at].raw)), *pieces[at + 1 :]]


def _plain(raw: str) -> str:
    return raw if set(raw) <= set(" \t\n") else " "


def _without_break(raw: str) -> str:
    return raw.replace("\\n", " ").replace("\n", " ")


def _decoded(raw: str) -> str:
    return raw.replace("&amp;", "&").replace("&lt;", "<")


def _before_stop(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    return [*pieces[:-1], Piece(SPACE, " "), pieces[-1]] if pieces[-1].kind == MARK else None


def _second_key(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    keys = [piece for piece in pieces if piece.kind == KEY]
    return [keys[0], *pieces] if keys else None


def _one_call(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    if len({piece.sentence for piece in pieces if piece.kind == WORD}) < 2:
        return None
    return [replace(piece, raw=piece.raw + CALLS[0]) if piece.kind == WORD else piece for piece in pieces]


def _two_calls(pieces: Pieces, draw: random.Random, segment: Segment) -> Pieces | None:
    words = [at for at, piece in enumerate(pieces) if piece.kind == WORD]
    cuts = [
        at
        for before, at in pairwise(words)
        if pieces[before].sentence == pieces[at].sentence
        and pieces[at - 1].kind != KEY
        and (segment.form not in ("po", "ts") or all(each.raw == " " for each in pieces[before + 1 : at]))
    ]
    if not cuts:
        return None
    cut = draw.choice(cuts)
    signs = (CALLS[at >= cut] for at in range(len(pieces)))
    return [
        replace(piece, raw=piece.raw + sign) if piece.kind == WORD else piece
        for piece, sign in zip(pieces, signs, strict=True)
    ]


DAMAGES: dict[str, tuple[Damage, str]] = {  # and what of the kinds that it should be called
    "a code is lost": (_dropped(*CODES), "code|not nested|not well-formed"),
    "a code stands twice": (_doubled(*CODES), "code|not nested"),
    "a closing code comes first": (_reversed_pair, "not nested|not well-formed|in another"),
    "two elements overlap": (_crossed, "not nested|not well-formed|in another|tag around"),
    "a code left its element": (_moved_out, "in another"),
    "a tag is around other words": (_around_other, "tag around|in another|not nested"),
    "a tag is invented": (_inserted("<em>", WORD), "code invented"),
    "an attribute changed": (_changed(lambda raw: raw.replace('"', "'").replace("id", "ID"), OPEN, ALONE), "code lost"),
    "a copied element changed": (_changed(lambda raw: raw[:-8] + " " + raw[-8:], COPIED), "copied"),
    "a copied element is lost": (_dropped(COPIED), "copied"),
    "its line break became a space": (_changed(lambda raw: raw.replace("\n", " "), COPIED), "copied"),
    "a placeholder is lost": (_dropped(HOLDER), "placeholder"),
    "a placeholder stands twice": (_doubled(HOLDER), "placeholder"),
    "a placeholder changed": (_changed(lambda raw: raw.replace("name", "Name"), HOLDER), "placeholder"),
    "a placeholder is invented": (_inserted(" %(x)s", WORD), "placeholder invented"),
    "a placeholder left its word": (_parted, "neighbour|space"),
    "a placeholder touches a word": (_joined(HOLDER), "neighbour|run together|word"),
    "space at the beginning is lost": (_edge("", True), "edge"),
    "space at the end is lost": (_edge("", False), "edge"),
    "space at the end is invented": (_edge(" ", False), "edge|space"),
    "space at the beginning is invented": (_edge(" ", True), "edge|space"),
    "space inside a tag is lost": (_inside_lost, "inside a tag|space"),
    "space inside a tag is invented": (_inside_invented, "inside a tag|space"),
    "a kept space became plain": (_changed(_plain, SPACE), "space|neighbour|edge"),
    "a space became two": (_changed(lambda raw: "  " if raw == " " else raw, SPACE), "space|neighbour"),
    "a kept line break is lost": (_changed(_without_break, SPACE), "space|neighbour|edge|equal"),
    "a space before a full stop": (_before_stop, "space"),
    "a word is lost": (_dropped(WORD), "word lost"),
    "a word stands twice": (_doubled(WORD), "word"),
    "a word stays in English": (_untranslated, "untranslated|word"),
    "two words became one": (_joined(WORD), "word"),
    "words left their block": (_exchanged, "block"),
    "a full stop is lost": (_dropped(MARK), "mark lost"),
    "an entity is escaped twice": (_changed(lambda raw: raw.replace("&", "&amp;"), ENTITY), "entity|mark"),
    "an entity is decoded": (_changed(_decoded, ENTITY), "entity|not well-formed"),
    "an entity is invented": (_inserted("&amp;", WORD), "entity"),
    "an accelerator is lost": (_dropped(KEY), "accelerator"),
    "an accelerator stands twice": (_second_key, "accelerator|mark"),
    "nothing is left": (lambda pieces, draw, segment: [], "left empty"),
    "sentences in one call": (_one_call, "together"),
    "a sentence in two calls": (_two_calls, "cut"),
}  # fmt: skip


def prove(count: int, seed: int) -> int:
    """Plant each damage where it has room, and print how many were found; return 1 if any was not."""
    missed, false = 0, 0
    segments = [draw_segment(FORMS[number % len(FORMS)], number, seed) for number in range(count)]
    for segment in segments:
        for translator, text in (
            ("copy", segment.raw),
            ("trace", _signed(segment)),
            ("garble", segment.render(translated)),
        ):
            if wrong := faults(segment, text, translator):
                false += 1
                if false <= 10:
                    print(f"false alarm: {wrong[0]} in {segment.form} {text!r}")
    print(f"{count:,} right results of 3 translators: {false} false alarms\n")
    print(f"{'damage':38}{'planted':>8}{'found':>8}  by its name")
    for name, (damage, names) in DAMAGES.items():
        planted = found = named = 0
        for segment in segments:
            draw = random.Random(f"{seed}/{name}/{segment.number}")
            right = [
                replace(piece, raw=translated(piece.raw)) if piece.kind == WORD else piece for piece in segment.pieces
            ]
            pieces = damage(right, draw, segment)
            if pieces is None or (text := "".join(piece.raw for piece in pieces)) == segment.render(translated):
                continue
            planted += 1
            kinds = [fault.kind for fault in faults(segment, text, "trace" if "call" in name else "garble")]
            found += kinds != []
            is_named = any(part in kind for kind in kinds for part in names.split("|"))
            named += is_named
            if not kinds and planted - found <= 2:
                print(f"   missed in {segment.form}: {segment.raw!r} became {text!r}")
        print(f"{name:38}{planted:>8}{found:>8}{named:>8}")
        missed += planted - found
    print(f"\n{missed} missed")
    return int(missed + false > 0)


def _signed(segment: Segment) -> str:
    """Return the translation in which the words of each sentence are signed by a call of their own."""
    letters = "αβγδεζηθικλμ"
    return "".join(
        translated(piece.raw) + letters[piece.sentence] * 4 * _ends_word(segment, at)
        if piece.kind == WORD
        else piece.raw
        for at, piece in enumerate(segment.pieces)
    )


def _ends_word(segment: Segment, at: int) -> bool:
    """Return whether no accelerator stands behind a piece."""
    return at + 1 == len(segment.pieces) or segment.pieces[at + 1].kind != KEY
