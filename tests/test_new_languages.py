"""A language added to a model of several: old directions stay to the bit, and its characters survive everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from marian_folders import write_m2m
from reverse_task import assert_equal_to_the_bit, shell

import nmt
from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_bundle
from nmt.decoding.engine import Request
from nmt.decoding.forced import ForcedDecoder
from nmt.exchange.opus_mt import MarianBundle
from nmt.model.batch import Batch, pad_ids
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, Recipe, TokenizerSettings
from nmt.text.new_languages import Added, learn
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, UNK
from nmt.training.batches import Packer
from nmt.training.loss import Objective
from nmt.training.start import with_new_rows

TEXTS = [f"{a} {b} runs under the {c} tree" for a in ("one", "small") for b in ("dog", "house") for c in ("red", "big")]
LISU = str.maketrans("abcdefghijklmnopqrstuvw", "ꓐꓑꓒꓓꓔꓕꓖꓗꓘꓙꓚꓛꓜꓝꓞꓟꓠꓡꓢꓣꓤꓥꓦ")
NEW_TEXTS = [text.translate(LISU) for text in TEXTS]
KINDS = {"nllb": ("eng_Latn", "zul_Latn", "lis_Lisu"), "m2m": ("en", "fr", "lis"), "own": ("en", "fr", "lis")}
"""A source and a target language that the model has, and one that it gets"""


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old(kind: str, tmp_path: Path) -> Bundle:
    if kind != "own":
        write_m2m(tmp_path / kind, TEXTS, kind == "nllb")
        return MarianBundle.read(tmp_path / kind)
    torch.manual_seed(1)
    settings = TokenizerSettings(vocab_size=320, normalization="none")
    tokenizer = Tokenizer.train([(text, text[::-1]) for text in TEXTS * 9], settings, languages=["fr", "de"])
    shape = Model(layers=1, d_model=16, d_ff=16, heads=2, tie_embeddings="none", output_bias=True)
    model = Transformer(shape, len(tokenizer.source), len(tokenizer.source))
    weights = {name: weight.detach() + 0.1 * torch.randn_like(weight) for name, weight in model.named_parameters()}
    train = [{"file": "a.tsv", "target": "fr"}, {"file": "b.tsv", "target": "de"}]
    data: Any = {"source": "en", "target": "fr", "train": train, "max_length": 70}
    recipe = Recipe(
        name="own",
        data=data,
        tokenizer=settings,
        model=shape,
        decoding=Decoding(max_source=150, max_extra=9),
    )
    save_bundle(tmp_path / kind, weights, recipe, tokenizer, {"run": "r", "step": 3, "data": "d"})
    return Bundle.read(tmp_path / kind)


def extended(old: Bundle, path: Path, language: str, texts: list[str] = NEW_TEXTS, new_vocab_size: int = 290) -> Bundle:
    """The bundle `old` with a language, before any training."""
    before = old.tokenizer()
    settings = TokenizerSettings(new_languages=(language,), new_vocab_size=new_vocab_size)
    pieces = learn(before.source, iter(texts * 9), settings, lambda line: None, None)
    tokenizer = before.with_languages(Added(languages=[language], pieces=pieces))
    info = {key: value for key, value in old.written.items() if key in ("run", "step", "data", "scores")}
    save_bundle(path, with_new_rows(old.weights(), before, tokenizer), old.recipe, tokenizer, info)
    return Bundle.read(path)


@pytest.mark.parametrize("beam", [1, 4])
def test_outputs_and_scores_of_old_directions_stay_to_the_bit(
    kind: str, old: Bundle, tmp_path: Path, beam: int
) -> None:
    source, to, language = KINDS[kind]
    extended(old, tmp_path / "new", language)
    lines = [*TEXTS, f"see {NEW_TEXTS[0]} and https://x.example/{TEXTS[1].split()[1]} one dog"]
    given = [Request(line, prefix, direction=(source, to)) for line in lines for prefix in ("", "sm")]
    models = [nmt.load(path, device="cpu", beam=beam, max_extra=5) for path in (old.path, tmp_path / "new")]
    first, second = ([(each.ids, each.scores) for each in model.stream(given, n_best=beam)] for model in models)
    assert first == second
    mixed = [Request(TEXTS[0], direction=(source, language)), *given, Request(NEW_TEXTS[0], direction=(language, to))]
    assert [(each.ids, each.scores) for each in models[1].stream(mixed, n_best=beam)][1:-1] == first
    samples = [[each.ids for each in model.stream(given[:4], sample=3)] for model in models]
    assert samples[0] == samples[1]
    pairs = [(text, text[::-1]) for text in lines]
    scores = []
    for bundle in (old, Bundle.read(tmp_path / "new")):
        decoder = ForcedDecoder([bundle.model(torch.device("cpu"))], bundle.tokenizer(), Decoding(), (source, to))
        scores.append([each.log_probability for each in decoder.stream(pairs)])
    assert scores[0] == scores[1]


def test_new_pieces_spell_new_characters_and_begin_with_the_mean_of_their_old_spelling(
    kind: str, old: Bundle, tmp_path: Path
) -> None:
    _, to, language = KINDS[kind]
    bundle = extended(old, tmp_path / "new", language)
    tokenizer, before = bundle.tokenizer(), old.tokenizer()
    size = len(before.source)
    assert tokenizer.source.listing()[:size] == before.source.listing()
    for text in NEW_TEXTS:
        ids = tokenizer.of(language).source.encode(text)
        assert all(index >= size or tokenizer.source.listing()[index] == "▁" for index in ids)
        assert len(ids) < len(text)  # pieces of several characters
        assert tokenizer.target.decode(ids) == text
        assert tokenizer.of(to).source.encode(text) == before.source.encode(text)
    rows, piece = (
        bundle.weights()["target_embedding.weight" if kind == "own" else "source_embedding.weight"],
        NEW_TEXTS[0][0],
    )
    spelled = [UNK] if kind != "own" else [before.source.listing().index(f"<0x{byte:02X}>") for byte in piece.encode()]
    torch.testing.assert_close(rows[tokenizer.source.listing().index(piece)], rows[spelled].mean(0))
    known = [*before.source.languages.values()]
    torch.testing.assert_close(rows[tokenizer.source.languages[language]], rows[known].mean(0))


def test_pieces_of_white_space_or_of_characters_that_are_dropped_have_rows(kind: str, old: Bundle) -> None:
    """French, Chinese and Japanese have such pieces; `encode` gives nothing for some of them."""
    before, pieces = (
        old.tokenizer(),
        ["\u00a0", "▁\u3000", "\u202f!", "\u2009\u2009", "\x85", "\t", "\u200b", "\x01", "▁▁"],
    )
    after, weights = before.with_languages(Added(languages=["xal"], pieces=pieces)), old.weights()
    assert all(bool(rows.isfinite().all()) for rows in with_new_rows(weights, before, after).values())
    if kind == "own":
        rows = with_new_rows(weights, before, after)["source_embedding.weight"]
        spelled = {"\u00a0": "<0xC2> <0xA0>", "▁\u3000": "▁ <0xE3> <0x80> <0x80>"}
        for piece, bytes_of_it in spelled.items():
            expected = rows[[after.source.listing().index(each) for each in bytes_of_it.split()]].mean(0)
            torch.testing.assert_close(rows[after.source.listing().index(piece)], expected)


@pytest.mark.parametrize("packed", [False, True])
def test_the_loss_of_an_old_direction_is_that_of_the_old_model(
    kind: str, old: Bundle, tmp_path: Path, packed: bool
) -> None:
    source, to, language = KINDS[kind]
    bundle = extended(old, tmp_path / "new", language)
    tokenizer, pairs = bundle.tokenizer(), [(source, to), (source, language), (language, to), (source, to)]
    rows = []
    for way in pairs:
        texts = (NEW_TEXTS[0] if each == language else TEXTS[1] for each in way)
        encoded = (tokenizer.of(each).source.encode(text) for each, text in zip(way, texts, strict=True))
        rows.append([first + ids for first, ids in zip(tokenizer.first(way), encoded, strict=True)])
    objectives = [Objective(each.model(torch.device("cpu")), 0.0) for each in (bundle, old)]
    objectives[0].limit(tokenizer.sizes(), symbols_first=tokenizer.forced)

    def losses(objective: Objective, chosen: list[list[list[int]]]) -> list[float]:
        targets = [target for _, target in chosen]
        target_out = pad_ids(targets, after=EOS)
        real = target_out.flatten().nonzero().flatten()
        batch = Batch(pad_ids([each for each, _ in chosen], after=EOS), pad_ids(targets, before=BOS), target_out, real)
        return [float(each.detach()) for each in objective(Packer(400, 100).pack(batch, 400) if packed else batch)]

    alone = [losses(objectives[0], [row]) for row in rows]
    assert losses(objectives[0], rows) == pytest.approx([sum(each) for each in zip(*alone, strict=True)], rel=1e-5)
    assert alone[0] == pytest.approx(losses(objectives[1], rows[:1]), rel=1e-6)
    whole = Objective(objectives[0].model, 0.0)
    assert alone[1] == pytest.approx(losses(whole, rows[1:2]), rel=1e-6)
    assert alone[0][0] < losses(whole, rows[:1])[0]


RECIPE = """\
name: new
data:
  source: eng_Latn
  target: lis_Lisu
  max_length: 60
  train:
  - {file: lis.tsv}
  - {file: lis.tsv, fields: [2, 1], source: lis_Lisu, target: eng_Latn}
  - {file: zul.tsv, target: zul_Latn}
  valid: {take: 2}
tokenizer: {new_languages: [lis_Lisu], new_vocab_size: 290}
training: {init_from: nllb, batch_tokens: 300, warmup: 9, updates: 4, checkpoint_updates: 2, report: false}
"""


def test_a_run_with_a_new_language_resumes_and_its_average_and_export_keep_it(tmp_path: Path) -> None:
    write_m2m(tmp_path / "nllb", TEXTS, is_nllb=True)
    (tmp_path / "new.yaml").write_text(RECIPE)
    for code, texts in (("lis", NEW_TEXTS), ("zul", [text[::-1] for text in TEXTS])):
        lines = "".join(f"{pair[0]}\t{pair[1]}\n" for pair in zip(TEXTS, texts, strict=True))
        (tmp_path / f"{code}.tsv").write_text(lines * 4)
    unknown = shell("nmt train new.yaml --set 'tokenizer.new_languages=[]'", tmp_path)
    assert (
        b"error: data.train.0: lis_Lisu: this model has no symbol for this language\nhint: --set 'tokenizer.new"
        in unknown.stderr
    )
    steps = (
        "nmt train new.yaml --set training.updates=2; rm -r data; nmt train new.yaml; nmt train new.yaml --out fresh"
    )
    done = shell(steps, tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert b"lis_Lisu is new to this model; codes most like it: lvs_Latn" in done.stderr
    assert b"resuming at update 2" in done.stderr
    assert_equal_to_the_bit(tmp_path / "ckpts", tmp_path / "fresh")
    done = shell("nmt average ckpts --last 2 --format huggingface --out exported", tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert b"note: lis_Lisu came with pieces of their own; this format spells texts of all languages" in done.stderr
    ours, theirs = (
        nmt.load(tmp_path / name, device="cpu", beam=1, split="none") for name in ("ckpts/averaged", "exported")
    )
    assert ours.tokenizer.older is not None
    assert ours.tokenizer.of("eng_Latn").equals(MarianBundle.read(tmp_path / "nllb").tokenizer())
    found = ours.translate(TEXTS, source="eng_Latn", to="lis_Lisu")
    assert found == theirs.translate(TEXTS, source="eng_Latn", to="lis_Lisu")
    known = shell("nmt train new.yaml --out more --set training.init_from=ckpts/averaged", tmp_path)
    assert b"error: tokenizer.new_languages: lis_Lisu is a language of ckpts/averaged already" in known.stderr


def test_a_second_new_language_leaves_the_first_as_it_was(kind: str, old: Bundle, tmp_path: Path) -> None:
    source, to, language = KINDS[kind]
    first = extended(old, tmp_path / "first", language)
    deseret = str.maketrans("abcdefghijklmnopqrstuvw", "".join(map(chr, range(0x10428, 0x10428 + 23))))
    second = extended(first, tmp_path / "second", "xal", [text.translate(deseret) for text in TEXTS])
    assert second.tokenizer().new_languages == [language, "xal"]
    models = [nmt.load(bundle.path, device="cpu", beam=2, max_extra=5) for bundle in (first, second)]
    given = [Request(text, direction=(source, each)) for text in TEXTS for each in (language, to)]
    found = [[(each.ids, each.scores) for each in model.stream(given)] for model in models]
    assert found[0] == found[1]
