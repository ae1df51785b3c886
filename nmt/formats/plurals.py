"""Plural forms: which numbers take each, by a catalog's rule, and the number that tells a model which one is wanted.

A model does not see which form of a translation it is asked for. It sees a number in the place of the placeholder for
it: "21 files", "2 files" and "5 files" for the three forms of Ukrainian, both in training and in translating.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub

from nmt.formats.strings import Accelerators, ProgramString, placeholders
from nmt.formats.terms import Phrase, in_order, spaced_like
from nmt.formats.units import Numbers, Unit

MOST_FORMS = 6  # as Arabic has
MOST_CHARACTERS = 1000  # of a rule
SAMPLE = (*range(201), 1_000, 1_000_000)  # numbers, of which some take each form of any language
_TOKEN = re.compile(r"\s*(\d+|n|\|\||&&|[=!<>]=|[-+*/%<>!?:()])")
_OPERATORS: Sequence[Mapping[str, Callable[[int, int], int]]] = (
    {"||": lambda left, right: left != 0 or right != 0},
    {"&&": lambda left, right: left != 0 and right != 0},
    {"==": eq, "!=": ne},
    {"<": lt, ">": gt, "<=": le, ">=": ge},
    {"+": add, "-": sub},
    {"*": mul, "/": floordiv, "%": mod},
)
"""Operators of C that rules have, those that bind weakest first"""
_INTEGER = re.compile(r"%(?:\(\w+\)|<\w+>|\d\$)?[-+ #0']*\d*(?:hh?|ll?|[jtzqL]|I64)?[diun]")
_FIRST = re.compile(r"%L?1|\{0\}")  # first argument in Qt and KDE, or in C#
_COUNT = re.compile(r"@count|%count%?|%\(count\)s|[%$]?\{\{? ?count ?\}?\}")  # Drupal, Symfony, Python, Ruby, i18next
_ONLY = re.compile(r"%(?:\d\$|\(\w+\))?s|\{\w*\}")  # for any value: it is for the number if there is no other

Rule = Callable[[int], int]
"""Function that returns which form a number takes"""


@lru_cache(maxsize=64)
def numbers_of_forms(count: int, expression: str) -> tuple[Numbers, ...]:
    """Return the numbers that take each form, by a rule in the C of gettext's headers.

    Raise ValueError if it is no such rule.
    """
    if not 0 < count <= MOST_FORMS:
        raise ValueError(f"it has {count} plural forms")
    try:
        rule = _Parser(expression).rule()
        numbers: defaultdict[int, list[int]] = defaultdict(list)  # by their forms
        for number in SAMPLE:
            numbers[int(rule(number))].append(number)
    except (ValueError, ZeroDivisionError, RecursionError):
        raise ValueError(f"no rule for plural forms: {expression.strip()[:60]!r}") from None
    return tuple(frozenset(numbers[form]) for form in range(count))


class _Parser:
    """A parser of rules, by recursive descent; nothing but operators on numbers can come out."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(expression)
        if "".join(self._tokens) != "".join(expression.split()) or len(expression) > MOST_CHARACTERS:
            raise ValueError
        self._tokens.reverse()

    def rule(self) -> Rule:
        """Return the rule."""
        rule = self._conditional()
        if self._tokens:
            raise ValueError
        return rule

    def _accept(self, *expected: str) -> str:
        """Take the next token and return it if it is an expected one; else return an empty text."""
        if not self._tokens or self._tokens[-1] not in expected:
            return ""
        return self._tokens.pop()

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise ValueError

    def _conditional(self) -> Rule:
        condition = self._binary(0)
        if not self._accept("?"):
            return condition
        then = self._conditional()
        self._expect(":")
        otherwise = self._conditional()
        return lambda n: then(n) if condition(n) else otherwise(n)

    def _binary(self, level: int) -> Rule:
        if level == len(_OPERATORS):
            return self._unary()
        result = self._binary(level + 1)
        operator = self._accept(*_OPERATORS[level])
        while operator:
            result = _applied(_OPERATORS[level][operator], result, self._binary(level + 1))
            operator = self._accept(*_OPERATORS[level])
        return result

    def _unary(self) -> Rule:
        if self._accept("!"):
            negated = self._unary()
            return lambda n: not negated(n)
        if self._accept("("):
            inner = self._conditional()
            self._expect(")")
            return inner
        if self._accept("n"):
            return lambda n: n
        if not self._tokens:
            raise ValueError
        constant = int(self._tokens.pop())
        return lambda n: constant


def _applied(operator: Callable[[int, int], int], left: Rule, right: Rule) -> Rule:
    return lambda n: operator(left(n), right(n))


def telling_number(numbers: Numbers) -> int | None:
    """Return the number that stands for a form: the smallest above 1 that takes it, else 1, else 0, else None."""
    above_one = [number for number in numbers if number > 1]
    if above_one:
        return min(above_one)
    return max(numbers, default=None)


def forms_for(unit: Unit, other: Unit) -> list[int]:
    """Return for each form of a unit the form of another version of it that takes the same numbers."""
    places = []
    for form in range(len(unit.sources)):
        place = form
        if unit.numbers and unit.numbers != other.numbers:
            number = telling_number(unit.numbers[form])
            takers = [each for each, numbers in enumerate(other.numbers) if number in numbers]
            place = takers[0] if takers else form
        places.append(place)
    return places


def number_placeholder(text: str) -> str:
    """Return the placeholder for the number that a text depends on; an empty one if there is none, or several may be.

    It is the only one for integers, else the one named `count`, else the first argument (`%1`), else the only one.
    """
    found = placeholders(text)
    for pattern in (_INTEGER, _COUNT, _FIRST):
        of_kind = [each for each in found if pattern.fullmatch(each)]
        if of_kind:
            return of_kind[0] if len(of_kind) == 1 else ""
    if len(found) == 1 and _ONLY.fullmatch(found[0]):
        return found[0]
    return ""


def fits_all(numbers: Numbers, source: str, plural: str) -> bool:
    """Return whether a source fits all numbers of a form: "One file" fits 1 alone if others are "%d files"."""
    return len(numbers) == 1 or number_placeholder(source) == number_placeholder(plural)


def with_number(text: str, numbers: Numbers) -> str:
    """Return a text with a form's number in place of the placeholder; an empty one if that cannot be undone.

    "%d files" becomes "2 files" for the plural of English.
    """
    number = telling_number(numbers)
    placeholder = number_placeholder(text)
    if number is None or not placeholder or text.count(placeholder) > 1 or _digits(number).search(text):
        return ""
    if len(numbers) == 1 and _ONLY.fullmatch(placeholder):  # of "One file in %s"
        return ""
    told = text.replace(placeholder, str(number))
    if len(_digits(number).findall(told)) != 1:
        return ""
    return told


def pair_with_number(source: str, target: str, numbers: Numbers) -> tuple[str, str]:
    """Return both texts of a form with its number in place of the placeholder; as they are if one has no such place.

    "One file" may be translated with a placeholder, in whose place its only number stands.
    """
    told_source = with_number(source, numbers)
    told_target = with_number(target, numbers)
    if told_target and len(numbers) == 1 and not number_placeholder(source):
        told_source = source
    if not told_source or not told_target:
        return source, target
    return told_source, told_target


@cache
def _digits(number: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\d)(?<!\d[.,]){number}(?![.,]?\d)")


class PluralString(ProgramString):
    """The string of a plural form, which is searched for with the form's number and, should that get lost, without."""

    def __init__(
        self,
        text: str,
        numbers: Numbers,
        accelerators: Accelerators,
        punctuation: Callable[[str], str] = str,
        may_wrap: bool = True,
    ) -> None:
        """Take a string apart that stands for these numbers; see `ProgramString`."""
        super().__init__(text, accelerators, punctuation, may_wrap)
        self._number = telling_number(numbers)
        self._told = ProgramString(with_number(self.body, numbers), Accelerators(()), may_wrap=may_wrap)
        self._untold = self.texts
        self.texts = [*self._told.texts, *self._untold]

    def used(self, translations: Mapping[str, str]) -> Sequence[str]:
        """Return those of `texts` whose translations the string is made of."""
        if self._put_back(self._told.laid_out(translations)):
            return self._told.texts
        return self._untold

    def put(self, translations: Mapping[str, str]) -> str:
        """Return the string with translations of its texts, by the one with the number if that works; else empty."""
        return self._put_back(self._told.laid_out(translations)) or super().put(translations)

    def _put_back(self, told: str) -> str:
        """Return the string with a translation in which the placeholder is where the number is.

        It is empty unless the number is there exactly once.
        """
        if not told or self._number is None:
            return ""
        placeholder = number_placeholder(self.body)
        text, count = _digits(self._number).subn(lambda _: placeholder, told)
        kept = Phrase(placeholder, (placeholder,), self.body.find(placeholder), kept=True)
        text = spaced_like(text, self.body, [kept])
        if count != 1 or in_order(text, placeholders(self.body)) != text:
            return ""
        return self.dressed(text)
