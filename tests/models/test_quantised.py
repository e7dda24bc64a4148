"""Matrices in eight bits."""

import pytest
import torch

from vivavoce.models.quantised import E4M3, e4m3_rows, int8_rows


def some(rows, columns):
    """Rows of very different sizes."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return weight * torch.logspace(-4, 3, rows)[:, None]


def test_whole_numbers_are_within_half_a_step():
    weight = some(9, 50)
    made = int8_rows(weight)
    assert made.values.dtype == torch.int8
    assert int(made.values.abs().amax()) == 127
    off = (made.widened() - weight).abs() / made.scales[:, None]
    assert float(off.max()) <= 0.5001


def test_e4m3_is_within_half_a_step():
    """A sixteenth of the number, or half of the smallest step near zero."""
    weight = some(9, 50)
    made = e4m3_rows(weight)
    assert made.values.dtype == E4M3
    assert torch.equal(made.values.float().abs().amax(1), torch.full((9,), 448.0))
    bound = torch.maximum(weight.abs() / 16, made.scales[:, None] * 2**-10)
    assert bool(((made.widened() - weight).abs() <= bound * 1.0001).all())


@pytest.mark.parametrize("rows_of", [int8_rows, e4m3_rows])
def test_rows_do_not_mix_and_zeros_stay(rows_of):
    weight = some(4, 20)
    weight[1] = 0
    made = rows_of(weight.half())
    assert not made.widened()[1].any()
    assert bool(made.widened().isfinite().all())
    alone = rows_of(weight[2:3].half())
    assert torch.equal(made.values[2:3].float(), alone.values.float())
    assert torch.equal(made.scales[2:3], alone.scales)


@pytest.mark.parametrize("rows_of", [int8_rows, e4m3_rows])
def test_once_is_enough(rows_of):
    made = rows_of(some(5, 33)).widened()
    torch.testing.assert_close(rows_of(made).widened(), made, rtol=1e-6, atol=0)
