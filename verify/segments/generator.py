"""Segments drawn by a seed, with all that formats allow in them: codes, copied elements, placeholders, white space."""

from __future__ import annotations

import html
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from .pieces import ALONE, CJK, CLOSE, COPIED, ENTITY, HOLDER, KEY, MARK, OPEN, SPACE, WORD, XML, Piece, Segment

ENGLISH = """
apple baker basket bench bird boat book bottle box branch bread bridge brother brown bucket cake candle carpet
carries chair cheese child chooses circle clean cloud coat colour corner cousin cup dances dark daughter desk dinner
doctor door dress drinks driver early engine evening farmer father feather field finds finger floor flower follows
forest fork friend fruit garden gentle glass grass green guitar hammer happy heavy hides hill horse hotel island
jacket jumps kettle kitchen knife ladder lamp large leaf learns letter library light likes little long market meadow
melon milk mirror money morning mother mountain narrow needle nephew opens orange paints paper pencil people picture
pillow plate pocket quiet rabbit rain reads red river road roof round sail school sells shelf shirt shop short
silver singer sister small smooth soup spoon spring square stone street strong student sugar summer table teacher
throws ticket tiger tower train travels tree turns uncle valley village violin visits walks wall warm washes water
weather wheel white wide window winter wooden writes yellow young
""".split()  # noqa: SIM905

# What may follow a full stop without a space: os.Path and logging.Formatter are no two sentences
STARTERS = "the this these they you when if it we there".split()  # noqa: SIM905

_BOTH = True
_APART = False
HOLDERS = {  # and whether a word may touch it
    **dict.fromkeys(("%s", "%d", "%1$s", "%2$d", "%.2f", "%5d", "%lu", "%@"), _APART),
    **dict.fromkeys(("%(name)s", "%(count)d"), _BOTH),
    **dict.fromkeys(("{0}", "{name}", "{user.name}", "{0:N2}", "{price:.2f}", "{}"), _BOTH),
    **dict.fromkeys(("{{name}}", "{{ user.name }}", "{{{raw}}}"), _BOTH),
    **dict.fromkeys(("{count, number}", "{day, date, short}"), _APART),
    **dict.fromkeys(("%1", "%2", "%L1", "%n"), _APART),
    **dict.fromkeys(("$1",), _APART),  # $2 alone is a price,
    **dict.fromkeys(("${name}", "%{name}", "#{name}"), _BOTH),
    **dict.fromkeys(("$name", "__name__", "[[name]]"), _APART),
    **dict.fromkeys(("<%= name %>", "<?= $name ?>"), _BOTH),
    **dict.fromkeys(("https://x.org/a|b", "https://x.org/a^b", "https://www.x.org/a_(b)/?q=1", "me@x.org"), _APART),
}
_TOUCHING_PRINTF = ("%1$s", "%@", "%1", "%2", "$1")  # which a word may follow, or stand before in capitals
_SPACES = ("  ", "   ", "\t", "\u00a0", "\u202f", "\u3000")
_SOFT = frozenset(" \t\r\n")
_ENDS = (".", ".", ".", "!", "?", "…", "...", "")
FORMS = ("html", "xliff", "tmx", "po", "ts", "android", "markdown")

_HTML_PAIRS = (
    "<b>", "<i>", "<em>", "<strong>", "<u>", '<span class="x">', '<a href="/see?a=1&amp;b=2">', "<font color='red'>",
    "<small>", '<a title="x > y" href=z>', "<my-tag>", "<q>", "<mark>",
)  # fmt: skip
_PAIRS = {
    "html": _HTML_PAIRS,
    "markdown": ("*", "**", "_", "~~", "[", "[", "[", "![", "<b>", "<u>"),
    "android": ("<b>", "<i>", "<u>", '<a href="https://x.org/?a=1&amp;b=2">', '<annotation font="x">', "<big>"),
    "po": ("<b>", "<i>", "<a href='%s'>", '<a href="https://x.org/a">', "<small>"),
    "ts": ("<b>", "<i>", '<a href="https://x.org/a">', '<span style="color: red;">', "<u>"),
}
_ALONE = {
    "html": (
        '<img src="a.png" alt="A > B">', "<wbr>", "<x/>", "<!-- note -->", "<!-- a <b> c -->", "<input disabled>",
        '<i class="icon"></i>', "<?php echo 1 ?>", '<x id="7" />',
    ),
    "markdown": ("![](a.png)", "[^1]", "<!-- note -->", '<img src="a.png">', ":smile:"),
    "android": ('<icon name="x"/>', "<!-- note -->", '<xliff:g id="n">%1$s</xliff:g>'),
    "po": ('<img src="a.png">', "<x/>", "<!-- note -->"),
    "ts": ('<img src=":/a.png"/>', "<x/>"),
}  # fmt: skip
COPIED_OF = {
    "html": (
        "<code>a_b &lt; c</code>", "<kbd>Ctrl+<b>S</b></kbd>", '<span translate="no">Blue Sky</span>',
        '<i class="x notranslate">Acme Corp</i>', "<samp>x  y</samp>", "<pre>a  b</pre>",
        '<script>if (a < b) { go("x"); }</script>', "<style>p { color: red }</style>",
        "<span translate='no'>a <span>b</span> c</span>", '<mrk mtype="protected">N &amp; M</mrk>',
    ),
    "markdown": ("`a_b`", "``x ` y``", "`if (a < b)`", "<code>a b</code>", "<kbd>Ctrl+S</kbd>", "<https://x.org/a>"),
    "android": (
        '<xliff:g id="name" example="Ann">%1$s</xliff:g>', '<xliff:g id="app">Acme Corp</xliff:g>',
        '<xliff:g id="x">a\n        b</xliff:g>', "<tt translate=\"no\">Blue Sky</tt>",
    ),
    "po": (
        "<code>a_b</code>", "<kbd>Ctrl+S</kbd>", "<tt>a.b()</tt>", "<code>first line\nsecond line</code>",
        '<span translate="no">Blue\nSky</span>',
    ),
    "ts": ("<code>a_b</code>", "<kbd>Ctrl+S</kbd>", "<code>first line\n    second line</code>"),
    "xliff": (
        '<mrk mtype="protected">Acme &amp; Co</mrk>', '<mrk mtype="protected">Acme\n          Co</mrk>',
        '<ph id="80">if a\n  then b</ph>', '<mrk mtype="x-protected">Blue Sky</mrk>',
    ),
    "tmx": ('<ph x="80">&lt;br\n/&gt;</ph>', '<ph x="81" type="var">%(name)s</ph>', '<ut x="82">{\\f1 Arial}</ut>'),
}  # fmt: skip
_ENTITIES = {
    "html": ("&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&trade;", "&mdash;", "&copy;", "&#8211;", "&#x2019;"),
    "markdown": ("&amp;", "&lt;", "&copy;", "&mdash;", "&#8211;", "&#x2019;"),
    "xliff": ("&amp;", "&lt;", "&gt;", "&quot;", "&#8211;", "&#x2019;", "&apos;"),
    "tmx": ("&amp;", "&lt;", "&gt;", "&quot;", "&#8211;", "&#x2019;"),
    "android": ("&amp;", "&lt;", "&gt;", "&#8211;", "&#x2019;", "\\'", '\\"', "\\u2026"),
    "po": ("&amp;", "&lt;", "&#8211;"),
    "ts": ("&amp;", "&lt;", "&#8211;"),
}
_BLANKS = {"html": ("&nbsp;", "&#160;", "&#xA0;"), "xliff": ("&#160;",), "tmx": ("&#xA0;",), "android": ("\\u00A0",)}
_NO_HOLDERS = {  # what means something else, or nothing, in the text of a format
    "markdown": ("[[name]]", "__name__", "https://x.org/a|b", "<?= $name ?>", "<%= name %>"),
    "android": ("%@", "__name__"),
}


class Writer:
    """Draws the pieces of one segment."""

    def __init__(self, number: int, form: str, seed: int) -> None:
        self.draw, self.form, self.number = random.Random(f"{seed}/{form}/{number}"), form, number
        self._words = self.draw.sample(ENGLISH, len(ENGLISH))
        self._starters = self.draw.sample(STARTERS, len(STARTERS))
        self._cjk = self.draw.sample(CJK, len(CJK))
        self._pairs, self._codes, self._sentence = 0, 0, -1
        self._open = ""  # first characters of Markdown's marks around, of which none stands inside its like
        self._inside = ""  # first characters of the codes that a pair has inside
        self._preserves = form in ("po", "ts")
        self._has_escaped = form == "xliff" and self.draw.random() < 0.15  # tags as text, then no elements
        self._holders = [each for each in HOLDERS if each not in _NO_HOLDERS.get(form, ())]

    # --- small pieces

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def word(self, is_first: bool = False) -> Piece:
        word = self._words.pop()
        return Piece(WORD, word.capitalize() if is_first else word, sentence=self._sentence)

    def space(self, raw: str | None = None) -> Piece:
        """White space between words: one space in most places."""
        if raw is None:
            raw = " " if self.chance(0.88) else self.draw.choice(_SPACES + _BLANKS.get(self.form, ()))
            if self.form == "markdown" and raw == "\t":
                raw = " "
        return Piece(SPACE, raw, soft=_SOFT.issuperset(raw) and not self._preserves)

    def wrap(self) -> Piece:
        """A line break that a file has inside a sentence."""
        return Piece(
            SPACE, {"xliff": "\n          ", "tmx": "\n        ", "android": "\n        "}[self.form], soft=True
        )

    def holder(self) -> Piece:
        raw = self.draw.choice(self._holders)
        escaped = html.escape(raw, quote=False) if self.form in XML else raw
        return Piece(HOLDER, escaped.replace("@", "\\@", 1) if self.form == "android" and raw[0] == "@" else escaped)

    def touching(self) -> list[Piece]:
        """A placeholder and a word that touch."""
        raw = self.draw.choice([each for each in self._holders if HOLDERS[each] or each in _TOUCHING_PRINTF])
        holder = Piece(HOLDER, html.escape(raw, quote=False) if self.form in XML else raw)
        if raw in _TOUCHING_PRINTF:
            return [holder, Piece(MARK, self.draw.choice(":,")), self.space(" "), self.word()]
        return [holder, self.word()] if self.chance(0.5) else [self.word(), holder]

    # --- codes

    def pair(self, inside: Callable[[], list[Piece]]) -> list[Piece]:
        """An element around pieces; sometimes with white space at its edges."""
        opening, closing = self._tags()
        number, self._pairs = self._pairs, self._pairs + 1
        self._open += opening[0] if self.form == "markdown" and opening[0] != "<" else ""
        content = inside()
        self._open = self._open.removesuffix(opening[0])
        if self.chance(0.12) and self.form != "markdown":
            content = [self.space(), *content]
        if self.chance(0.12) and self.form != "markdown":
            content = [*content, self.space()]
        return [Piece(OPEN, opening, number), *content, Piece(CLOSE, closing, number)]

    def _tags(self) -> tuple[str, str]:
        self._codes += 1
        number = self._codes
        if self._has_escaped:
            return self.draw.choice([("&lt;b&gt;", "&lt;/b&gt;"), ('&lt;a href="x"&gt;', "&lt;/a&gt;")])
        if self.form == "xliff":
            return self.draw.choice(
                [
                    *[(f'<g id="{number}">', "</g>")] * 3,
                    (f'<mrk mtype="term" mid="{number}">', "</mrk>"),
                    (f'<bpt id="{number}">&lt;b&gt;</bpt>', f'<ept id="{number}">&lt;/b&gt;</ept>'),
                    (f'<bx id="{number}"/>', f'<ex id="{number}e" rid="{number}"/>'),
                ]
            )
        if self.form == "tmx":
            code = html.escape(self.draw.choice(("<b>", '<a href="x">', "{\\b ")), quote=False)
            both = f'<bpt i="{number}" x="{number}">{code}</bpt>', f'<ept i="{number}">}}</ept>'
            return self.draw.choice([both, both, (f'<hi type="x" x="{number}">', "</hi>")])
        barred = self._open + "[" * ("!" in self._open)  # no link in the text of an image
        if self.form == "markdown":  # nor a mark inside its like, nor an image around a link
            inside = self._inside.replace("<", "")
            barred += inside + "!" * ("[" in inside)
        opening = self.draw.choice([each for each in _PAIRS[self.form] if each[0] not in barred])
        if opening == "![":
            return opening, "](a.png)"
        if opening == "[":
            target = self.draw.choice(("docs/cat.md", "https://x.org/a_(b)", 'a.md "A cat"', "#top"))
            return opening, f"]({target})"
        if opening[0] != "<":
            return opening, opening
        return opening, f"</{opening[1:-1].split()[0]}>"

    def alone(self) -> Piece:
        self._codes += 1
        number = self._codes
        if self.form == "xliff":
            codes = f'<x id="{number}"/>', f'<ph id="{number}">%s</ph>', f'<it id="{number}" pos="open">&lt;i&gt;</it>'
        elif self.form == "tmx":
            codes = (
                f'<ph x="{number}"/>',
                f'<ph x="{number}">{{n}}</ph>',
                f'<it x="{number}" pos="begin">&lt;i&gt;</it>',
            )
        else:
            return Piece(ALONE, self.draw.choice(_ALONE[self.form]))
        return Piece(ALONE, self.draw.choice(codes))

    def copied(self) -> Piece:
        return Piece(COPIED, self.draw.choice(COPIED_OF[self.form]))

    # --- sentences

    def phrase(self, words: int, depth: int, is_first: bool = False) -> list[Piece]:
        """Words with what stands beside them, apart by white space."""
        pieces: list[Piece] = []
        has_codes = not self._has_escaped
        while words > 0:
            drawn = self.draw.random()
            unit, touches = list[Piece](), False
            if is_first and not pieces:
                if depth < 4 and not self.chance(0.85):
                    unit = self._element(min(words, 3), depth, True)
            elif drawn < 0.16 and depth < 4:
                unit = self._element(min(words, self.draw.randint(1, 4)), depth, False)
            elif drawn < 0.24:
                unit = [self.holder()]
            elif drawn < 0.30:
                unit = self.touching()
            elif drawn < 0.36 and has_codes:
                unit, touches = [self.alone()], self.chance(0.3)
            elif drawn < 0.41 and has_codes:
                unit = [self.copied()]
            elif drawn < 0.44:
                unit = [Piece(ENTITY, self.draw.choice(_ENTITIES[self.form]))]
            elif drawn < 0.48:
                unit = [Piece(MARK, "("), self.word(), Piece(MARK, ")")]
            elif drawn < 0.51:
                unit = [Piece(MARK, "“"), self.word(), Piece(MARK, "”")]
            unit = unit or [self.word(is_first)]
            is_first = False
            if pieces and not touches:
                comma = pieces[-1].kind == WORD and self.chance(0.08)
                pieces += [Piece(MARK, ",")] * comma + [self.space()]
            pieces += unit
            words -= max(1, sum(piece.kind == WORD for piece in unit))
        return pieces

    def _element(self, words: int, depth: int, is_first: bool) -> list[Piece]:
        return self.pair(lambda: self.phrase(words, depth + 1, is_first))

    def sentence(self, words: int | None = None, end: str | None = None) -> list[Piece]:
        """A sentence, which begins with a capital."""
        self._sentence += 1
        end = self.draw.choice(_ENDS) if end is None else end
        pieces = self.phrase(words or self.draw.randint(2, 8), 0, is_first=True)
        return pieces + [Piece(MARK, end)] * (end != "")

    def cjk(self) -> list[Piece]:
        """A sentence without spaces."""
        self._sentence += 1
        pieces: list[Piece] = []
        for _ in range(self.draw.randint(2, 4)):
            word = Piece(WORD, "".join(self._cjk.pop() for _ in range(2)), sentence=self._sentence)
            drawn = self.draw.random()
            if drawn < 0.2:
                pieces += self.pair(lambda word=word: [word])  # type: ignore[misc]
            elif drawn < 0.4:
                braces = [each for each in self._holders if HOLDERS[each]]
                raw = self.draw.choice(braces)
                pieces += [Piece(HOLDER, html.escape(raw, quote=False) if self.form in XML else raw), word]
            elif drawn < 0.5 and not self._has_escaped:
                pieces += [self.copied(), word]
            else:
                pieces += [word] if not pieces or pieces[-1].kind != WORD else [Piece(MARK, "、"), word]
        return [*pieces, Piece(MARK, "。")]

    # --- segments

    def text(self) -> list[Piece]:
        """One sentence or several."""
        drawn = self.draw.random()
        if drawn < 0.08:
            pieces = self.cjk()
            for _ in range(self.draw.randint(0, 1)):
                pieces += [self.space("\u3000")] * self.chance(0.3) + self.cjk()
            return pieces
        if drawn < 0.12 and self.form != "markdown":
            return self._wordless()
        count = 1 if drawn < 0.6 else self.draw.randint(2, 3)
        pieces = self.sentence(end=None if count == 1 else self.draw.choice(".!?"))
        for _ in range(count - 1):
            between = self._between(pieces)
            if any(piece.breaks and piece.kind == ALONE for piece in between) and self.chance(0.5):
                pieces.pop()  # the sentence ends at the code, whatever its words
            is_image = self.form == "markdown" and pieces[-1].raw == "!" and not between  # if a link follows
            pieces += [self.space(" ")] if is_image else between
            if pieces[-1].raw == ".":
                self._words.append(self._starters.pop())
            pieces += self.sentence(self.draw.randint(2, 5), self.draw.choice(".!?"))
        if count > 1 and self.chance(0.15):
            self._inside = "".join(piece.raw[0] for piece in pieces if piece.kind == OPEN)
            pieces = self.pair(lambda: pieces)
            self._inside = ""
        return pieces

    def _between(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What stands between two sentences."""
        drawn = self.draw.random()
        if drawn < 0.55:
            return [self.space(" ")]
        if drawn < 0.67:
            return [self.space("  ")]
        if drawn < 0.77 and not any("://" in each.raw for each in pieces[-3:]):  # an address goes on
            return []
        if drawn < 0.87:
            return [self.space(" "), Piece(MARK, self.draw.choice("🙂🎉👍")), self.space(" ")]
        if self.form in ("po", "ts"):
            return [Piece(SPACE, self.draw.choice(("\n", "\n\n")), breaks=True)]
        if self.form == "android":
            if self.chance(0.5):
                before, behind = ([self.space()] * self.chance(0.3) for _ in range(2))
                return [*before, Piece(ALONE, "<br/>", breaks=True), *behind]
            return [Piece(SPACE, self.draw.choice(("\\n", "\\n\\n")), breaks=True)]
        return [self.space("\u00a0")]

    def _wordless(self) -> list[Piece]:
        """Codes, placeholders and white space alone."""
        kinds = [self.holder] + [self.alone, self.copied] * (not self._has_escaped)
        return [self.draw.choice(kinds)(), self.space(), self.draw.choice(kinds)()]

    def blocks(self) -> list[Piece]:
        """Block elements of HTML, each with a text without a full stop or with one."""
        kind = self.draw.choice(("p", "li", "td", "br", "br/", "h2", "option", "div"))
        around = {"li": ("<ul>", "</ul>"), "td": ("<tr>", "</tr>"), "option": ("<select>", "</select>")}.get(kind)
        pieces, number = list[Piece](), self._pairs
        self._pairs += 1
        pieces += [Piece(OPEN, around[0], number, breaks=True)] if around else []
        for index in range(self.draw.randint(2, 3)):
            end = self.draw.choice(("", "", ".", "!"))
            if kind.startswith("br"):
                pieces += [Piece(ALONE, f"<{kind}>", breaks=True)] * (index > 0) + self.sentence(3, end)
            else:
                own, self._pairs = self._pairs, self._pairs + 1
                pieces += [self.space(" ")] * (index > 0 and self.chance(0.3))
                pieces += [Piece(OPEN, f"<{kind}>", own, breaks=True), *self.sentence(3, end)]
                pieces += [Piece(CLOSE, f"</{kind}>", own, breaks=True)]
        return pieces + ([Piece(CLOSE, around[1], number, breaks=True)] if around else [])

    def label(self) -> list[Piece]:
        """A label of a program, with an accelerator before one of its words or inside one."""
        self._sentence += 1
        key = "_" if self.number % 2 and self.form == "po" else "&"
        words = [self.word(index == 0) for index in range(self.draw.randint(1, 3))]
        pieces: list[Piece] = []
        for index, word in enumerate(words):
            pieces += [self.space(" ")] * (index > 0) + [word]
        at = self.draw.choice([at for at, piece in enumerate(pieces) if piece.kind == WORD])
        pieces[at:at] = [Piece(KEY, key)]
        return [*pieces, Piece(MARK, self.draw.choice(("", ":", "...", "…")))]

    def with_edges(self, pieces: list[Piece]) -> list[Piece]:
        """Sometimes white space at the edges, of a kind that the format keeps."""
        if self.form == "markdown":
            return pieces
        spaces = [" ", "  ", "\t", "\u00a0"] + ["\n"] * (self.form in ("po", "ts"))
        before = [replace(self.space(self.draw.choice(spaces)), soft=False)] * self.chance(0.08)
        behind = [replace(self.space(self.draw.choice(spaces)), soft=False)] * self.chance(0.08)
        return [*before, *pieces, *behind]


def draw_segment(form: str, number: int, seed: int) -> Segment:
    """Return one of the segments of a format."""
    writer, traits = Writer(number, form, seed), set[str]()
    if form == "markdown":
        from .markdown import block

        return Segment(number, form, block(writer))
    if form in ("po", "ts") and writer.chance(0.25):
        pieces, traits = writer.label(), {"marked"}
    elif form == "html" and writer.chance(0.2):
        pieces = writer.blocks()
    else:
        pieces = writer.text()
    if form == "html" and writer.chance(0.04):
        pieces = [Piece(OPEN, "<![CDATA[", 900), *pieces, Piece(CLOSE, "]]>", 900)]
        if any("]]" in piece.raw or "CDATA" in piece.raw for piece in pieces[1:-1]):
            pieces = pieces[1:-1]
    is_preserved = form == "xliff" and writer.chance(0.15)  # then a line break is of the text
    if form in ("xliff", "tmx", "android") and not is_preserved and writer.chance(0.15):
        places = [at for at, piece in enumerate(pieces) if piece.kind == SPACE and piece.raw == " "]
        for at in writer.draw.sample(places, min(2, len(places))):
            pieces[at] = writer.wrap()
    if is_preserved:
        traits.add("preserve")
        pieces = [replace(piece, soft=False) for piece in pieces]
    pieces = writer.with_edges(merged(pieces))
    return Segment(number, form, merged([piece for piece in pieces if piece.raw]), frozenset(traits))


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Join white space that stands together."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.kind == SPACE == found[-1].kind:
            last = found.pop()
            piece = replace(
                last, raw=last.raw + piece.raw, soft=last.soft and piece.soft, breaks=last.breaks or piece.breaks
            )
        found.append(piece)
    return found
