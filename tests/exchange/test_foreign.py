"""Folders and files of other programs: each is named, and the hint says how to get a model that nmt reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.exchange.resolve import resolve
from nmt.system.errors import UserError

MERGING = "AutoPeftModelForSeq2SeqLM as M; M.from_pretrained('x').merge_and_unload().save_pretrained('x-safetensors'"
CONVERTING = "M.from_pretrained('x').save_pretrained('x-safetensors', max_shard_size='99GB')"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"], "is an adapter", MERGING),
        (["config.json", *SHARDS], "has its weights in several files", CONVERTING),
        (["config.json", "pytorch_model-00001-of-00002.bin"], "does not unpickle pytorch_model.bin", CONVERTING),
        (["README.md", "nllb.Q4_K_M.gguf"], "is a GGUF model, of llama.cpp", "the model that it was made from"),
        (["model.bin", "shared_vocabulary.json"], "is a model of CTranslate2", "the model that it was made from"),
        (["config.json", "encoder_model.onnx"], "is an ONNX model", "the model that it was made from"),
        (["config.json", "tf_model.h5"], "has weights of TensorFlow or JAX only", "the model that it was made from"),
        (
            ["model.intgemm.alphas.bin", "vocab.spm"],
            "is a model of Marian in integers",
            "the model that it was made from",
        ),
        (["checkpoint_best.pt", "dict.en.txt"], "holds pickled weights", "train anew"),
        (["tokenizer_config.json", "source.spm", "vocab.json"], "holds a tokenizer without a model", "the whole model"),
        (
            ["checkpoint-500/config.json", "tokenizer.json"],
            "holds checkpoints of",
            "name one of them: x/checkpoint-500",
        ),
        (["refs/main", "snapshots/1a/config.json"], "is a model in the hub's cache", "name x/snapshots/1a"),
        (["config.json"], "lacks model.safetensors", "from another copy of x"),
        (["notes.txt"], "holds neither a bundle nor checkpoints", "nmt train RECIPE --out x"),
    ],
)
def test_a_folder_of_another_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names:
        path = tmp_path / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"model_type": "m2m_100"}' if name == "config.json" else "{}")
    with pytest.raises(UserError) as error:
        resolve(Path("x"))
    assert error.value.message.startswith("x: ")
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.gguf", "is a GGUF model, of llama.cpp"),
        ("en_de.argosmodel", "is a package of Argos Translate"),
        ("model.safetensors", "is a file, and a model is a folder"),
    ],
)
def test_a_file_is_no_model(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=message) as error:
        resolve(tmp_path / name)
    assert error.value.hint
