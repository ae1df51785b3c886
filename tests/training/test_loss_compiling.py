"""How many graphs training is compiled to, and that they compute what the plain code does."""

from __future__ import annotations

import random
import shutil
from types import SimpleNamespace

import pytest
import torch
from padded import padded as pairs_of
from torch._dynamo.testing import CompileCounterWithBackend

from nmt.model.batch import Batch
from nmt.model.operations import Operations
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.training.batches import make_batch
from nmt.training.loss import Objective, compile_parts

VOCABULARY = 60


def tiny(source_vocab: int | None = VOCABULARY, **settings: object) -> Objective:
    torch.manual_seed(1)
    options: dict[str, object] = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
    return Objective(Transformer(Model(**options | settings), source_vocab, VOCABULARY), 0.1)


def batch(draw: random.Random, padded: bool, pairs: int) -> Batch:
    """A micro-batch of a random width, from two columns to some sixty."""
    longest = draw.choice([1, 2, draw.randint(3, 60)])
    rows = []
    for width in (longest, max(1, longest + draw.randint(-3, 3))):
        lengths = [width, *(draw.randint(0, width) if padded else width for _ in range(pairs - 1))]
        rows.append([[draw.randint(4, 59) for _ in range(length)] for length in lengths])
    return pairs_of(*rows)


def check_same(compiled: Objective, plain: Objective, batches: list[Batch], tolerance: float) -> None:
    """Each batch gives the losses, and all of them the gradients, of an objective that is not compiled."""
    for each in batches:
        (loss, nll), (expected, expected_nll) = compiled(each), plain(each)
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(nll, expected_nll, rtol=tolerance, atol=tolerance)
        loss.backward()
        expected.backward()
    for parameter, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=100 * tolerance, atol=100 * tolerance)


@pytest.fixture(autouse=True)
def _few_rows(fresh_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # so that many a batch is some chunks and a rest
    monkeypatch.setattr(Operations, "chunk_rows", lambda *_: 100)


@pytest.mark.slow  # what a GPU compiles
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_there_are_few_graphs_for_shapes_of_any_size(norm: str) -> None:
    plain, compiled = (tiny(norm=norm).double() for _ in range(2))
    counter, draw = CompileCounterWithBackend("eager"), random.Random(1)
    compile_parts(compiled, counter)

    def graphs(batches: list[Batch]) -> int:
        """Graphs so far."""
        check_same(compiled, plain, batches, 1e-10)
        return int(counter.frame_count)

    many = [batch(draw, padded=number % 3 > 0, pairs=draw.randint(2, 20)) for number in range(12)]
    # a long pair alone, and the batch of a device without pairs: sizes of 1 have graphs of their own
    alone = [*(batch(draw, padded=False, pairs=1) for _ in range(5)), make_batch(SimpleNamespace(), [])]
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        assert graphs(many) <= 10  # of four kinds
        found = graphs(alone)
        assert found <= 16
        assert graphs([*alone, *many]) == found
        with torch.compiler.set_stance("force_eager"), torch.no_grad():  # as validation does
            compiled.eval()
            for each in (*many, *alone):
                compiled(each)
        compiled.train()
        assert graphs(many) == found


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler")
def test_inductor_computes_the_same_with_few_graphs() -> None:
    """By the compiler that GPUs use, for a CPU; each graph takes seconds."""
    plain, compiled = tiny(layers=1), tiny(layers=1)
    counter, draw = CompileCounterWithBackend("inductor"), random.Random(3)
    compile_parts(compiled, counter)
    batches = [batch(draw, True, draw.randint(2, 40)) for _ in range(10)]
    in_process = torch._inductor.config.patch(compile_threads=1)  # Inductor's pool of processes would outlive the test
    with in_process, torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        check_same(compiled, plain, batches, 1e-4)
    assert counter.frame_count <= 8
