"""Training data that is almost as it must be: columns, JSON, trees, tables of terms, Parquet and Arrow files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from mistakes import as_json, damaged, mistaken
from strategies import CONTENT, TREES

from nmt.data.corpus import SCHEMA

# --- lines of text -----------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    ["Hund", "a dog", "", " ", "%s", "{name}", "https://x.org/a.", "ß", "日本", "x@y.org", "\x85", "\u202e"]
)


def lines(*columns: SearchStrategy[str], between: str = "\t") -> SearchStrategy[bytes]:
    """Lines of columns."""
    row = st.tuples(*columns).map(between.join)
    return st.lists(row, max_size=6).map(lambda rows: "\n".join(rows).encode("utf-8", errors="surrogatepass"))


TSV = damaged(lines(_WORDS, _WORDS, _WORDS) | lines(_WORDS, _WORDS), (b"\t", b"\r\n", b"\xff"))
TERMS = damaged(
    lines(_WORDS.filter(str.strip), _WORDS.filter(str.strip))
    | lines(_WORDS.filter(str.strip), _WORDS.filter(str.strip), st.sampled_from(["", "case", "Case"])),
    (b"\t", b"case", b"\xff"),
    share=6,
)
TEXTS = st.lists(_WORDS | st.sampled_from([" ", "s", "Hunde", "hund"]), max_size=8).map("".join)
"""Texts in which terms may stand."""
RECORDS = st.lists(
    mistaken(
        st.sampled_from(
            [{"en": "a", "de": "b"}, {"translation": {"en": "a", "de": "b", "fr": None}}, {"en": "é\n", "de": None}]
        ),
        most=1,
    ),
    min_size=1,
    max_size=4,
)
_CELLS = _WORDS | _WORDS.map('"{}"'.format)
CSV = damaged(
    lines(_CELLS, _CELLS, between=",") | lines(_CELLS, _CELLS, _CELLS, between=","), (b",", b";", b'"', b"\r")
)
JSON_LINES = damaged(
    RECORDS.map(lambda rows: b"\n".join(map(as_json, rows))), (b"\n", b'"\\ud800"', b"[" * 2000), share=6
)


def _archive(texts: dict[str, bytes], method: int) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text, method)
    return sink.getvalue()


ARCHIVES = damaged(
    st.builds(
        _archive,
        st.dictionaries(st.sampled_from(["a.en", "a.de", "../b.de", "README", "c.en/"]), CONTENT)
        | st.fixed_dictionaries({"a.en": CONTENT, "a.de": CONTENT}),
        st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2]),
    ),
    (b"PK\1\2", b"\xff\xff\xff\xff", b"\x01\x00"),
    share=2,
)
_SPACES = st.sampled_from([" ", "\n", "  ", "\r\n", "\n\n", "\n# a comment (\n", "\n*x* \n"])
BRACKETS = damaged(
    st.lists(st.tuples(TREES, _SPACES), max_size=4).map(
        lambda found: "".join(f"{t}{space}" for t, space in found).encode()
    ),
    (b"(", b")", b" ", b"(S ", b"()", b"\xef\xbb\xbf"),
)
VECTORS = damaged(
    lines(
        st.sampled_from(["a", "cat", "\u2581cat", "t", "dog", ""]),
        *[st.sampled_from(["0", "-1.5", "1e3"] * 5 + ["-0.0", "nan", "1e39", "x"])] * 2,
        between=" ",
    ).map(lambda content: b"3 2\n" + content),
    share=4,
)

# --- prepared data -----------------------------------------------------------------------------------------------

_IDS = st.lists(st.lists(st.integers(4, 300), max_size=5), min_size=1, max_size=4)


@st.composite
def _splits(draw: DrawFn) -> bytes:
    """A split of prepared data in several record batches; its columns may be of the wrong type, or lack."""
    wanted = draw(st.sampled_from([SCHEMA, SCHEMA, SCHEMA.remove(0)]))
    types = {field.name: field.type for field in wanted}
    if draw(st.integers(1, 6)) == 1:
        name = draw(st.sampled_from(sorted(types)))
        types[name] = draw(
            st.sampled_from([None, pa.string(), pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.int32()])
        )
    schema = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(draw(st.integers(0, 3))):
            rows = draw(_IDS)
            columns = [_column(rows, field.type) for field in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(sink.getvalue())


def _column(rows: list[list[int]], kind: pa.DataType) -> pa.Array:
    made: Callable[[list[int]], Any] = list if pa.types.is_nested(kind) else str if pa.types.is_string(kind) else len
    return pa.array([made(row) for row in rows], kind)


SPLITS = damaged(_splits(), share=2)


def _text(value: object) -> str | None:
    return None if value is None else str(value).encode(errors="replace").decode()


def _parquet(rows: list[Any]) -> bytes:
    sink = io.BytesIO()
    kept = [row for row in rows if isinstance(row, dict)] or [{"en": "a", "de": "b"}]
    columns = {_text(key): [_text(row.get(key)) for row in kept] for row in kept for key in row}
    pyarrow.parquet.write_table(
        pa.table({name or "": pa.array(texts, pa.string()) for name, texts in columns.items()}), sink
    )
    return sink.getvalue()


PARQUETS = damaged(RECORDS.map(_parquet), share=2)
