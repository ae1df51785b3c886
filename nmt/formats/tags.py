"""Reader of HTML and XML: tags and entities of a line or unit, elements that are copied, tags that end sentences."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterator

from nmt.formats.segments import Kind, Segment, Sign, Token, parts_of, plain
from nmt.text.lines import one_line

_ATTRIBUTES = r"(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)?"
_CODE = "bpt|ept|it|ph|script|style"  # elements whose content is code; the first four are of XLIFF and TMX
_NAME = r"[^\W\d][\w:.-]*|\d{1,3}"  # <0> is of React
TAGS = re.compile(
    rf"<({_CODE})\b{_ATTRIBUTES}(?<!/)>(?:(?!<\1\b).)*?</\1\s*>|<(?P<slash>/?)(?P<name>{_NAME}){_ATTRIBUTES}/?>"
    r"|(?P<pair><!\[CDATA\[|\]\]>)|<!--(?:(?!<!--).)*?-->|<\?[^<>]*>|<![A-Z\[][^<>]*>"
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});)",
    re.DOTALL,
)
"""Pattern for tags and entities of HTML and XML"""
_COPIED = re.compile(  # tags of elements that are copied whole; xliff:g is of Android
    r"<(?:code|kbd|samp|pre|tt|var|svg|math|xliff:g)\b"
    r"|<[^>]*\s(?:(?:\w+:)?translate=[\"']?no\b|class=[\"']?[^\"'>]*\bnotranslate\b)"
    r"|<mrk\b[^>]*\smtype=[\"'](?:x-)?protected\b",
    re.IGNORECASE,
)
_BLOCK = re.compile(  # elements of HTML that part words even without a space, and end sentences
    r"br|hr|p|div|li|[uod]l|d[td]|t[dhr]|table|thead|tbody|tfoot|caption|h[1-6]|blockquote|section|article|aside|nav"
    r"|header|footer|main|option|select|form|fieldset|legend|figure|figcaption|summary|details|title|body|html|head"
)
_ENDING = re.compile(  # tags of XLIFF and TMX that do: a segment of its own, a line break
    r"<mrk\b[^>]*\smtype=[\"']seg\b|<(?:x|ph)\b[^>]*\s(?:c?type=[\"'](?:x-)?(?:lb|br)[\"']|id=[\"']LINE_BREAK)",
    re.IGNORECASE,
)
ESCAPES = {"&": "&amp;", "<": "&lt;"}
"""How a translation has characters that are of markup"""
_ANY = re.compile(rf"<(/?)({_NAME})\b[^<>]*>")


def read_tags(line: str) -> Segment:
    """Take out tags and decode entities. What is neither, such as the < of "a < b", is text."""
    return Segment(line, tokens_of(line), ESCAPES)


def tokens_of(line: str) -> Iterator[Token]:
    """Yield the pieces of a line."""
    elements = Elements(line)
    run = list[Sign]()  # of text
    at, in_pair = 0, False
    while found := TAGS.search(line, at):
        run += plain(line[at : found.start()])
        token, at = elements.token(found)
        if token.kind == "text" or (found[0] == "]]>" and not in_pair):
            run += token.signs or plain(token.raw)
            continue
        if found["pair"]:
            in_pair = token.kind == "open"
        yield from parts_of(run)
        run = []
        yield token
    yield from parts_of(run + plain(line[at:]))


def _code(raw: str, name: str, is_closing: bool) -> Token:
    """Return the token of a tag, a comment or an instruction."""
    is_block = _BLOCK.fullmatch(name) is not None
    ends = is_block or _ENDING.match(raw) is not None
    kind: Kind = "alone"
    if is_closing:
        kind = "close"
    elif name and not raw.endswith("/>"):
        kind = "open"
    return Token(kind, raw, name=name, parts=is_block, ends=ends)


class Elements:
    """The tags and entities of a line, and where its elements end, which is found in one pass when it is needed."""

    def __init__(self, line: str) -> None:
        """Read a line."""
        self._line = line
        self._ends: dict[int, int] | None = None

    def token(self, found: re.Match[str]) -> tuple[Token, int]:
        """Return what a match of TAGS is, and the offset behind it: a code, a copied element, or text."""
        raw, pair = found[0], found["pair"]
        if found["entity"]:
            sign = one_line(html.unescape(raw))
            if sign in (" ", "\t"):
                return Token("alone", raw, parts=True), found.end()
            return Token("text", raw, [(sign, raw)] if sign != raw else plain(raw)), found.end()
        if self._is_of_url(found):
            return Token("text", raw, plain(raw)), found.end()
        end = self._end_of(found) if _COPIED.match(raw) else 0
        if end:
            return Token("copy", self._line[found.start() : end]), end
        if pair:
            return Token("close" if pair == "]]>" else "open", raw, name="["), found.end()
        return _code(raw, (found["name"] or "").lower(), bool(found["slash"])), found.end()

    def _end_of(self, tag: re.Match[str]) -> int:
        """Return the offset behind the element whose first tag is `tag`; 0 if it has no end."""
        if self._ends is None:
            self._ends = dict(_elements_of(self._line))
        return self._ends.get(tag.start(), 0)

    def _is_of_url(self, found: re.Match[str]) -> bool:
        """Return whether a tag without a closing one is a placeholder in a URL: https://x.org/<id>."""
        is_inside = found.start() > 0 and self._line[found.start() - 1] in "/="
        is_bare = re.fullmatch(r"<[a-z][\w-]*>", found[0]) is not None
        return is_inside and is_bare and f"</{found['name']}" not in self._line


def _elements_of(line: str) -> Iterator[tuple[int, int]]:
    """Yield where each element begins and ends; elements of other names inside may overlap it."""
    opened = defaultdict[str, list[int]](list)
    for tag in _ANY.finditer(line):
        name = tag[2].lower()
        if tag[1]:
            if opened[name]:
                yield opened[name].pop(), tag.end()
        elif not tag[0].endswith("/>"):
            opened[name].append(tag.start())
