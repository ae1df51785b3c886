"""Names of programs, which stay in every language: options, files, functions, variables, keys."""

import re

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

NAMES = {
    "option": rf"(?<!{IDENTIFIER}|[\-/.)%])(?<!{IDENTIFIER}[(\"'”’])(?!{_DIALOGUE}|{_ASIDE})"
    rf"(?:--(?:[a-z]|[A-Z](?![a-z]))(?:{IDENTIFIER}|-)*{IDENTIFIER}|-[A-Za-z](?!{IDENTIFIER}|-|['’]\w))",
    "file": rf"{_NOT_BEHIND}(?!{_ABBREVIATION})(?:~?/)?(?:{_PART}/)*(?!{_NO_LIBRARY})(?:{IDENTIFIER}|\*)"
    rf"(?:{IDENTIFIER}|\.(?!\.)|[*?\-])*(?:{_ENDING})+(?!{IDENTIFIER}|[/\-]|['’]\w\w)",
    "path": rf"{_NOT_BEHIND}(?:~|/{_PART})(?:/{_PART})+/?{_NO_MARK_AT_END}",
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
}
"""Patterns by what they find: --all, config.ini, /etc/x, .bashrc, MAX_SIZE, main(), $HOME, C++, Ctrl+Q, :count"""
MAY_HAVE_NAMES = re.compile(
    rf"-(?<!{IDENTIFIER}-)|-(?=[^\w\s]|[A-Z\d])|\+|\.[A-Za-z7]|/|_|\(\)|%p|\$|:[a-z]|![a-z]|[CF](?=\#)|F(?<!{IDENTIFIER}F)\d"
)
"""Pattern for what any text with a name has, and most lines lack; a search is fast if each branch begins with a letter
or sign, not with a class"""
