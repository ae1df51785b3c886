"""A step of the decoder by the C kernels equals the plain step, whatever rows and hypotheses come and go."""

import pytest
import torch
from compiled import compiled
from step_by_step import BEAM, SOURCES, VOCABULARY, Searched, tiny

from nmt.compute.native import INSTRUCTION_SETS, Kernels
from nmt.search import way
from nmt.search.in_c import InC
from nmt.search.plain import Plain
from nmt.search.way import for_search
from nmt.system.errors import UserError


@pytest.fixture(params=list(INSTRUCTION_SETS))
def twins(request, monkeypatch):
    """Makes two searches by a model: one that takes its steps by a C library, and one that does not."""
    monkeypatch.setattr(way, "kernels", lambda: Kernels(compiled(request.param), "a test's"))

    def make(model, precision="fp32"):
        prepared = for_search([model], precision, print)
        in_c = prepared.way(BEAM)
        assert isinstance(in_c, InC)
        return Searched(prepared.models[0], in_c), Searched(prepared.models[0], Plain(prepared.models, BEAM))

    return make


class Pair:
    """The same search of two twins; hypotheses die at random, and only living ones have descendants."""

    def __init__(self, twins, seed=0):
        self.fused, self.plain = self.both = twins
        self.random = torch.Generator().manual_seed(seed)
        self.alive = torch.ones((0, BEAM), dtype=torch.bool)

    def admit(self, sources):
        for searched in self.both:
            searched.admit(sources)
        first = torch.arange(BEAM).eq(0).expand(len(sources), -1)
        self.alive = torch.cat((self.alive, first))  # the hypotheses of a row all follow the first one

    def leave(self, done):
        for searched in self.both:
            searched.leave(list(done))
        last = [row for row in range(len(self.alive) - len(done), len(self.alive)) if row not in done]
        holes = [row for row in done if row < len(self.alive) - len(done)]
        self.alive[holes] = self.alive[last]
        self.alive = self.alive[: len(self.alive) - len(done)]

    def step(self, dying=0.3, mask=True):
        """The states of the living hypotheses, of both."""
        parents = torch.multinomial(self.alive.float(), BEAM, replacement=True, generator=self.random)
        self.alive = torch.rand(self.alive.shape, generator=self.random) >= dying
        self.alive[:, 0] = True  # a row in which none lives has left
        ids = torch.randint(1, VOCABULARY, self.alive.shape, generator=self.random)
        return [searched.step(parents, ids, self.alive if mask else None)[self.alive] for searched in self.both]

    def at_once(self):
        return self.plain.at_once()[self.alive]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


MODELS = [
    {},
    {"d_model": 32, "heads": 4, "d_k": None, "d_v": None, "activation": "silu", "norm_epsilon": 0.2},
    {"d_model": 64, "heads": 4, "d_k": None, "d_v": None, "d_ff": 40, "layers": 1},
    {"d_k": 4, "d_v": 4, "activation": "gelu", "attention_bias": True},
    {"positions": "words"},
    {"positions": "learned", "max_positions": 80},
]


@torch.inference_mode()
@pytest.mark.parametrize(("norm", "mask"), [("post", False), ("pre", True)])
@pytest.mark.parametrize("changes", MODELS)
def test_a_fused_step_equals_a_plain_one_while_rows_come_and_go(twins, norm, changes, mask):
    """`mask`: whether it is told which hypotheses are alive."""
    pair = Pair(twins(tiny(norm=norm, **changes).float()), seed=len(changes))
    pair.admit(SOURCES)
    compared = 0
    for step in range(40):  # beyond several enlargements of the cache
        if step % 7 == 3:
            pair.leave([row for row in range(len(pair.alive)) if (row + step) % 3 == 0])
        if step % 5 == 4 or not len(pair.alive):
            length = int(torch.randint(1, 40, (), generator=pair.random))
            pair.admit(torch.randint(4, VOCABULARY, (2, length), generator=pair.random))
        found, expected = pair.step(mask=mask)
        compared += len(found)
        assert_close(found, expected)
        if step % 5 == 0:
            assert_close(found, pair.at_once())
    assert compared > 100


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["int8", "bf16"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_in_other_precisions_only_rounding_differs(twins, precision, norm):
    """A number that is rounded to the other side changes a result by as much as the precision allows."""
    model = tiny(norm=norm, d_model=64, d_ff=128, heads=4, d_k=None, d_v=None).float()
    try:
        both = twins(model, precision)
        both[0].model.decoder[0].attention.out(torch.ones(1, 64))
    except (UserError, RuntimeError):
        pytest.skip(f"this processor does not multiply in {precision}")
    pair = Pair(both)
    pair.admit(SOURCES)
    for _ in range(20):
        found, expected = pair.step(dying=0.0)
        assert (found - expected).norm() < 0.02 * expected.norm()
        assert (found - expected).abs().median() < 1e-2


@torch.inference_mode()
def test_models_that_the_kernels_do_not_fit_have_plain_steps(twins):
    assert type(for_search([tiny()], "fp32", print).way(BEAM)) is Plain  # in fp64
