"""Decoding step by step equals decoding at once, whatever is admitted, replaced or removed on the way."""

import pytest
import torch

from nmt.model.cache import Ancestry, KVCache
from nmt.model.rows import Removal
from nmt.model.transformer import Memory, Transformer
from nmt.recipe import Model

BEAM, VOCABULARY = 3, 13
SOURCES = torch.tensor([[5, 7, 4, 9, 3], [6, 3, 0, 0, 0], [10, 8, 8, 3, 0]])


def tiny(**changes):
    torch.manual_seed(1)
    settings = {"layers": 2, "d_model": 8, "d_ff": 12, "heads": 2, "d_k": 3, "d_v": 5} | changes
    starts = tuple([index in words for index in range(VOCABULARY)] for words in ((5, 7, 10), (2, 3, 5, 7, 11)))
    return Transformer(Model(**settings), VOCABULARY, VOCABULARY, starts).double().eval()


class Searched:
    """A cache beside what each row of it stands for: a source and, for each hypothesis, its whole ids."""

    def __init__(self, model, others=0):
        """`others` is what another model of an ensemble has as its attention_window."""
        self.model, window = model, model.config.attention_window
        widest = max(window, others) if window and others is not None else None
        self.ancestry = Ancestry(BEAM, torch.device("cpu"), widest)
        self.cache = KVCache(self.ancestry, window)
        self.sources, self.ids = [], []  # ids: for each row (BEAM, length)

    def admit(self, sources):
        lengths = sources.ne(0).sum(1).tolist()
        self.ancestry.admit(len(sources))
        self.model.admit(sources, lengths, self.cache)
        self.sources += [source[:length] for source, length in zip(sources, lengths, strict=True)]
        self.ids += [torch.empty((BEAM, 0), dtype=torch.int64) for _ in lengths]

    def step(self, parents, symbols):
        self.ancestry.extend(parents)
        self.ids = [
            torch.cat((ids[of], new[:, None]), dim=1) for ids, of, new in zip(self.ids, parents, symbols, strict=True)
        ]
        return self.model.step(symbols, self.cache)

    def leave(self, done):
        removal = Removal.of(done, len(self.sources))
        self.cache.leave(removal)
        self.ancestry.leave(removal)
        for hole, row in zip(removal.holes, removal.last, strict=True):
            self.sources[hole], self.ids[hole] = self.sources[row], self.ids[row]
        del self.sources[removal.count :], self.ids[removal.count :]

    def at_once(self):
        """The newest state of each hypothesis, decoded from its beginning."""
        states = []
        for source, ids in zip(self.sources, self.ids, strict=True):
            memory = self.model.encode(source[None])
            repeated = Memory(memory.states.expand(BEAM, -1, -1), None)
            states.append(self.model.decode_states(ids, repeated)[:, -1])
        return torch.stack(states)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "words"])
@pytest.mark.parametrize("sources", [SOURCES, SOURCES[:1]])  # with padding and without
def test_cached_decoding_equals_decoding_at_once(norm, positions, sources):
    searched = Searched(tiny(norm=norm, positions=positions, max_positions=80))
    searched.admit(sources)
    parents = torch.arange(BEAM).expand(len(sources), -1)
    for _ in range(60):  # beyond several enlargements of the cache
        states = searched.step(parents, torch.randint(1, VOCABULARY, (len(sources), BEAM)))
    torch.testing.assert_close(states, searched.at_once(), rtol=0, atol=1e-10)
    assert searched.ancestry.positions.tolist() == [59] * len(sources)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_hypotheses_keep_their_own_past_while_rows_come_and_go(seed):
    """Random parents at every step; now and then sentences leave and others, longer ones too, take their places."""
    random = torch.Generator().manual_seed(seed)
    searched = Searched(tiny())
    searched.admit(SOURCES)
    for step in range(60):
        if step % 7 == 3:
            searched.leave([row for row in range(len(searched.sources)) if (row + step + seed) % 3 == 0])
        if step % 5 == 4 or not searched.sources:
            length = int(torch.randint(1, 40, (), generator=random))
            searched.admit(torch.randint(4, VOCABULARY, (2, length), generator=random))
        shape = (len(searched.sources), BEAM)
        parents = torch.randint(0, BEAM, shape, generator=random)
        states = searched.step(parents, torch.randint(1, VOCABULARY, shape, generator=random))
        torch.testing.assert_close(states, searched.at_once(), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize(("window", "others"), [(1, 0), (4, 0), (4, 9), (4, None), (100, 0)])
def test_hypotheses_see_only_the_window_of_their_own_model(window, others):
    random = torch.Generator().manual_seed(1)
    searched = Searched(tiny(attention_window=window), others)
    searched.admit(SOURCES)
    for step in range(40):
        if step % 7 == 3:
            searched.leave([step % 2])
            searched.admit(torch.randint(4, VOCABULARY, (1, step), generator=random))
        parents = torch.randint(0, BEAM, (3, BEAM), generator=random)
        states = searched.step(parents, torch.randint(1, VOCABULARY, (3, BEAM), generator=random))
        torch.testing.assert_close(states, searched.at_once(), rtol=0, atol=1e-10)


@torch.no_grad()
def test_places_that_have_left_the_window_are_used_again():
    for others, extent in ((0, 5 * BEAM), (7, 7 * BEAM), (None, 50 * BEAM)):
        searched = Searched(tiny(attention_window=5), others)
        searched.admit(SOURCES)
        for _ in range(50):  # no hypothesis dies
            searched.step(torch.arange(BEAM).expand(3, -1), torch.full((3, BEAM), 5))
        assert searched.ancestry.extent == extent


@torch.no_grad()
def test_places_that_nobody_descends_from_are_used_again():
    searched = Searched(tiny())
    searched.admit(SOURCES)
    for _ in range(50):  # all hypotheses follow the first, so that two positions of each step are lost at once
        searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))
    assert searched.ancestry.extent == 49 + BEAM
    searched.leave([0, 1, 2])
    searched.admit(SOURCES)
    searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))
    assert searched.ancestry.extent == BEAM  # what was there before is forgotten


@torch.no_grad()
def test_learned_positions_end_where_the_model_does():
    searched = Searched(tiny(positions="learned", max_positions=5))
    searched.admit(SOURCES)
    for _ in range(5):
        searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))
    with pytest.raises(ValueError, match=r"6 exceeds model.max_positions 5"):
        searched.step(torch.zeros((3, BEAM), dtype=torch.int64), torch.full((3, BEAM), 5))


@torch.no_grad()
@pytest.mark.parametrize("first", ["long", "many"])
def test_many_rows_and_long_ones_need_no_room_for_many_long_ones(first):
    searched = Searched(tiny())
    parents, symbols = torch.arange(BEAM), torch.full((BEAM,), 5)

    def run(rows, length, steps):
        searched.admit(torch.full((rows, length), 5))
        for _ in range(steps):
            searched.step(parents.expand(rows, -1), symbols.expand(rows, -1))
        searched.leave(list(range(rows)))

    both = {"long": (2, 300, 100), "many": (60, 10, 3)}
    for name in sorted(both, key=lambda name: name != first) * 2:
        run(*both[name])
    layer = searched.cache.layers[0]
    buffers = (*layer._own, *layer._memory, searched.ancestry._bias[:, 0, :, None])
    assert max(buffer.size(0) * buffer.size(-2) for buffer in buffers) <= 3 * 2 * 300
