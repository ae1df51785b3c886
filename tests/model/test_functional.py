"""Attention against equation 1, by whichever kernel."""

import pytest
import torch
from torch.nn import functional as F

from nmt.model.functional import attention, look_ahead_mask


def test_look_ahead_mask_hides_what_comes_later():
    assert look_ahead_mask(4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("case", ["plain", "causal", "padding"])
def test_recorded_attention_equals_the_fused_one(case):
    torch.manual_seed(2)
    query, key, value = (torch.randn(2, 3, 5, width).double() for width in (4, 4, 7))
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, :, :, 3:] = False
    options = {"causal": case == "causal", "mask": mask if case == "padding" else None}
    record: list[torch.Tensor] = []
    recorded = attention(query, key, value, **options, record=record)
    torch.testing.assert_close(recorded, attention(query, key, value, **options), rtol=0, atol=1e-12)
    torch.testing.assert_close(record[0].sum(-1), torch.ones(2, 3, 5).double(), rtol=0, atol=1e-12)
    if case == "causal":
        assert record[0].masked_select(~look_ahead_mask(5)).eq(0).all()
    if case == "padding":
        assert record[0][1, :, :, 3:].eq(0).all()


@pytest.mark.parametrize("queries", [1, 4])
def test_attention_of_hypotheses_is_attention(queries):
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, queries, 5), torch.randn(3, 2, 7, 5), torch.randn(3, 2, 7, 4)
    for shape in ((3, 1, queries, 7), (3, 1, 1, 7)):
        bias = torch.zeros(shape).masked_fill_(torch.rand(shape) < 0.4, -1e9)
        with torch.inference_mode():
            found = attention(query, key, value, bias)
            expected = F.scaled_dot_product_attention(query, key, value, bias)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
