"""Units and files of translators that are almost as they must be: tags, Markdown, strings, and files of six formats."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mistakes import damaged

# --- units -------------------------------------------------------------------------------------------------------

_WORDS = [
    "a dog",
    "b",
    " ",
    "  ",
    "\t",
    "\u00a0",
    "\u202f",
    "\u3000",
    "\u200b",
    ". ",
    "!",
    "…",
    "犬。",
    "ไทย",
    "개가",
    "é",
    "😀",
]
_PLACEHOLDERS = ["%s", "%1$d", "{name}", "{", "}", "$1", "$", "[[x]]", "__x__", "https://x.org/<id>|a", "<%= x %>"]
_PLACEHOLDERS += ["{n, plural, one {# b} other {c}}", "@string/a", "?attr/x", "&", "<", ">", "_F", "~", "\\"]
_TAGS = ["<b>", "</b>", "<i class='x'>", "</i>", "<br/>", "<li>", "</li>", "<p>", "</p>", "<code>", "</code>", "<0>"]
_TAGS += ["</0>", "<!-- a", "-->", "<![CDATA[", "]]>", "<script>", "</script>", "<a href='", "'>", "&amp;", "&nbsp;"]
_TAGS += ["&#10;", "&lt;", "<ph id='1'>", "</ph>", "<bpt i='1'>", "</bpt>", "<ept i='1'/>", "<mrk mtype='seg' mid='1'>"]
_TAGS += ["</mrk>", "<b translate='no'>", "<?a", "?>", "<xliff:g id='a'>", "</xliff:g>"]
_MARKS = [
    "*",
    "**",
    "_",
    "`",
    "``",
    "~~",
    "[",
    "![",
    "]",
    "](x.md)",
    "](",
    ")",
    "][",
    "][y]",
    "[^1]",
    ":smile:",
    "|",
    "- ",
]
_MARKS += ["> ", "# ", "1. ", "    ", "---", "```", "$ 5", "$a = b$", "[y]: z", "[^1]: ", "[Anna]: ", "!!! note", "\\"]


def _texts(*pieces: list[str], most: int = 14) -> SearchStrategy[str]:
    """Texts of these pieces, of which some are of any characters."""
    usual = st.sampled_from([each for group in pieces for each in group])
    odd = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    return st.lists(st.one_of(*[usual] * 15, odd), max_size=most).map("".join)


TAGGED = st.lists(_texts(_WORDS, _PLACEHOLDERS, _TAGS, _TAGS).map(lambda text: text.replace("\n", " ")), max_size=5)
MARKDOWN = st.lists(_texts(_WORDS, _TAGS, _MARKS, _MARKS).map(lambda text: text.replace("\n", " ")), max_size=8)
STRINGS = st.lists(_texts(_WORDS, _PLACEHOLDERS, _PLACEHOLDERS, _TAGS, ["\n", "\n\n", "\r\n", "&F", ":"]), max_size=4)

# --- files -------------------------------------------------------------------------------------------------------

_XML = [
    *_WORDS,
    *(each for each in _PLACEHOLDERS if not {*each} & {*"<&"}),
    "&amp;",
    "&lt;",
    "&#160;",
    "<![CDATA[b <]]>",
]
_SPLINTERS = (b"<", b">", b"&", b"/>", b"]]>", b"<!--", b'"', b"\xff\xfe", b"<x>", b"</x>")


def _wrapped(head: str, units: SearchStrategy[str], tail: str) -> SearchStrategy[bytes]:
    """Files of some units; line ends are of either kind."""
    bodies = st.lists(units, max_size=5).map(lambda found: head + "\n ".join(found) + tail)
    ends = st.sampled_from(["\n", "\n", "\r\n"])
    return st.builds(lambda text, end: text.replace("\n", end).encode(), bodies, ends)


def _filled(template: str, **parts: SearchStrategy[str]) -> SearchStrategy[str]:
    return st.fixed_dictionaries(parts).map(lambda values: template.format(**values))


_TEXT = _texts(_XML, most=5)
_INLINE = _texts(
    _XML,
    ["<g id='1'>a</g>", "<x id='1'/>", "<ph id='1'>{{b}}</ph>", "<mrk mtype='seg' mid='1'>b.</mrk>", "<!-- b -->"],
    ["<mrk mtype='seg' mid='2'/>", "<bpt id='2' i='2'>[</bpt>", "<ept id='2' i='2'>]</ept>", "<hi>c</hi>", "<mrk>"],
    most=5,
)
_TRANS_UNIT = "<trans-unit{about}><source>{source}</source>{segments}{target}</trans-unit>"
_SEGMENTS = st.one_of(st.just(""), _filled("<seg-source>{text}</seg-source>", text=_INLINE))
_TARGET = st.sampled_from(["", "<target/>", "<target state='final'>", "<target>"]).flatmap(
    lambda tag: (
        _filled(tag + "{text}</target>", text=_INLINE) if tag.endswith("'>") or tag == "<target>" else st.just(tag)
    )
)
XLIFF = damaged(
    _wrapped(
        "<?xml version='1.0'?>\n<xliff version='1.2'><file source-language='en' target-language='de'><body>",
        _filled(
            _TRANS_UNIT,
            about=st.sampled_from(["", " id='1'", " approved='yes'", " translate='no'", " xml:space='preserve'"]),
            source=_INLINE,
            segments=_SEGMENTS,
            target=_TARGET,
        ),
        "</body></file></xliff>",
    ),
    _SPLINTERS,
    share=4,
)
_VARIANT = _filled(
    "<tuv xml:lang='{code}'><seg>{text}</seg></tuv>", code=st.sampled_from(["en", "de", "en-GB", "fr"]), text=_INLINE
)
TMX = damaged(
    _wrapped(
        "<tmx version='1.4'><header srclang='en'/><body>",
        st.lists(_VARIANT, max_size=3).map(lambda found: f"<tu>{''.join(found)}</tu>"),
        "</body></tmx>",
    ),
    _SPLINTERS,
    share=4,
)
_FORMS = st.sampled_from(
    [
        "",
        "<numerusform/>",
        "<numerusform>{a}</numerusform><numerusform> </numerusform>",
        "<lengthvariant>{a}</lengthvariant>",
    ]
)
TS = damaged(
    _wrapped(
        "<!DOCTYPE TS>\n<TS version='2.1' language='de'><context><name>A</name>",
        _filled(
            "<message{about}><source>{source}</source><translation{kind}>{text}{forms}</translation></message>",
            about=st.sampled_from(["", " numerus='yes'", " id='a'"]),
            kind=st.sampled_from(["", " type='unfinished'", " type='vanished'", " variants='yes'"]),
            source=_TEXT,
            text=st.just("") | _TEXT,
            forms=_FORMS,
        ),
        "</context></TS>",
    ),
    _SPLINTERS,
    share=4,
)
_SHOWN = _texts(
    _XML,
    ["\\n", "\\'", '\\"', '"', "\\u0020", "\\uD83D", "\\@", "\\?", "<b>c</b>", "<xliff:g id='a'>%s</xliff:g>", "\n  "],
    most=6,
)
_ITEMS = st.lists(
    _filled(
        "<item{about}>{text}</item>", about=st.sampled_from(["", " quantity='one'", " quantity='other'"]), text=_SHOWN
    ),
    max_size=3,
)
ANDROID = damaged(
    _wrapped(
        "<resources xmlns:xliff='urn:oasis:names:tc:xliff:document:1.2'>",
        _filled("<string name='a'>{text}</string>", text=_SHOWN)
        | st.builds(
            lambda tag, items: f"<{tag} name='a'>{''.join(items)}</{tag}>",
            st.sampled_from(["plurals", "string-array", "array"]),
            _ITEMS,
        ),
        "</resources>",
    ),
    _SPLINTERS,
    share=4,
)
_QUOTED = _texts([*_WORDS[:4], *_PLACEHOLDERS[:-1], '\\"', "\\n", "\\t", "\\x41", '"\n"', "\\\\"], most=5).map(
    lambda text: f'"{text}"'
)
PO = damaged(
    _wrapped(
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        '"Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n',
        _filled(
            "{note}{context}msgid {source}\n{target}\n",
            note=st.sampled_from(
                ["", "# b\n", "#, fuzzy\n", "#, c-format,fuzzy\n", "#~ ", '#| msgid "b"\n', "#: a.c:1\n", "\n"]
            ),
            context=st.sampled_from(["", "", 'msgctxt "c"\n']),
            source=_QUOTED,
            target=_filled("msgstr {text}", text=_QUOTED | st.just('""'))
            | _filled('msgid_plural {text}\nmsgstr[0] {form}\nmsgstr[1] ""', text=_QUOTED, form=_QUOTED),
        ),
        "",
    ),
    (b'"', b"\\", b"\n", b"msgid ", b"#~ ", b"\r", b"charset=koi8-r"),
    share=4,
)
