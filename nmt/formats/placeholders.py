"""Text that programs and markup put into texts, and that stays as it is: URLs, addresses, placeholders, pictographs.

A translation must have exactly these, and no others.
"""

import re

from nmt.text.scripts import IDENTIFIER, TOUCHING_RANGES, UNCASED_RANGES

# Text of scripts without spaces, and of Korean, may follow a URL directly
_NO_URL = rf"\s<>\"'{{}}|\\^`()«»“”„‘’…\u3000-\u303f\uff00-\uffef{TOUCHING_RANGES}"  # nor brackets and quotes
OF_HTML = "[abipqsugx]|[bht]r|[ou]l|li|t[dht]|em|ph|img|div|sub|sup|big|mrk|code|font|span|small|strong|h[1-6]"
"""Names of usual elements, for a pattern"""
_GROUP = (  # a balanced bracket, or a placeholder
    rf"\([^{_NO_URL}]*\)|\{{\{{?[^{{}}\s]{{0,60}}\}}\}}?|<(?!(?:{OF_HTML})>)[a-z][\w-]{{0,40}}>|\[[\w-]{{1,40}}\](?!\()"
)
IN_URL = rf"[^{_NO_URL}]|'(?=\w)|[|^](?=[^{_NO_URL}])|{_GROUP}"
URL_END = rf"[^{_NO_URL}.,;:!?*\]]|{_GROUP}"  # no punctuation
_SCHEME = r"(?i:[a-z][a-z\d+]{1,19}://|www\.|(?:mailto|tel|sms|xmpp|magnet|urn):)"
_WORD = rf"(?<=[/.=_\-])[{TOUCHING_RANGES}]++"  # of an unspaced script
_NESTED = r"[^{}]"
for _ in range(3):
    _NESTED = rf"(?:[^{{}}]|\{{{_NESTED}{{0,400}}+\}})"
# Without the space that C allows between sign and letter: 100 % sicher. After a number, % is text too: 50%-a.
_OPTIONS = r"(?:[#0+']|-(?=[\d*]))*(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*)?)?"
_LENGTH = r"(?:hh?|ll?|[qjztLw]|I64|I32)?"
_NO_LETTER = rf"(?![^\W\d_](?<![{UNCASED_RANGES}]))"

_NAME = (  # of a placeholder such as %title; after a letter of printf, only names that are usual: %s stands in "%sread"
    r"(?:(?!ll?[du]|[zhjtq]+[du])[abe-nqrtvwyz][a-z\d_]{2,60}"
    r"|(?:code|colou?r|column|command|comment|content|context|count|country|current|date|day|description|dir|directory"
    r"|domain|object|option|order|owner|page|path|percent|plugin|product|profile|project|server|service|site|size"
    r"|source|state|status|subject|uid|url|user|username)(?:_[a-z\d_]{1,40})?)"
)
_PICTOGRAPH = r"[\u00a9\u00ae\u2022\u2122\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"  # © → ✓ 😀

FORMATS = {
    "URL": rf"(?<![A-Za-z\d]){_SCHEME}(?:{IN_URL})*(?:{URL_END})",
    "URL beside spaces": rf"(?<![^\s(<\"']){_SCHEME}(?:{IN_URL}|{_WORD})*(?:{URL_END}|{_WORD})",
    "address": rf"(?<!{IDENTIFIER}|[.+\-]){IDENTIFIER}(?:{IDENTIFIER}|[.+\-]|'(?={IDENTIFIER})){{0,63}}"
    rf"@{IDENTIFIER}(?:{IDENTIFIER}|-){{0,62}}(?:\.{IDENTIFIER}(?:{IDENTIFIER}|-){{0,62}}){{1,9}}",
    "mustache": r"\$?\{{2,3}[^{}\n]{0,200}\}{2,3}|\{%[^{}\n]{0,200}%\}",  # also of Vue, i18next, Jinja
    "ICU": rf"\{{\s?[\w.]{{1,60}}\s?,\s?(?:plural|select(?:ordinal)?|choice|number|date|time)\b{_NESTED}{{0,400}}+\}}",
    "Ruby, JavaScript": r"[$#%]\{[^{}\n]{1,200}\}",
    "Python, C#": r"\{\$?[\w.:\-\[\]]{0,60}(?:,-?\d{1,3})?(?:![rsa])?(?::(?:[^{}\s]|\{[^{}\s]{0,20}\}){0,30})?\}"
    r"|\{ \w{1,60} \}",
    "printf, named": rf"%(?:\([\w.\-]{{1,60}}\)|<(?!(?:{OF_HTML})>)\w{{1,60}}>|\d{{1,2}}\$){_OPTIONS}{_LENGTH}[A-Za-z@]"
    r"|%<PRI[A-Za-z]\w{0,12}>",
    "printf": rf"(?<!\d)(?<!(?<![%$])\d\s)%{_OPTIONS}{_LENGTH}(?:[doxXucsSp@]|[ieEfFgGaAnC]{_NO_LETTER})",
    "percent sign": "%%",
    "date": rf"(?<![\d%])%(?:[EO_^]|-(?=[dmHIMSjekl]))?[A-Za-z]{_NO_LETTER}",  # strftime
    "Qt, KDE": r"(?<![\d%])%(?:L\d\d?|[1-9])%?(?![\d%]|[.,]\d)",
    "Windows, Symfony": rf"(?<!{IDENTIFIER}|%)%[A-Za-z_]{IDENTIFIER}{{0,60}}(?:[.\-]{IDENTIFIER}{{1,60}}){{0,5}}%"
    rf"(?!{IDENTIFIER}|%)",
    "Drupal": rf"(?<![.+\-@/%$#])(?<!{IDENTIFIER})@[A-Za-z][A-Za-z\d_]{{1,60}}(?:[/\-][A-Za-z\d_]{{1,60}}){{0,3}}"
    rf"(?!{IDENTIFIER})",  # also @user, @a/b
    "Drupal, LibreOffice": rf"(?<!{IDENTIFIER}|%)(?<!(?<![%$])\d\s)%(?:[A-Z][A-Z\d_]{{2,60}}|{_NAME})"
    rf"(?!{IDENTIFIER}|%)",
    "Apple": r"%(?:\d{1,2}\$)?#@\w{1,60}@",  # of a .stringsdict; %arg is of a string catalog
    "Boost": r"%\|[^|%\s]{1,20}\|",
    "subtitles": r"\{\\[a-z\d][^{}\n]{0,80}\}|(?:\d{1,3}:)?\d\d:\d\d[.,]\d{3} --> (?:\d{1,3}:)?\d\d:\d\d[.,]\d{3}"
    r"(?: [A-Za-z]\w{0,20}:[\w.,%\-]{0,30}[\w%]){0,9}|<(?:\d{1,3}:)?\d\d:\d\d\.\d{3}>",
    "variable": rf"(?<!{IDENTIFIER}|\$)\$"
    rf"(?:[A-Za-z_]{IDENTIFIER}{{0,60}}(?:\([^()\n]{{1,200}}\))?|\(\w{{1,60}}\))",  # $t(key) is of i18next
    "React": r"</?\d{1,3} ?/?>",
    "ERB, EJS": r"<%[^<>\n]{1,200}%>",
    "PHP": r"<\?=[^<>\n]{1,200}\?>",
    "pictograph": rf"{_PICTOGRAPH}(?:{_PICTOGRAPH}|[\u200d\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f])*+"
    r"|[\d#*]\ufe0f?\u20e3",
    "wiki": r"!?\[\[[^\[\]\n]{1,200}\]\]",
    "underscores": rf"(?<!{IDENTIFIER})__(?=[^\W_]){IDENTIFIER}{{1,60}}?(?<=[^\W_])__(?!{IDENTIFIER})",
}
"""Patterns of what is kept, by where it comes from"""
PICTOGRAPH = re.compile(FORMATS["pictograph"])
"""Pattern for what is kept, but does no harm where a translation has it for (c) or ->"""
MESSAGE = re.compile(r"\{\s?[\w.]{1,60}\s?,\s?(?:plural|select(?:ordinal)?|choice)\b")
"""Pattern for the beginning of an ICU message with texts inside, which stay in the language of the source"""
STYLED = re.compile(r"(?<!\d)(?<!(?<!%)\d\s)%(?:[A-KM-Z]\d\d?(?!\d)|[A-Z](?=[A-Z][a-z]))")
"""Pattern for a code of a colour or style, such as %C18, or %B before a capital letter"""
STYLES = re.compile(r"%[A-Z]\d{0,2}|\$(?:\d\d?|[a-z](?![a-z]))")
"""Pattern for the codes and variables of a text that has such a code; elsewhere, $5 is a price"""
NUMBERED = re.compile(r"\$[1-9](?!\d|[.,]\d)")
"""Pattern for the variables of a text that has $1"""
MAY_HAVE = (  # any of them: most lines have nothing of this kind; each branch begins with a sign, so that sre is fast
    re.compile(r"%|\{|\$|@|\u20e3|<[/?\d]|:\S|w(?=[wW]{2}\.)|W(?=[wW]{2}\.)|\[\[|__"),
    re.compile(_PICTOGRAPH),
)
BY_ORDER = re.compile(rf"%{_OPTIONS}(?:{_LENGTH}[diouxXeEfFgGaAcCsSpn@]|<PRI\w{{1,13}}>)|\{{(?::[^{{}}]*)?\}}")
"""Pattern for placeholders that a program fills in by their order: %s, {}"""
