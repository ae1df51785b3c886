"""NLLB-200 and M2M-100: folders in their layout, read, translated with, trained further and exported again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from marian import logits
from marian_folders import as_added, write_m2m
from reverse_task import sets, shell, small

import nmt
from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.checkpoint.writing import save_bundle
from nmt.decoding.engine import Request
from nmt.exchange.huggingface import export
from nmt.exchange.opus_mt import MarianBundle
from nmt.system.errors import UserError
from nmt.text.marian import origins_of
from nmt.text.vocabulary import BOS, EOS

TEXTS = [f"{a} {b} runs under the {c} tree" for a in ("one", "small") for b in ("dog", "house") for c in ("red", "big")]
KINDS = {"nllb": ("eng_Latn", "zul_Latn", 256_047, 256_205), "m2m": ("en", "fr", 128_022, 128_028)}
"""Source, target and the ids of their symbols in the real models, whose pieces end at 256,001 and 128,004"""
ENDS = {"nllb": 256_001, "m2m": 128_004}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    write_m2m(tmp_path / kind, TEXTS, kind == "nllb")
    return tmp_path / kind


def test_symbols_have_the_ids_of_transformers(kind: str, folder: Path) -> None:
    tokenizer, (source, _, of_source, _) = MarianBundle.read(folder).tokenizer(), KINDS[kind]
    origins, config = origins_of(tokenizer.source), json.loads((folder / "config.json").read_text())
    pieces = config["vocab_size"] - (205 if kind == "nllb" else 103)
    assert origins[tokenizer.source.languages[source]] - pieces == of_source - ENDS[kind]
    assert len(tokenizer.source.languages) == (202 if kind == "nllb" else 100)
    assert sorted(origins)[1:] == list(range(config["vocab_size"]))  # all rows, but `<s>` of ours
    assert [origins[index] for index in (0, 1, EOS)] == [1, 3, 2]


def test_ids_that_are_missing_are_not_taken_for_those_of_another_kind(tmp_path: Path) -> None:
    write_m2m(tmp_path / "m2m", TEXTS, False)
    (tmp_path / "m2m/vocab.json").unlink()
    (tmp_path / "m2m/tokenizer_config.json").write_text('{"tokenizer_class": "M2M100Tokenizer"}')
    with pytest.raises(
        UserError, match=r"has symbols of M2M-100, whose pieces have their ids in vocab\.json, which is "
    ):
        MarianBundle.read(tmp_path / "m2m").tokenizer()


def test_logits_are_those_of_transformers(kind: str, folder: Path) -> None:
    bundle, direction = MarianBundle.read(folder), KINDS[kind][:2]
    tokenizer, model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
    origins, (of_source, of_target) = origins_of(tokenizer.source), tokenizer.first(direction)
    source = [*of_source, *tokenizer.source.encode(TEXTS[0]), EOS]
    target = [BOS, *of_target, *tokenizer.source.encode(TEXTS[1])]
    theirs_in = [2 if index == BOS else origins[index] for index in target]
    with torch.no_grad():
        theirs = logits(folder, torch.tensor([[origins[index] for index in source]]), torch.tensor([theirs_in]))
        ours = model(torch.tensor([source]), torch.tensor([target]))
    places = {origin: index for index, origin in enumerate(origins)}
    same = ours[..., [places[origin] for origin in range(theirs.size(-1))]]
    torch.testing.assert_close(same, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_target_is_forced_first_and_counts_for_nothing(kind: str, folder: Path, beam: int) -> None:
    source, to, *_ = KINDS[kind]
    model = nmt.load(folder, device="cpu", beam=beam, alpha=1.0, max_extra=5)
    symbol, text = model.tokenizer.source.languages[to], TEXTS[2]
    (found,) = model.stream([Request(text, direction=(source, to))])
    (part,) = model.split(Request(text, direction=(source, to)))
    assert found.ids[0][0] == symbol
    assert symbol not in found.ids[0][1:] or to not in found.texts[0]
    from nmt.decoding.forced import log_probabilities_of

    ended = [*found.ids[0], *[EOS] * (not found.capped)]
    bundle = MarianBundle.read(folder)
    (scores,) = log_probabilities_of([bundle.model(torch.device("cpu"))], [(part.ids, ended)], 4096)
    expected = float(scores[1:].sum()) / ((5 + len(ended) - 1) / 6)
    assert found.scores[0] == pytest.approx(expected, abs=1e-4)


def test_text_cannot_name_a_language(kind: str, folder: Path) -> None:
    vocabulary, (source, to, *_) = MarianBundle.read(folder).tokenizer().source, KINDS[kind]
    for text in (f"{to} one", "__fr__ dog", "</s> dog"):
        assert not set(vocabulary.encode(text)) & {*vocabulary.languages.values(), EOS}
    symbols = vocabulary.languages[source], vocabulary.languages[to]
    assert vocabulary.decode([symbols[0], *vocabulary.encode("one dog"), symbols[1]]) == "one dog"


def test_added_tokens_are_refused_by_name_except_languages(kind: str, folder: Path) -> None:
    """Fine-tuned models have such; transformers splits a text at them."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    code, symbol = ("zza_Latn", "zza_Latn") if kind == "nllb" else ("zza", "__zza__")
    known = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, symbol: size - 2}
    names = ["tokenizer_config.json", "added_tokens.json", *["tokenizer.json"] * (kind == "nllb")]
    for name in names:
        (folder / name).write_text(as_added(name, known))
        vocabulary = MarianBundle.read(folder).tokenizer().source
        assert origins_of(vocabulary)[vocabulary.languages[code]] == size - 2
        for token in ("<term>", "TERM", "dog"):
            (folder / name).write_text(as_added(name, {**known, token: size - 1}))
            with pytest.raises(UserError, match=f"added tokens, at which nmt would not split a text: {token}\n"):
                MarianBundle.read(folder).tokenizer()
        (folder / name).unlink()


def test_a_tokenizer_that_puts_other_symbols_elsewhere_is_refused(folder: Path) -> None:
    for key, value in {
        "tokenizer_class": "SMALL100Tokenizer",
        "language_codes": "wmt21",
        "legacy_behaviour": True,
    }.items():
        (folder / "tokenizer_config.json").write_text(json.dumps({key: value}))
        with pytest.raises(UserError, match=f"nmt has no tokenizer with {key} {value}"):
            MarianBundle.read(folder).tokenizer()


def test_rows_of_languages_that_are_cut_off_are_named(kind: str, folder: Path) -> None:
    """As by `resize_token_embeddings(len(tokenizer))` of M2M-100, which does not count its languages."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 9}))
    last = {"nllb": "<mask>", "m2m": "__zu__"}[kind]
    with pytest.raises(UserError, match=f"rows, but the symbol {last} has the id"):
        MarianBundle.read(folder).tokenizer()


def test_a_missing_or_unknown_language_is_one_error(kind: str, folder: Path) -> None:
    source, to, *_ = KINDS[kind]
    model = nmt.load(folder, device="cpu")
    for given, message in (
        ({}, "this model translates to several languages: a"),
        ({"to": to}, "this model translates from several languages: a"),
        ({"to": to, "source": "xx"}, "xx: this model has no symbol for this language"),
        ({"to": "xx", "source": source}, "xx: this model has no symbol for this language"),
    ):
        with pytest.raises(UserError, match=message):
            model.translate(["one"], **given)


def test_what_is_trained_further_is_exported_and_read_again_to_the_byte(kind: str, folder: Path) -> None:
    source, to, *_ = KINDS[kind]
    base, others = folder.parent, {"nllb": "deu_Latn", "m2m": "de"}[kind]
    for code in (to, others):
        lines = (f"{line}\t{line[::-1]}\n" for line in TEXTS * 4)
        (base / f"{code}.tsv").write_text("".join(lines))
    train = f"data.train=[{{file: {to}.tsv}}, {{file: {others}.tsv, target: {others}}}]"
    recipe = {"name": "more", "data": {"source": source, "target": to, "train": [{"file": f"{to}.tsv"}]}}
    (base / "more.yaml").write_text(json.dumps(recipe))
    settings = ["--set", train, "--set", "data.valid=[{take: 2}]", *small("updates: 4, report: false")[2:]]
    given = " ".join(f"'{each}'" for each in [*settings, "--set", f"training.init_from={kind}"])
    done = shell(f"nmt train more.yaml {given} && nmt average ckpts --last 1 --out bundle", base)
    assert done.returncode == 0, done.stderr.decode()
    bundle = Bundle.read(base / "bundle")
    before = MarianBundle.read(folder).weights()
    after = bundle.weights()
    name = "source_embedding.weight"
    assert not torch.equal(before[name], after[name])
    assert torch.equal(after[name][BOS], after[name][EOS])
    assert torch.equal(before["output_bias"], after["output_bias"])
    export(bundle, base / "out")
    again = MarianBundle.read(base / "out")
    assert again.tokenizer().equals(bundle.tokenizer())
    assert {key: tensor.numpy().tobytes() for key, tensor in again.weights().items()} == {
        key: tensor.numpy().tobytes() for key, tensor in after.items()
    }
    ours = nmt.load(base / "bundle", device="cpu").translate(TEXTS, to=others)
    assert nmt.load(base / "out", device="cpu", alpha=0.6, beam=4).translate(TEXTS, to=others, source=source) == ours


def test_ctranslate2_is_given_the_target_first(kind: str, folder: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    source, to, *_ = KINDS[kind]
    imported = MarianBundle.read(folder)
    save_bundle(folder.parent / "bundle", imported.weights(), imported.recipe, imported.tokenizer(), imported.written)
    from nmt.exchange.ctranslate2 import export as export_ctranslate2

    export_ctranslate2(Bundle.read(folder.parent / "bundle"), folder.parent / "ct2", "float32")
    translator = ctranslate2.Translator(str(folder.parent / "ct2"))
    model = nmt.load(folder, device="cpu", beam=1, split="none", keep=False)
    tokenizer = model.tokenizer
    of_source, of_target = (tokenizer.source.pieces(ids) for ids in tokenizer.first((source, to)))
    lists = [[*of_source, *tokenizer.source.pieces(tokenizer.source.encode(text))] for text in TEXTS]
    theirs = translator.translate_batch(
        lists, target_prefix=[of_target] * len(lists), beam_size=1, max_decoding_length=20
    )
    ours = [list(found.ids[0]) for found in model.stream([Request(text, direction=(source, to)) for text in TEXTS])]
    assert [tokenizer.source.pieces(ids)[:20] for ids in ours] == [found.hypotheses[0][:20] for found in theirs]


def test_frozen_parts_keep_their_weights_and_have_no_moments(kind: str, folder: Path) -> None:
    source, to, *_ = KINDS[kind]
    base = folder.parent
    (base / "own.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in TEXTS * 4))
    recipe = {"name": "more", "data": {"source": source, "target": to, "train": [{"file": "own.tsv"}]}}
    (base / "more.yaml").write_text(json.dumps(recipe))
    settings = small("updates: 3, report: false")[2:]
    given = " ".join(f"'{each}'" for each in [*settings, *sets(f"training.init_from={kind}")])
    done = shell(f"nmt train more.yaml {given} --set 'training.freeze=[embeddings, encoder]'", base)
    assert done.returncode == 0, done.stderr.decode()
    before, (after,) = MarianBundle.read(folder).weights(), checkpoints(base / "ckpts")
    changed = {name for name, weight in after.weights().items() if not torch.equal(weight, before[name])}
    assert changed
    assert {name.partition(".")[0] for name in changed} <= {"decoder", "decoder_norm"}
    assert {name.partition(".")[0] for name in after.moments()} == {"decoder", "decoder_norm"}
