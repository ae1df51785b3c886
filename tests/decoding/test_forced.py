"""Forced decoding against a plain softmax and against search; cuts, order and memory of a stream."""

import random

import pytest
import torch
from reference_search import reference_search

from nmt.decoding import forced
from nmt.decoding.beam import length_penalty
from nmt.decoding.forced import ForcedDecoder
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, TokenizerSettings
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, PAD, UNK

WORDS = ["tree", "house", "dog", "cat", "river", "garden", "sees", "likes", "the", "."]


def sentence(words, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


PAIRS = [(sentence(1 + seed * 5 % 9, seed), sentence(1 + seed * 7 % 8, -seed)) for seed in range(1, 20)]
PAIRS += [("the dog", ""), ("", "the dog"), (" \t", "\u3000"), ("a\u2028b \ufeff 🦊", "<s> </s> <pad> \x00\u2581")]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(
        [(sentence(8, n), sentence(8, n + 500)) for n in range(200)], TokenizerSettings(vocab_size=300)
    )


def random_model(tokenizer, seed=3, ending=0.0, **changes):
    """A small random Transformer in fp64 whose outputs depend on the input; control symbols but `</s>` have no
    probability, which `ending` raises."""
    torch.manual_seed(seed)
    settings = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "tie_embeddings": "none"} | changes
    model = Transformer(Model(**settings), len(tokenizer.source), len(tokenizer.target)).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name:
                weight.mul_(3.0)
        rows, always = model.output_embedding.weight, torch.nn.functional.normalize(torch.randn(16).double(), dim=0)
        rows.mul_(2.0)
        last = model.decoder[-1].feed_forward_residual.norm if model.config.norm == "post" else model.decoder_norm
        last.bias.add_(10.0 * always)  # a component that every state has
        rows.sub_(torch.outer(rows @ always, always))
        rows[[PAD, UNK, BOS]] = -20.0 * always
        rows[EOS] += 0.1 * ending * always
        if model.output_bias is not None:
            model.output_bias.normal_()
    return model


MODELS = [
    {},
    {"norm": "pre", "positions": "learned", "max_positions": 60, "d_k": 3, "d_v": 5, "output_bias": True},
    {"attention_window": 3},
]


def decoder_of(tokenizer, *models, **decoding):
    return ForcedDecoder(models, tokenizer, Decoding(**decoding))


@torch.no_grad()
def plain(models, source, target):
    """Sum of log-probabilities of target ids, by a whole softmax for each; source ids are without `</s>`."""
    total = 0.0
    for length, symbol in enumerate(target):
        prefix = torch.tensor([[BOS, *target[:length]]])
        each = [model(torch.tensor([[*source, EOS]]), prefix)[0, -1].softmax(-1)[symbol] for model in models]
        total += float(torch.stack(each).mean().log())
    return total


def forced_scores(models, pairs):
    return [float(tokens.sum()) for tokens in forced.log_probabilities_of(models, pairs, 4096)]


def ids_of(tokenizer, pair):
    source, target = pair
    return tokenizer.source.encode(source.strip()), [*tokenizer.target.encode(target.strip()), EOS]


# --- the numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", MODELS)
def test_probabilities_are_those_of_a_plain_softmax_in_any_batch(tokenizer, changes):
    model = random_model(tokenizer, **changes)
    ids = [ids_of(tokenizer, pair) for pair in PAIRS]
    expected = [plain([model], source, target) for source, target in ids]
    assert len({round(value, 3) for value in expected}) > len(PAIRS) - 3  # worth comparing
    for model_type, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):  # a plain pass in fp32: up to 1.8e-6
        model.to(model_type)
        for batch_tokens in (1, 60, 4096):
            found = list(decoder_of(tokenizer, model, batch_tokens=batch_tokens).stream(PAIRS))
            assert [score.log_probability for score in found] == pytest.approx(expected, rel=tolerance)
            assert [score.subwords for score in found] == [len(target) for _, target in ids]
            assert {(score.sources_cut, score.targets_cut) for score in found} == {(0, 0)}


def test_an_ensemble_takes_the_mean_of_probabilities(tokenizer):
    models = [random_model(tokenizer, seed) for seed in (3, 4, 5)]
    source, target = ids_of(tokenizer, PAIRS[5])
    (found,) = forced_scores([*models], [(source, target)])
    assert found == pytest.approx(plain(models, source, target), abs=1e-9)
    assert len({round(plain([model], source, target), 3) for model in models}) == 3
    (twice,) = forced_scores([models[0], models[0]], [(source, target)])
    assert twice == pytest.approx(plain(models[:1], source, target), abs=1e-9)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("changes", [MODELS[0] | {"ending": 8.0}, MODELS[1] | {"ending": 5.0}])
def test_a_hypothesis_has_the_probability_by_which_search_found_it(tokenizer, beam, changes):
    model, alpha = random_model(tokenizer, **changes), 0.6
    sources = [source for source, _ in (ids_of(tokenizer, pair) for pair in PAIRS) if source]
    found = reference_search([model], sources, [30] * len(sources), beam=beam, alpha=alpha, n_best=beam)
    pairs, searched = [], []
    for source, hypotheses in zip(sources, found, strict=True):
        for one in hypotheses:
            target = [*one.ids, EOS] if one.finished else one.ids
            pairs.append((source, target))
            searched.append(one.score * float(length_penalty(torch.tensor(float(len(target))), alpha)))
    assert sum(target[-1] == EOS for _, target in pairs) >= 5  # the others were cut at their cap
    assert len({round(value, 3) for value in searched}) > 0.9 * len(sources) * beam
    assert forced_scores([model], pairs) == pytest.approx(searched, abs=1e-4)


def test_neither_side_of_a_batch_exceeds_batch_tokens(tokenizer, monkeypatch):
    batches, score = [], forced.token_log_probabilities

    def spy(models, batch):
        batches.append(batch)
        return score(models, batch)

    monkeypatch.setattr(forced, "token_log_probabilities", spy)
    lines = [("the dog", sentence(30, 1)), (sentence(30, 2), "the dog"), *PAIRS]
    longest = max(max(len(source) + 1, len(target)) for source, target in (ids_of(tokenizer, pair) for pair in lines))
    for batch_tokens, fewest, most in ((longest, 2, 15), (1, len(lines), len(lines)), (4096, 1, 1)):
        batches.clear()
        list(decoder_of(tokenizer, random_model(tokenizer), batch_tokens=batch_tokens).stream(lines))
        cells = [max(batch.source.numel(), batch.target_out.numel()) for batch in batches if len(batch.source) > 1]
        assert max(cells, default=0) <= batch_tokens
        assert fewest <= len(batches) <= most


# --- limits -------------------------------------------------------------------------------------------------


def test_a_source_beyond_max_source_is_cut_and_counted(tokenizer):
    model, line = random_model(tokenizer), sentence(40, seed=1)
    source, target = ids_of(tokenizer, (line, "the dog"))
    decoder = decoder_of(tokenizer, model, max_source=20)
    short, long = decoder.stream([("the cat", "the dog"), (line, "the dog")])
    assert (short.sources_cut, long.sources_cut, long.targets_cut) == (0, 1, 0)
    assert long.log_probability == pytest.approx(plain([model], source[:20], target), abs=1e-9)
    (whole,) = decoder_of(tokenizer, model, max_source=len(source)).stream([(line, "the dog")])
    assert whole.sources_cut == 0
    assert whole.log_probability == pytest.approx(plain([model], source, target), abs=1e-9)


def test_learned_positions_cut_both_sides_and_cuts_are_counted(tokenizer):
    model, line = random_model(tokenizer, positions="learned", max_positions=12), sentence(40, seed=1)
    source, target = ids_of(tokenizer, (line, line))
    decoder = decoder_of(tokenizer, model, random_model(tokenizer))  # the other serves any length
    assert (decoder.max_source, decoder.max_target) == (11, 12)
    (found,) = decoder_of(tokenizer, model).stream([(line, line)])
    assert (found.sources_cut, found.subwords, found.subwords_cut) == (1, 12, len(target) - 12)
    assert found.log_probability == pytest.approx(plain([model], source[:11], target[:12]), abs=1e-9)


def test_sinusoids_cut_nothing(tokenizer) -> None:
    decoder = decoder_of(tokenizer, random_model(tokenizer, positions="sinusoidal", max_positions=12), max_source=50)
    assert (decoder.max_source, decoder.max_target) == (50, forced.LONGEST_TARGET)


def test_a_target_is_cut_where_its_line_would_take_too_long(tokenizer, monkeypatch):
    monkeypatch.setattr(forced, "LONGEST_TARGET", 20, raising=False)
    model, line = random_model(tokenizer), sentence(40, seed=1)
    source, target = ids_of(tokenizer, ("the dog", line))
    (found,) = decoder_of(tokenizer, model, max_source=15).stream([("the dog", line)])
    assert (found.subwords, found.subwords_cut) == (20, len(target) - 20)
    assert found.log_probability == pytest.approx(plain([model], source, target[:20]), abs=1e-9)
    (found,) = decoder_of(tokenizer, model, max_source=30).stream([("the dog", line)])
    assert found.subwords == 30  # as much as is seen of a source


# --- streams ------------------------------------------------------------------------------------------------


def test_scores_keep_the_order_of_lines_over_windows(tokenizer, monkeypatch):
    decoder = decoder_of(tokenizer, random_model(tokenizer), batch_tokens=60)
    known = {pair: score.log_probability for pair, score in zip(PAIRS, decoder.stream(PAIRS), strict=True)}
    monkeypatch.setattr(forced, "WINDOW", 7)
    shuffled = random.Random(1).sample(PAIRS * 3, 3 * len(PAIRS))
    found = [score.log_probability for score in decoder.stream(shuffled)]
    assert found == pytest.approx([known[pair] for pair in shuffled], abs=1e-9)
