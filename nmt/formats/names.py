"""Names and numbers that stay in most languages: of options, files, keys, domains, versions, machines, telephones.

A translator may write them otherwise, unlike placeholders: Strg+Q, another telephone number.
"""

import re
from itertools import chain

from nmt.formats.placeholders import IN_URL, URL_END
from nmt.text.scripts import IDENTIFIER, UNCASED_RANGES

_ENDINGS = (
    "txt md rst log conf cfg ini rc list lst dat bin bak tmp lock pid key pem crt asc gpg sig cache theme desktop"
    " service c cc cpp h hpp py js ts css java class jar pl pm rb go rs php lua el sh bat exe dll so patch diff"
    " json xml xsl dtd html htm xhtml svg yml yaml toml csv tsv sql sqlite db po pot mo xliff tmx ui glade"
    " png jpg jpeg gif bmp tif tiff ico webp mp3 mp4 ogg oga ogv wav flac avi mkv mpg mpeg mid midi"
    " zip tar gz tgz bz2 xz zst 7z rar deb rpm iso img pdf ps eps tex doc docx odt ods odp xls xlsx ppt pptx ttf otf"
)
_IN_CAPITALS = "TXT LOG CFG INI BAK TMP EXE BAT DLL HTML XML JSON CSV PNG JPG GIF ZIP ISO PDF DOC DOCX XLS XLSX"
_ENDING = rf"\.(?:{f'{_ENDINGS} {_IN_CAPITALS}'.replace(' ', '|')})(?:\.\d{{1,3}})*"
_PART = rf"(?:{IDENTIFIER}|[.~*?\-])+"  # of a path, between two slashes
_NOT_BEHIND = rf"(?<!{IDENTIFIER}|[.~/*?\-])"
_NO_MARK_AT_END = r"(?<![.?\-])"
_UNMARKED = rf"(?:[^\W_](?<![{UNCASED_RANGES}]))"
_FIRST = rf"(?:[^\W\d](?<![{UNCASED_RANGES}]))"
_NO_LIBRARY = r"(?!lib)[^\W\d_]+\.so(?= \w)"  # I am tired.so I sleep
_ABBREVIATION = r"(?:[^\W\d_]\.)+[ch]\."  # d.h., Dr. h.c.
_ASIDE = r"--(?:[^-]|-(?!-)){1,200}(?<=\w)--(?![\w-])"  # he --as always-- left
_HALF_OF_A_WORD = r"(?!Ctrl)[A-Z][a-z]+-[^\w\s]"  # Super-, Mega- und Alt-/Neubauten
_OF_ALL_GENDERS = rf"[A-ZÄÖÜ][a-zäöüß]+_in(?:nen)?(?!{IDENTIFIER})"  # as German writes it: Lehrer_in
_DIALOGUE = r"(?:(?<!.)|(?<=[.!?…\"“”«»] ))-[AEIOUYÀÉ],? \w"  # -I am here. -Y yo.
_EXCLAMATION = rf"![^!]*!(?!{IDENTIFIER})"  # !hola amigo!
_MODIFIER = "Ctrl|CTRL|Control|Alt|AltGr|Shift|Super|Meta|Cmd|Win"
_KEY = (
    r"F\d{1,2}|[A-Z]|\d|[^\w\s]|Tab|Enter|Return|Esc|Escape|Del|Delete|Ins|Insert|Space|Backspace|Home|End|Arrow"
    r"|Page(?:Up|Down)|PgUp|PgDn|Up|Down|Left|Right|Print|Pause|Break|Click|Drag|Scroll"
)

_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = r"[\dA-Fa-f]"
_NO_NUMBER_BEFORE = rf"(?<!{IDENTIFIER}|[.,\-])"
_NO_NUMBER_BEHIND = rf"(?!{IDENTIFIER}|-|[.,]\d)"
_THOUSANDS = r"\d{1,3}(?:\.\d{3})+(?!\d|\.\d)"  # 1.000.000
_DATE = r"(?:0?[1-9]|[12]\d|3[01])\.(?:0?[1-9]|1[0-2])\.(?:1\d|20)\d\d(?!\d|\.\d)"  # 30.11.2026

_SCALES = (  # of East and South Asia: 3 million are 300万, and 1 million is 10 lakh
    "[百千万萬亿億兆백천만억조]|[Ll]akh|[Cc]rore|लाख|करोड़|अरब|লাখ|লক্ষ|কোটি|لاکھ|کروڑ|ร้อย|พัน|หมื่น|แสน"
)
_MILLIONS = (  # what becomes one of these; with the number alone, 150 million would be 150百万
    r"[MmBb]il(?:l[io]|[ijh])|[Tt]ril|mille|mil(?!\w)|[Tt]hous|[Tt]aus|[Mm](?:rd|ld|ln|io)(?!\w)|тыс|мил|млн|млрд"
)


def plain_number(digits: str) -> str:
    """Return the pattern for a number alone: not of 1,000, 10:30, 2-3, 1st or 3万, which others write otherwise."""
    return (
        rf"(?<!{IDENTIFIER}|[.,:/#°+’'\-])(?<!\d )(?:{digits})"
        rf"(?!{IDENTIFIER}|[/:°’'\-]|[.,]\d| \d| ?(?:{_SCALES}))"
    )


NAMES = {
    "option": rf"(?<!{IDENTIFIER}|[\-/.)%])(?<!{IDENTIFIER}[(\"'”’])(?!{_DIALOGUE}|{_ASIDE})"
    rf"(?:--(?:[a-z]|[A-Z](?![a-z]))(?:{IDENTIFIER}|-)*{IDENTIFIER}|-[A-Za-z](?!{IDENTIFIER}|-|['’]\w))",
    "file": rf"{_NOT_BEHIND}(?!{_ABBREVIATION})(?:~?/)?(?:{_PART}/)*(?!{_NO_LIBRARY})(?:{IDENTIFIER}|\*)"
    rf"(?:{IDENTIFIER}|\.(?!\.)|[*?\-])*(?:{_ENDING})+(?!{IDENTIFIER}|[/\-]|['’]\w\w)",
    "path": rf"{_NOT_BEHIND}(?:~|/{_PART})(?:/{_PART})+/?{_NO_MARK_AT_END}",
    "path of Windows": rf"(?<!{IDENTIFIER}|[\\:%])(?!.:\\[nrt](?!{IDENTIFIER}))"
    rf"(?:[A-Za-z]:\\{{1,2}}|(?:\\\\{_PART}|HKEY_[A-Z_]{{2,30}}|HK[CLU][MRU]?|%[A-Z]{{2,30}}%)(?=\\+\w))"
    rf"(?:\\{{0,2}}{_PART}(?: (?:and )?(?!HK)(?:(?=[A-Z\d]){_PART}|\(x86\))){{0,3}}(?=\\))*"
    rf"(?:\\{{0,2}}{_PART})?\\{{0,2}}{_NO_MARK_AT_END}",  # strings of programs have two backslashes for one
    "hidden file": rf"{_NOT_BEHIND}~?/?\.[a-z]{IDENTIFIER}+(?:/{_PART})*{_NO_MARK_AT_END}",
    "underscores inside": rf"(?<!{IDENTIFIER})(?!{_OF_ALL_GENDERS})"
    rf"_{{0,3}}{_UNMARKED}++(?:_{{1,3}}{_UNMARKED}++)+_{{0,3}}(?!{IDENTIFIER})(?:\(\))?",
    "function": rf"(?<!{IDENTIFIER}|[.:>]){_FIRST}{IDENTIFIER}*+(?:(?:\.|::|->){_FIRST}{IDENTIFIER}*+)*+\(\)",
    "language": rf"(?<!{IDENTIFIER})(?:C\+\+|[CF]\#)(?!{IDENTIFIER})",
    "optparse": rf"(?<!{IDENTIFIER}|%)%prog(?!{IDENTIFIER})",
    "variable": rf"(?<!{IDENTIFIER}|\$)\$[A-Z][A-Z\d]*(?!{IDENTIFIER})",
    "keys": rf"(?<!{IDENTIFIER})(?!{_HALF_OF_A_WORD})(?:{_MODIFIER})(?:[+\-](?:{_MODIFIER})){{0,4}}"
    rf"(?:[+\-](?:{_KEY})|\+[A-Z][A-Za-z]*){{1,4}}(?!{IDENTIFIER})",
    "Laravel, Drupal": rf"(?<![^\s(\"'>{UNCASED_RANGES}])(?!{_EXCLAMATION})"
    rf"[:!][a-z][a-z\d_]{{2,60}}(?!{IDENTIFIER}|[:(])",
    "function key": rf"(?<!{IDENTIFIER}|[+\-])F(?:[1-9]|1[0-2])(?!{IDENTIFIER})",
    "domain": rf"(?<!{IDENTIFIER}|[.@/\-])(?:[A-Za-z\d][A-Za-z\d\-]{{0,62}}\.){{1,5}}"
    rf"(?:(?:com|org|net|edu|gov)(?:\.[a-z]{{2}})?|(?:co|ac)\.[a-z]{{2}})(?!{IDENTIFIER}|[-@]|\.[A-Za-z\d])"
    rf"(?:[/:?#](?:{IN_URL})*(?:{URL_END}))?",
    "version": rf"{_NO_NUMBER_BEFORE}(?!{_THOUSANDS}|{_DATE})v?\d{{1,5}}(?:\.\d{{1,8}}){{2,5}}"
    rf"(?:[-~+.]?(?:alpha|beta|rc|pre|dev|post)[.\d]{{0,8}}(?<!\.))?{_NO_NUMBER_BEHIND}",
    "address of a machine": rf"{_NO_NUMBER_BEFORE}(?:{_BYTE}\.){{3}}{_BYTE}(?:[:/]\d{{1,5}})?{_NO_NUMBER_BEHIND}"
    rf"|(?<!{IDENTIFIER}|:)(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?!{IDENTIFIER}|:)"
    rf"|(?<!{IDENTIFIER})0x{_HEX}{{1,16}}(?!{IDENTIFIER})"
    rf"|(?<!{IDENTIFIER}|-){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?!{IDENTIFIER}|-)",
    # 300 may become a word, and digits of other scripts become these
    "number": plain_number("[0-9]{1,8}(?!00)[0-9][0-9]") + rf"(?! (?:{_MILLIONS}))",
    "note": rf"(?<![(\[\]])\[\d{{1,4}}\](?!{IDENTIFIER}|[(\[])|(?<=[\w\s.,!?…\"”»])\(\d{{1,4}}\)(?=[.!?…]?$)",
    "telephone, ISBN": rf"(?<!\+){_NO_NUMBER_BEFORE}(?:"
    r"\+(?=(?:[ .\-/()]{0,2}\d){7})\d{1,3}(?:[ .\-/]?(?:\(\d{1,5}\)|\d{1,12})){1,6}"
    r"|\((?:0\d{1,4}|\d{3})\)[ \-]?(?:\d{2,5}(?:[ \-]\d{2,5}){1,4}|\d{5,10})"
    r"|\d{3}-\d{3}-\d{4}|97[89](?:[ \-]\d{1,7}){3}[ \-]\d"
    rf"){_NO_NUMBER_BEHIND}",
    "emoticon": r"(?<!\S)(?:[:;][\-'^]?[)(DPpOo|/\\*]{1,5}|=[)(DP]|<3|\^\^|[xX]D)(?![^\s.,!?…)])",
    "hashtag": rf"(?<!{IDENTIFIER}|[#&/])#(?:[^\W\d](?<![{UNCASED_RANGES}]){IDENTIFIER}{{1,60}}|{_HEX}{{6}})"
    rf"(?!{IDENTIFIER}|#)",
    "code": rf"(?<!{IDENTIFIER}|[`\\])(?:``[^`\s](?:[^`\n]{{0,200}}[^`\s])?``(?!`)"
    r"|`[^`\s](?:[^`\n]{0,200}[^`\s])?`(?!`)_{0,2})",
    "reStructuredText": rf"(?<!{IDENTIFIER}|[`\\:]):[A-Za-z][\w:+.\-]{{0,60}}:`[^`\n]{{1,200}}`"
    r"|\[(?:\d{1,3}|#\w{0,40}|\*|[A-Z]\w{1,20})\]_(?!\w)"
    r"|(?<![^\s(])\|[A-Za-z][\w.\-]{0,40}\|_{0,2}(?![^\s.,;:!?)])",
    "escape": r"(?<!\\)\\(?:n|[rt](?![a-z]))",
    "choice": r"[(\[][A-Za-z](?:/[A-Za-z]){1,5}[)\]]",
    "kinds of files": r"\(\*(?:\.\w{1,9}(?:[ ,;]{1,2}\*\.\w{1,9}){0,30})?\)",  # (*.png *.jpg)
}
"""Patterns by what they find: --all, config.ini, /etc/x, .bashrc, MAX_SIZE, main(), $HOME, C++, Ctrl+Q, :count, x.org,
1.2.3, :-), `code`, :ref:`page`, [1]_, |name|, [y/N]"""
MAY_HAVE_NAMES = re.compile(
    rf"-(?<!{IDENTIFIER}-)|-(?=[^\w\s]|[A-Z\d])|\+|\.[A-Za-z7]|/|_|\(\)|%p|\$|:[a-z]|![a-z]|[CF](?=\#)|F(?<!{IDENTIFIER}F)\d"
    r"|\.(?=\d+\.\d)|0(?=x)|-(?=[\da-f]{3,4}-)|\((?=\d)|\[(?=\d)|9(?=7[89][ -])|#(?=\w)|:(?=[\dA-F][\dA-Fa-f]:)"
    r"|`|\\(?=[\w\\])|\](?=_)|\|(?=[A-Za-z])|\*(?<=\(\*)"
    r"|:(?=[\-'^)(DPpOo|/\\*])|;(?=[\-'^)(DPpOo])|=(?=[)(DP])|<(?=3)|\^(?=\^)|D(?<=[xX]D)|\d(?<=\d\d\d)"
)
"""Pattern for what any text with a name has, and most lines lack; a search is fast if each branch begins with a letter
or sign, not with a class"""
_SIGN_RANGES = (
    *(range(0xA2, 0xA6), range(0xB0, 0xB4), range(0xBC, 0xBF), range(0x2032, 0x2034), range(0x2070, 0x209D)),
    *(range(0x20A0, 0x20C1), range(0x2150, 0x2160), range(0x2200, 0x2300)),
)
SIGNS = "§¬¶·¹×÷‰⁄℃℉№" + "".join(map(chr, chain.from_iterable(_SIGN_RANGES)))
"""Signs of currencies, units and formulas, which are the same in every language"""
NOTHING = r"(?!)"
"""Pattern that matches nowhere"""


def amounts(signs: str) -> str:
    """Return the pattern for some of SIGNS with the numbers, units and letters beside them: £20, 5 €, 30 °C, m²."""
    if not signs:
        return NOTHING
    before = r"(?<![\d.,])\d[\d.,]*[ \u00a0]?|[A-Za-z]{1,3}(?=[¹²³⁰-ₜ])"
    unit, number = r"[CFK](?!\w)", r"\d(?:[\d.,]*\d)?"
    return rf"(?:{before})[{signs}](?:{unit}|{number})?|[{signs}](?:{unit}|[ \u00a0]?{number})?"
