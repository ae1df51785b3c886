"""Reader of HTML and XML: tags and entities of a line or unit, elements that are copied, tags that end sentences.

"Copied" is what a translation must have as it is, such as <code>x</code>, with all that is inside.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from nmt.formats.placeholders import OF_HTML
from nmt.formats.segments import Segment
from nmt.formats.tokens import Kind, Sign, Token, parts_of, plain
from nmt.text.lines import one_line

_ATTRIBUTES = r"(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)?"
_CODE = "bpt|ept|it|ph|ut|script|style|rt|rp"  # elements whose content is no text: of XLIFF and TMX, HTML, ruby
_NAME = r"[^\W\d][\w:.-]*|\d{1,3}"  # <0> is of React
_NO_TAGS = (  # though they have < and >: B<words> and E<lt> of manual pages, `code`, %<name>s of Ruby, %<PRIu64> of C
    rf"(?<![^\W_])(?:[BCEFILRSXZ]|CW)<(?!/?(?:{OF_HTML})[\s/>])[^<>\n]{{1,200}}>|E<[lg]t>"
    r"|(?<![`\w\\])(?::[A-Za-z][\w:+.\-]{0,60}:)?`{1,2}(?=[^`\s])[^`<>\n]{0,200}<[^`\n]{1,200}(?<!\s)`{1,2}_{0,2}(?!`)"
    rf"|%<(?:PRI[A-Za-z]\w{{0,12}}>|(?!(?:{OF_HTML})>)\w{{1,60}}>[-+\#0\d.]{{0,8}}[diouxXeEfgGcsp](?![\w'’]))"
)
TAGS = re.compile(
    rf"(?P<copied>{_NO_TAGS})"
    rf"|<(?P<element>{_CODE})\b{_ATTRIBUTES}(?<!/)>(?:(?!<(?P=element)\b).)*?</(?P=element)\s*>"
    rf"|<(?P<slash>/?)(?P<name>{_NAME}){_ATTRIBUTES}/?>"
    r"|(?P<pair><!\[CDATA\[|\]\]>)|<!--(?:(?!<!--).)*?-->|<\?[^<>]*>|<![A-Z\[][^<>]*>"
    r"|\{(?P<opened>\w{1,6})>(?=.{0,2000}?<(?P=opened)\})|<(?P<closed>\w{1,6})\}"  # {1>words<1} is of Phrase
    r"|\[(?P<code>[A-Za-z][\w-]{0,30})(?:(?:[ =][^\[\]<>]{0,400})?\](?=.{0,2000}?\[/(?P=code)\])"  # [b]x[/b] of BBCode
    r"|(?: [\w-]{1,30}=(?:\"[^\"\[\]]{0,400}\"|'[^'\[\]]{0,400}')){1,20} ?/?\])"  # [gallery ids="1"] of WordPress
    r"|\[/(?P<end>[A-Za-z][\w-]{0,30})\]|\[\*\]"
    r"|(?P<link>(?<![\w)\]])!?\[(?=[^\[\]\n]{1,300}\]\([^()\s]{1,300}(?:\s\"[^\"\n]{0,200}\")?\)))"
    r"|(?P<place>\]\([^()\s]{1,300}(?:\s\"[^\"\n]{0,200}\")?\))"  # [x](y) of Markdown
    r"|(?P<bold>(?<!\*)\*\*(?!\*))"  # **x**
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,31});)",
    re.DOTALL,
)
"""Pattern for tags and entities of HTML and XML, for tags of Phrase, BBCode and WordPress, and marks of Markdown"""
_COPIED = re.compile(  # tags of elements that are copied whole; xliff:g is of Android
    r"<(?:code|kbd|samp|pre|tt|var|svg|math|xliff:g)\b"
    r"|<[^>]*\s(?:(?:\w+:)?translate=[\"']?no\b|class=[\"']?[^\"'>]*\bnotranslate\b)"
    r"|<mrk\b[^>]*\smtype=[\"'](?:x-)?protected\b",
    re.IGNORECASE,
)
_BLOCK = re.compile(  # elements of HTML that part words even without a space, and end sentences
    r"br|hr|p|div|li|[uod]l|d[td]|t[dhr]|table|thead|tbody|tfoot|caption|h[1-6]|blockquote|section|article|aside|nav"
    r"|header|footer|main|address|dialog|menu|noscript|label|button|textarea|optgroup|option|select"
    r"|form|fieldset|legend|figure|figcaption|summary|details|title|body|html|head"
)
_INLINE = ("label", "button")  # of them, those that stand in sentences, too: Press <button>Save</button> to go on.
_ENDING = re.compile(  # tags of XLIFF and TMX that do: a segment of its own, a line break
    r"<mrk\b[^>]*\smtype=[\"']seg\b|<(?:x|ph)\b[^>]*\s(?:c?type=[\"'](?:x-)?(?:lb|br)[\"']|id=[\"']LINE_BREAK)",
    re.IGNORECASE,
)
_HALF = re.compile(r"<(bpt|ept|bx|ex)\b[^>]*>")
"""Pattern for the first or the second half of a pair of XLIFF or TMX, such as <bpt i="1"/> and <ept i="1"/>"""
_BOLD = re.compile(r"(?=[^\s*])[^*\n]{1,300}(?<!\s)\*\*(?!\*)")
"""Pattern for the words behind a mark of Markdown, and the other mark"""
_REFERENCE = re.compile(r"\srid=[\"']([^\"']+)")
_NUMBER = re.compile(r"\s(?:id|i)=[\"']([^\"']+)")
_UNCLOSED = re.compile(r"<[/?]?[A-Za-z][^<>]*\Z")
_INVISIBLE = {*"\u200b\u200e\u200f\u061c\u2060", *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
"""Characters that direct text, or part or join words, none of which vocabularies have"""
LONGEST_ELEMENT = 1000  # lines of a copied element, a comment or a tag
ESCAPES = {"&": "&amp;", "<": "&lt;"}
"""How a translation has characters that are of markup"""
_ANY = re.compile(rf"<(/?)({_NAME})\b[^<>]*>")  # tag, whatever its attributes


def read_tags(line: str) -> Segment:
    """Take out tags and decode entities. What is neither, such as the < of "a < b", is text."""
    return Segment(line, tokens_of(line), ESCAPES)


def read_tagged_lines(lines: Iterable[str]) -> Iterator[Segment]:
    """Yield the segment of each line, as `read_tags` does; tags, comments and copied elements may go on over lines."""
    source = _Lines(lines)
    while source.has_more():
        block = [source.next_line()]
        complete = 1  # lines of the block up to the last at whose end nothing is open
        end, opened = open_in(block[0])
        while end and len(block) < LONGEST_ELEMENT and source.may_have(end):
            line = source.next_line()
            block.append(line)
            opened = f"{opened}\n{line}" if end == ">" else ""  # a tag may open an element
            found = line.lower().find(end)
            if found >= 0:
                end, opened = open_in(opened or line[found + len(end) :])
                complete = len(block)
        if end:
            source.put_back(block[complete:], end)
        if complete == 1:
            yield read_tags(block[0])
        else:
            tokens = _by_line(tokens_of("\n".join(block[:complete])))
            for line, own in zip(block, tokens, strict=False):
                yield Segment(line, own, ESCAPES)


class _Lines:
    """Lines to look ahead in; what was not found ahead is not looked for again."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._source = iter(lines)
        self._ahead = deque[str]()
        self._taken = 0  # lines
        self._absent = dict[str, int]()  # the lines up to which there is no such text

    def has_more(self) -> bool:
        if not self._ahead:
            self._ahead.extend(islice(self._source, 1))
        return bool(self._ahead)

    def next_line(self) -> str:
        self._taken += 1
        return self._ahead.popleft()

    def may_have(self, text: str) -> bool:
        return self._taken >= self._absent.get(text, 0) and self.has_more()

    def put_back(self, lines: Sequence[str], absent: str) -> None:
        self._absent[absent] = max(self._taken, self._absent.get(absent, 0))
        self._taken -= len(lines)
        self._ahead.extendleft(reversed(lines))


def open_in(text: str) -> tuple[str, str]:
    """Return what ends the tag, comment or copied element that is open at the end of a text, and the text of a tag.

    For "a <code>b" they are "</code" and "", for "a <a href=" they are ">" and "<a href="; both "" if nothing is open.
    """
    if "<" not in text:
        return "", ""
    at = 0
    for found, token, end in Elements(text).found():
        at = end
        name = (found["name"] or "").lower()
        has_content = token.kind in ("open", "close") and not (found["slash"] or found[0].endswith("/>"))
        if has_content and (_COPIED.match(found[0]) or re.fullmatch(_CODE, name)):
            return f"</{name}", ""
    if text.find("<!--", at) >= 0:
        return "-->", ""
    tag = _UNCLOSED.search(text, at)
    if tag:
        return ">", tag[0]
    return "", ""


def _by_line(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each line; a code that goes on over lines is a part of each of them, which stands alone."""
    line: list[Token] = []
    for token in tokens:
        if "\n" not in token.raw:
            pieces = [[token]]
        elif token.signs:
            pieces = [[*parts_of(signs)] for signs in _split_at_line_ends(token.signs)]
        else:
            pieces = [[Token("alone", part)] if part else [] for part in token.raw.split("\n")]
        for piece in pieces[:-1]:
            yield line + piece
            line = []
        line += pieces[-1]
    yield line


def _split_at_line_ends(signs: Iterable[Sign]) -> list[list[Sign]]:
    lines: list[list[Sign]] = [[]]
    for sign in signs:
        if sign[0] == "\n":
            lines.append([])
        else:
            lines[-1].append(sign)
    return lines


def tokens_of(line: str) -> Iterator[Token]:
    """Yield the pieces of a line."""
    run: list[Sign] = []  # of text
    at = 0
    in_pair = False
    for found, token, end in Elements(line).found():
        run += plain(line[at : found.start()])
        at = end
        if token.kind == "text" or (found[0] == "]]>" and not in_pair):
            run += token.signs or plain(token.raw)
            continue
        if found["pair"]:
            in_pair = token.kind == "open"
        yield from parts_of(run)
        run = []
        yield token
    yield from parts_of(run + plain(line[at:]))


def _entity(raw: str) -> Token:
    """Return the token of an entity: text, or a code if it is a plain space or a tab; &brandShortName; is copied."""
    sign = one_line(html.unescape(raw))
    if sign == raw:
        return Token("copy", raw)
    if sign in (" ", "\t"):
        return Token("alone", raw, [(sign, raw)], parts=True)
    if sign in _INVISIBLE:
        return Token("alone", raw)
    return Token("text", raw, [(sign, raw)])


def _code(raw: str, name: str, is_closing: bool) -> Token:
    """Return the token of a tag, a comment or an instruction."""
    half = _HALF.match(raw)
    if half:
        number = _REFERENCE.search(half[0]) or _NUMBER.search(half[0])
        if number:
            kind_of_half: Kind = "open" if half[1] in ("bpt", "bx") else "close"
            return Token(kind_of_half, raw, name=f"{half[1][1:]}={number[1]}")  # both halves have the name pt=1 or x=1
    is_block = _BLOCK.fullmatch(name) is not None
    ends = (is_block and name not in _INLINE) or _ENDING.match(raw) is not None
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
        self._names: set[str] = set()  # of tags before that are no XML: without them, [/etc] is a text

    def found(self) -> Iterator[tuple[re.Match[str], Token, int]]:
        """Yield each match of TAGS outside of copied elements, its token, and the offset behind this."""
        at = 0
        while found := TAGS.search(self._line, at):
            token, at = self.token(found)
            yield found, token, at

    def token(self, found: re.Match[str]) -> tuple[Token, int]:
        """Return what a match of TAGS is, and the offset behind it: a code, a copied element, or text."""
        raw = found[0]
        if found["entity"]:
            return _entity(raw), found.end()
        if found["copied"]:
            return Token("copy", raw), found.end()
        if found["link"] or found["place"] or found["bold"]:
            return self._of_markdown(found), found.end()
        opened = found["opened"] or found["code"]
        closed = found["closed"] or found["end"]
        if opened:
            self._names.add(raw[0] + opened)
            return Token("open", raw, name=f"[{opened}"), found.end()
        if closed and f"{'[' if found['end'] else '{'}{closed}" in self._names:
            return Token("close", raw, name=f"[{closed}"), found.end()
        if closed or self._is_of_url(found):
            return Token("text", raw, plain(raw)), found.end()
        if _COPIED.match(raw):
            end = self._end_of(found)
            if end:
                return Token("copy", self._line[found.start() : end]), end
        if found["pair"]:
            kind: Kind = "close" if raw == "]]>" else "open"
            return Token(kind, raw, name="["), found.end()
        name = (found["name"] or "").lower()
        return _code(raw, name, bool(found["slash"])), found.end()

    def _of_markdown(self, found: re.Match[str]) -> Token:
        """Return the token of half a link or of a mark of bold words; text without the other half."""
        raw = found[0]
        name = "**" if found["bold"] else "[]"
        if name in self._names and not found["link"]:
            self._names.remove(name)
            return Token("close", raw, name=name)
        if found["link"] or (found["bold"] and _BOLD.match(self._line, found.end())):
            self._names.add(name)
            return Token("open", raw, name=name)
        return Token("text", raw, plain(raw))

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
