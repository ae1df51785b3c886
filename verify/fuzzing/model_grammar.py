"""Files of models and of runs that are almost whole: manifests, weights, vocabularies, and what training records."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from mistakes import as_json, damaged, mistaken
from recipe_grammar import DATA
from strategies import ATOMS

# --- files of models ---------------------------------------------------------------------------------------------

_COUNT = st.integers(0, 30) | st.sampled_from([2**31, 2**63 - 1])
_FIGURE = st.floats(0, 1e30) | _COUNT
_RATIO = st.floats(0, 9)
_LENGTHS = {
    **dict.fromkeys(("sentences", "usual_sentences", "source", "longest_source"), st.integers(0, 2**31)),
    **dict.fromkeys(("least_ratio", "greatest_ratio"), _RATIO),
}
_INFO = {
    "format": st.just(1),
    "task": st.sampled_from(["translate", "parse", "score"]),
    "run": st.text(max_size=3),
    "step": st.sampled_from([3, 3, 3, 0, 2**63 - 1]),
    "data": st.text(max_size=3),
}
_MORE = {
    "scores": st.dictionaries(st.sampled_from(["chrf", "bleu", "f1", "perplexity"]), st.floats()),
    "signature": st.text(max_size=3),
    "signatures": st.dictionaries(st.sampled_from(["chrf", "bleu"]), st.text(max_size=3)),
    "steps": st.lists(_COUNT, max_size=2),
    "curve": st.lists(st.fixed_dictionaries({"last": _COUNT, "bleu": st.floats()}), max_size=2),
    "lengths": st.fixed_dictionaries({"language": st.sampled_from(["en", "xx", ""]), **_LENGTHS}),
    "cost": st.fixed_dictionaries(
        {"flops": _FIGURE, "estimated_flops": st.none()},
        optional={"seconds": _FIGURE, "devices": st.dictionaries(st.just("1 × CPU"), _FIGURE)},
    ),
    "lossy": st.booleans(),
    "without_improvement": _COUNT,
}
MANIFESTS = damaged(mistaken(st.fixed_dictionaries(_INFO, optional=_MORE), most=1).map(as_json), share=12)
_POSITION = dict.fromkeys(("skipped", "device_tokens", "tokens"), st.integers(0, 3))
POSITIONS = damaged(
    mistaken(
        st.fixed_dictionaries({"step": st.just(3), "epoch": _COUNT, "offset": _COUNT}, optional=_POSITION), most=1
    ).map(as_json),
    share=12,
)
_NAMES = st.lists(ATOMS, min_size=1, max_size=4, unique=True)
_SYMBOLS = {
    "tags": st.just([]) | _NAMES,
    "labels": _NAMES,
    "longest_run": st.integers(1, 10**9),
    "punctuation": st.dictionaries(st.text(max_size=2), st.sampled_from([".", "-NONE-", "PU", "XX"]), max_size=2),
    "complete": st.booleans(),
    "ambiguous": st.just([]) | _NAMES,
}
TREE_VOCABULARIES = damaged(mistaken(st.fixed_dictionaries(_SYMBOLS), most=1).map(as_json), share=12)


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    """Number and value of the fields of a protocol buffer, of which those of a SentencePiece model are bytes."""
    found, at = [], 0
    while at < len(message):
        number, at, size, shift = message[at] >> 3, at + 1, 0, 0
        while True:
            byte, at = message[at], at + 1
            size, shift = size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        found.append((number, message[at : at + size]))
        at += size
    return found


def _message(fields: list[tuple[int, bytes]]) -> bytes:
    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    return b"".join(bytes([number << 3 | 2]) + varint(len(value)) + value for number, value in fields)


def _piece(text: str, score: float, kind: int) -> bytes:
    return _message([(1, text.encode())]) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])


PIECES = st.builds(
    _piece,
    st.sampled_from(["\u2581", "\u2581the", "e", "\u2581\u2581", "</s>", "<0x41>", "", "日", "\ufdd0"])
    | st.text(max_size=3),
    st.sampled_from([0.0, -1.0, float("nan"), float("-inf"), 1e38]),
    st.sampled_from([1, 1, 1, 2, 3, 4, 5, 6, 7]),
)


@st.composite
def tokenizers(draw: DrawFn, models: SearchStrategy[bytes]) -> bytes:
    """SentencePiece models in which a few pieces, none of them bytes, are others, or are missing or more."""
    fields = _fields(draw(models))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(260, len(fields) - 1))
        kind = draw(st.sampled_from(["other", "other", "more", "missing"]))
        fields[at : at + (kind != "more")] = [] if kind == "missing" else [(1, draw(PIECES))]
    return _message(fields)


@st.composite
def _tensors(draw: DrawFn) -> bytes:
    """A .safetensors file, whose header may lie."""
    header, at = {}, 0
    for name in draw(st.lists(st.sampled_from(["a", "b", "a.weight", ""]), max_size=3, unique=True)):
        kind, size = draw(
            st.sampled_from([("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8), ("I64", 8), ("F8_E4M3", 1)])
        )
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        end = at + size * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = as_json(draw(mistaken(st.just(header), most=1)))
    length = draw(st.sampled_from([len(text)] * 30 + [len(text) - 1, 2**40, 2**63, 0]))
    filling = draw(st.sampled_from([b"\0", b"\0", b"\x01", b"\x7f", b"\xff"]))
    return struct.pack("<Q", length) + text + filling * at


TENSORS = damaged(_tensors(), share=5)

# --- what a run has recorded -------------------------------------------------------------------------------------

_STEP = {"step": st.sampled_from([0, 10, 20, 30]), "seconds": _FIGURE, "tokens": _COUNT}
_LOGGED = st.fixed_dictionaries(
    _STEP | {"learning_rate": st.floats()}, optional=dict.fromkeys(("epoch", "loss", "padding"), _FIGURE)
)
_SCORED = st.fixed_dictionaries(
    _STEP, optional=dict.fromkeys(("valid_chrf", "valid_bleu", "valid_perplexity", "valid_f1"), st.floats())
)
METRICS = damaged(
    st.lists(mistaken(_LOGGED | _SCORED, most=1).map(as_json), max_size=6).map(
        lambda rows: b"".join(row + b"\n" for row in rows)
    ),
    (b"\n", b"null\n", b"{}\n", b'{"step": 1e400}\n', b'{"step": 1, "step": 2}\n'),
)
_HEAD = {"step": 0, "sources": ["a", "b"], "references": ["c", "d"]}
_OUTPUTS = {"step": 10, "outputs": ["e", "f"], "scores": [1.5, 100.0]}
SAMPLES = damaged(
    st.tuples(
        mistaken(st.just(_HEAD), most=1),
        st.lists(mistaken(st.sampled_from([_OUTPUTS, {**_OUTPUTS, "step": 20}]), most=1), max_size=4),
    ).map(lambda found: b"".join(as_json(values) + b"\n" for values in (found[0], *found[1]))),
    (b"\n", b'{"step": 30, '),
)
_SPLIT = {"read": 5, "kept": 4, "kept by set": [4], "lengths": {"source": {"8": 4}}, "mean": 2.5}
ABOUT = {"parameters": 1000, "base": {"name": "b", "data": DATA[0]}, "data": {"train": _SPLIT, "valid": _SPLIT}}
RECORDED = st.tuples(METRICS, SAMPLES, damaged(mistaken(st.just(ABOUT)).map(as_json), share=8), MANIFESTS)
"""metrics.jsonl, dev.jsonl and run.json of a run, and the bundle.json of a checkpoint."""
