"""What is wrong with a translated segment, by its pieces alone. Shares no code with nmt, and knows none of it.

`faults` names what it finds. Each word occurs once in a segment, so that neighbours can be told again in whatever
order a model writes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

from .files import same_spelling
from .pieces import (
    ALONE,
    CJK,
    CLOSE,
    CODES,
    COPIED,
    ENTITY,
    HOLDER,
    KEY,
    MARK,
    OPEN,
    SIGNS,
    SPACE,
    WIDE_SIGNS,
    WORD,
    XML,
    Piece,
    Segment,
    translated,
)

LOST, DOUBLED, INVENTED = "lost", "doubled", "invented"
_CALL = re.compile(f"[{SIGNS}]{{4}}|[{WIDE_SIGNS}]{{4}}")
_COLUMN = re.compile(r"\t|\s{2}")  # between the columns of a table, which a program may have in a string
_ONE_SIGN = str.maketrans(WIDE_SIGNS, SIGNS)
_ANY = re.compile(
    r"(?P<tag><!--.*?-->|<!\[CDATA\[|\]\]>|<\?.*?\?>|</?[A-Za-z][^<>]*>)"
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});|\\[nt'\"@]|\\u[0-9A-Fa-f]{4})"
    r"|(?P<holder>%(?:\(\w+\)|\d\$)?[sd]|\$?\{\{?[^{}\n]*\}\}?|%\{\w+\}|https?://\S+|\w+@\w+\.\w+)"
    rf"|(?P<space>\s+)|(?P<word>[A-Za-z]+|[{CJK}]+)|(?P<other>.)",
    re.DOTALL,
)
_KINDS = {"tag": ALONE, "entity": ENTITY, "holder": HOLDER, "space": SPACE, "word": WORD, "other": MARK}
_NAMESPACES = 'xmlns:xliff="x"'


@dataclass(frozen=True)
class Fault:
    """Something wrong with a result."""

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Result:
    """A translation, taken apart by the pieces that its segment has."""

    pieces: Sequence[Piece]
    calls: Sequence[str]
    """Of each word: which call of the model wrote it, if the model signs its words"""


def take_apart(segment: Segment, text: str, is_copy: bool) -> Result:
    """Divide a result into the pieces of its segment, and others that are like pieces."""
    known = _known(segment)
    for word in segment.words:
        raw = word.raw if is_copy else translated(word.raw)
        if not raw.isascii():
            known[raw] = Piece(WORD, raw)
    by_first: dict[str, list[str]] = {}
    for raw in sorted(known, key=len, reverse=True):
        by_first.setdefault(raw[0], []).append(raw)
    both = {piece.raw for piece in segment.pieces if piece.kind == OPEN} & {
        piece.raw for piece in segment.pieces if piece.kind == CLOSE
    }  # marks of Markdown, which open and close in turns
    seen = Counter[str]()
    pieces: list[Piece] = []
    calls: list[str] = []
    at = 0
    while at < len(text):
        piece = _known_at(text, at, by_first, known) or _other_at(text, at)
        at += len(piece.raw)
        if piece.raw in both:
            seen[piece.raw] += 1
            piece = Piece(OPEN if seen[piece.raw] % 2 else CLOSE, piece.raw)
        if piece.kind == WORD:
            call = _CALL.match(text, at)
            calls.append(call[0].translate(_ONE_SIGN) if call else "")
            at += len(calls[-1])
        pieces.append(piece)
    return Result(_joined(pieces), calls)


def _known(segment: Segment) -> dict[str, Piece]:
    """Return the pieces that are recognised by their raw form: all but words, marks and plain white space."""
    plain = (WORD, MARK)
    return {
        piece.raw: piece
        for piece in reversed(segment.pieces)
        if piece.kind not in plain and not (piece.kind == SPACE and piece.raw.isspace())
    }


def _known_at(text: str, at: int, by_first: dict[str, list[str]], known: dict[str, Piece]) -> Piece | None:
    for raw in by_first.get(text[at], ()):
        if text.startswith(raw, at):
            is_key = known[raw].kind == KEY  # a sign such as &, which is one before a letter alone
            if not is_key or text[at + 1 : at + 2].isalnum():
                return known[raw]
    return None


def _other_at(text: str, at: int) -> Piece:
    found = _ANY.match(text, at)
    assert found
    assert found.lastgroup
    return Piece(_KINDS[found.lastgroup], found[0])


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join white space that stands together."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and piece.kind == SPACE == joined[-1].kind:
            piece = Piece(SPACE, joined.pop().raw + piece.raw)
        joined.append(piece)
    return joined


def faults(segment: Segment, result: str | None, translator: str) -> list[Fault]:
    """Return what is wrong with the result of a segment.

    `translator` is what the model does: copy; trace and garble, in order; reverse; fuse, which splits and joins words.
    """
    if result is None or (not result.strip() and segment.raw.strip()):
        return [Fault("left empty")]
    found: list[Fault] = []
    own, text = segment.spelled(), same_spelling(segment, result)
    is_copy = translator == "copy"
    taken = take_apart(own, text, is_copy)
    found += _well_formed(own, text)
    found += _counts(own, taken)
    found += _nesting(own, taken)
    found += _edges(own, text)
    found += _edges_of_elements(own, taken)
    found += _key(own, taken)
    words = [word.raw if is_copy else translated(word.raw) for word in own.words]
    if translator == "fuse":
        letters = "".join(piece.raw for piece in taken.pieces if piece.kind == WORD)
        found += [Fault("word lost", word) for word in words if word.lower() not in letters.lower()]
    else:
        found += _words(own, taken, words)
        found += _neighbours(own, taken, is_copy)
        found += _blocks(own, taken, is_copy)
        found += _spaces(own, taken, translator != "reverse")
        found += _contents(own, taken, is_copy)
    if translator == "trace":
        found += _calls(own, taken)
    if not found and translator in ("copy", "trace"):
        found += _exact(segment, own, result, text, is_copy)
    return found


def _exact(segment: Segment, own: Segment, result: str, text: str, is_copy: bool) -> list[Fault]:
    """Compare a result, which is in order and has no other fault, with what it should be."""
    if "marked" in segment.traits and not is_copy:
        return []  # the accelerator goes to the same letter, wherever the translation has it
    expected = segment.render(lambda word: word if is_copy else translated(word))
    if _CALL.sub("", result) == expected:
        return []
    pieces = [Piece(WORD, translated(each.raw)) if each.kind == WORD and not is_copy else each for each in own.pieces]
    is_same = _fits(pieces, _CALL.sub("", text)) or _collapsed(text, own) == _collapsed(expected, own)
    if is_same and not (is_copy and segment.form not in (*XML, "html")):
        return [Fault("spelled otherwise", expected)] if is_copy else []
    return [Fault("not as in the source", expected)]


def _collapsed(text: str, segment: Segment) -> str:
    """Return a string of Android without white space at its ends, and else with plain spaces."""
    text = _CALL.sub("", text)
    return re.sub(r"[ \t\r\n]+", " ", text).strip(" ") if segment.form == "android" else text


def _well_formed(segment: Segment, text: str) -> list[Fault]:
    if segment.form in ("po", "ts", "markdown"):
        return []
    is_ours, is_theirs = _parses(segment.render(lambda word: word)), _parses(text)
    return [Fault("not well-formed")] if is_ours and not is_theirs else []


def _parses(text: str) -> bool:
    try:
        ElementTree.fromstring(f"<x {_NAMESPACES}>{text.replace('&nbsp;', ' ')}</x>")
    except ElementTree.ParseError:
        return False
    return True


def _counts(segment: Segment, result: Result) -> list[Fault]:
    """Compare how often each code, copied element, placeholder, entity and mark is there."""
    found = []
    inside = _inside_lost(segment, result)
    for kinds, name in (
        ((*CODES,), "code"),
        ((COPIED,), "copied element"),
        ((HOLDER,), "placeholder"),
        ((ENTITY,), "entity"),
        ((MARK,), "mark"),
    ):
        before, after = (_raws(pieces, kinds) for pieces in (segment.pieces, result.pieces))
        for raw in {**before, **after}:
            if raw == "" or before[raw] == after[raw]:
                continue
            if before[raw] == 0 and raw in inside:
                continue  # which is told already
            what = LOST if after[raw] < before[raw] else DOUBLED if before[raw] else INVENTED
            found.append(Fault(f"{name} {what}", raw))
    return found


def _inside_lost(segment: Segment, result: Result) -> str:
    """Return the copied elements that the result lacks: what it has of them is not invented."""
    lost = _raws(segment.pieces, (COPIED,)) - _raws(result.pieces, (COPIED,))
    return " ".join(lost)


def _raws(pieces: Sequence[Piece], kinds: Sequence[str]) -> Counter[str]:
    """Count raw forms of pieces; of marks, each character."""
    raws = (piece.raw for piece in pieces if piece.kind in kinds)
    return Counter("".join(raws) if MARK in kinds else raws)


def _parents(pieces: Sequence[Piece]) -> list[tuple[str, str, str]] | None:
    """Return (kind, raw, raw of the element around) of each code and copied element, sorted; None if not nested."""
    around, found = [""], []
    for piece in pieces:
        if piece.kind == CLOSE:
            if len(around) == 1:
                return None
            found.append((CLOSE, piece.raw, around.pop()))
        elif piece.kind in (OPEN, ALONE, COPIED):
            found.append((piece.kind, piece.raw, around[-1]))
            if piece.kind == OPEN:
                around.append(piece.raw)
    return sorted(found) if len(around) == 1 else None


def _nesting(segment: Segment, result: Result) -> list[Fault]:
    before, after = _parents(segment.pieces), _parents(result.pieces)
    if after is None:
        return [Fault("not nested")]
    if before == after:
        return []
    assert before is not None
    raws = [
        sorted(piece.raw for piece in pieces if piece.kind in (*CODES, COPIED))
        for pieces in (segment.pieces, result.pieces)
    ]
    if raws[0] != raws[1]:
        return []  # which is counted already
    moved = Counter(before) - Counter(after)
    return [Fault("in another element", f"{raw} was in {around or 'none'}") for _, raw, around in list(moved)[:1]]


def _edges(segment: Segment, text: str) -> list[Fault]:
    """Compare white space at both ends."""
    own = segment.render(lambda word: word)
    found = []
    for name, pattern in (("begin", r"\A\s*"), ("end", r"\s*\Z")):
        before, after = re.findall(pattern, own)[0], re.findall(pattern, text)[0]
        if segment.form == "android":  # where such white space does not count
            before, after = (re.sub(r"[ \t\r\n]", "", each) for each in (before, after))
        if before != after:
            found.append(Fault("space at an edge", f"{name}: {before!r} became {after!r}"))
    return found


def _beside(pieces: Sequence[Piece], at: int, step: int) -> str:
    """Return the white space beside a piece."""
    index = at + step
    is_space = 0 <= index < len(pieces) and pieces[index].kind == SPACE
    return pieces[index].raw if is_space else ""


def _inner(pieces: Sequence[Piece]) -> Counter[tuple[str, bool]]:
    """Count the codes by whether they have white space inside their elements."""
    return Counter(
        (piece.raw, _beside(pieces, at, 1 if piece.kind == OPEN else -1) != "")
        for at, piece in enumerate(pieces)
        if piece.kind in (OPEN, CLOSE)
    )


def _edges_of_elements(segment: Segment, result: Result) -> list[Fault]:
    """Compare white space at the edges inside elements."""
    before, after = _inner(segment.pieces), _inner(result.pieces)
    if Counter(raw for raw, _ in before.elements()) != Counter(raw for raw, _ in after.elements()):
        return []
    return [Fault("space inside a tag", f"{raw}: {'lost' if had else 'invented'}") for raw, had in before - after]


def _key(segment: Segment, result: Result) -> list[Fault]:
    counts = [sum(piece.kind == KEY for piece in pieces) for pieces in (segment.pieces, result.pieces)]
    return [] if counts[0] == counts[1] else [Fault("accelerator", f"{counts[0]} became {counts[1]}")]


def _whole(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces without accelerators, which may stand in a word."""
    found: list[Piece] = []
    joins = False
    for piece in pieces:
        if piece.kind == KEY:
            joins = bool(found) and found[-1].kind == WORD
        elif joins and piece.kind == WORD:
            found.append(Piece(WORD, found.pop().raw + piece.raw))
            joins = False
        else:
            found.append(piece)
            joins = False
    return found


def _words(segment: Segment, result: Result, words: Sequence[str]) -> list[Fault]:
    wanted = Counter(word.lower() for word in words)
    given = Counter(piece.raw.lower() for piece in _whole(result.pieces) if piece.kind == WORD)
    sources = {word.raw.lower() for word in segment.words}
    found = []
    for word in wanted:
        if given[word] != wanted[word]:
            found.append(Fault(f"word {LOST if given[word] < wanted[word] else DOUBLED}", word))
    inside = _inside_lost(segment, result).lower()
    for word in given:
        if word not in wanted and word not in inside:
            parts = [each for each in wanted if len(each) > 1 and each in word]
            left = word in sources
            kind = "word left untranslated" if left else "words run together" if parts else "word invented"
            found.append(Fault(kind, word))
    return found


def _names(pieces: Sequence[Piece], is_source: bool, is_copy: bool) -> list[str]:
    """Return what tells a word or a placeholder again; "" for other pieces, and for placeholders that occur twice."""
    count = Counter(piece.raw for piece in pieces)
    names = []
    for piece in pieces:
        if piece.kind == WORD:
            names.append((translated(piece.raw) if is_source and not is_copy else piece.raw).lower())
        else:
            names.append(piece.raw if piece.kind in (HOLDER, COPIED) and count[piece.raw] == 1 else "")
    return names


def _neighbours(segment: Segment, result: Result, is_copy: bool) -> list[Fault]:
    """Compare what stands between words and placeholders that are neighbours in both."""
    before, after = _whole(segment.pieces), _whole(result.pieces)
    gaps: dict[tuple[str, str], list[Piece]] = {}
    names = _names(before, True, is_copy)
    last = None
    for at, name in enumerate(names):
        if name:
            if last is not None:
                gaps[names[last], name] = list(before[last + 1 : at])
            last = at
    found = []
    names, last = _names(after, False, is_copy), None
    for at, name in enumerate(names):
        if not name:
            continue
        if last is not None and (gap := gaps.get((names[last], name))) is not None:
            other = after[last + 1 : at]
            raw, own = ("".join(piece.raw for piece in pieces) for pieces in (other, gap))
            codes = ["".join(piece.raw for piece in pieces if piece.kind != SPACE) for pieces in (other, gap)]
            if codes[0] == codes[1] and not _fits(gap, raw):
                touches = " touch" if not own else " apart" if not raw else ""
                is_holder = HOLDER in (after[last].kind, after[at].kind)
                what = "placeholder and neighbour" if is_holder else "space between words"
                found.append(Fault(what + touches, f"{own!r} became {raw!r}"))
        last = at
    return found


def _fits(gap: Sequence[Piece], raw: str) -> bool:
    """Return whether what stands between neighbours is as the format allows."""
    own = []
    for piece in gap:
        is_soft = piece.kind == SPACE and piece.soft
        own.append(r"[ \t\r\n]+(?:> )?" if is_soft else re.escape(piece.raw))
    return re.fullmatch("".join(own), raw) is not None


def _blocks(segment: Segment, result: Result, is_copy: bool) -> list[Fault]:
    """Compare which words stand between codes that end sentences."""
    breaking = {piece.raw for piece in segment.pieces if piece.breaks and piece.kind in CODES}
    if not breaking:
        return []
    sides = []
    for pieces, is_source in ((segment.pieces, True), (result.pieces, False)):
        blocks: list[tuple[str, set[str]]] = [("", set())]
        for piece, name in zip(pieces, _names(pieces, is_source, is_copy), strict=True):
            if piece.raw in breaking and piece.kind != SPACE:
                blocks.append((piece.raw, set()))
            elif piece.kind == WORD:
                blocks[-1][1].add(name)
        sides.append(blocks)
    if sides[0] == sides[1] or [raw for raw, _ in sides[0]] != [raw for raw, _ in sides[1]]:
        return []
    if {name for _, own in sides[0] for name in own} != {name for _, own in sides[1] for name in own}:
        return []
    return [Fault("word in another block")]


def _spaces(segment: Segment, result: Result, is_in_order: bool) -> list[Fault]:
    """Find white space that the segment has not: a run of another kind, or more runs. In order, kept runs are there."""
    own = Counter(piece.raw for piece in segment.pieces if piece.kind == SPACE)
    found = []
    soft = any(
        piece.kind == SPACE and piece.soft and (len(piece.raw) > 1 or piece.raw == "\n") for piece in segment.pieces
    )
    runs = [piece.raw for piece in result.pieces if piece.kind == SPACE]
    for raw, count in Counter(runs).items():
        plain = raw == " " or (soft and "\n" in raw)
        if not plain and count > own[raw]:
            found.append(Fault("space run invented", repr(raw)))
    if is_in_order:
        kept = Counter(piece.raw for piece in segment.pieces[1:-1] if piece.kind == SPACE and not piece.soft)
        found += [Fault("kept space lost", repr(raw)) for raw in kept if raw != " " and runs.count(raw) < kept[raw]]
    if not found and len(runs) > own.total():
        found.append(Fault("space invented", f"{own.total()} became {len(runs)}"))
    return found


def _elements(pieces: Sequence[Piece], names: Sequence[str]) -> list[tuple[str, frozenset[str], str]]:
    """Return (opening code, words inside, raw content) of each element."""
    opened: list[int] = []
    found: list[tuple[str, frozenset[str], str]] = []
    for at, piece in enumerate(pieces):
        if piece.kind == OPEN:
            opened.append(at)
        elif piece.kind == CLOSE and opened:
            inside = range(opened[-1] + 1, at)
            words = frozenset(names[each] for each in inside if pieces[each].kind == WORD)
            found.append((pieces[opened.pop()].raw, words, "".join(pieces[each].raw for each in inside)))
    return found


def _contents(segment: Segment, result: Result, is_copy: bool) -> list[Fault]:
    """Compare which words each element has around it, where its words are of one sentence."""
    before = _elements(segment.pieces, _names(segment.pieces, True, is_copy))
    after = _elements(result.pieces, _names(result.pieces, False, is_copy))
    if sorted(raw for raw, _, _ in before) != sorted(raw for raw, _, _ in after) or _inside_lost(segment, result):
        return []
    sentences = {(word.raw if is_copy else translated(word.raw)).lower(): word.sentence for word in segment.words}
    has_columns = segment.form in ("po", "ts")
    wanted = Counter(
        (raw, words)
        for raw, words, content in before
        if len({sentences.get(word) for word in words}) <= 1 and not (has_columns and _COLUMN.search(content))
    )
    wrong = wanted - Counter((raw, words) for raw, words, _ in after)
    return [Fault("tag around other words", f"{raw} {' '.join(sorted(words))}") for raw, words in list(wrong)[:1]]


def _calls(segment: Segment, result: Result) -> list[Fault]:
    """Compare which words were translated together: those of a sentence, and no others."""
    words = [piece.raw.lower() for piece in result.pieces if piece.kind == WORD]
    calls = dict(zip(words, result.calls, strict=True))
    names = _names(segment.pieces, True, is_copy=False)
    places = [at for at, piece in enumerate(segment.pieces) if piece.kind == WORD]
    found = []
    for at, other_at in pairwise(places):
        word, other = segment.pieces[at], segment.pieces[other_at]
        call, other_call = calls.get(names[at]), calls.get(names[other_at])
        if not call or not other_call:  # signed are words alone, and runs of characters
            continue
        between = "".join(piece.raw for piece in segment.pieces[at + 1 : other_at])
        is_column = segment.form in ("po", "ts") and _COLUMN.search(between)
        if word.sentence == other.sentence and call != other_call and not is_column:
            found.append(Fault("sentence cut", f"{word.raw} | {other.raw}"))
        elif word.sentence != other.sentence and call == other_call:
            found.append(Fault("sentences together", f"{word.raw} {other.raw}"))
    return found
