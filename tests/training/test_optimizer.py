"""Equation 3, Adam by its formula, Muon by singular values, and a state that continues to the bit."""

import pytest
import torch
from safetensors.torch import load, save

from nmt.model.operations import Operations
from nmt.model.transformer import Transformer
from nmt.recipe import Model, Training
from nmt.training import optimizer
from nmt.training.optimizer import AT_ONCE, Optimizer, learning_rate


@pytest.mark.parametrize(
    ("step", "d_model", "warmup", "scale", "rate"),
    [
        (1, 512, 4000, 1.0, 1.746928e-7),  # 512^-0.5 · 4000^-1.5
        (2000, 512, 4000, 1.0, 3.493856e-4),  # half of the peak
        (4000, 512, 4000, 1.0, 6.987712e-4),  # 512^-0.5 · 4000^-0.5, the peak
        (16_000, 512, 4000, 1.0, 3.493856e-4),  # four times as late, half as much
        (100_000, 512, 4000, 1.0, 1.397542e-4),
        (4000, 1024, 4000, 1.0, 4.941059e-4),
        (4000, 512, 4000, 2.0, 1.397542e-3),
        (1, 64, 1, 1.0, 0.125),
    ],
)
def test_learning_rate_is_equation_3(step, d_model, warmup, scale, rate):
    settings = Training(warmup=warmup, learning_rate_scale=scale)
    assert learning_rate(step, d_model, settings) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "shares"),  # of the peak, at updates 100, 200, 300 and 500 of 500
    [
        ("inverse_sqrt", [1, 0.5**0.5, 3**-0.5, 5**-0.5]),
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, 0]),
    ],
)
def test_schedules_share_the_warmup_and_differ_after_it(schedule, shares):
    settings = Training(schedule=schedule, warmup=100, updates=500, learning_rate_scale=2.0)
    peak = 2.0 * (512 * 100) ** -0.5
    assert [learning_rate(step, 512, settings) for step in (1, 50)] == pytest.approx([peak / 100, peak / 2])
    rates = [learning_rate(step, 512, settings) for step in (100, 200, 300, 500)]
    assert rates == pytest.approx([peak * share for share in shares], abs=1e-12)


def test_a_schedule_rises_and_falls_by_time_or_updates_whichever_ends_first():
    settings = Training(schedule="linear", warmup=100, updates=500, minutes=1.0)
    peak = (512 * 100) ** -0.5
    rising = [(50, 0.01, 0.5), (10, 0.05, 0.5), (10, 0.1, 1.0)]
    falling = [(50, 0.9, 0.1), (200, 0.1, 0.75), (200, 0.5, 0.5), (500, 0.2, 0.0), (300, 1.0, 0.0)]
    for step, spent, share in rising + falling:
        assert learning_rate(step, 512, settings, spent) == pytest.approx(peak * share, abs=1e-12)


# --- updates ------------------------------------------------------------------------------------------------

SETTINGS = Training(warmup=5)
BOTH = pytest.mark.parametrize("settings", [SETTINGS, Training(warmup=5, optimizer="muon")], ids=["adam", "muon"])


def tiny():
    torch.manual_seed(1)
    return Transformer(Model(layers=1, d_model=8, d_ff=12, heads=2, dropout=0.0), 11, 11)


def give_gradients(model, step):
    """Random gradients that depend on the step alone."""
    random = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=random).to(parameter)


def train(model, optimizer, steps, skipped=()):
    rates = []
    for step in steps:
        give_gradients(model, step)
        optimizer.update(optimizer.rate(step), torch.tensor(step in skipped))
        rates.append(optimizer.rate(step))
    return rates


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_identical(model, other):
    for found, expected in zip(values(model), values(other), strict=True):
        assert torch.equal(found, expected)


def test_updates_are_adam_with_the_rate_of_their_step():
    model = tiny()
    expected = [value.double() for value in values(model)]
    first, second = ([torch.zeros_like(value) for value in expected] for _ in range(2))
    rates = train(model, Optimizer(model, 8, SETTINGS), range(1, 8))
    assert rates == [learning_rate(step, 8, SETTINGS) for step in range(1, 8)]
    gradients = tiny()
    for step, rate in enumerate(rates, 1):
        give_gradients(gradients, step)
        for i, parameter in enumerate(gradients.parameters()):
            g = parameter.grad.double()
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.98 * second[i] + 0.02 * g * g
            m, v = first[i] / (1 - 0.9**step), second[i] / (1 - 0.98**step)
            expected[i] = expected[i] - rate * m / (v.sqrt() + 1e-9)
    for found, right in zip(values(model), expected, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"adam_betas": (0.5, 0.98)}, {"adam_betas": (0.9, 0.6)}, {"adam_epsilon": 0.1}, {"learning_rate_scale": 2.0}],
)
def test_what_the_settings_say_reaches_adam(changes):
    plain, other = tiny(), tiny()
    train(plain, Optimizer(plain, 8, SETTINGS), [1, 2, 3])
    train(other, Optimizer(other, 8, Training(warmup=5, **changes)), [1, 2, 3])
    assert not any(torch.allclose(a, b) for a, b in zip(values(plain), values(other), strict=True))


def test_matrices_decay_apart_from_the_moments_and_biases_and_norms_do_not():
    plain, other = tiny(), tiny()
    rate = train(plain, first := Optimizer(plain, 8, SETTINGS), [1])[0]
    train(other, second := Optimizer(other, 8, Training(warmup=5, weight_decay=0.3)), [1])
    for (name, start), found, undecayed in zip(tiny().named_parameters(), values(other), values(plain), strict=True):
        decay = 0.3 * rate if start.dim() > 1 else 0.0
        torch.testing.assert_close(found, undecayed - decay * start.detach(), msg=name)
    assert all(torch.equal(moment, first.state()[name]) for name, moment in second.state().items())


def test_muon_turns_each_matrix_of_the_layers_by_its_singular_vectors_and_all_else_is_adams():
    model, plain = tiny(), tiny()
    settings = Training(warmup=5, optimizer="muon")
    rates = train(model, Optimizer(model, 8, settings), [1])
    train(plain, Optimizer(plain, 8, Training(warmup=5, weight_decay=0.1)), [1])
    give_gradients(gradients := tiny(), 1)
    matrices = 0
    for (name, start), found, adams, given in zip(
        tiny().named_parameters(), values(model), values(plain), gradients.parameters(), strict=True
    ):
        if start.dim() < 2 or "embedding" in name:
            assert torch.equal(found, adams), name
            continue
        parts = 3 if "qkv" in name else 2 if "key_value" in name else 1  # matrices side by side
        moved = (start * (1 - 0.1 * rates[0]) - found).detach() / (0.2 * rates[0])
        for part, grad in zip(moved.chunk(parts), given.grad.chunk(parts), strict=True):
            left, singular, right = torch.linalg.svd(grad, full_matrices=False)
            turned = left.T @ (part / max(part.shape) ** 0.5) @ right.T
            torch.testing.assert_close(turned, turned.diagonal().diag(), atol=1e-3, rtol=0)
            large = turned.diagonal()[singular > 0.042 * singular.norm(4)]
            assert large.tolist() == pytest.approx([1.0] * len(large), abs=0.3), name
            matrices += 1
    assert matrices == 3 * 4 + 2 * 2  # of attention and of feed-forward networks


@BOTH
@pytest.mark.parametrize("skipped", [{1}, {4}, {1, 2}, {3, 4, 5}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_skipped_update_counts_for_the_learning_rate_alone(settings, skipped, value):
    model, other = tiny(), tiny()
    optimizer = Optimizer(model, 8, settings)
    for step in range(1, 7):
        before, state = values(model), {name: moment.clone() for name, moment in optimizer.state().items()}
        give_gradients(model, step)
        if step in skipped:
            for parameter in model.parameters():
                parameter.grad[-1] = value
        optimizer.update(optimizer.rate(step), torch.tensor(step in skipped))
        assert all(parameter.grad is None for parameter in model.parameters())
        if step in skipped:
            assert all(torch.equal(a, b) for a, b in zip(values(model), before, strict=True))
            assert all(torch.equal(moment, state[name]) for name, moment in optimizer.state().items() if name in state)
            assert not any(moment.any() for name, moment in optimizer.state().items() if name not in state)
    done = [step for step in range(1, 7) if step not in skipped]
    train(other, plain := Optimizer(other, 8, settings), done)
    # its bias correction is that of an Adam that never saw them
    assert_identical(model, other)
    for name, moment in plain.state().items():
        assert torch.equal(optimizer.state()[name], moment)


@BOTH
def test_gradients_that_are_kept_begin_at_zero_in_the_same_place(settings):
    model, other = tiny(), tiny()
    optimizer, plain = (Optimizer(each, 8, settings) for each in (model, other))
    optimizer.keep_gradients(True)
    kept = [parameter.grad for parameter in model.parameters()]
    for step in range(1, 4):
        give_gradients(other, step)
        for grad, parameter in zip(kept, other.parameters(), strict=True):
            grad.add_(parameter.grad)
            if step == 2:
                parameter.grad[-1] = grad[-1] = float("nan")
        for each in (optimizer, plain):
            each.update(each.rate(step), torch.tensor(step == 2))
        assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), kept, strict=True))
        assert not any(grad.any() for grad in kept)
    assert_identical(model, other)
    optimizer.keep_gradients(False)
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), kept, strict=True))
    optimizer.clear()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_muon_computes_the_same_in_stacks_of_any_size(monkeypatch):
    models = tiny(), tiny()
    for model, most in zip(models, (1, 1 << 18), strict=True):
        monkeypatch.setitem(AT_ONCE, "cpu", most)
        train(model, Optimizer(model, 8, Training(warmup=5, optimizer="muon")), range(1, 4))
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_muon_multiplies_in_the_precision_that_is_chosen_for_it(monkeypatch, dtype):
    def products(self, a, b, *others):
        dtypes.update((a.dtype, b.dtype))
        return multiply(self, a, b, *others)

    dtypes, multiply = set(), Operations.products
    monkeypatch.setattr(optimizer, "muon_dtype", lambda precision, device, d_model: dtype)
    monkeypatch.setattr(Operations, "products", products)
    model, exact = tiny(), tiny()
    train(model, Optimizer(model, 8, Training(warmup=5, optimizer="muon")), [1])
    assert dtypes == {dtype}
    monkeypatch.undo()
    train(exact, Optimizer(exact, 8, Training(warmup=5, optimizer="muon")), [1])
    for one, other in zip(model.parameters(), exact.parameters(), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.01)


# --- state --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("skipped", [set(), {1, 4}])
def test_a_restored_optimizer_continues_to_the_bit(settings, skipped):
    model, other = tiny(), tiny()
    optimizer, restored = Optimizer(model, 8, settings), Optimizer(other, 8, settings)
    train(model, optimizer, range(1, 6), skipped)
    other.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    restored.load(load(save(optimizer.state())), 5 - len(skipped))
    for network, adam in ((model, optimizer), (other, restored)):
        train(network, adam, range(6, 11))
    assert_identical(model, other)


def test_missing_moments_are_named():
    model = tiny()
    optimizer = Optimizer(model, 8, SETTINGS)
    train(model, optimizer, [1])
    state = optimizer.state()
    del state["source_embedding.weight:exp_avg_sq"]
    with pytest.raises(KeyError, match="source_embedding"):
        Optimizer(tiny(), 8, SETTINGS).load(state, 1)
