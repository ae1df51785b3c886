"""Names in strings of programs, which stay in every language: options, files, functions, variables, keys."""

_ENDINGS = (
    "txt md rst log conf cfg ini rc list lst dat bin bak tmp lock pid key pem crt asc gpg sig cache theme desktop"
    " service c cc cpp h hpp py js ts css java class jar pl pm rb go rs php lua el sh bat exe dll so patch diff"
    " json xml xsl dtd html htm xhtml svg yml yaml toml csv tsv sql sqlite db po pot mo xliff tmx ui glade"
    " png jpg jpeg gif bmp tif tiff ico webp mp3 mp4 ogg oga ogv wav flac avi mkv mpg mpeg mid midi"
    " zip tar gz tgz bz2 xz zst 7z rar deb rpm iso img pdf ps eps tex doc docx odt ods odp xls xlsx ppt pptx ttf otf"
)
_IN_CAPITALS = "TXT LOG CFG INI BAK TMP EXE BAT DLL HTML XML JSON CSV PNG JPG GIF ZIP ISO PDF DOC DOCX XLS XLSX"
_ENDING = rf"\.(?:{f'{_ENDINGS} {_IN_CAPITALS}'.replace(' ', '|')})(?:\.\d{{1,3}})*"
_PART = r"[\w.~*?\-]+"  # of a path, between two slashes
_NOT_BEHIND = r"(?<![\w.~/*?\-])"
_NO_MARK_AT_END = r"(?<![.?\-])"
_MODIFIER = "Ctrl|CTRL|Control|Alt|AltGr|Shift|Super|Meta|Cmd|Win"

NAMES = {
    "option": r"(?<![\w\-])(?:--[A-Za-z][\w\-]*\w|-[A-Za-z](?![\w\-]))",
    "file": rf"{_NOT_BEHIND}(?:~?/)?(?:{_PART}/)*[\w*][\w.*?\-]*(?:{_ENDING})+(?![\w/\-])",
    "path": rf"{_NOT_BEHIND}(?:~|/{_PART})(?:/{_PART})+/?{_NO_MARK_AT_END}",
    "hidden file": rf"{_NOT_BEHIND}~?/?\.[a-z]\w+(?:/{_PART})*{_NO_MARK_AT_END}",
    "underscores inside": r"(?<!\w)_{0,3}[^\W_]++(?:_{1,3}[^\W_]++)+_{0,3}(?!\w)(?:\(\))?",
    "function": r"(?<![\w.:>])[^\W\d]\w*+(?:(?:\.|::|->)[^\W\d]\w*+)*+\(\)",
    "optparse": r"(?<![\w%])%prog\b",
    "variable": r"(?<![\w$])\$[A-Z][A-Z\d]*(?!\w)",
    "keys": rf"(?<!\w)(?:{_MODIFIER})(?:[+\-](?:F\d{{1,2}}|[A-Z][A-Za-z]*|\d|[^\w\s]))+(?!\w)",
    "Laravel, Drupal": r"(?<![^\s(\"'>])[:!][a-z][a-z\d_]{2,60}(?![\w:(])",
    "function key": r"(?<![\w+\-])F(?:[1-9]|1[0-2])(?!\w)",
}
"""Patterns by what they find: --all, config.ini, /etc/x, .bashrc, MAX_SIZE, main(), $HOME, Ctrl+Q, :count and !link"""
