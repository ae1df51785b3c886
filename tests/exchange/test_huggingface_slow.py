"""Exported folders as transformers loads them; skipped where it is not installed (`pip install transformers`)."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from exchange.test_huggingface import TASKS
from marian import logits
from random_bundle import random_bundle, sentence

from nmt.api import Translator
from nmt.checkpoint.reading import Bundle
from nmt.exchange.huggingface import export
from nmt.model.batch import pad_ids
from nmt.recipe import Decoding
from nmt.text.lines import one_line
from nmt.text.tokenizer import Vocabulary
from nmt.text.vocabulary import BOS, EOS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

Loaded = tuple[Bundle, Any, Any]


def load(folder: Path, **kind: Any) -> Loaded:
    """A random bundle, and the tokenizer and the model that transformers loads from what it was exported to."""
    bundle = random_bundle(folder / "bundle", **kind)
    export(bundle, folder / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "out", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert {name for name in report["missing_keys"] if not name.endswith("embed_positions.weight")} == set()
    return bundle, tokenizer, model


@pytest.mark.parametrize("kind", TASKS)
def test_logits_are_ours(tmp_path: Path, kind: dict[str, Any]) -> None:
    bundle, tokenizer, model = load(tmp_path, **kind)
    texts = [sentence(seed) for seed in range(200)]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    target = pad_ids([[BOS, *bundle.tokenizer().target.encode(text.upper())] for text in reversed(texts)])
    with torch.inference_mode():
        theirs = model(**batch, decoder_input_ids=target).logits
        ours = bundle.model(torch.device("cpu"))(batch["input_ids"], target)
    words = target != 0
    torch.testing.assert_close(theirs[words], ours[words], rtol=0, atol=2e-5)
    restated = logits(tmp_path / "out", batch["input_ids"], target)  # by which the quick tests judge
    torch.testing.assert_close(restated[words], theirs[words], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", TASKS)
def test_greedy_outputs_are_ours(tmp_path: Path, kind: dict[str, Any]) -> None:
    """Of 200 sentences; those of a batch are equally long, so that one cap is the cap of all."""
    decoding = Decoding(beam=1, max_source=70, max_extra=9, min_length=2, no_repeat=2)
    bundle, tokenizer, model = load(tmp_path, decoding=decoding, **kind)
    ours = Translator(bundle.model(torch.device("cpu")), bundle.tokenizer(), decoding)
    batches = defaultdict(list)
    for seed in range(200):
        batches[len(tokenizer(sentence(seed))["input_ids"])].append(sentence(seed))
    found = set()
    for length, texts in batches.items():
        batch = tokenizer(texts, return_tensors="pt")
        output = model.generate(**batch, max_length=length + decoding.max_extra)  # with `<s>`
        theirs = [one_line(text).strip() for text in tokenizer.batch_decode(output, skip_special_tokens=True)]
        assert theirs == [text.strip() for text in ours.translate(texts)]
        found |= set(theirs)
    assert len(found) > 100


# --- text to ids and back ----------------------------------------------------------------------------------------


def hostile() -> Iterator[str]:
    """Lines with what tokenizers like to treat in a way of their own."""
    draw = random.Random(5)
    parts = ["tree", "</s>", "<pad>", "<unk>", "<s>", "<0x41>", " ", "  ", "\t", "😀", "é", "e\u0301", "ﬁ", "\u00a0"]
    parts += ["\u200b", "\ufeff", "\u2028", "\x00", "\r", "중", "Ａ", "👩‍👩‍👧", ">>", "<<", "\u2581", "n't", " ,", "''"]
    for _ in range(200):
        yield "".join(draw.choices(parts, k=draw.randint(1, 6)))


def differs_in_ids(text: str) -> bool:
    """A U+2581 is a space to them, and `>>…<<` at the beginning the name of a language, which is unknown."""
    return "\u2581" in text or (text.startswith(">>") and "<<" in text)


@pytest.mark.parametrize("shared", [True, False])
def test_ids_are_ours_but_where_it_is_documented(tmp_path: Path, shared: bool) -> None:
    bundle, tokenizer, _ = load(tmp_path, shared=shared, tie_embeddings="target")
    ours = bundle.tokenizer()
    assert isinstance(ours.target, Vocabulary)
    plain = [*map(sentence, range(1000)), "Ein Hund  bellt 😀", *map(chr, range(0x20, 0x2100))]
    differing = [text for text in hostile() if differs_in_ids(text)]
    assert 10 < len(differing) < 50  # of 200
    for text in (*plain, *hostile()):
        same = tokenizer(text)["input_ids"] == [*ours.source.encode(text), EOS]
        assert same is not differs_in_ids(text), ascii(text)
        targets = tokenizer(text_target=text)["input_ids"]
        assert (targets == [*ours.target.encode(text), EOS]) is not differs_in_ids(text), ascii(text)
