"""Models that nmt does not read: what a folder or file of another program is, and how to get what nmt reads."""

from __future__ import annotations

import os
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from nmt.system.errors import UserError

WHOLE = "model.safetensors"  # the weights that nmt reads
ORIGINAL = f"name the model that it was made from: nmt reads its own bundles, and {WHOLE} of transformers"
SAVING = (
    'python -c "from transformers import AutoModelForSeq2SeqLM as M, AutoTokenizer as T; '
    "M.from_pretrained('{origin}').save_pretrained('{out}', max_shard_size='99GB'); "
    "T.from_pretrained('{origin}').save_pretrained('{out}')\", and then name {out}"
)
MERGING = (
    'python -c "from peft import AutoPeftModelForSeq2SeqLM as M; '
    "M.from_pretrained('{origin}').merge_and_unload().save_pretrained('{out}', max_shard_size='99GB')\", "
    "copy the tokenizer's files of the whole model there, and then name {out}"
)
KINDS = (
    (("adapter_config.json",), "is an adapter, such as LoRA's, and no whole model", MERGING),
    (("*-of-*.safetensors", f"{WHOLE}.index.json"), f"has its weights in several files, and nmt reads {WHOLE}", SAVING),
    (("pytorch_model*.bin",), f"has no {WHOLE}, and nmt does not unpickle pytorch_model.bin", SAVING),
    (("*.gguf",), "is a GGUF model, of llama.cpp", ORIGINAL),
    (("*.argosmodel",), "is a package of Argos Translate", ORIGINAL),
    (
        ("*.npz",),
        "is a model of Marian itself, which nmt reads from a folder",
        "hf download {origin} --local-dir {out}",
    ),
    (("*.intgemm*.bin", "*.intgemm*.bin.gz"), "is a model of Marian in integers, as for Bergamot", ORIGINAL),
    (("model.bin",), "is a model of CTranslate2", ORIGINAL),
    (("*.onnx",), "is an ONNX model", ORIGINAL),
    (("tf_model*.h5", "flax_model*.msgpack"), "has weights of TensorFlow or JAX only", ORIGINAL),
    (("*.pt", "*.pth", "*.ckpt"), "holds pickled weights, and nmt unpickles none", "train anew, on the same data"),
    (("checkpoint-*/config.json",), "holds checkpoints of transformers' Trainer", "name one of them: {found}"),
    (("snapshots/*/config.json",), "is a model in the hub's cache", "name {found}, or hf:ORG/NAME"),
    ((WHOLE,), "holds weights, but no file that says of what model", f"copy bundle.json or config.json beside {WHOLE}"),
    (("tokenizer*.json", "*.spm", "sentencepiece*.model"), "holds a tokenizer without a model", "name the whole model"),
)
"""For each kind of model: patterns of its files' names, what it is, and a hint. The first kind that matches counts"""


def explain(name: str, origin: str, files: Collection[str]) -> UserError | None:
    """Return an error that says what a model of another program is, by the names of its `files`; None if unknown.

    `name` is what the user typed; `origin` is what transformers calls it: a path, or ORG/NAME.
    """
    for patterns, what, hint in KINDS:
        found = [file for file in files if _matches_any(file, patterns)]
        if found:
            place = os.path.join(origin, os.path.dirname(max(found)))
            out = f"{Path(origin).name}-safetensors"
            return UserError(f"{name}: {what}", hint.format(origin=origin, found=place, out=out))
    return None


def _matches_any(file: str, patterns: Collection[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def explain_path(path: Path) -> UserError | None:
    """Return an error that says what the model of another program at a path is; None if unknown."""
    if path.is_file():
        if path.name == WHOLE:
            return None
        return explain(str(path), str(path), [path.name])
    found = [*path.glob("*"), *path.glob("checkpoint-*/config.json"), *path.glob("snapshots/*/config.json")]
    return explain(str(path), str(path), [str(file.relative_to(path)) for file in found])
