"""CTranslate2 against our plain search, with small random models of every kind; conversion; what users are told."""

import errno
import json
import math
import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from feeds import Pile
from reference_search import random_model, reference_search
from reverse_task import reseal

from nmt.api import Translator
from nmt.bundle import Bundle, conversion, save_bundle
from nmt.errors import UserError
from nmt.model import layers
from nmt.model.transformer import Memory
from nmt.recipe import Decoding, Recipe, TokenizerSettings
from nmt.search import ctranslate2 as engine_module
from nmt.search.ctranslate2 import PATIENCE, convert, load_engine
from nmt.search.feed import Source
from nmt.tasks.pipeline import Pipeline
from nmt.tasks.translating import Translating
from nmt.text.symbols import BOS, EOS
from nmt.text.tokenizer import Tokenizer

ctranslate2 = pytest.importorskip("ctranslate2")

WORDS = ["tree", "house", "dog", "cat", "river", "garden", "window", "teacher", "sees", "likes", "the", "."]
VARIANTS = [
    {"liking": 2.0},
    {
        "liking": 4.0,
        "norm": "pre",
        "norm_epsilon": 0.3,
        "activation": "silu",
        "attention_bias": True,
        "output_bias": True,
        "positions": "learned",
        "max_positions": 90,
        "tie_embeddings": "target",
        "d_k": 3,
        "d_v": 5,
    },
    {"liking": 5.0, "norm": "pre", "tie_embeddings": "none", "d_k": 9, "d_v": 2, "decoder_layers": 1},
    {
        "liking": 4.0,
        "norm_epsilon": 0.5,
        "activation": "gelu",
        "positions": "learned",
        "max_positions": 83,
        "heads": 3,
        "d_k": 4,
        "d_v": 4,
        "layers": 1,
        "decoder_layers": 3,
    },
]


def sentence(seed):
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))


@pytest.fixture(scope="module")
def tokenizers():
    pairs = [(sentence(seed), sentence(seed).upper()) for seed in range(300)]
    return {
        shared: Tokenizer.train(pairs, TokenizerSettings(vocab_size=320, shared=shared)) for shared in (True, False)
    }


@pytest.fixture
def make_bundle(tokenizers, tmp_path):
    """Writes a bundle with a random model whose texts differ and some of which end; `favourite` is made likelier."""

    def make(name="bundle", favourite=EOS, liking=2.0, seed=3, decoding=None, **model):
        shared = model.setdefault("tie_embeddings", "all") == "all"
        tokenizer = tokenizers[shared]
        transformer = random_model(len(tokenizer.source), len(tokenizer.target), favourite, liking, seed, **model)
        with torch.no_grad():
            for weight in transformer.parameters():
                if weight.dim() == 1:  # norms and biases that are not the neutral ones they begin as
                    weight.add_(torch.randn_like(weight), alpha=0.1)
            if favourite > BOS:  # control symbols are unlikely in trained models, if not impossible
                transformer.output_embedding.weight[: BOS + 1] *= 0.5
        recipe = Recipe(
            name="random",
            data={
                "name": "d",
                "source": "e",
                "target": "d",
                "train": [{"source": "a", "target": "b"}],
                "max_length": 70,
            },
            tokenizer=TokenizerSettings(vocab_size=320, shared=shared),
            model=transformer.config,
            decoding=decoding or Decoding(max_source=70, max_extra=9),
        )
        weights = dict(transformer.float().named_parameters())
        save_bundle(tmp_path / name, weights, recipe, tokenizer, {"run": "r", "step": seed, "data": "d"})
        return Bundle.read(tmp_path / name)

    return make


def sources_of(bundle, count, caps=None):
    """Random sentences; their usual caps unless others are given."""
    encoded = [bundle.tokenizer().source.encode(sentence(seed)) for seed in range(count)]
    caps = caps or [len(ids) + bundle.recipe.decoding.max_extra for ids in encoded]
    return [Source(i, ids, cap) for i, (ids, cap) in enumerate(zip(encoded, caps, strict=True))]


def search(bundle, sources, n_best=1, **decoding):
    """By CTranslate2, in order."""
    engine = load_engine(bundle, settings(bundle, decoding), threads=1, device="cpu")
    return in_order(engine.search(Pile(sources), n_best), sources)


def search_plainly(bundle, sources, n_best=1, dtype=torch.float64, **decoding):
    """By our reference, in order."""
    use = settings(bundle, decoding)
    return reference_search(
        [bundle.model(torch.device("cpu")).to(dtype)],
        [source.ids for source in sources],
        [source.cap for source in sources],
        beam=use.beam,
        alpha=use.alpha,
        n_best=n_best,
        min_length=use.min_length,
    )


def rounding(bundle, sources, beam, **decoding):
    """How far apart scores of one search in fp32 may be from exact ones, for this model and these sources.

    Four times what fp32 changes in our own search: CTranslate2 adds up in another order, which also depends on the
    processor. A norm over nearly equal numbers, of which random models have some, makes rounding errors many times
    larger, so that no fixed number would do for all models.
    """
    exact, rounded = (
        {
            (number, *hypothesis.ids): hypothesis.score
            for number, found in enumerate(search_plainly(bundle, sources, beam, dtype, beam=beam, **decoding))
            for hypothesis in found
        }
        for dtype in (torch.float64, torch.float32)
    )
    return 4 * max(abs(exact[key] - rounded[key]) for key in exact.keys() & rounded.keys()) + 1e-5


def translations(bundle, decoding, lines):
    """Of lines: by CTranslate2, and by PyTorch."""
    tokenizer, engine = bundle.tokenizer(), load_engine(bundle, decoding, threads=2, device="cpu")
    ours = Translator(bundle.model(torch.device("cpu")), tokenizer, decoding).stream(lines)
    return list(Pipeline(Translating(tokenizer, decoding), decoding, engine).stream(lines)), list(ours)


def settings(bundle, changes):
    return bundle.recipe.decoding.model_copy(update={"batch_tokens": 200} | changes)


def in_order(found, sources):
    found = dict(found)
    assert found.keys() == {source.number for source in sources}
    return [found[source.number] for source in sources]


# --- greedy search: exactly the same ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_outputs_and_scores_are_those_of_the_reference(make_bundle, variant):
    bundle = make_bundle(**variant)
    sources = sources_of(bundle, 50)
    ours, theirs = search_plainly(bundle, sources, beam=1), search(bundle, sources, beam=1)
    tolerance = rounding(bundle, sources, beam=1)
    assert len({tuple(best.ids) for (best,) in ours}) > 20  # the outputs are worth comparing
    assert {best.finished for (best,) in ours} == {True, False}
    for (our_best,), (their_best,) in zip(ours, theirs, strict=True):
        assert (their_best.ids, their_best.finished) == (our_best.ids, our_best.finished)
        assert their_best.score == pytest.approx(our_best.score, abs=tolerance)


def test_the_longest_inputs_and_outputs_are_served(make_bundle):
    bundle = make_bundle(liking=-6.0, decoding=Decoding(max_source=1100, max_extra=2))
    sources = [Source(0, [5 + i % 300 for i in range(1100)], 6), Source(1, [5, 6], 4)]
    ours, theirs = search_plainly(bundle, sources, beam=1), search(bundle, sources, beam=1)
    assert [best.ids for (best,) in theirs] == [best.ids for (best,) in ours]
    assert [best.score for (best,) in theirs] == pytest.approx([best.score for (best,) in ours], abs=1e-4)
    ((longest,),) = search(bundle, [replace(sources[0], cap=1102)], beam=1)
    assert (len(longest.ids), longest.finished) == (1102, False)


# --- wider beams: equal where the definitions agree ---------------------------------------------------------


@torch.inference_mode()
def search_by_its_rules(bundle, sources, beam, alpha):
    """What the module says of CTranslate2's search, a sentence at a time and without a cache."""
    model, wanted, results = bundle.model(torch.device("cpu")).double(), math.floor(beam * PATIENCE + 0.5), []
    for source in sources:
        states = model.encode(torch.tensor([[*source.ids, EOS]])).states
        alive, ended = [([], 0.0)], []
        for length in range(1, source.cap + 1):
            prefixes = torch.tensor([[BOS, *ids] for ids, _ in alive])
            logits = model.decode(prefixes, Memory(states.expand(len(alive), -1, -1), None))[:, -1]
            totals = logits.log_softmax(-1) + torch.tensor([[total] for _, total in alive], dtype=logits.dtype)
            best, index = totals.flatten().topk(2 * beam)
            rows, symbols = index // logits.size(1), index % logits.size(1)
            steps = zip(rows.tolist(), symbols.tolist(), best.tolist(), strict=True)
            candidates = [([*alive[row][0], symbol], total) for row, symbol, total in steps]
            ended += [(ids, total) for ids, total in candidates[:beam] if ids[-1] == EOS or length == source.cap]
            alive = [(ids, total) for ids, total in candidates if ids[-1] != EOS][:beam]
            if len(ended) >= wanted:
                break
        kept = sorted(ended, key=lambda end: end[1] / len(end[0]) ** alpha)[-wanted:]
        scored = [(total / ((5 + len(ids)) / 6) ** alpha, ids) for ids, total in kept if min(ids) >= EOS]
        results.append(sorted(scored, reverse=True)[:beam])
    return results


@pytest.mark.parametrize("beam", [2, 5])
@pytest.mark.parametrize("variant", VARIANTS[:2])
def test_beam_search_follows_the_rules_that_the_module_tells(make_bundle, variant, beam):
    bundle = make_bundle(**variant)
    sources = sources_of(bundle, 20)
    expected = search_by_its_rules(bundle, sources, beam, alpha=0.6)
    tolerance = rounding(bundle, sources, beam=beam)
    assert sum(len(wanted) == beam for wanted in expected) >= 15  # enough of them without control symbols
    for found, wanted in zip(search(bundle, sources, beam, beam=beam, alpha=0.6), expected, strict=True):
        if len(wanted) < beam:
            continue
        assert [[*best.ids, EOS] if best.finished else best.ids for best in found] == [ids for _, ids in wanted]
        assert [best.score for best in found] == pytest.approx([score for score, _ in wanted], abs=tolerance)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_outputs_score_equally_and_others_below_the_reference(make_bundle, variant, alpha):
    bundle = make_bundle(**variant)
    sources = sources_of(bundle, 20)
    ours, theirs = (find(bundle, sources, 4, beam=4, alpha=alpha) for find in (search_plainly, search))
    tolerance = rounding(bundle, sources, beam=4, alpha=alpha)
    for our, their in zip(ours, theirs, strict=True):
        scores = {(*hypothesis.ids, hypothesis.finished): hypothesis.score for hypothesis in our}
        for hypothesis in their:
            score = scores.get((*hypothesis.ids, hypothesis.finished))
            assert score is None or hypothesis.score == pytest.approx(score, abs=tolerance)
        assert (their[0].ids == our[0].ids) or their[0].score < our[0].score


def test_a_trained_model_gives_the_texts_of_the_reference(reverse_run, tmp_path):
    shutil.copytree(reverse_run / "ckpts" / "averaged", tmp_path / "bundle")
    bundle = Bundle.read(tmp_path / "bundle")
    lines = (reverse_run / "test.a").read_text().splitlines()
    for beam, share in ((1, 1.0), (4, 0.95)):
        decoding = bundle.recipe.decoding.model_copy(update={"beam": beam})
        theirs, ours = translations(bundle, decoding, lines)
        equal = [their.texts == our.texts for their, our in zip(theirs, ours, strict=True)]
        assert sum(equal) >= share * len(lines)


def test_n_best_hypotheses_are_ordered_distinct_and_begin_with_the_best(make_bundle):
    bundle = make_bundle()
    sources = sources_of(bundle, 20)
    best = search(bundle, sources, beam=4)
    for found, (alone,) in zip(search(bundle, sources, 4, beam=4), best, strict=True):
        assert found[0] == alone
        assert len({(*hypothesis.ids, hypothesis.finished) for hypothesis in found}) == 4
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("beam", [1, 3])
def test_no_n_gram_comes_twice(make_bundle, beam):
    def repeating(hypotheses):
        pairs = [list(pairwise(hypothesis.ids)) for hypothesis in hypotheses]
        return sum(len(set(each)) < len(each) for each in pairs)

    bundle = make_bundle(liking=-3.0)
    sources = sources_of(bundle, 30)
    free, strict = (search(bundle, sources, beam=beam, no_repeat=n) for n in (None, 2))
    assert sum(map(repeating, free)) > 5  # of 30
    assert sum(map(repeating, strict)) == 0


def test_it_draws_no_samples(make_bundle):
    engine = load_engine(make_bundle(), Decoding(), threads=1, device="cpu")
    with pytest.raises(UserError, match="--engine ctranslate2: draws no samples"):
        engine.sample(Pile([]), 2)


def test_each_thread_has_a_batch_and_another_one_waiting(make_bundle):
    bundle, taken = make_bundle(), []

    class Watched(Pile):
        def take(self, tokens, wait):
            taken.append(super().take(tokens, wait))
            return taken[-1]

    sources = sources_of(bundle, 20)
    tokens = max(len(source.ids) for source in sources) + 1  # of one sentence
    engine = load_engine(bundle, settings(bundle, {"batch_tokens": tokens}), threads=3, device="cpu")
    with closing(engine.search(Watched(sources), 1)) as found:
        next(found)
    assert len(taken) == 6


@pytest.mark.parametrize("beam", [1, 3])
def test_each_sentence_has_a_cap_of_its_own(make_bundle, beam):
    bundle = make_bundle()
    caps = random.Random(2).choices(range(1, 20), k=40)
    sources = sources_of(bundle, 40, caps)
    together = search(bundle, sources, beam, beam=beam)
    assert {found[0].finished for found in together} == {True, False}
    for source, found in zip(sources, together, strict=True):
        (alone,) = search(bundle, [source], beam, beam=beam)
        assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in alone]
        for hypothesis in found:
            length = len(hypothesis.ids) + hypothesis.finished
            assert length <= source.cap if hypothesis.finished else length == source.cap
    if beam == 1:
        assert [best.ids for (best,) in together] == [best.ids for (best,) in search_plainly(bundle, sources, beam=1)]


@pytest.mark.parametrize("beam", [1, 3])
def test_control_symbols_are_never_output(make_bundle, beam):
    bundle = make_bundle(favourite=BOS, liking=8.0)
    sources = sources_of(bundle, 10)
    found = search(bundle, sources, beam, beam=beam)
    assert {len(hypotheses) for hypotheses in found} == {beam}
    assert all(symbol > EOS for hypotheses in found for hypothesis in hypotheses for symbol in hypothesis.ids)
    if beam == 1:
        assert [best.ids for (best,) in found] == [best.ids for (best,) in search_plainly(bundle, sources, beam=1)]


def test_min_length_is_kept(make_bundle):
    bundle = make_bundle(liking=12.0)
    sources = sources_of(bundle, 10)
    assert min(len(best.ids) for (best,) in search(bundle, sources, beam=3)) < 5
    ours = search_plainly(bundle, sources, beam=1, min_length=5)
    theirs = search(bundle, sources, beam=1, min_length=5)
    assert [best.ids for (best,) in theirs] == [best.ids for (best,) in ours]
    assert min(len(best.ids) for (best,) in theirs) == 5


def test_ctranslate2_computes_in_int8_and_a_trained_model_says_the_same(reverse_run, tmp_path):
    shutil.copytree(reverse_run / "ckpts" / "averaged", tmp_path / "bundle")
    bundle = Bundle.read(tmp_path / "bundle")
    lines = (reverse_run / "test.a").read_text().splitlines()
    exact, rough = (
        translations(bundle, settings(bundle, {"beam": 1, "precision": precision}), lines)[0]
        for precision in ("fp32", "int8")
    )
    pairs = [(a.scores[0], b.scores[0]) for a, b in zip(exact, rough, strict=True) if a.texts == b.texts]
    assert any(abs(a - b) > 1e-3 * abs(a) for a, b in pairs)
    # Without VNNI its sums saturate, which may change more texts than rounding does; how many is CTranslate2's affair.
    assert len(pairs) > 0.8 * len(lines)


def test_lines_go_through_the_pipeline(make_bundle):
    bundle = make_bundle(tie_embeddings="none")
    decoding = settings(bundle, {"beam": 1, "max_source": 12})
    lines = ["", *(sentence(seed) for seed in range(40)), " ", "tree " * 30]
    theirs, ours = translations(bundle, decoding, lines)
    assert [found.texts for found in theirs] == [found.texts for found in ours]
    assert [found.capped for found in theirs] == [found.capped for found in ours]


# --- conversion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_an_export_is_all_that_ctranslate2_needs(make_bundle, nmt, tmp_path, quantization):
    bundle, folder = make_bundle(tie_embeddings="none"), tmp_path / "exported"
    form = "--format", "ctranslate2", "--quantization", quantization
    done = nmt("average", str(bundle.path), *form, "--out", str(folder))
    assert done.code == 0, done.err
    assert f"written for CTranslate2, in {quantization}: {folder}" in done.err
    source, target = bundle.tokenizer().source, bundle.tokenizer().target
    (ours,) = search_plainly(bundle, [Source(0, source.encode("the dog likes the tree"), 20)], beam=1)
    moved = folder.rename(tmp_path / "elsewhere")
    assert quantization in ctranslate2.Translator(str(moved)).compute_type
    (found,) = ctranslate2.Translator(str(moved), intra_threads=1).translate_batch(
        [source.pieces(source.encode("the dog likes the tree"))], beam_size=1, max_decoding_length=20
    )
    assert found.hypotheses[0] == target.pieces(ours[0].ids)
    assert Tokenizer.load(moved).equals(bundle.tokenizer())


def test_tied_weights_are_stored_once(make_bundle):
    sizes = {}
    for tied in ("all", "target", "none"):
        bundle = make_bundle(tied, tie_embeddings=tied)
        sizes[tied] = (convert(bundle, bundle.recipe.decoding) / "model.bin").stat().st_size
    matrix = 320 * 16 * 4
    assert sizes["target"] - sizes["all"] == pytest.approx(matrix, abs=200)
    assert sizes["none"] - sizes["target"] == pytest.approx(matrix, abs=200)


def test_a_conversion_is_made_again_only_for_other_weights(make_bundle):
    bundle = make_bundle(seed=3)
    decoding, said = bundle.recipe.decoding, []
    elsewhere = bundle.path.parent / "deployed" / "model"

    def made():
        convert(bundle, decoding, elsewhere, said.append)
        return (elsewhere / "model.bin").stat().st_ino, len(said)

    first = made()
    assert made() == first
    weights = bundle.path / "model.safetensors"
    os.utime(weights, ns=(0, 0))  # as a copy of the bundle may have it
    assert made() == first
    assert json.loads((elsewhere / "converted.json").read_text())["modified_ns"] == 0
    sources = sources_of(bundle, 5)
    bundle = make_bundle(seed=4)  # in its place, of the same size
    assert made() != first
    engine = load_engine(bundle, settings(bundle, {"beam": 1}), threads=1, folder=elsewhere)
    ours = search_plainly(bundle, sources, beam=1)
    assert [best.ids for (best,) in in_order(engine.search(Pile(sources), 1), sources)] == [
        best.ids for (best,) in ours
    ]


def test_a_folder_for_shorter_inputs_is_made_anew(make_bundle):
    bundle = make_bundle()
    convert(bundle, bundle.recipe.decoding)
    (found,) = search(bundle, [Source(0, [5, 6] * 100, 201)], beam=1, max_source=200)
    (ours,) = search_plainly(bundle, [Source(0, [5, 6] * 100, 201)], beam=1)
    assert found[0].ids == ours[0].ids
    assert convert(bundle, bundle.recipe.decoding, say=pytest.fail)  # which serves shorter ones too


def test_the_folder_is_there_whole_or_not_at_all(make_bundle, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bundle = make_bundle(seed=3)
    monkeypatch.setattr(engine_module, "write_manifest", full)
    with pytest.raises(UserError, match="disk is full"):
        convert(bundle, bundle.recipe.decoding)
    assert not [path.name for path in bundle.path.iterdir() if path.is_dir()]
    monkeypatch.undo()
    before = (convert(bundle, bundle.recipe.decoding) / "model.bin").read_bytes()
    monkeypatch.setattr(engine_module, "write_manifest", full)
    with pytest.raises(UserError, match="disk is full"):
        convert(bundle, bundle.recipe.decoding.model_copy(update={"max_source": 500}))
    assert (bundle.path / "ctranslate2" / "model.bin").read_bytes() == before


def test_what_the_conversion_computes_itself_is_as_in_the_model():
    table = conversion.sinusoids(3000, 24)
    assert np.array_equal(table, layers.sinusoids(3000, 24).numpy())


# --- what users are told ------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_what_installs_it(make_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    bundle = make_bundle()
    with pytest.raises(UserError, match="CTranslate2 is not installed") as error:
        load_engine(bundle, bundle.recipe.decoding, threads=1)
    assert "pip install ctranslate2" in error.value.hint


def test_a_precision_that_the_device_lacks_is_named_with_those_it_has(make_bundle, monkeypatch):
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda *device: {"float32", "int8", "int16"})
    bundle = make_bundle()
    with pytest.raises(UserError, match=r"decoding\.precision: .*bf16 on this cpu") as error:
        search(bundle, [], precision="bf16")
    assert error.value.hint == "use one of: auto, fp32, int8"


def test_a_device_that_is_not_there_is_named(make_bundle):
    bundle = make_bundle()
    with pytest.raises(UserError, match="--device cuda:99"):
        load_engine(bundle, bundle.recipe.decoding, threads=1, device="cuda:99")


@pytest.fixture
def read_only(monkeypatch):
    """Makes a folder look read-only: to root, who may run tests, none is. Tests look at what was written there."""

    def make(folder):
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder)

    return make


def test_a_bundle_that_is_read_only_is_converted_into_the_cache_once(make_bundle, read_only, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle, other = make_bundle(seed=3), make_bundle("other", seed=4)
    before, said = sorted(bundle.path.rglob("*")), []
    read_only(bundle.path)
    path = convert(bundle, bundle.recipe.decoding, say=said.append)
    assert path.parent == tmp_path / "cache/nmt/ctranslate2"
    assert said == [f"converting {bundle.path} for CTranslate2: {path}"]
    assert sorted(bundle.path.rglob("*")) == before
    assert ctranslate2.Translator(str(path), device="cpu")
    copy = shutil.copytree(bundle.path, tmp_path / "copy")
    read_only(copy)
    assert convert(Bundle.read(copy), bundle.recipe.decoding, say=pytest.fail) == path
    read_only(other.path)
    assert convert(other, bundle.recipe.decoding) != path


def test_a_bundle_that_is_read_only_and_converted_needs_no_cache(make_bundle, read_only, monkeypatch):
    bundle = make_bundle()
    path = convert(bundle, bundle.recipe.decoding)
    read_only(bundle.path)
    monkeypatch.setattr(engine_module, "_cache", pytest.fail)
    assert convert(bundle, bundle.recipe.decoding) == path


def test_a_cache_that_cannot_be_made_is_told_with_what_helps(make_bundle, read_only, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    bundle = make_bundle()
    read_only(bundle.path)
    with pytest.raises(UserError, match="the model's folder is read-only, and no cache can be made") as error:
        convert(bundle, bundle.recipe.decoding)
    assert error.value.hint == "set XDG_CACHE_HOME to a folder where you may write"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_ff": 31}, r"encoder\.0\.feed_forward\.inner\.weight has shape \[32, 16\], but \[31, 16\] by the recipe"),
        ({"layers": 3}, r"encoder\.2\.attention\.qkv\.weight is missing"),
    ],
)
def test_weights_that_do_not_fit_the_recipe_are_named(make_bundle, changes, message):
    bundle = make_bundle()
    recipe = bundle.recipe.model_copy(update={"model": bundle.recipe.model.model_copy(update=changes)})
    (bundle.path / "recipe.yaml").write_text(recipe.to_yaml())
    reseal(bundle.path)
    with pytest.raises(UserError, match=message):
        convert(Bundle.read(bundle.path), recipe.decoding)
    assert not (bundle.path / "ctranslate2").exists()


@pytest.mark.parametrize(("key", "value"), [("attention_window", 5), ("positions", "words")])
def test_what_ctranslate2_has_not_is_refused(make_bundle, key, value):
    bundle = make_bundle(**{key: value})
    with pytest.raises(UserError, match=rf"CTranslate2 has nothing like model\.{key} {value}"):
        convert(bundle, bundle.recipe.decoding)
    assert not (bundle.path / "ctranslate2").exists()


@pytest.mark.parametrize(
    "damage", ["flipped", "missing", "[]", "{}", '{"format": 1}', '{"format": 1, "positions": "x"}']
)
def test_a_damaged_conversion_is_made_anew(make_bundle, damage):
    bundle = make_bundle()
    path = convert(bundle, bundle.recipe.decoding)
    whole = (path / "model.bin").read_bytes()
    if damage == "flipped":
        content = bytearray(whole)
        content[len(content) // 2] ^= 1
        (path / "model.bin").write_bytes(content)
    elif damage == "missing":
        (path / "model.bin").unlink()
    else:
        (path / "converted.json").write_text(damage)
    said = []
    convert(bundle, bundle.recipe.decoding, say=said.append)
    assert len(said) == 1
    assert (path / "model.bin").read_bytes() == whole
    convert(bundle, bundle.recipe.decoding, say=said.append)
    assert len(said) == 1


def test_a_conversion_that_cannot_be_loaded_now_is_named(make_bundle, monkeypatch):
    bundle = make_bundle()

    def fail(path, **options):
        raise RuntimeError(f"Unable to open file 'model.bin' in model '{path}'")  # too many files are open, say

    monkeypatch.setattr("ctranslate2.Translator", fail)
    with pytest.raises(UserError, match="ctranslate2: CTranslate2 cannot load it: Unable to open"):
        load_engine(bundle, bundle.recipe.decoding, threads=1, device="cpu")


def test_damaged_weights_are_named(make_bundle):
    bundle = make_bundle()
    (bundle.path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"model\.safetensors: damaged"):
        convert(bundle, bundle.recipe.decoding)


PROGRAM = """
import sys
from pathlib import Path
from nmt.bundle import resolve
from nmt.search.ctranslate2 import load_engine
from nmt.tasks.pipeline import Pipeline
from nmt.tasks.translating import Translating
bundle, _ = resolve(Path(sys.argv[1]))
engine = load_engine(bundle, bundle.recipe.decoding, threads=1, device="cpu", say=print)
task = Translating(bundle.tokenizer(), bundle.recipe.decoding)
print(next(Pipeline(task, bundle.recipe.decoding, engine).stream(["the dog"])).parts)
print(*sorted({"torch", "datasets"} & {name.split(".")[0] for name in sys.modules}))
"""


def test_neither_conversion_nor_translation_imports_torch(make_bundle):
    bundle = make_bundle()
    for said in (1, 0):  # the first time it is converted
        done = subprocess.run([sys.executable, "-c", PROGRAM, bundle.path], capture_output=True, text=True)
        assert (done.returncode, done.stdout.split("\n")[said:]) == (0, ["1", "", ""]), done.stderr
