"""The chunked loss against PyTorch's, in value and gradients, and how it adds up over micro-batches."""

from functools import partial
from itertools import islice

import pytest
import torch
from padded import padded
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from nmt.compute.gpu import GPU
from nmt.model.operations import PLAIN
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.training.loss import Objective
from nmt.training.loss import smoothed_cross_entropy as smoothed_cross_entropy_by

smoothed_cross_entropy = partial(smoothed_cross_entropy_by, operations=PLAIN)
TOKENS, WIDTH, VOCABULARY = 23, 6, 11
ROWS = [1, 4, 7, 22, 23, 100]  # tokens of a chunk: one, some with a rest, all but one, all, more


def example(dtype=torch.float64, scale=1.0):
    torch.manual_seed(1)
    states = (scale * torch.randn(TOKENS, WIDTH, dtype=dtype)).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(1, VOCABULARY, (TOKENS,))


def chunks_of(monkeypatch, rows):
    monkeypatch.setattr(PLAIN, "chunk_rows", lambda vocabulary: rows)


# --- against PyTorch's cross-entropy ------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_value_and_gradients_equal_cross_entropy(monkeypatch, smoothing, rows, scale):
    chunks_of(monkeypatch, rows)
    states, weight, targets = example(scale=scale)
    expected = F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")
    gradients = torch.autograd.grad(3.0 * expected, (states, weight))
    loss, nll = smoothed_cross_entropy(states, weight, targets, smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(nll, F.cross_entropy(states @ weight.T, targets, reduction="sum"))
    (3.0 * loss).backward()
    torch.testing.assert_close(states.grad, gradients[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(weight.grad, gradients[1], rtol=0, atol=1e-10 * scale)


def test_sums_are_fp64_and_gradients_have_the_parameters_type():
    states, weight, targets = example(torch.float32)
    loss, nll = smoothed_cross_entropy(states, weight, targets, 0.1)
    assert loss.dtype == nll.dtype == torch.float64
    expected = F.cross_entropy(states @ weight.T, targets, label_smoothing=0.1, reduction="sum")
    gradients = torch.autograd.grad(expected, (states, weight))
    loss.backward()
    torch.testing.assert_close(states.grad, gradients[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad, gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("states_type", [torch.float32, torch.bfloat16])
def test_under_autocast_only_the_factors_of_products_are_rounded(monkeypatch, states_type):
    chunks_of(monkeypatch, 5)
    states, weight, targets = example(torch.float32)
    expected = smoothed_cross_entropy(states, weight, targets, 0.1)
    gradients = torch.autograd.grad(expected[0], (states, weight))
    states = states.detach().to(states_type).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = smoothed_cross_entropy(states, weight, targets, 0.1)
        assert not torch.equal(found[0], expected[0])  # it did round
    found[0].backward()
    for loss, right in zip(found, expected, strict=True):
        assert loss.dtype == torch.float64
        torch.testing.assert_close(loss, right, rtol=2**-8, atol=0)
    assert (states.grad.dtype, weight.grad.dtype) == (states_type, torch.float32)
    for gradient, right in zip((states.grad, weight.grad), gradients, strict=True):
        assert (gradient - right).norm() < 2**-6 * right.norm()


def test_gradients_of_a_good_model_are_rounded_no_more_than_by_autocast(monkeypatch):
    """The large parts of softmax and target cancel there, and must be rounded alike or after that."""
    chunks_of(monkeypatch, 100)
    torch.manual_seed(1)
    weight, targets = torch.randn(500, 64) / 8, torch.randint(1, 500, (400,))
    states = 8.0 * weight[targets] + torch.randn(400, 64) / 2  # targets have a mean probability of 0.8

    def gradients(loss, dtype):
        factors = [each.detach().to(dtype).requires_grad_() for each in (states, weight)]
        return torch.autograd.grad(loss(*factors), factors)

    def plain(states, weight):
        return F.cross_entropy((states @ weight.T).to(states), targets, label_smoothing=0.1, reduction="sum")

    exact = gradients(plain, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        ours = gradients(lambda *factors: smoothed_cross_entropy(*factors, targets, 0.1)[0], torch.float32)
        theirs = gradients(plain, torch.float32)
    for part in (lambda states, weight: states, lambda states, weight: states.sum(0), lambda states, weight: weight):
        errors = [float((part(*found) - part(*exact)).norm() / part(*exact).norm()) for found in (ours, theirs)]
        assert errors[0] < 1.1 * errors[1]


def test_a_gpu_adds_products_of_narrow_factors_without_storing_them(monkeypatch):
    added = []
    monkeypatch.setattr(torch, "addmm", lambda total, a, b, **options: added.append((total, a, b, options)))
    with FakeTensorMode():  # which has GPUs everywhere
        total, a, b = (torch.zeros(shape, device="cuda") for shape in ((4, 5), (4, 3), (3, 5)))
        a, b = a.bfloat16(), b.bfloat16()
        add_product = GPU().add_product
        add_product(total, a, b)
        assert added == [(total, a, b, {"out_dtype": torch.float32, "out": total})]
        double = total.double()
        add_product(double, a.double(), b.double())  # factors of its own type need no other
        add_product(double, a, b)  # and no GPU adds to fp64 so
    assert len(added) == 1


def test_extreme_logits_do_not_overflow():
    states, weight, targets = example(torch.float32, scale=1000.0)
    loss, nll = smoothed_cross_entropy(states, weight, targets, 0.1)
    loss.backward()
    logits = states.double() @ weight.double().T
    exact = F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=1e-4)
    assert nll.isfinite()
    assert states.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_smoothing_is_uniform_over_the_whole_vocabulary():
    # All logits equal: every symbol has probability 1/4, whatever the target, so both losses are ln 4.
    loss, nll = smoothed_cross_entropy(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([3]), 0.1)
    assert [float(loss), float(nll)] == pytest.approx([1.3862944, 1.3862944])
    # Probabilities 0.125, 0.125, 0.25, 0.5, target the last, ε 0.2: 0.85 ln 2 + 0.05 (ln 4 + ln 8 + ln 8)
    weight = torch.tensor([[0.125], [0.125], [0.25], [0.5]]).log()
    loss, nll = smoothed_cross_entropy(torch.ones(1, 1), weight, torch.tensor([3]), 0.2)
    assert [float(loss), float(nll)] == pytest.approx([0.85 * 0.6931472 + 0.05 * 8 * 0.6931472, 0.6931472])


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_what_learns_nothing_gets_no_gradient(monkeypatch, frozen):
    chunks_of(monkeypatch, 5)
    states, weight, targets = example()
    expected = F.cross_entropy(states @ weight.T, targets, label_smoothing=0.1, reduction="sum")
    gradients = dict(zip(("states", "weight"), torch.autograd.grad(expected, (states, weight)), strict=True))
    parts = {"states": states, "weight": weight}
    parts[frozen].requires_grad_(False)
    loss, _ = smoothed_cross_entropy(states, weight, targets, 0.1)
    loss.backward()
    for name, part in parts.items():
        if name == frozen:
            assert part.grad is None
        else:
            torch.testing.assert_close(part.grad, gradients[name], rtol=0, atol=1e-10)


# --- the objective ------------------------------------------------------------------------------------------

PAIRS = [([5, 7, 4], [6, 8]), ([9], [4, 4, 5, 10, 7, 9]), ([8, 8, 6, 5, 4, 9], [7]), ([4], []), ([6, 10], [5, 6, 7])]


def batch_of(pairs):
    return padded(*map(list, zip(*pairs, strict=True)))


def tiny(**changes):
    torch.manual_seed(2)
    settings = {"layers": 1, "d_model": 8, "d_ff": 12, "heads": 2, "dropout": 0.0} | changes
    return Transformer(Model(**settings), VOCABULARY, VOCABULARY).double()


def gradients_of(objective, batches):
    """Of the loss summed over batches ÷ their target tokens, accumulated."""
    objective.zero_grad()
    tokens = sum(int(batch.target_out.count_nonzero()) for batch in batches)
    for batch in batches:
        (objective(batch)[0] / tokens).backward()
    return [parameter.grad.clone() for parameter in objective.parameters()]


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": "none"}, {"output_bias": True}])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_objective_is_cross_entropy_over_real_target_tokens(monkeypatch, changes, smoothing):
    chunks_of(monkeypatch, 4)
    model, batch = tiny(**changes), batch_of(PAIRS)
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    logits = model(batch.source, batch.target_in).flatten(0, 1)
    options = {"ignore_index": 0, "reduction": "sum"}
    expected = F.cross_entropy(logits, batch.target_out.flatten(), label_smoothing=smoothing, **options)
    likelihood = F.cross_entropy(logits, batch.target_out.flatten(), **options)
    gradients = torch.autograd.grad(expected / int(batch.target_out.count_nonzero()), list(model.parameters()))
    objective = Objective(model, smoothing)
    loss, nll = objective(batch)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, likelihood)
    for found, right in zip(gradients_of(objective, [batch]), gradients, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", [{"norm": "post"}, {"norm": "pre"}, {"output_bias": True}])
def test_the_objective_under_autocast_is_that_of_fp32_but_for_rounding(changes):
    objective, batch = Objective(tiny(**changes).float(), 0.1), batch_of(PAIRS)
    expected = objective(batch)[0]
    gradients = gradients_of(objective, [batch])
    objective.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(batch)[0]
    (found / int(batch.target_out.count_nonzero())).backward()
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
    for parameter, right in zip(objective.parameters(), gradients, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - right).norm() < 0.05 * right.norm() + 1e-6


@pytest.mark.parametrize("sizes", [[1] * 5, [2, 3], [4, 1]])
def test_micro_batches_over_global_tokens_give_the_gradients_of_one_batch(sizes):
    objective, pairs = Objective(tiny(), 0.1), iter(PAIRS)
    parts = [batch_of(islice(pairs, size)) for size in sizes]
    assert next(pairs, None) is None
    whole, summed = gradients_of(objective, [batch_of(PAIRS)]), gradients_of(objective, parts)
    for found, right in zip(summed, whole, strict=True):
        assert right.any()
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
