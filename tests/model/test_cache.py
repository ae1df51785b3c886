"""Decoding step by step equals decoding at once, whatever is kept, dropped or reordered on the way."""

import pytest
import torch

from nmt.model.cache import KVCache, LayerCache
from nmt.model.transformer import Memory, Transformer
from nmt.recipe import Model

BEAM, VOCABULARY = 3, 13
SOURCES = torch.tensor([[5, 7, 4, 9, 3], [6, 3, 0, 0, 0], [10, 8, 8, 3, 0]])


def tiny(**changes):
    torch.manual_seed(1)
    settings = {"layers": 2, "d_model": 8, "d_ff": 12, "heads": 2, "d_k": 3, "d_v": 5} | changes
    return Transformer(Model(**settings), VOCABULARY, VOCABULARY).double().eval()


def per_hypothesis(memory, beam):
    """The encoder's output with every sentence as often as it has hypotheses."""
    mask = None if memory.mask is None else memory.mask.repeat_interleave(beam, 0)
    return Memory(memory.states.repeat_interleave(beam, 0), mask)


def sentences_of(memory, keep):
    return Memory(memory.states[keep], None if memory.mask is None else memory.mask[keep])


@torch.no_grad()
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("sources", [SOURCES, SOURCES[:1]])  # with padding and without
def test_cached_decoding_equals_decoding_at_once(norm, positions, sources):
    model = tiny(norm=norm, positions=positions, max_positions=80)
    ids = torch.randint(1, VOCABULARY, (len(sources) * BEAM, 75))  # beyond two doublings of the cache
    memory = model.encode(sources)
    cache = model.start(memory)
    step_by_step = torch.cat([model.decode(ids[:, t : t + 1], memory, cache) for t in range(75)], dim=1)
    assert cache.length == 75
    at_once = model.decode(ids, per_hypothesis(memory, BEAM))
    torch.testing.assert_close(step_by_step, at_once, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_reordered_hypotheses_and_dropped_sentences_keep_their_own_past(seed):
    """Random parents at every step and, now and then, sentences dropped or put in another order."""
    model, random = tiny(), torch.Generator().manual_seed(seed)
    memory = model.encode(SOURCES)
    cache = model.start(memory)
    ids = torch.full((len(SOURCES), BEAM, 1), 2)
    alive = memory
    for step in range(70):
        logits = model.decode(ids[:, :, -1].reshape(-1, 1), memory, cache)[:, 0]
        at_once = model.decode(ids.flatten(0, 1), per_hypothesis(alive, BEAM))[:, -1]
        torch.testing.assert_close(logits, at_once, rtol=0, atol=1e-10)
        count = len(ids)
        keep = torch.randperm(count, generator=random) if step % 5 == 0 else None
        if step in (33, 50):  # once just after the first capacity is exceeded
            keep = keep if keep is not None else torch.arange(count)
            keep = keep[: max(1, count - 1)]
        stood_at = torch.arange(count) if keep is None else keep
        parents = torch.randint(0, BEAM, (len(stood_at), BEAM), generator=random)
        cache.reorder((stood_at[:, None] * BEAM + parents).flatten(), keep)
        ids = torch.stack([ids[s][p] for s, p in zip(stood_at, parents, strict=True)])
        alive = sentences_of(alive, stood_at)
        ids = torch.cat((ids, torch.randint(1, VOCABULARY, (len(ids), BEAM, 1), generator=random)), dim=2)
    assert len(ids) == 1


@torch.no_grad()
def test_a_cache_belongs_to_its_search_and_not_to_the_model():
    model = tiny()
    memory = model.encode(SOURCES[:1])
    ids = torch.randint(1, VOCABULARY, (2, 6))
    caches = model.start(memory), model.start(memory)
    found: list[list[torch.Tensor]] = [[], []]
    for t in range(6):
        for row in (0, 1):  # two searches in turn
            found[row].append(model.decode(ids[row : row + 1, t : t + 1], memory, caches[row]))
    for row in (0, 1):
        expected = model.decode(ids[row : row + 1], memory)
        torch.testing.assert_close(torch.cat(found[row], dim=1), expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_keys_of_the_source_stand_once_per_sentence_and_are_not_recomputed():
    model = tiny()
    memory = model.encode(SOURCES)
    cache = model.start(memory)
    before = [key.data_ptr() for key, _ in cache.memory]
    model.decode(torch.full((len(SOURCES) * BEAM, 1), 2), memory, cache)
    # (sentences, heads, length, d_k or d_v)
    assert [tuple(key.shape) for key, _ in cache.memory] == [(3, 2, 5, 3)] * 2
    assert [tuple(value.shape) for _, value in cache.memory] == [(3, 2, 5, 5)] * 2
    cache.reorder(torch.arange(9).flip(0))
    assert [key.data_ptr() for key, _ in cache.memory] == before


def test_a_layers_cache_returns_all_positions_so_far_in_order():
    cache = LayerCache()
    keys, values = torch.randn(2, 3, 100, 4), torch.randn(2, 3, 100, 5)
    for t in range(100):
        key, value = cache.append(keys[:, :, t : t + 1], values[:, :, t : t + 1])
        assert torch.equal(key, keys[:, :, : t + 1])
        assert torch.equal(value, values[:, :, : t + 1])


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65])
def test_selected_rows_of_a_layers_cache_keep_their_positions_and_grow_on(length):
    cache = LayerCache()
    keys, values = torch.randn(4, 2, length + 40, 3), torch.randn(4, 2, length + 40, 3)
    for t in range(length):
        cache.append(keys[:, :, t : t + 1], values[:, :, t : t + 1])
    rows = torch.tensor([3, 0, 0, 2, 3])
    cache.select(rows)
    for t in range(length, length + 40):
        key, value = cache.append(keys[rows, :, t : t + 1], values[rows, :, t : t + 1])
    assert torch.equal(key, keys[rows])
    assert torch.equal(value, values[rows])


def test_reordering_before_the_first_step_selects_sentences():
    memory = [(torch.randn(3, 2, 4, 3), torch.randn(3, 2, 4, 5))]
    mask = torch.rand(3, 1, 1, 4) > 0.5
    cache = KVCache(list(memory), mask)
    keep = torch.tensor([2, 0])
    cache.reorder(torch.tensor([4, 5, 0, 1]), keep)
    assert torch.equal(cache.memory[0][0], memory[0][0][keep])
    assert torch.equal(cache.memory[0][1], memory[0][1][keep])
    assert torch.equal(cache.mask, mask[keep])
    key, _ = cache.layers[0].append(torch.ones(4, 2, 1, 3), torch.ones(4, 2, 1, 5))
    assert key.shape == (4, 2, 1, 3)
