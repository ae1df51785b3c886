"""Counted operations against what PyTorch counts, and what GPUs are known to give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.compute import choice
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.training.flops import measured_flops, training_flops


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by PyTorch's own operations, the only ones that FlopCounterMode knows."""
    monkeypatch.setattr(choice, "fp32_multiplier", lambda: choice.PYTORCH)


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_flops_count_end_symbols_and_look_back_only() -> None:
    """Each weight takes six operations per token, forward and backward."""
    config = Model(layers=1, d_model=2, d_ff=1, heads=1, d_k=1, d_v=1)
    source, target, width = 3 + 5, 2 + 4, 2
    encoder = source * (2 * 4 + 4) + width * (9 + 25)
    decoder = target * (2 * 4 + 4) + width * (3 + 10) + 4 * (source + target) + width * (6 + 20)
    found = training_flops(config, 10, lengths(2, 4), lengths(1, 3))
    assert found == 6 * (encoder + decoder + target * 2 * 10)


def forward_flops(model: Transformer, *ids: torch.Tensor | None) -> int:
    """What PyTorch counts in a forward pass."""
    plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        model.eval()(*ids)
    return int(counter.get_total_flops())


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    "config",
    [
        Model(layers=2, d_model=16, d_ff=40, heads=4),
        Model(layers=1, decoder_layers=3, d_model=12, d_ff=20, heads=2, norm="pre"),
        Model(layers=2, d_model=16, d_ff=24, heads=2, d_k=5, d_v=7, tie_embeddings="none"),
    ],
)
def test_flops_are_those_of_a_forward_pass_three_times(config: Model) -> None:
    vocabulary, pairs, source, target = 50, 3, 7, 9
    model = Transformer(config, vocabulary, vocabulary)
    flops = forward_flops(model, torch.full((pairs, source), 5), torch.full((pairs, target), 6))
    own = pairs * config.decoder_depth * config.heads * (config.key_width + config.value_width)
    unmasked, masked = target**2, target * (target + 1) / 2  # PyTorch computes what the mask then drops
    same = lengths(*[source - 1] * pairs), lengths(*[target - 1] * pairs)
    found = training_flops(config, vocabulary, *same)
    assert found == pytest.approx(3 * (flops - 2 * own * (unmasked - masked)), rel=1e-12)


def test_a_cpu_is_measured() -> None:
    assert 1e8 < measured_flops(torch.device("cpu"), "fp32") < 1e14
