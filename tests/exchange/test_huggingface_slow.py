"""Models beside transformers, those that we export and those that it writes.

Skipped where it is not installed (`pip install transformers`).
"""

from __future__ import annotations

import json
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from exchange.test_huggingface import TASKS
from marian import logits
from marian_folders import write_m2m, write_tokenizer
from random_bundle import random_bundle, sentence

import nmt
from nmt import Translator
from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_bundle
from nmt.decoding.engine import Request
from nmt.exchange.huggingface import export
from nmt.exchange.resolve import resolve
from nmt.model.batch import pad_ids
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.lines import one_line
from nmt.text.marian import NO_ID
from nmt.text.vocabulary import BOS, EOS, PAD, Vocabulary

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
    own = {"split": "none", "keep": False}  # transformers neither splits lines nor takes out invented placeholders
    decoding = Decoding(beam=1, max_source=70, max_extra=9, min_length=2, no_repeat=2, **own)
    bundle, tokenizer, model = load(tmp_path, decoding=decoding, **kind)
    ours = Translator(bundle.model(torch.device("cpu")), bundle.tokenizer(), decoding)
    batches = defaultdict(list)
    for text in filter(re.compile(r"\w").search, map(sentence, range(200))):  # ours copies a line without words
        batches[len(tokenizer(text)["input_ids"])].append(text)
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


# --- models that transformers writes ---------------------------------------------------------------------------

SHAPES: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "activation_function": "gelu"},
    "no matrix is shared": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


def made_up(language: str, count: int) -> list[str]:
    """So many sentences of made-up words."""
    draw = random.Random(language)
    words = ["".join(draw.choices("aeiou" + language * 2 + "nrstlkmb", k=draw.randint(2, 7))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(count)]


@torch.no_grad()
def enlarge(model: Any, embeddings: float) -> None:
    """Multiply a random model's matrices, so that its outputs differ; no weight stays 0 or 1."""
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.add_(0.1 * torch.randn_like(weight))
        elif "embed_positions" not in name:
            weight.mul_(15.0 if "proj" in name or "fc" in name else embeddings)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder that `save_pretrained` has written, ids laid out as OPUS-MT's, and the model."""
    separate = request.param.get("share_encoder_decoder_embeddings") is False
    sizes = write_tokenizer(tmp_path, made_up("en", 3000), made_up("de", 3000), 800, separate)
    config = transformers.MarianConfig(
        **{"vocab_size": sizes[0], "decoder_vocab_size": sizes[1], "d_model": 64, "encoder_layers": 2},
        **{"decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4},
        **{"decoder_attention_heads": 4, "max_position_embeddings": 512, "max_length": 512, "num_beams": 1},
        **{"pad_token_id": min(sizes) - 1, "decoder_start_token_id": sizes[1] - 1, "eos_token_id": 0},
        **{"activation_function": "swish", "scale_embedding": True, **request.param},
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    enlarge(model, 10.0)
    with torch.no_grad():
        model.final_logits_bias.normal_(std=0.3)
        model.final_logits_bias[0, 0] += 2.0  # so that outputs end
    model.save_pretrained(tmp_path)
    return tmp_path, model


@torch.inference_mode()
def test_logits_of_a_model_of_transformers_are_theirs(written: tuple[Path, Any]) -> None:
    folder, theirs = written
    bundle, _ = resolve(folder)
    tokenizer, model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
    source = pad_ids(tokenizer.source.encode_all(made_up("en", 40)), after=EOS)
    target_in = pad_ids(tokenizer.target.encode_all(made_up("de", 40)), before=BOS)
    inputs, outputs = (torch.tensor(side.origins) for side in (tokenizer.source, tokenizer.target))
    known = outputs != NO_ID
    begin = torch.where(known, outputs, theirs.config.decoder_start_token_id)
    found = theirs(input_ids=inputs[source], attention_mask=source != PAD, decoder_input_ids=begin[target_in]).logits
    words = target_in != PAD
    difference = model(source, target_in)[words][:, known] - found[words][:, outputs[known]]
    assert float(difference.abs().max()) < 1e-4


# --- M2M-100 and NLLB-200 -----------------------------------------------------------------------------------------

DIRECTIONS = {
    True: [("eng_Latn", "zul_Latn"), ("zul_Latn", "eng_Latn"), ("deu_Latn", "fra_Latn"), ("ace_Arab", "zho_Hant")],
    False: [("en", "fr"), ("fr", "en"), ("de", "zu"), ("ast", "zh")],
}
"""By whether it is NLLB-200; with the first and the last code of the list"""
MANY = made_up("en", 200)


@pytest.fixture(params=[True, False], ids=["nllb", "m2m"])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[bool, Path, Any]:
    """Whether it is NLLB-200, the folder of a random model that `save_pretrained` has written, and the model."""
    write_m2m(tmp_path, made_up("en", 3000), request.param, size=500)
    rows = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    config = transformers.M2M100Config(
        **{"vocab_size": rows, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128},
        **{"decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    )
    torch.manual_seed(1)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    enlarge(model, 3.0)
    model.save_pretrained(tmp_path)
    return request.param, tmp_path, model


@pytest.mark.parametrize("beam", [1, 4])
def test_many_languages_are_those_of_transformers(many: tuple[bool, Path, Any], beam: int) -> None:
    """Ids, logits and outputs of 200 sentences in 4 directions; our export has the same weights, and the tokenizer."""
    is_nllb, folder, theirs = many
    imported, _ = resolve(folder)
    ours = nmt.load(folder, device="cpu", beam=beam, alpha=0.0, max_extra=9, split="none", keep=False)
    save_bundle(folder / "bundle", imported.weights(), imported.recipe, imported.tokenizer(), imported.written)
    export(Bundle.read(folder / "bundle"), folder / "out")
    before, after = theirs.state_dict(), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "out").state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    model, vocabulary = imported.model(torch.device("cpu")), ours.tokenizer.source
    origins = torch.tensor(vocabulary.origins)
    known, found = origins != NO_ID, set()
    for direction in DIRECTIONS[is_nllb]:
        source, to = direction
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out", src_lang=source, tgt_lang=to)
        of_source, of_target = ours.tokenizer.first(direction)
        batches = defaultdict(list)
        for text in MANY:
            batches[len(tokenizer(text).input_ids)].append(text)
        for length, texts in batches.items():
            batch = tokenizer(texts, return_tensors="pt")
            ids = torch.tensor([[*of_source, *vocabulary.encode(text), EOS] for text in texts])
            assert torch.equal(origins[ids], batch.input_ids)
            target = torch.tensor([[BOS, *of_target, *line[1:]] for line in ids.tolist()])
            begin = torch.where(target == BOS, theirs.config.decoder_start_token_id, origins[target])
            with torch.inference_mode():
                logits = theirs(**batch, decoder_input_ids=begin).logits[..., origins[known]]
                torch.testing.assert_close(model(ids, target)[..., known], logits, rtol=0, atol=1e-4)
                output = theirs.generate(
                    **batch,
                    **{"forced_bos_token_id": int(origins[of_target[0]]), "max_length": length + 10},
                    **({"num_beams": beam, "length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}),
                )
            expected = [[each for each in line if each > 2] for line in output.tolist()]
            requests = [Request(text, direction=direction) for text in texts]
            results = [origins[torch.tensor(result.ids[0])].tolist() for result in ours.stream(requests)]
            assert results == expected
            found |= {tuple(line) for line in expected}
    assert len(found) > 400


def test_tokens_that_transformers_adds_are_refused_by_name(many: tuple[bool, Path, Any]) -> None:
    _, folder, model = many
    imported, _ = resolve(folder)
    save_bundle(folder / "bundle", imported.weights(), imported.recipe, imported.tokenizer(), imported.written)
    export(Bundle.read(folder / "bundle"), folder / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    tokenizer.save_pretrained(folder)
    assert resolve(folder)[0].tokenizer().equals(imported.tokenizer())
    tokenizer.add_tokens(["<term>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="added tokens, at which nmt would not split a text: <term>\n"):
        resolve(folder)
    assert model.config.vocab_size == len(imported.tokenizer().source) - 1


def test_matrices_that_are_no_longer_one_are_refused(written: tuple[Path, Any]) -> None:
    """transformers saves both without a word."""
    folder, model = written
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    model.save_pretrained(folder)
    if model.config.tie_word_embeddings:
        with pytest.raises(UserError, match=r"and lm_head\.weight differ, but are one matrix by config\.json"):
            resolve(folder)[0].weights()
    else:
        assert "output_embedding.weight" in resolve(folder)[0].weights()
