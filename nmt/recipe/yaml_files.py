"""Recipes as plain values: reading and writing YAML, applying --set, and recording the origin of each value.

This module knows no recipe keys or types. Errors name the file and line.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.system.errors import UserError
from nmt.system.files import is_utf8, not_read

MOST_CHARACTERS = 1_000_000  # in a file
MOST_VALUES = 10_000  # in a file; a few lines of nested aliases can expand to billions
MOST_LEVELS = 20
NOT_YAML = (yaml.YAMLError, ValueError, AttributeError, RecursionError)
"""Exceptions that PyYAML raises for invalid text"""
Tree = dict[str, Any]
Origins = dict[tuple[str, ...], str]
"""Map from a key's path to the `file:line` or --set that gave it"""


class Loader(yaml.SafeLoader):
    """YAML loader with the scalars of version 1.2: `no` is a string, not false; 1e-9 is a number, 1:30 is not.

    Tags are refused: `!!merge` can expand a few lines to billions of values, and an empty `!!int` crashes PyYAML.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a key or value; raise ConstructorError for a tag."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag:
            problem = f"recipes have no tags, such as {tag}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _whole = re.compile(f"^(?:{_pattern})$")
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, list(_first))


class Dumper(yaml.SafeDumper):
    """YAML dumper that quotes any string that `Loader` would not read as a string."""


Dumper.yaml_implicit_resolvers = dict(yaml.SafeDumper.yaml_implicit_resolvers)
for _first_character, _resolvers in Loader.yaml_implicit_resolvers.items():
    _usual = Dumper.yaml_implicit_resolvers.get(_first_character, [])
    Dumper.yaml_implicit_resolvers[_first_character] = [*_usual, *_resolvers]


def dump(values: Mapping[str, Any]) -> str:
    """Return values as YAML that `read_file` reads back."""
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_file(path: Path, named_by: str = "") -> tuple[Tree, Origins]:
    """Return one file's values and their origins; raise UserError if it is missing or is not a recipe.

    `named_by` is what asks for it, for the error if it is missing.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except FileNotFoundError:
        asking = f"{named_by}: " if named_by else ""
        raise UserError(f"{asking}{path}: no such recipe", _known_recipes(path)) from None
    except OSError as error:
        raise not_read(path, error, "name a recipe that you may read") from None
    except UnicodeDecodeError as error:
        problem = f"{path}: is not text in UTF-8: byte {error.start + 1:,}"
        raise UserError(problem, "save the recipe as text in UTF-8, not UTF-16 or another encoding") from None
    tree, origins = read_text(text, str(path))
    if not isinstance(tree, dict | None):
        problem = f"{path}: a recipe is a mapping of sections, this is a {type(tree).__name__}"
        raise UserError(problem, "begin with a line such as name: my_model; recipes/ holds examples")
    return tree or {}, origins


def read_text(text: str, name: str) -> tuple[Any, Origins]:
    """Return a YAML text's value and origins; raise UserError, citing `name`, if it is invalid or too large."""
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{name}: has more than {MOST_CHARACTERS:,} characters", "remove what is not a key of a recipe")
    try:
        tree, node = _parse(text)
    except NOT_YAML as error:
        problem = _format_error(error)
        hint = "correct it there, or take another copy"
        if r"'\t'" in problem:
            hint = "indent lines with spaces, not with tabs"
        raise UserError(f"{name}{problem}", hint) from None
    return tree, _locate(node, name)


def _parse(text: str) -> tuple[Any, yaml.Node]:
    """Parse YAML; return its value and its root node. Raise one of NOT_YAML if it is invalid."""
    loader = Loader(text)  # a SafeLoader: plain values only
    nothing = yaml.ScalarNode("tag:yaml.org,2002:null", "")
    node = loader.get_single_node() or nothing
    return loader.construct_document(node), node


def _format_error(error: Exception) -> str:
    """Format a parser error, with its line if known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f":{error.problem_mark.line + 1}: not valid YAML: {error.problem}"
    return f": not valid YAML: {' '.join(str(error).split())}"


def _locate(node: yaml.Node, file: str, path: tuple[str, ...] = (), found: Origins | None = None) -> Origins:
    """Add the file and line of each key below `node`, the value at key `path`, to `found`; return `found`.

    Raise UserError for too many values, deep nesting, or a duplicate key, which YAML would accept silently.
    """
    if found is None:
        found = {}
    if len(path) > MOST_LEVELS or len(found) > MOST_VALUES:
        problem = f"nested too deeply, or more than {MOST_VALUES:,} values, each alias counted as what it stands for"
        raise UserError(f"{file}: {problem}", "remove what is not a key of a recipe")
    items: list[tuple[str, yaml.Node, yaml.Node]] = []  # name, node that has its line, value
    if isinstance(node, yaml.MappingNode):
        items = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        items = [(str(index), item, item) for index, item in enumerate(node.value)]
    for name, marked, value in items:
        key = (*path, name)
        line = marked.start_mark.line + 1
        if key in found:
            _, _, earlier = found[key].rpartition(":")
            dotted = ".".join(key)
            problem = f"{file}:{line}: {dotted}: is already in line {earlier}"
            raise UserError(problem, "keep one of the two, with what belongs to both")
        found[key] = f"{file}:{line}"
        _locate(value, file, key, found)
    return found


def override(tree: Tree, origins: Origins, setting: str) -> None:
    """Apply a `section.key=value` setting, whose value is YAML; raise UserError if it is malformed."""
    key, equals, text = setting.partition("=")
    parts = tuple(key.strip().split("."))
    shown = setting if len(setting) <= 200 else f"{setting[:200]}…"
    if not is_utf8(setting):
        problem = f"--set {shown}: has bytes that are not UTF-8, or that are beyond ASCII in a locale that has no more"
        raise UserError(problem, "give names in UTF-8, and take a locale of it: export LC_ALL=C.UTF-8")
    if not equals or not all(parts):
        raise UserError(f"--set {shown}: must be section.key=value", "write it like --set training.updates=2000")
    try:
        value, node = _parse(text)
    except NOT_YAML:
        raise UserError(f"--set {shown}: the value is not valid YAML", "quote it: --set 'name=\"a: b\"'") from None
    _locate(node, f"--set {shown}", parts)
    for depth, part in enumerate(parts[:-1], 1):
        if part not in tree:
            origins[parts[:depth]] = f"--set {setting}"
        child = tree.setdefault(part, {})
        if not isinstance(child, dict):
            whole = ".".join(parts[:depth])
            raise UserError(f"--set {shown}: {whole} has no keys", f"set all of it: --set '{whole}=VALUE'")
        tree = child
    tree[parts[-1]] = value
    for path in list(origins):  # the value replaced, and the keys in it
        if path[: len(parts)] == parts:
            del origins[path]
    origins[parts] = f"--set {setting}"


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with nmt by name, such as `laptop` and `table3/big`."""
    installed = Path(__file__).parents[1] / "recipes"
    folder = installed
    if not installed.is_dir():
        folder = installed.parents[1] / "recipes"  # beside nmt/ in a clone
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder).with_suffix("")
        found[name.as_posix()] = path
    return found


def find_recipe(path: Path, name: str) -> Path:
    """Return `path` if it is a file, else the path of nmt's recipe `name`, or `path` if there is none."""
    if os.path.lexists(path) and not path.is_dir():
        return path
    return shipped_recipes().get(name, path)


def _known_recipes(path: Path) -> str:
    """Return a hint that names similar recipes beside `path` or, if there are none, those that come with nmt."""
    found = sorted(other.name for other in path.parent.glob("*.yaml"))
    near = difflib.get_close_matches(path.name, found, n=3, cutoff=0.5)
    if near:
        return f"name a recipe that is in {path.parent}: {', '.join(near)}"
    folder = "table3" if path.parent.name == "table3" else ""
    shipped = [name for name in shipped_recipes() if name.rpartition("/")[0] == folder]
    examples = ", ".join(found[:3]) or "my.yaml"
    return f"name a file, such as {examples}, or a recipe that comes with nmt: {', '.join(shipped)}"
