"""Chunks of pairs to ids, in threads."""

from __future__ import annotations

from pathlib import Path

from nmt.data.corpus import Chunk, PairEncoder, encode_chunks
from nmt.parsing.linearization import TreeVocabulary
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import Vocabulary


def vocabularies(given: Path) -> tuple[Vocabulary | TreeVocabulary, ...]:
    tokenizer = Tokenizer.load(given)
    return tokenizer.source, tokenizer.target


def test_chunks_come_in_order_whichever_is_ready_first(given: Path) -> None:
    encoder = PairEncoder(vocabularies(given), 256, 9.0, frozenset(), keep_all=False)
    sizes = [400, 1, 300, 1, 1, 200]
    chunks = [Chunk(n, 1, [("q " * size, "q " * size)] * size) for n, size in enumerate(sizes)]
    assert [(chunk.dataset, chunk.read) for chunk in encode_chunks(encoder, chunks, 3)] == list(enumerate(sizes))
