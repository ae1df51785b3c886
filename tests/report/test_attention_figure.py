"""The figure of attention: which lines it has, and text that must not break it."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from nmt.report.attention_figure import COLOURS, FAINTEST, figure

from nmt.search.attention import Attention, Kind, Tokens

SVG = "{http://www.w3.org/2000/svg}"


def tokens(*words: str) -> Tokens:
    """A token for each word."""
    return Tokens(list(words), list(words), list(range(len(words))), " ".join(words))


def attention(source: Tokens, read: Tokens, written: Tokens, layers: int = 2, heads: int = 3) -> Attention:
    """Random weights between these tokens."""
    draw = np.random.default_rng(1)

    def weights(queries: Tokens, keys: Tokens) -> np.ndarray:
        found = draw.random((layers, heads, len(queries.tokens), len(keys.tokens))).astype(np.float32) ** 6
        return found / found.sum(-1, keepdims=True)

    return Attention(source, read, written, weights(source, source), weights(written, read), weights(written, source))


PAIR = attention(tokens("the", "cat", "</s>"), tokens("<s>", "die", "Katze"), tokens("die", "Katze", "</s>"))


def test_every_weight_is_a_line_of_its_opacity_from_query_to_key() -> None:
    root = ElementTree.fromstring(figure(PAIR, "cross", 1, [0, 2]))
    groups = root.findall(f"{SVG}g")
    assert [group.get("stroke") for group in groups] == [COLOURS[0], COLOURS[2]]
    for head, group in zip((0, 2), groups, strict=True):
        lines = group.findall(f"{SVG}line")
        weights = [weight for weight in PAIR.cross[1, head].ravel() if weight >= FAINTEST]
        assert 0 < len(weights) < 9
        assert [float(line.get("stroke-opacity", "")) for line in lines] == pytest.approx(weights, abs=0.005)
        assert all(float(line.get("y1", "")) < float(line.get("y2", "")) for line in lines)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("encoder", ["the", "cat", "</s>", "the", "cat", "</s>"]),
        ("decoder", ["die", "Katze", "</s>", "<s>", "die", "Katze"]),
        ("cross", ["die", "Katze", "</s>", "the", "cat", "</s>"]),
    ],
)
def test_words_that_attend_stand_above_those_that_are_attended_to(kind: Kind, words: list[str]) -> None:
    root = ElementTree.fromstring(figure(PAIR, kind, 0, [1]))
    texts = root.findall(f"{SVG}text")
    assert [text.text for text in texts[1:]] == words
    assert all("rotate(-90)" in text.get("transform", "") for text in texts[1:])


def test_any_text_gives_well_formed_xml() -> None:
    words = tokens("<script>", "a&b", '"', "\x00\x1b", "\ufffe\ud800", "猫" * 9)
    root = ElementTree.fromstring(figure(attention(words, words, words, heads=20), "encoder", 0, list(range(20))))
    texts = [text.text for text in root.findall(f"{SVG}text")][-6:]
    assert texts == ["<script>", "a&b", '"', "\ufffd\ufffd", "\ufffd\ufffd", "猫" * 9]
    assert len({group.get("stroke") for group in root.findall(f"{SVG}g")}) == len(COLOURS)
