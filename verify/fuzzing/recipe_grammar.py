"""Recipes that are almost valid, by their JSON Schema, so that new keys are among them; and settings of --set."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from mistakes import JUNK, damaged, mistaken

from nmt.recipe import json_schema
from nmt.recipe.yaml_files import dump

_SCHEMA = json_schema()
SPLINTERS = (
    b"&a ",
    b"*a",
    b"&a [*a]",
    b"<<: *a",
    b"!!int ",
    b"!!python/tuple ",
    b"---\n",
    b"\t",
    b": ",
    b"- ",
    b"? ",
    b"#",
    b"{",
)
"""What means something in YAML."""
DATA: list[dict[str, Any]] = [
    {"source": "en", "target": "de", "train": [{"source": "a.en", "target": "a.de"}]},
    {"source": "en", "target": "de", "train": [{"file": "a.jsonl.gz", "fields": ["x", "y"], "weight": 1.5}]},
    {"source": "en", "target": "de", "train": [{"hub": "wmt/wmt14", "config": "de-en", "split": "test"}]},
    {"source": "en", "target": "de", "train": [{"sacrebleu": "wmt14"}], "valid": [{"file": "v.tsv"}]},
    {"source": "en", "target": "tree", "train": [{"trees": "wsj/0[2-9]"}], "pos_tags": True},
    {"target": "de", "train": [{"target": "a.de"}], "test": [{"file": "t.parquet"}]},
]


def _value(field: dict[str, Any]) -> SearchStrategy[Any]:
    """A value of a key by its JSON Schema, near the least that is allowed, so that keys of a section go together."""
    if "anyOf" in field:
        return st.one_of([_value(option) for option in field["anyOf"]])
    if "enum" in field or "const" in field:
        return st.sampled_from(field.get("enum", [field.get("const")]))
    least, most = field.get("minimum", field.get("exclusiveMinimum", 0)), field.get("maximum", 2**31)
    kinds: dict[str, SearchStrategy[Any]] = {
        "integer": st.sampled_from([least, least + 1, least + 3, 4 * least + 4, 512]).filter(lambda n: n <= most),
        "number": st.sampled_from([least + 0.5, min(most, 1), 0.3, 0.99]).filter(lambda x: least < x <= most),
        "boolean": st.booleans(),
        "null": st.none(),
        "array": st.just([0.9, 0.98]),
        "string": st.sampled_from(["a", "a.b", "path/x"]),
    }
    return kinds[field["type"]]


def _keys(name: str) -> dict[str, dict[str, Any]]:
    """The JSON Schema of the keys of a section."""
    kind = _SCHEMA["properties"][name]["$ref"].rpartition("/")[2]
    return dict(_SCHEMA["$defs"][kind]["properties"])


def section(name: str) -> SearchStrategy[dict[str, Any]]:
    """Up to three keys of a section of a recipe."""
    keys = _keys(name)
    entry = st.sampled_from(sorted(keys)).flatmap(lambda key: st.tuples(st.just(key), _value(keys[key])))
    return st.lists(entry, max_size=3).map(dict)


SECTIONS = ("tokenizer", "model", "training", "decoding")
VALUES = st.fixed_dictionaries(
    {"name": st.just("a"), "data": st.sampled_from(DATA)}, optional={name: section(name) for name in SECTIONS}
)
"""The plain values of recipes, most of which are valid."""
BASES = st.fixed_dictionaries({}, optional={"name": st.just("b"), **{name: section(name) for name in SECTIONS}})


def as_yaml(values: Any) -> bytes:
    """YAML of any plain values, in one style or in the other."""
    with_anchors = yaml.safe_dump(values, allow_unicode=True, default_flow_style=True) if values else "{}"
    text = dump(values) if isinstance(values, dict) and len(values) % 2 else with_anchors
    return text.encode("utf-8", errors="replace")


@st.composite
def _recipes(draw: DrawFn) -> tuple[bytes, bytes | None]:
    base = draw(st.none() | damaged(mistaken(BASES, most=1).map(as_yaml), SPLINTERS, share=12))
    extends = {} if base is None else {"extends": "base.yaml"}
    own = mistaken(VALUES).map(lambda values: as_yaml(extends | values if isinstance(values, dict) else values))
    return draw(damaged(own, SPLINTERS, share=6)), base


RECIPES = _recipes()
"""A recipe, and perhaps one that it extends."""

_KEYS = [(name, key) for name in SECTIONS for key in sorted(_keys(name))]


@st.composite
def _setting(draw: DrawFn) -> str:
    name, key = draw(st.sampled_from([*_KEYS, ("data", "root"), ("data", "train"), ("data", "name"), ("name", "x")]))
    right = _value(_keys(name)[key]) if (name, key) in _KEYS else st.just("a")
    value = draw(st.sampled_from([*[right] * 6, JUNK]).flatmap(lambda kind: kind))
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()
    form = draw(
        st.sampled_from(
            [
                *["{name}.{key}={text}"] * 6,
                "{name}={text}",
                "{key}={text}",
                "{name}.{key}.{key}={text}",
                "{name}.{key}=&a [*a]",
            ]
        )
    )
    return str(form.format(name=name, key=key, text=text))


_ANY = st.text("a.=[]{}:&*!'\"\n ", max_size=12)
SETTINGS = st.lists(st.sampled_from([*[_setting()] * 9, _ANY]).flatmap(lambda kind: kind), min_size=1, max_size=3)
