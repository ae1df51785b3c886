"""Folders in the layout of OPUS-MT's models on the Hugging Face hub: small, random, and made without transformers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file

Ids = dict[str, int]


def train_spm(texts: Iterable[str], size: int, kind: str = "unigram") -> bytes:
    """A SentencePiece model of at most `size` pieces as OPUS-MT has them: unigrams, NFKC, and no bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
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


def write_model(folder: Path, sizes: tuple[int, int], separate: bool = False, seed: int = 0, **changes: Any) -> None:
    """Writes the config.json and the random weights of a small model; `sizes` are those of the vocabularies."""
    config = {
        "model_type": "marian",
        "vocab_size": sizes[0],
        "decoder_vocab_size": sizes[1],
        "share_encoder_decoder_embeddings": not separate,
        "d_model": 16,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "static_position_embeddings": True,
        "normalize_before": False,
        "pad_token_id": min(sizes) - 1,
        "eos_token_id": 0,
        "decoder_start_token_id": sizes[1] - 1,
        "num_beams": 2,
        "dropout": 0.1,
    }
    for side, layers in (("encoder", 2), ("decoder", 1)):
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
    config |= changes
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in _shapes(config)}
    for name in tensors:
        if "norm.weight" in name:
            tensors[name] += 1.0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of all weights, tied ones once."""
    width, rows = config["d_model"], (config["vocab_size"], config["decoder_vocab_size"])
    linear = {f"{part}_proj": (width, width) for part in ("q", "k", "v", "out")}
    for side in ("encoder", "decoder"):
        attentions = ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]
        for at in (f"model.{side}.layers.{index}" for index in range(config[f"{side}_layers"])):
            inner = config[f"{side}_ffn_dim"]
            matrices = {f"{name}.{part}": shape for name in attentions for part, shape in linear.items()}
            for name, shape in {**matrices, "fc1": (inner, width), "fc2": (width, inner)}.items():
                yield from ((f"{at}.{name}.weight", shape), (f"{at}.{name}.bias", shape[:1]))
            for norm in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
                yield from ((f"{at}.{norm}.{kind}", (width,)) for kind in ("weight", "bias"))
        if config["model_type"] != "marian":
            yield from ((f"model.{side}.layer_norm.{kind}", (width,)) for kind in ("weight", "bias"))
    if config["share_encoder_decoder_embeddings"]:
        yield "model.shared.weight", (rows[0], width)
    else:
        yield "model.encoder.embed_tokens.weight", (rows[0], width)
        yield "model.decoder.embed_tokens.weight", (rows[1], width)
    if not config.get("tie_word_embeddings", True):
        yield "lm_head.weight", (rows[1], width)
    if config["model_type"] != "m2m_100":
        yield "final_logits_bias", (1, rows[1])


def write_m2m(folder: Path, texts: Sequence[str], is_nllb: bool, size: int = 120, **changes: Any) -> None:
    """Writes a small random model in the layout of M2M-100 or NLLB-200, with two or three rows without a name."""
    folder.mkdir(parents=True, exist_ok=True)
    spm = train_spm(texts, size, "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(spm)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(spm)]
    if not is_nllb:
        table = {piece: index for index, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    rows = len(pieces) + (202 + 1 + 2 if is_nllb else 100 + 3)
    controls = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "bos_token_id": 0}
    kind: dict[str, Any] = {"model_type": "m2m_100", "activation_function": "relu", **controls}
    write_model(folder, (rows, rows), **kind, **changes)


def as_added(name: str, tokens: Ids) -> str:
    """The content of a file of this name in which transformers lists added tokens by their ids."""
    rows = [{"id": index, "content": token, "special": False} for token, index in tokens.items()]
    listed: dict[str, Any] = {
        "tokenizer_config.json": {"added_tokens_decoder": {str(row["id"]): row for row in rows}},
        "added_tokens.json": tokens,
        "tokenizer.json": {"version": "1.0", "added_tokens": rows, "model": {"type": "BPE", "vocab": {}}},
    }
    return json.dumps(listed[name], indent=2)
