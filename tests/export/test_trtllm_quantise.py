"""Whole numbers, their scales and their bytes; shards and their sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vivavoce.export.trtllm.sharding import Cut, joined, rows_per_gpu, shards
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.smoothquant import SmoothedMatrix, to_int8
from vivavoce.export.trtllm.weight_only import dequantise, quantise, round_trip, whole_numbers

SIZES = QwenSizes(64, 128, 8, 8, 2, 200, 1e-6, 1e4, 512, tied=False)


def weights(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns)) / 8


@pytest.mark.parametrize("layout", ["sm80", "sm90"])
@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_in_a_gpus_order_mean_the_same_matrix(bits: int, layout: str) -> None:
    weight = weights(128, 192).half()
    stored = quantise(weight, bits, layout)
    assert stored.stored.shape == (192, 128 * bits // 8)
    found = dequantise(stored, bits, layout)
    assert torch.equal(found, round_trip(weight, bits))
    steps = weight.float().abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    # The largest positive number is one step too large for its bits; the scale's own rounding is float16's.
    assert ((found - weight.float()).abs() <= steps * 1.01 + 1e-3).all()
    assert len(whole_numbers(weight, bits)[0].unique()) > 2**bits * 0.9


def test_halves_are_rounded_away_from_zero() -> None:
    values = torch.tensor([[128.0, 0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, -0.49999997]])
    numbers, scale = whole_numbers(values, 8)
    assert scale.item() == 1
    assert numbers[:, 0].tolist() == [127, 1, -1, 2, -2, 3, 0, 0]


def test_an_output_without_weights_stays_without() -> None:
    weight = weights(64, 64).half()
    weight[5] = 0
    for bits in (8, 4):
        assert (dequantise(quantise(weight, bits, "sm80"), bits, "sm80")[5] == 0).all()
    for per_channel in (True, False):
        matrix = SmoothedMatrix(weight, torch.ones(64).double(), torch.tensor(1.0), (64,))
        made = to_int8(matrix, per_channel=per_channel)
        assert (made.weight[5] == 0).all()
        assert made.to_int.isfinite().all()
        assert made.from_int.isfinite().all()


@pytest.mark.parametrize("parts", [(64,), (32, 16, 16)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_too_small_for_a_scale_in_float16(parts: tuple[int, ...], per_channel: bool) -> None:
    weight = (weights(64, 64) / 1000).half()
    assert weight.abs().max() < 127 / 65504
    made = to_int8(SmoothedMatrix(weight, torch.ones(64).double(), torch.tensor(1.0), parts), per_channel=per_channel)
    error = made.weight.float() * made.from_int.reshape(-1, 1) - weight.float()
    assert error.abs().max() <= weight.abs().max() / 127
    assert made.weight.abs().max() == 127


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_shards_make_the_whole_again(tp: int) -> None:
    query_rows, key_rows, value_rows = SIZES.qkv_rows
    fused = weights(query_rows + key_rows + value_rows, 64)
    pieces = shards(fused, Cut.QKV, tp, SIZES)
    assert len({piece.shape for piece in pieces}) == 1
    assert len(pieces[0]) == query_rows // tp + 2 * max(key_rows // tp, SIZES.head_size)
    assert torch.equal(joined(pieces, Cut.QKV, SIZES), fused)
    assert torch.equal(joined(shards(fused[:, 0], Cut.QKV, tp, SIZES), Cut.QKV, SIZES), fused[:, 0])
    for cut in (Cut.ROWS, Cut.COLUMNS):
        assert torch.equal(joined(shards(weights(64, 128), cut, tp, SIZES), cut, SIZES), weights(64, 128))


def test_a_table_of_any_size_is_divided() -> None:
    assert [rows_per_gpu(rows, 2) for rows in (100, 101, 1)] == [50, 51, 1]
