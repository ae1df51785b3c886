"""What nmt_kernels.h declares: constants, structures and prototypes, so that Python restates none of them."""

from __future__ import annotations

import re
from ctypes import Structure, c_float, c_int8, c_int32, c_int64, c_uint8, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HEADER = Path(__file__).with_name("native") / "nmt_kernels.h"
NUMBERS: dict[str, Any] = {
    "int8_t": c_int8,
    "uint8_t": c_uint8,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "float": c_float,
}

Prototype = tuple[Any, list[Any]]
"""The types of a function's result, None for void, and of its parameters"""
Members = list[tuple[str, Any]]


class Declared(NamedTuple):
    """What the header declares."""

    constants: dict[str, int]
    """By name without NMT_"""
    members: dict[str, Members]
    """Of each structure, in order; of a flexible array, the type of an element"""
    flexible: set[str]
    """Structures whose last member is an array of any length"""
    prototypes: dict[str, Prototype]


@cache
def declared() -> Declared:
    """Read the header."""
    source = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = Declared({}, {}, set(), {})
    for name, number, shift in re.findall(r"^#define NMT_(\w+) \(?(\d+)(?: << (\d+)\))?\s*$", source, re.MULTILINE):
        found.constants[name] = int(number) << int(shift or 0)
    for body, name in re.findall(r"^typedef struct \{([^}]*)\} (\w+);", source, re.MULTILINE):
        _declare_structure(found, name, body)
    for declaration in re.findall(r"^EXPORTED ([^;]*);", source, re.MULTILINE):
        parts = re.fullmatch(r"(\w+) (\w+)\(([^()]*)\)", declaration)
        assert parts, declaration
        result, name, parameters = parts.groups()
        given = [] if parameters == "void" else parameters.split(",")
        found.prototypes[name] = NUMBERS.get(result), [_parameter(each) for each in given]
    return found


def _parameter(declaration: str) -> Any:
    if "*" in declaration:
        return c_void_p
    return NUMBERS[declaration.split()[0]]


def _declare_structure(found: Declared, name: str, body: str) -> None:
    members: Members = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        parts = re.fullmatch(r"(?:const )?(\w+) ([^;]*)", declaration)
        assert parts, declaration
        kind, declarators = parts.groups()
        for declarator in declarators.split(","):
            of_member = re.fullmatch(r"\s*(\*?)(\w+)(?:\[(\d*)\])?", declarator)
            assert of_member, declarator
            star, member, length = of_member.groups()
            of_kind = c_void_p if star else _type(found, kind)
            if length:
                of_kind *= int(length)
            if length == "":
                found.flexible.add(name)
            members.append((member, of_kind))
    found.members[name] = members


def _type(found: Declared, kind: str) -> Any:
    if kind in NUMBERS:
        return NUMBERS[kind]
    return _made(kind, tuple(found.members[kind]))


@cache
def _made(name: str, members: tuple[tuple[str, Any], ...]) -> type[Structure]:
    # Without slots, a misspelt member would become an attribute that C never sees.
    return type(name, (Structure,), {"_fields_": list(members), "__slots__": ()})


@cache
def structure(name: str, length: int | None = None) -> type[Structure]:
    """Return a structure's type, whose members have the names of the header; pointers are addresses or None.

    `length` is the number of elements of a flexible array at its end, and None if it has none.
    """
    found = declared()
    members = found.members[name]
    assert (name in found.flexible) == (length is not None), name
    if length is not None:
        member, element = members[-1]
        members = [*members[:-1], (member, element * length)]
    return _made(name, tuple(members))


def constant(name: str) -> int:
    """Return NMT_`name`."""
    return declared().constants[name]
