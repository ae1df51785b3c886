"""CTranslate2 against our plain search, with small random models of every kind; conversion; what users are told."""

import os
import shutil
import sys
from itertools import pairwise

import pytest
import torch
from queues import Pile
from random_bundle import sentence, tokenizer_of_words, write_bundle
from reference_search import random_model, reference_search
from reverse_task import reseal

from nmt.checkpoint.reading import Bundle
from nmt.decoding.ctranslate2_engine import convert
from nmt.decoding.engine import Source
from nmt.decoding.workers import Saved
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS

ctranslate2 = pytest.importorskip("ctranslate2")

LEARNED = {"positions": "learned", "max_positions": 90}
BIASED = {"norm_epsilon": 0.3, "activation": "silu", "attention_bias": True, "output_bias": True}
VARIANTS = [
    {"liking": 2.0},
    {"liking": 4.0, "norm": "pre", "tie_embeddings": "target", "d_k": 3, "d_v": 5} | LEARNED | BIASED,
    {"liking": 5.0, "norm": "pre", "tie_embeddings": "none", "d_k": 9, "d_v": 2, "decoder_layers": 1},
    LEARNED
    | {"liking": 4.0, "max_positions": 83, "norm_epsilon": 0.5, "activation": "gelu"}
    | {"heads": 3, "d_k": 4, "d_v": 4, "layers": 1, "decoder_layers": 3},
]


@pytest.fixture
def make_bundle(tmp_path):
    """Writes a bundle with a random model whose texts differ and some of which end; `favourite` is made likelier."""

    def make(name="bundle", favourite=EOS, liking=2.0, seed=3, **model):
        shared = model.setdefault("tie_embeddings", "all") == "all"
        tokenizer = tokenizer_of_words(shared)
        transformer = random_model(len(tokenizer.source), len(tokenizer.target), favourite, liking, seed, **model)
        if favourite > BOS:  # control symbols are unlikely in trained models, if not impossible
            with torch.no_grad():
                transformer.output_embedding.weight[: BOS + 1] *= 0.5
        return write_bundle(tmp_path / name, transformer, shared, info={"step": seed})

    return make


def sources_of(bundle, count, caps=None):
    """Random sentences; their usual caps unless others are given."""
    encoded = [bundle.tokenizer().source.encode(sentence(seed)) for seed in range(count)]
    caps = caps or [len(ids) + bundle.recipe.decoding.max_extra for ids in encoded]
    return [Source(i, ids, cap) for i, (ids, cap) in enumerate(zip(encoded, caps, strict=True))]


def search(bundle, sources, n_best=1, **decoding):
    """By CTranslate2, in order."""
    with Saved([bundle], "ctranslate2", "cpu", 1, 1, False, print).open(
        settings(bundle, decoding), pytest.fail
    ) as engine:
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


def settings(bundle, changes):
    return bundle.recipe.decoding.model_copy(update={"batch_tokens": 200} | changes)


def in_order(found, sources):
    found = dict(found)
    assert found.keys() == {source.number for source in sources}
    return [found[source.number] for source in sources]


# --- searches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_searches_agree_with_the_reference_where_their_definitions_do(make_bundle, variant):
    """Greedy outputs are the same; with a wider beam, equal outputs score equally, and others below the reference."""
    bundle = make_bundle(**variant)
    sources = sources_of(bundle, 50)
    ours, theirs = search_plainly(bundle, sources, beam=1), search(bundle, sources, beam=1)
    tolerance = rounding(bundle, sources, beam=1)
    assert len({tuple(best.ids) for (best,) in ours}) > 20  # the outputs are worth comparing
    assert {best.finished for (best,) in ours} == {True, False}
    for (our_best,), (their_best,) in zip(ours, theirs, strict=True):
        assert (their_best.ids, their_best.finished) == (our_best.ids, our_best.finished)
        assert their_best.score == pytest.approx(our_best.score, abs=tolerance)
    sources = sources[:20]
    ours, theirs = (find(bundle, sources, 4, beam=4, alpha=0.6) for find in (search_plainly, search))
    tolerance = rounding(bundle, sources, beam=4, alpha=0.6)
    for our, their in zip(ours, theirs, strict=True):
        scores = {(*hypothesis.ids, hypothesis.finished): hypothesis.score for hypothesis in our}
        for hypothesis in their:
            score = scores.get((*hypothesis.ids, hypothesis.finished))
            assert score is None or hypothesis.score == pytest.approx(score, abs=tolerance)
        assert (their[0].ids == our[0].ids) or their[0].score < our[0].score


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


# --- conversion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_an_export_is_all_that_ctranslate2_needs(make_bundle, nmt, tmp_path, quantization):
    bundle, folder = make_bundle(tie_embeddings="none"), tmp_path / "exported"
    form = "--format", "ctranslate2", "--quantization", quantization
    done = nmt("average", str(bundle.path), *form, "--out", str(folder))
    assert done.code == 0, done.err
    assert f"exported for CTranslate2, in {quantization}: {folder}" in done.err
    source, target = bundle.tokenizer().source, bundle.tokenizer().target
    (ours,) = search_plainly(bundle, [Source(0, source.encode("the dog likes the tree"), 20)], beam=1)
    moved = folder.rename(tmp_path / "elsewhere")
    assert quantization in ctranslate2.Translator(str(moved)).compute_type
    # Weights of 8 bits are computed with in fp32 here: products of 8 bits depend on the processor.
    (found,) = ctranslate2.Translator(str(moved), intra_threads=1, compute_type="float32").translate_batch(
        [source.pieces(source.encode("the dog likes the tree"))], beam_size=1, max_decoding_length=20
    )
    assert found.hypotheses[0] == target.pieces(ours[0].ids)
    assert Tokenizer.load(moved).equals(bundle.tokenizer())


def test_a_conversion_is_made_again_only_for_other_weights_or_lengths(make_bundle):
    bundle = make_bundle(seed=3)
    decoding, said = bundle.recipe.decoding, []

    def made():
        path = convert(bundle, decoding, said.append)
        assert path == bundle.path / "ctranslate2"
        return (path / "model.bin").stat().st_ino, len(said)

    first = made()
    assert said == [f"converting {bundle.path} for CTranslate2: {bundle.path / 'ctranslate2'}"]
    os.utime(bundle.path / "model.safetensors", ns=(0, 0))  # as a copy of the bundle may have it
    assert made() == first
    sources, folder = sources_of(bundle, 5), bundle.path / "ctranslate2"
    other = make_bundle("other", seed=4)
    shutil.copytree(folder, other.path / "ctranslate2")
    bundle = other
    second = made()
    assert second[1] == 2
    decoding = decoding.model_copy(update={"max_source": 2 * decoding.max_source})
    assert made()[1] == 3
    ours = search_plainly(bundle, sources, beam=1)
    assert [best.ids for (best,) in search(bundle, sources, beam=1)] == [best.ids for (best,) in ours]


# --- what users are told ------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_what_installs_it(make_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    bundle = make_bundle()
    with pytest.raises(UserError, match="CTranslate2 is not installed") as error:
        search(bundle, [])
    assert "pip install ctranslate2" in error.value.hint


def test_a_precision_that_the_device_lacks_is_named(make_bundle):
    bundle = make_bundle()
    with pytest.raises(UserError, match=r"decoding\.precision fp16: .*float16") as error:
        search(bundle, [], precision="fp16")
    assert error.value.hint == "use decoding.precision=auto"


def test_a_bundle_that_is_read_only_needs_a_conversion(make_bundle, monkeypatch):
    bundle, converted = make_bundle(seed=3), make_bundle("converted", seed=4)
    path = convert(converted, bundle.recipe.decoding, print)
    monkeypatch.setattr(os, "access", lambda path, mode: path not in (bundle.path, converted.path))
    assert convert(converted, bundle.recipe.decoding, pytest.fail) == path
    with pytest.raises(UserError, match="the folder of the model is read-only") as error:
        convert(bundle, bundle.recipe.decoding, pytest.fail)
    assert f"nmt average {bundle.path} --format ctranslate2" in error.value.hint


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
        convert(Bundle.read(bundle.path), recipe.decoding, print)
    assert not (bundle.path / "ctranslate2").exists()


@pytest.mark.parametrize(("key", "value"), [("attention_window", 5), ("positions", "words")])
def test_what_ctranslate2_has_not_is_refused(make_bundle, key, value):
    bundle = make_bundle(**{key: value})
    with pytest.raises(UserError, match=rf"CTranslate2 has nothing like model\.{key} {value}"):
        convert(bundle, bundle.recipe.decoding, print)
    assert not (bundle.path / "ctranslate2").exists()


@pytest.mark.parametrize("damage", ["flipped", "missing", '{"format": 1, "positions": "x"}'])
def test_a_damaged_conversion_is_made_anew(make_bundle, damage):
    bundle = make_bundle()
    path = convert(bundle, bundle.recipe.decoding, print)
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
    convert(bundle, bundle.recipe.decoding, said.append)
    assert len(said) == 1
    assert (path / "model.bin").read_bytes() == whole
    convert(bundle, bundle.recipe.decoding, said.append)
    assert len(said) == 1
