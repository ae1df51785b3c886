"""Readers of models and of runs, as hostile as files of strangers may be; what must hold is as in `readers`."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import marian_folders
import marian_models
import model_grammar
import recipe_grammar
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mistakes import as_json, damaged, mistaken
from random_bundle import sentence, tokenizer_of_words
from target import Target, accepted, file, folder

from nmt.checkpoint.reading import Bundle, read_tensors
from nmt.exchange.opus_mt import MarianBundle
from nmt.exchange.resolve import resolve
from nmt.parsing.linearization import TreeVocabulary
from nmt.parsing.tree import parse_tree
from nmt.report.record import read_run
from nmt.text.vocabulary import Vocabulary
from nmt.training.run_state import RunState


def manifest(content: bytes) -> bool:
    """The bundle.json of a bundle."""
    path = file("bundle/bundle.json", content).parent
    bundle = accepted(lambda: Bundle.read(path))
    if bundle is None:
        return False
    assert bundle.step >= 0
    assert bundle.task.rank(bundle.dev_score or 0.0) <= float("inf")
    assert isinstance(bundle.cost, dict)
    assert bundle.lengths is None or bundle.lengths.is_unusual(3, 4) in (True, False)
    return True


def position(contents: tuple[bytes, bytes]) -> bool:
    """The training.json of a checkpoint, beside a bundle.json."""
    path = file("step-00000003/bundle.json", contents[0]).parent
    file("step-00000003/training.json", contents[1])
    return accepted(lambda: RunState.of(Bundle.read(path))) is not None


def safetensors(content: bytes) -> bool:
    """Weights: tensors of finite numbers, whose sizes are those of the file."""
    path = file("weights/model.safetensors", content)
    tensors = accepted(lambda: read_tensors(path))
    if tensors is None:
        return False
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) <= len(content)
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values()), "weights that are no numbers"
    return True


def tree_vocabulary(content: bytes) -> bool:
    """The tree.json of a parser."""
    read = accepted(lambda: TreeVocabulary(content, "tree.json"))
    if read is None:
        return False
    ids = [read.openers.start, read.leaves.start, read.closers.start]
    tree = read.tree(ids, ["word"])
    assert parse_tree(str(tree)) == tree
    return True


def sentencepiece(content: bytes) -> bool:
    """The model of a tokenizer: what it makes of a text, it can undo, or spells without errors."""
    read = accepted(lambda: Vocabulary(content, "tokenizer.model"))
    if read is None:
        return False
    ids = read.encode("the dog \u2581é")
    assert all(0 <= index < len(read) for index in ids)
    read.decode(ids)
    assert len(read.spellings()) == len(read.listing()) == len(read.starts()) == len(read)
    return True


def _model() -> bytes:
    return tokenizer_of_words(True).source.serialized


_MARIAN = ("config.json", "tokenizer_config.json", "vocab.json")


@cache
def _marian() -> Path:
    """A folder with a small model in the layout of OPUS-MT."""
    path = folder() / "marian"
    texts = [sentence(seed) for seed in range(60)]
    sizes = marian_folders.write_tokenizer(path, texts, [text.upper() for text in texts], 60)
    marian_folders.write_model(path, sizes)
    return path


@cache
def _original(name: str) -> Any:
    return json.loads((_marian() / name).read_bytes())


def _mistaken_json(name: str) -> SearchStrategy[bytes]:
    return damaged(mistaken(st.builds(_original, st.just(name)), most=1).map(as_json), share=12)


def marian(contents: tuple[bytes, bytes, bytes]) -> bool:
    """config.json, tokenizer_config.json and vocab.json of a model of transformers."""
    for name, content in zip(_MARIAN, contents, strict=True):
        (_marian() / name).write_bytes(content)
    model = accepted(lambda: MarianBundle.read(_marian()).model(torch.device("cpu")))
    return model is not None


@cache
def _npz_folder() -> tuple[Path, marian_models.Arrays]:
    """A folder with a small model of Marian itself, and its weights."""
    path = folder() / "npz"
    return path, marian_models.write_model(path, [marian_models.train_vocabulary([sentence(n) for n in range(60)], 60)])


def _npz(settings: bytes) -> bytes:
    content = io.BytesIO()
    marian_models.write_arrays(content, _npz_folder()[1], settings)
    return content.getvalue()


def _npz_settings() -> dict[str, Any]:
    size = marian_models.size_of((_npz_folder()[0] / "vocab.spm").read_bytes())
    return marian_models.SETTINGS | {"dim-vocabs": [size, size]}


_DECODER = {"models": ["model.npz"], "vocabs": ["vocab.spm", "vocab.spm"], "beam-size": 3, "normalize": 0.5}


def npz(contents: tuple[bytes, bytes]) -> bool:
    """An archive of Marian with its settings, and its decoder.yml."""
    path, _ = _npz_folder()
    (path / "model.npz").write_bytes(contents[0])
    (path / "model.npz.decoder.yml").write_bytes(contents[1])
    model = accepted(lambda: resolve(path)[0].model(torch.device("cpu")))
    return model is not None


# --- runs --------------------------------------------------------------------------------------------------------


def record(contents: tuple[bytes, bytes, bytes, bytes]) -> bool:
    """What a report is made from: of a run whose recipe is whole, everything else may be damaged."""
    names = ("metrics.jsonl", "dev.jsonl", "run.json", "step-00000003/bundle.json")
    for name, content in zip(names, contents, strict=True):
        path = file(f"run/{name}", content)
    file("run/recipe.yaml", recipe_grammar.as_yaml({"name": "a", "data": recipe_grammar.DATA[0]}))
    found = read_run(path.parents[1])
    assert all(len(outputs.outputs) == len(found.sources) for outputs in found.dev_outputs)
    for figures in (found.logged, found.validated):
        steps = figures["step"].tolist()
        assert steps == sorted(set(steps))
        assert {len(column) for column in figures.values()} == {len(steps)}
    return bool(len(found.logged["step"]) or len(found.validated["step"]))


TARGETS = (
    Target(manifest, model_grammar.MANIFESTS, ("nmt.checkpoint.reading", "nmt.formats.sentences", "nmt.system.files")),
    Target(position, st.tuples(model_grammar.MANIFESTS, model_grammar.POSITIONS), ("nmt.training.run_state",)),
    Target(safetensors, model_grammar.TENSORS, ("nmt.checkpoint.reading",)),
    Target(tree_vocabulary, model_grammar.TREE_VOCABULARIES, ("nmt.parsing.linearization",)),
    Target(sentencepiece, damaged(model_grammar.tokenizers(st.builds(_model)), share=6), ("nmt.text.vocabulary",)),
    Target(
        marian,
        st.tuples(*map(_mistaken_json, _MARIAN)),
        ("nmt.exchange.opus_mt", "nmt.text.tokenizer"),
    ),
    Target(
        npz,
        st.tuples(
            damaged(damaged(mistaken(st.builds(_npz_settings)).map(as_json), share=6).map(_npz), share=6),
            damaged(mistaken(st.just(_DECODER)).map(as_json), share=12),
        ),
        ("nmt.exchange.from_marian", "nmt.exchange.npz"),
    ),
    Target(record, model_grammar.RECORDED, ("nmt.report.record", "nmt.training.log", "nmt.training.dev_outputs")),
)
