"""Headers of gettext's catalogs: the plural forms of a language, and what a template leaves to be filled in."""

from __future__ import annotations

import re

from nmt.text.language_codes import Language


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
