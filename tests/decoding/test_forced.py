"""Forced decoding against a plain softmax, whole outputs and search; cuts and order of a stream; annotated searches."""

import random

import pytest
import torch
from queues import Pile
from reference_search import random_model as random_model_of
from reference_search import reference_search

from nmt.decoding import completion, forced
from nmt.decoding.completion import Completion
from nmt.decoding.forced import ForcedDecoder, annotate, attention_of
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, TokenizerSettings
from nmt.search.beam import SearchEngine
from nmt.search.choosing import length_penalty
from nmt.search.sources import Found, Hypothesis, Source
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS

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
    sizes = len(tokenizer.source), len(tokenizer.target)
    return random_model_of(*sizes, liking=ending, seed=seed, **changes)


MODELS = [
    {},
    {"norm": "pre", "positions": "learned", "max_positions": 60, "d_k": 3, "d_v": 5, "output_bias": True},
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


LINE, SHORT = sentence(40, seed=1), "the dog"
LEARNED = {"positions": "learned", "max_positions": 12}


@pytest.mark.parametrize(
    ("changes", "max_source", "longest_target", "pair", "kept"),
    [
        ({}, 20, 200, (LINE, SHORT), (20, None)),
        ({}, 200, 200, (LINE, SHORT), (None, None)),
        (LEARNED, 200, 200, (LINE, LINE), (11, 12)),
        ({}, 15, 20, (SHORT, LINE), (None, 20)),
        ({}, 30, 20, (SHORT, LINE), (None, 30)),  # as much as is seen of a source
    ],
)
def test_long_lines_are_cut_and_counted(tokenizer, monkeypatch, changes, max_source, longest_target, pair, kept):
    monkeypatch.setattr(forced, "LONGEST_TARGET", longest_target)
    model = random_model(tokenizer, **changes)
    sides = ids_of(tokenizer, pair)
    source, target = (side[:length] for side, length in zip(sides, kept, strict=True))
    assert max(map(len, sides)) < 200
    short, found = decoder_of(tokenizer, model, max_source=max_source).stream([("cat", "cat"), pair])
    assert (short.sources_cut, short.targets_cut, short.subwords_cut) == (0, 0, 0)
    assert (found.sources_cut, found.targets_cut) == tuple(map(lambda length: length is not None, kept))
    assert (found.subwords, found.subwords_cut) == (len(target), len(sides[1]) - len(target))
    assert found.log_probability == pytest.approx(plain([model], source, target), abs=1e-9)


def test_all_models_limit_lengths_unless_any_length_suits_them(tokenizer):
    any_length = random_model(tokenizer, positions="sinusoidal", max_positions=12)
    decoder = decoder_of(tokenizer, random_model(tokenizer, **LEARNED), any_length)
    assert (decoder.max_source, decoder.max_target) == (11, 12)
    decoder = decoder_of(tokenizer, any_length, max_source=50)
    assert (decoder.max_source, decoder.max_target) == (50, forced.LONGEST_TARGET)


# --- streams ------------------------------------------------------------------------------------------------


def test_scores_keep_the_order_of_lines_over_windows(tokenizer, monkeypatch):
    decoder = decoder_of(tokenizer, random_model(tokenizer), batch_tokens=60)
    known = {pair: score.log_probability for pair, score in zip(PAIRS, decoder.stream(PAIRS), strict=True)}
    monkeypatch.setattr(forced, "WINDOW", 7)
    shuffled = random.Random(1).sample(PAIRS * 3, 3 * len(PAIRS))
    found = [score.log_probability for score in decoder.stream(shuffled)]
    assert found == pytest.approx([known[pair] for pair in shuffled], abs=1e-9)


# --- alignments and log-probabilities of hypotheses ---------------------------------------------------------


VOCABULARY = 128  # of ASCII


def tiny(decoder_layers: int = 3, seed: int = 1) -> Transformer:
    """A random model whose attention is sharp enough to tell places apart."""
    torch.manual_seed(seed)
    config = Model(layers=1, decoder_layers=decoder_layers, d_model=16, d_ff=16, heads=2)
    model = Transformer(config, VOCABULARY, VOCABULARY).double().eval()
    with torch.no_grad():
        for layer in model.decoder:
            layer.cross.query.weight.mul_(6.0)
    return model


def some_pairs(count: int) -> list[tuple[list[int], list[int]]]:
    draw = random.Random(1)
    return [
        ([draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 9))],
         [draw.randrange(4, VOCABULARY) for _ in range(draw.randint(0, 9))])
        for _ in range(count)
    ]  # fmt: skip


@torch.inference_mode()
def expected(models: list[Transformer], source: list[int], output: list[int], layers: slice) -> list[int]:
    """One pair by itself; rows of cross-attention belong to the symbols that they lead to."""
    if not output:
        return []
    total = torch.zeros(len(output), len(source) + 1, dtype=torch.double)
    for model in models:
        weights = model.attention_weights(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *output[:-1]]]))
        total += torch.stack(weights.cross[layers])[:, 0].mean((0, 1))
    return [int(row[:-1].argmax()) for row in total]


@pytest.mark.parametrize(("decoder_layers", "first"), [(1, 0), (2, 1), (3, 1)])
def test_alignments_are_the_mean_of_all_heads_and_layers_but_the_first(
    decoder_layers: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = tiny(decoder_layers), some_pairs(60)
    monkeypatch.setattr(forced, "TOKENS_AT_ONCE", 100)  # several batches
    found = [weights.argmax(-1).tolist() for weights in attention_of([model], pairs)]
    assert found == [expected([model], *pair, slice(first, None)) for pair in pairs]
    assert sum(len(set(places)) > 1 for places in found) > 20


def probabilities(models: list[Transformer], pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    found = [(Source(0, source, 99), [Hypothesis(output, 0.0, True)]) for source, output in pairs]
    return [each.log_probabilities for _, (each,) in annotate(models, found)]


@torch.inference_mode()
def test_probabilities_are_those_of_each_symbol_given_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "TOKENS_AT_ONCE", 100)  # several batches
    models, pairs = [tiny(3), tiny(3, seed=2)], some_pairs(40)
    for (source, output), found in zip(pairs, probabilities(models, pairs), strict=True):
        if not output:
            assert found == []
            continue
        target_in = torch.tensor([[BOS, *output[:-1]]])
        each = [model(torch.tensor([[*source, EOS]]), target_in)[0].softmax(-1) for model in models]
        mean = torch.stack(each).mean(0).log()
        assert found == pytest.approx([float(mean[at, symbol]) for at, symbol in enumerate(output)], abs=1e-9)


DECODING = Decoding(beam=2, batch_tokens=60)


class NothingToPlace:
    def copies(self, source: Source, hypothesis: Hypothesis) -> bool:
        return True

    def place(self, found: list[Found], n_best: int) -> tuple[list[Found], list[Source]]:
        return found, []


def engine_of(model: Transformer) -> Completion:
    return Completion([model], DECODING, [], print, annotated=True, placer=lambda models: NothingToPlace())


def test_an_engine_that_annotates_finds_what_it_finds_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = tiny().float(), engine_of(tiny().float())
    sources = [Source(number, ids, cap=20) for number, (ids, _) in enumerate(some_pairs(40))]
    plain = dict(SearchEngine([model], DECODING).search(Pile(sources), 2))
    for tokens in (1, 300):
        monkeypatch.setattr(completion, "HELD", tokens)
        found = dict(engine.search(Pile(sources), 2))
        assert sorted(found) == sorted(plain)
        for source in sources:
            ((_, expected_of),) = annotate([model], [(source, plain[source.number])])
            for each, again in zip(found[source.number], expected_of, strict=True):
                assert (each.ids, each.alignment) == (again.ids, again.alignment)
                assert each.log_probabilities == pytest.approx(again.log_probabilities, abs=1e-4)


def test_nothing_is_held_back_while_there_is_nothing_else() -> None:
    """A source comes once there is an answer to the one before."""
    waiting = [Source(number, [97, 98, 99], cap=5) for number in range(3)]
    answered: list[int] = []

    class Conversation:
        def take_sources(self, tokens: int, wait: bool) -> list[Source]:
            return [waiting.pop(0)] if waiting and len(answered) == 3 - len(waiting) else []

    for number, _ in engine_of(tiny().float()).search(Conversation(), 1):
        answered.append(number)
    assert answered == [0, 1, 2]


def test_what_ends_together_is_annotated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(forced, "attention_of", lambda *given: counts.append(len(given[1])) or attention_of(*given))
    sources = [Source(number, [97 + number % 20, 98, 99, 100], cap=4) for number in range(100)]
    assert len(list(engine_of(tiny().float()).search(Pile(sources), 1))) == 100
    assert counts == [12] * 8 + [4]  # sources of 5 subwords in batches of 60
