"""What formats have by language: plural forms, and what a template of gettext leaves to be filled in.

The languages and their usual rules come from the Translate Toolkit, which is imported when it is needed.
"""

from __future__ import annotations

import re

from nmt.formats.plurals import numbers_of_forms
from nmt.formats.units import Numbers
from nmt.text.language_codes import Language

_ONE_TWO = "n == 1 ? 0 : n == 2 ? 1 : 2"
_MILLIONS = "n < 2 ? 0 : n % 1000000 == 0 ? 1 : 2"
_ONE_MILLIONS = "n == 1 ? 0 : n && n % 1000000 == 0 ? 1 : 2"
_ZERO_ONE = "n == 0 ? 0 : n == 1 ? 1 : 2"
_ONE_NONE = "n > 1"
_OF_ANDROID = {
    **dict.fromkeys(("fr", "pt"), _MILLIONS),
    **dict.fromkeys(("ca", "es", "it", "lld", "scn", "vec"), _ONE_MILLIONS),
    **dict.fromkeys(("he", "sat", "se"), _ONE_TWO),
    **dict.fromkeys(("blo", "cv", "ksh", "lag"), _ZERO_ONE),
    **dict.fromkeys(("bho", "csw", "doi", "kok", "pcm", "tg"), _ONE_NONE),
    **dict.fromkeys(("ceb", "fil", "tl"), "n%10==4 || n%10==6 || n%10==9"),
    "br": "n%10==1 && n%100!=11 && n%100!=71 && n%100!=91 ? 0 : n%10==2 && n%100!=12 && n%100!=72 && n%100!=92 ? 1"
    " : (n%10==3 || n%10==4 || n%10==9) && n%100/10!=1 && n%100/10!=7 && n%100/10!=9 ? 2 : n && n%1000000==0 ? 3 : 4",
    "cy": "n < 4 ? n : n == 6 ? 4 : 5",
    "is": "n%10!=1 || n%100==11",
    "mk": "n%10!=1 || n%100==11",
    "mr": "n != 1",
    "mt": "n==1 ? 0 : n==2 ? 1 : n==0 || n%100>2 && n%100<11 ? 2 : n%100>10 && n%100<20 ? 3 : 4",
    "prg": "n%10==0 || n%100>10 && n%100<20 ? 0 : n%10==1 ? 1 : 2",
    "pt_PT": _ONE_MILLIONS,
    "shi": "n < 2 ? 0 : n < 11 ? 1 : 2",
    "tzm": "n > 1 && (n < 11 || n > 99)",
}
"""Rules of CLDR for the quantities of languages, in their order, that differ from the forms of gettext"""
_OF_QT = {
    "cy": "n < 2 ? n : n < 6 ? 2 : n == 6 ? 3 : 4",
    "fil": "n < 2 ? 0 : n%10==4 || n%10==6 || n%10==9 ? 1 : 2",
    "lv": "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2",
    "mk": "n%10==1 ? 0 : n%10==2 ? 1 : 2",
}
"""Rules of Qt that differ from those of gettext"""
_BY_COUNT = {1: "0", 2: "n != 1", 3: _ONE_TWO}
"""The usual rule of languages with so many forms"""


def numbers_of_quantities(code: str) -> dict[str, Numbers]:
    """Return the numbers that take each quantity of Android in a language, as far as known; decimals have others."""
    from translate.lang.data import DECIMAL_EXTRA_TAGS, get_cldr_plural_tags

    language = Language.of(code)
    base = language.base
    names = [each for each in get_cldr_plural_tags(base) if each not in DECIMAL_EXTRA_TAGS.get(base, ())]
    rule = _OF_ANDROID.get(language.posix) or _OF_ANDROID.get(base) or _usual_rule(code, len(names))
    if not rule:
        return {}
    return dict(zip(names, numbers_of_forms(len(names), rule), strict=True))


def numbers_of_qt(code: str) -> tuple[Numbers, ...]:
    """Return the numbers that take each plural form that Qt has for a language."""
    from translate.lang.data import qt_plural_tags

    code = known_code(code)
    base = Language.of(code).base
    if base not in qt_plural_tags:
        return numbers_of_forms(*usual_plurals(code))
    count = len(qt_plural_tags[base])
    return numbers_of_forms(count, _OF_QT.get(base) or _usual_rule(code, count))


def _usual_rule(code: str, count: int) -> str:
    """Return the rule of gettext for a language, or the usual one of so many forms if it has another number of them."""
    usual_count, rule = usual_plurals(code)
    if usual_count != count:
        return _BY_COUNT.get(count, "")
    return rule


def usual_plurals(code: str) -> tuple[int, str]:
    """Return the number of plural forms of a language, and their rule in C; those of English if it is unknown."""
    from translate.lang.data import languages

    _, count, rule = languages.get(known_code(code), ("", 2, "n != 1"))
    return int(count), rule


def known_code(code: str) -> str:
    """Return the toolkit's code for a language that it knows; of others, what BCP 47 has."""
    from translate.lang.data import languages

    return Language.of(code).nearest(languages) or Language.of(code).tag


def catalog_of(template: bytes, code: str) -> bytes:
    """Return a template, a .pot, as a catalog of a language: with what its header leaves open."""
    count, rule = usual_plurals(code)
    language = Language.of(code).posix
    for pattern, filled in (
        (rb'^"Language: *(?=\\n")', f'"Language: {language}'),
        (rb"nplurals=INTEGER; plural=EXPRESSION;", f"nplurals={count}; plural={rule};"),
        (rb"charset=CHARSET", "charset=UTF-8"),
    ):
        template = re.sub(pattern, filled.encode(), template, count=1, flags=re.MULTILINE)
    return template
