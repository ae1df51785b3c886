"""Small recipes that tests write, and how loading refuses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nmt.recipe import load
from nmt.system.errors import UserError

RECIPES = Path(__file__).parents[2] / "recipes"

BASE = """\
name: tiny
data:
  source: en
  target: de
  train: [{source: a.en, target: a.de}]
"""  # five lines: what a test adds begins in line 6

PARSER = """\
name: tiny
data:
  source: en
  target: tree
  train: [{trees: a.mrg}]
"""

IMPOSSIBLE = [
    ("decoding: {beam: 0}", "decoding.beam", "0", "greater than or equal to 1"),
    ("decoding: {batch_tokens: 0}", "decoding.batch_tokens", "0", "a whole number from 1 to 1000000000, or auto"),
    ("decoding: {batch_tokens: all}", "decoding.batch_tokens", "'all'", "a whole number from 1 to 1000000000, or auto"),
    ("decoding: {batch_tokens: 2000000000}", "decoding.batch_tokens", "2000000000", "from 1 to 1000000000, or auto"),
    ("decoding: {max_extra: 1000000000}", "decoding.max_extra", "1000000000", "less than or equal to 10000"),
    ("decoding: {max_source: 1000000000}", "decoding.max_source", "1000000000", "less than or equal to 100000"),
    ("decoding: {alpha: 1.0e+300}", "decoding.alpha", "1e+300", "less than or equal to 5"),
    ("decoding: {precision: fp8}", "decoding.precision", "'fp8'", "'auto', 'fp32', 'bf16', 'fp16' or 'int8'"),
    ("decoding: {alpha: -0.1}", "decoding.alpha", "-0.1", "greater than or equal to 0"),
    ("model: {dropout: 1}", "model.dropout", "1", "less than 1"),
    ("model: {norm: mid}", "model.norm", "'mid'", "'post' or 'pre'"),
    ("tokenizer: {algorithm: bp}", "tokenizer.algorithm", "'bp'", "'bpe' or 'unigram'"),
    ("tokenizer: {vocab_size: 260}", "tokenizer.vocab_size", "260", "261"),
    ("training: {warmup: 0}", "training.warmup", "0", "greater than or equal to 1"),
    ("training: {keep_last: 0}", "training.keep_last", "0", "greater than or equal to 1"),
]
"""Lines of a recipe, the key and the value that are refused, and what is allowed."""

Write = Callable[..., Path]


def refusal(path: Path, overrides: Sequence[str] = ()) -> UserError:
    """The error that loading raises, which must be one line of text."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.hint
    return caught.value
