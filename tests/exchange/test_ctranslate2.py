"""Exports to CTranslate2, searched by its own package beside our plain search, with small random models."""

import sys

import pytest
import torch
from random_bundle import sentence, tokenizer_of_words, write_bundle
from reference_search import random_model, reference_search
from reverse_task import reseal

from nmt.checkpoint.reading import Bundle
from nmt.exchange.ctranslate2 import check_expressible, export
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS

ctranslate2 = pytest.importorskip("ctranslate2")

LEARNED = {"positions": "learned", "max_positions": 90}
BIASED = {"norm_epsilon": 0.3, "activation": "silu", "attention_bias": True, "output_bias": True}
VARIANTS = [
    {"liking": 2.0},
    {"liking": 4.0, "norm": "pre", "tie_embeddings": "target", "d_k": 5, "d_v": 5} | LEARNED | BIASED,
    {"liking": 5.0, "norm": "pre", "tie_embeddings": "none", "d_k": 9, "d_v": 9, "decoder_layers": 1},
    LEARNED
    | {"liking": 4.0, "max_positions": 83, "norm_epsilon": 0.5, "activation": "gelu"}
    | {"heads": 3, "d_k": 4, "d_v": 4, "layers": 1, "decoder_layers": 3},
]


@pytest.fixture
def make_bundle(tmp_path):
    """Writes a bundle with a random model whose texts differ and some of which end."""

    def make(liking=2.0, **model):
        shared = model.setdefault("tie_embeddings", "all") == "all"
        tokenizer = tokenizer_of_words(shared)
        transformer = random_model(len(tokenizer.source), len(tokenizer.target), EOS, liking, 3, **model)
        with torch.no_grad():  # control symbols are unlikely in trained models, if not impossible
            transformer.output_embedding.weight[: BOS + 1] *= 0.5
        return write_bundle(tmp_path / "bundle", transformer, shared)

    return make


def sources_of(bundle, count):
    """The subwords of random sentences, and how many an output of each may have."""
    encoded = [bundle.tokenizer().source.encode(sentence(seed)) for seed in range(count)]
    return encoded, [len(ids) + bundle.recipe.decoding.max_extra for ids in encoded]


def search(bundle, folder, encoded, caps, beam):
    """Hypotheses of CTranslate2 for each source: symbols, whether it ended, and log-probability over |Y|^α."""
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    ids = {piece: index for index, piece in enumerate(bundle.tokenizer().target.listing())}
    found = []
    for source, cap in zip(encoded, caps, strict=True):
        (each,) = translator.translate_batch(
            [bundle.tokenizer().source.pieces(source)],
            **{"beam_size": beam, "num_hypotheses": beam, "length_penalty": 0.6, "max_decoding_length": cap},
            **{"max_input_length": 0, "min_decoding_length": 0, "return_scores": True, "return_end_token": True},
        )
        texts = [[ids[piece] for piece in pieces] for pieces in each.hypotheses]
        found.append([(text, text[-1] == EOS, score) for text, score in zip(texts, each.scores, strict=True)])
    return found


def search_plainly(bundle, encoded, caps, beam, dtype=torch.float64):
    """The same of our reference, with scores as CTranslate2 has them."""
    model = bundle.model(torch.device("cpu")).to(dtype)
    found = reference_search([model], encoded, caps, beam=beam, alpha=0.6, n_best=beam, min_length=0)
    return [
        [
            (text := [*each.ids, EOS] if each.finished else each.ids, each.finished, each.score * penalty(len(text)))
            for each in hypotheses
        ]
        for hypotheses in found
    ]


def penalty(length):
    """By which our score is multiplied: ((5 + |Y|) / 6)^α over |Y|^α."""
    return ((5 + length) / 6 / length) ** 0.6


def rounding(bundle, encoded, caps, beam):
    """How far apart scores of one search in fp32 may be from exact ones, for this model and these sources.

    Four times what fp32 changes in our own search: CTranslate2 adds up in another order, which also depends on the
    processor. A norm over nearly equal numbers, of which random models have some, makes rounding errors many times
    larger, so that no fixed number would do for all models.
    """
    exact, rounded = (
        {
            (number, *ids): score
            for number, found in enumerate(search_plainly(bundle, encoded, caps, beam, dtype))
            for ids, _, score in found
        }
        for dtype in (torch.float64, torch.float32)
    )
    return 4 * max(abs(exact[key] - rounded[key]) for key in exact.keys() & rounded.keys()) + 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_searches_agree_with_the_reference_where_their_definitions_do(make_bundle, tmp_path, variant):
    """Greedy outputs are the same; with a wider beam, equal outputs score equally, and others below the reference."""
    bundle, folder = make_bundle(**variant), tmp_path / "exported"
    export(bundle, folder, "float32")
    encoded, caps = sources_of(bundle, 50)
    ours, theirs = search_plainly(bundle, encoded, caps, 1), search(bundle, folder, encoded, caps, 1)
    tolerance = rounding(bundle, encoded, caps, 1)
    assert len({tuple(ids) for ((ids, _, _),) in ours}) > 20  # the outputs are worth comparing
    assert {is_finished for ((_, is_finished, _),) in ours} == {True, False}
    for (our,), (their,) in zip(ours, theirs, strict=True):
        assert their[:2] == our[:2]
        assert their[2] == pytest.approx(our[2], abs=tolerance)
    encoded, caps = encoded[:20], caps[:20]
    ours, theirs = search_plainly(bundle, encoded, caps, 4), search(bundle, folder, encoded, caps, 4)
    tolerance = rounding(bundle, encoded, caps, 4)
    for our, their in zip(ours, theirs, strict=True):
        scores = {tuple(ids): score for ids, _, score in our}
        for ids, _, score in their:
            assert tuple(ids) not in scores or score == pytest.approx(scores[tuple(ids)], abs=tolerance)
        # Ours ranks by its own score, and CTranslate2 stops by another rule.
        best = max(score / penalty(len(ids)) for ids, _, score in their if min(ids) >= EOS)
        assert best <= our[0][2] / penalty(len(our[0][0])) + tolerance


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_an_export_is_all_that_ctranslate2_needs(make_bundle, nmt, tmp_path, quantization):
    bundle, folder = make_bundle(tie_embeddings="none"), tmp_path / "exported"
    form = "--format", "ctranslate2", "--quantization", quantization
    done = nmt("average", str(bundle.path), *form, "--out", str(folder))
    assert done.code == 0, done.err
    assert f"exported for CTranslate2, in {quantization}: {folder}" in done.err
    source = bundle.tokenizer().source.encode("the dog likes the tree")
    (((ours, _, _),),) = search_plainly(bundle, [source], [20], 1)
    moved = folder.rename(tmp_path / "elsewhere")
    assert quantization in ctranslate2.Translator(str(moved)).compute_type
    # Weights of 8 bits are computed with in fp32 here: products of 8 bits depend on the processor.
    (((theirs, _, _),),) = search(bundle, moved, [source], [20], 1)
    assert theirs == ours
    assert Tokenizer.load(moved).equals(bundle.tokenizer())


def test_a_missing_package_is_named_with_what_installs_it(make_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match="CTranslate2 is not installed") as error:
        check_expressible(make_bundle())
    assert "pip install ctranslate2" in error.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_ff": 31}, r"feed_forward\.inner\.bias has shape \[32\], but \[31\] by the recipe"),
        ({"layers": 3}, r"decoder\.2\.\S+ has shape none, but \["),
    ],
)
def test_weights_that_do_not_fit_the_recipe_are_named(make_bundle, tmp_path, changes, message):
    bundle = make_bundle()
    recipe = bundle.recipe.model_copy(update={"model": bundle.recipe.model.model_copy(update=changes)})
    (bundle.path / "recipe.yaml").write_text(recipe.to_yaml())
    reseal(bundle.path)
    with pytest.raises(UserError, match=message):
        export(Bundle.read(bundle.path), tmp_path / "exported", "float32")
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(("key", "value"), [("d_v", 5), ("positions", "words")])
def test_what_ctranslate2_has_not_is_refused(make_bundle, tmp_path, key, value):
    with pytest.raises(UserError, match=rf"CTranslate2 has nothing like model\.{key} {value}"):
        export(make_bundle(**{key: value}), tmp_path / "exported", "float32")
    assert not (tmp_path / "exported").exists()
