"""Small random models of Marian, written without it, and what Marian's source code says that they compute."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Any]
SETTINGS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": 16,
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": 2,
    "transformer-dim-ffn": 24,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-depth-scaling": True,
    "transformer-tied-layers": [],
    "tied-embeddings-all": True,
    "input-types": [],
    "version": "v1.12.0 65bf82ff 2023-02-21 09:56:29 -0800",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
    "transformer-ffn-activation": "relu",
}


def train_vocabulary(texts: Sequence[str], size: int, **options: Any) -> bytes:
    """A SentencePiece model as Marian trains it: `</s>` is 0, `<unk>` 1, and there is no `<s>`."""
    model = io.BytesIO()
    options = {"bos_id": -1, "eos_id": 0, "unk_id": 1, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, **options
    )
    return model.getvalue()


def size_of(spm: bytes) -> int:
    """The number of its pieces."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(spm)
    return int(processor.get_piece_size())


def write_model(folder: Path, vocabularies: Sequence[bytes], seed: int = 0, **changes: Any) -> Arrays:
    """Write model.npz, decoder.yml and one or two vocabularies; keywords change the settings. Return the arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["vocab.spm"] if len(vocabularies) == 1 else ["source.spm", "target.spm"]
    for name, content in zip(names, vocabularies, strict=True):
        (folder / name).write_bytes(content)
    sizes = [size_of(content) for content in vocabularies]
    settings = SETTINGS | {"dim-vocabs": [sizes[0], sizes[-1]]} | changes
    decoder: dict[str, Any] = {
        "models": ["/home/somebody/model.npz"],
        "vocabs": [f"/home/{names[0]}", f"/home/{names[-1]}"],
    }
    decoder |= {"beam-size": 3, "normalize": 0.5, "word-penalty": 0.1, "max-length-factor": 2}
    (folder / "model.npz.decoder.yml").write_text(json.dumps(decoder))  # JSON is YAML
    draw = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in _shapes(settings):
        arrays[name] = (draw.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        if "_ln_scale" in name:
            arrays[name] += 1.0
    write_arrays(folder / "model.npz", arrays, settings)
    return arrays


def write_arrays(path: Path | IO[bytes], arrays: Arrays, settings: dict[str, Any] | bytes) -> None:
    """Write an archive with these arrays and settings."""
    text = settings if isinstance(settings, bytes) else json.dumps(settings).encode()
    every: dict[str, Any] = {**arrays, "special:model.yml": np.frombuffer(text + b"\0", np.int8)}
    np.savez(path, **every)


def _shapes(settings: dict[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    width, inner = settings["dim-emb"], settings["transformer-dim-ffn"]
    source, target = settings["dim-vocabs"]
    place = "_pre" if settings["transformer-preprocess"] else ""

    def norm(name: str, place: str) -> Iterator[tuple[str, tuple[int, int]]]:
        yield f"{name}_ln_scale{place}", (1, width)
        yield f"{name}_ln_bias{place}", (1, width)

    for side, depth in (("encoder", settings["enc-depth"]), ("decoder", settings["dec-depth"])):
        for layer in range(1, depth + 1):
            for part in ("self", "context") if side == "decoder" else ("self",):
                for kind in "qkvo":
                    yield f"{side}_l{layer}_{part}_W{kind}", (width, width)
                    yield f"{side}_l{layer}_{part}_b{kind}", (1, width)
                yield from norm(f"{side}_l{layer}_{part}_Wo", place)
            for number, shape in ((1, (width, inner)), (2, (inner, width))):
                yield f"{side}_l{layer}_ffn_W{number}", shape
                yield f"{side}_l{layer}_ffn_b{number}", (1, shape[1])
            yield from norm(f"{side}_l{layer}_ffn_ffn", place)
        if settings["transformer-postprocess-top"]:
            yield from norm(f"{side}_top", "")
    if settings.get("tied-embeddings-all") or settings.get("tied-embeddings-src"):
        yield "Wemb", (source, width)
    else:
        yield "encoder_Wemb", (source, width)
        yield "decoder_Wemb", (target, width)
    if not (settings.get("tied-embeddings-all") or settings.get("tied-embeddings")):
        yield (
            ("decoder_ff_logit_out_W", (width, target))
            if settings.get("legacy")
            else (
                "decoder_ff_logit_out_Wt",
                (target, width),
            )
        )
    if not settings.get("output-omit-bias"):
        yield "decoder_ff_logit_out_b", (1, target)


def logits(arrays: Arrays, settings: dict[str, Any], source: Sequence[int], target: Sequence[int]) -> Array:
    """(target length + 1, vocabulary): of every next symbol, as in src/models/transformer.h of Marian."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    width, heads = settings["dim-emb"], settings["transformer-heads"]
    pre = settings["transformer-preprocess"]

    def embedded(table: Array, ids: Sequence[int | None]) -> Array:
        scales = np.exp(np.arange(width // 2) * -(math.log(10000) / (width // 2 - 1)))
        angles = np.arange(len(ids))[:, None] * scales
        words = np.array([np.zeros(width) if index is None else table[index] for index in ids])
        found: Array = words * math.sqrt(width) + np.concatenate((np.sin(angles), np.cos(angles)), 1)
        return found

    def norm(x: Array, name: str, place: str = "") -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        found: Array = scaled * w[f"{name}_ln_scale{place}"] + w[f"{name}_ln_bias{place}"]
        return found

    def before(x: Array, name: str) -> Array:
        return norm(x, name, "_pre") if pre else x

    def after(x: Array, y: Array, name: str) -> Array:
        return x + y if pre else norm(x + y, name)

    def attention(x: Array, others: Array | None, name: str, causal: bool) -> Array:
        y = before(x, f"{name}_Wo")
        keys = y if others is None else others
        q, k, v = (
            each @ w[f"{name}_W{kind}"] + w[f"{name}_b{kind}"] for each, kind in ((y, "q"), (keys, "k"), (keys, "v"))
        )
        mixed = []
        for h in np.split(np.arange(width), heads):
            scores = q[:, h] @ k[:, h].T / math.sqrt(len(h))
            if causal:
                scores -= 1e8 * np.triu(np.ones_like(scores), 1)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, h])
        return after(x, np.concatenate(mixed, 1) @ w[f"{name}_Wo"] + w[f"{name}_bo"], f"{name}_Wo")

    def feed_forward(x: Array, name: str) -> Array:
        y = before(x, f"{name}_ffn") @ w[f"{name}_W1"] + w[f"{name}_b1"]
        y = np.maximum(y, 0) if settings["transformer-ffn-activation"] == "relu" else y / (1 + np.exp(-y))
        return after(x, y @ w[f"{name}_W2"] + w[f"{name}_b2"], f"{name}_ffn")

    def top(x: Array, side: str) -> Array:
        return norm(x, f"{side}_top") if settings["transformer-postprocess-top"] else x

    shared = w.get("Wemb")
    memory = embedded(w["encoder_Wemb"] if shared is None else shared, source)
    for layer in range(1, settings["enc-depth"] + 1):
        memory = attention(memory, None, f"encoder_l{layer}_self", causal=False)
        memory = feed_forward(memory, f"encoder_l{layer}_ffn")
    memory = top(memory, "encoder")
    targets = w["decoder_Wemb"] if shared is None else shared
    x = embedded(targets, [None, *target])
    for layer in range(1, settings["dec-depth"] + 1):
        x = attention(x, None, f"decoder_l{layer}_self", causal=True)
        x = attention(x, memory, f"decoder_l{layer}_context", causal=False)
        x = feed_forward(x, f"decoder_l{layer}_ffn")
    outputs = w.get(
        "decoder_ff_logit_out_Wt", w["decoder_ff_logit_out_W"].T if "decoder_ff_logit_out_W" in w else targets
    )
    found: Array = top(x, "decoder") @ outputs.T + w.get("decoder_ff_logit_out_b", 0.0)
    return found
