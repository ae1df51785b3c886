"""Folders in the layout of OPUS-MT's models on the Hugging Face hub: small, random, and made without transformers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

Ids = dict[str, int]


def train_spm(texts: Iterable[str], size: int) -> bytes:
    """A SentencePiece model of at most `size` pieces as OPUS-MT has them: unigrams, NFKC, and no bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(spm: bytes) -> list[str]:
    """The pieces of a SentencePiece model without its three control symbols."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(spm)
    return [processor.id_to_piece(index) for index in range(3, processor.get_piece_size())]


def laid_out(pieces: Sequence[str], languages: Sequence[str] = ()) -> Ids:
    """vocab.json as OPUS-MT has it: `</s>`, `<unk>`, languages to translate into, pieces, and `<pad>` at the end."""
    codes = [f">>{language}<<" for language in languages]
    return {piece: index for index, piece in enumerate(["</s>", "<unk>", *codes, *dict.fromkeys(pieces), "<pad>"])}


def write_tokenizer(
    folder: Path, source: Sequence[str], target: Sequence[str], size: int, separate: bool = False, **config: Any
) -> tuple[int, int]:
    """Writes the files of a tokenizer that is trained on these texts; returns the sizes of the vocabularies."""
    folder.mkdir(parents=True, exist_ok=True)
    spms = [train_spm(texts, size) for texts in (source, target)]
    for name, spm in zip(("source.spm", "target.spm"), spms, strict=True):
        (folder / name).write_bytes(spm)
    pieces = [pieces_of(spm) for spm in spms]
    tables = [laid_out(side) for side in pieces] if separate else [laid_out(pieces[0] + pieces[1], ("deu", "fra"))]
    for name, table in zip(("vocab.json", "target_vocab.json"), tables, strict=False):
        (folder / name).write_text(json.dumps(table, ensure_ascii=False, indent=2), encoding="utf-8")
    config = {"source_lang": "en", "target_lang": "de", **({"separate_vocabs": True} if separate else {}), **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return len(tables[0]), len(tables[-1])
