"""Products of int8 weights against the same products of the weights that they mean."""

import pytest
import torch
from torch.nn.functional import linear, rms_norm, silu

pytest.importorskip("triton")

from vivavoce.models.kernels.lm_products import INT8_TILES, Tile, _check, multiply, plain_tile, product
from vivavoce.models.kernels.lm_vector_products import Strip, vector_product
from vivavoce.models.quantised import int8_rows

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Relative to the largest value."""
DTYPES = pytest.mark.parametrize("dtype", BOUNDS)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-6


def some(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def near(got, wanted, dtype):
    assert got.shape == wanted.shape
    assert float((got.double() - wanted).abs().max()) <= BOUNDS[dtype] * float(wanted.abs().max())


def uneven(rows, columns):
    """A matrix whose rows' scales differ by thousands."""
    return int8_rows(some(rows, columns, seed=1) * torch.logspace(-2, 1, rows, device=DEVICE)[:, None])


@DTYPES
@pytest.mark.parametrize("rows", [3, 70, 130])
@pytest.mark.parametrize(
    ("tile", "gated", "biased"),
    [
        (Tile(16, 32, 1, 4, 2), False, True),
        (Tile(32, 16, 3, 4, 2), False, False),
        (Tile(32, 32, 1, 4, 2), True, False),
    ],
)
def test_products_of_few_rows(dtype, rows, tile, gated, biased):
    x, weight = some(rows, 96, dtype=dtype), uneven(80 if gated else 40, 96)
    bias = some(40, seed=2, dtype=dtype) if biased else None
    wanted = linear(x.double(), weight.widened().double(), None if bias is None else bias.double())
    if gated:
        wanted = silu(wanted[:, :40]) * wanted[:, 40:]
    got = multiply(x, weight.values, bias, tile, dependent=False, scale=weight.scales, gated=gated, wide=False)
    near(got.double().sum(0), wanted, dtype)
    taken = product(x, weight.values, bias, {}, dependent=False, scale=weight.scales, gated=gated)
    assert len(taken) == 1
    near(taken[0], wanted, dtype)


@DTYPES
@pytest.mark.parametrize(("gated", "added", "normed"), [(True, False, True), (False, True, False)])
def test_products_of_one_row(dtype, gated, added, normed):
    x, weight = some(1, 96, seed=3), uneven(80 if gated else 40, 96)
    norm = some(96, seed=4, dtype=dtype) if normed else None
    read = x.double() if norm is None else rms_norm(x.double(), (96,), norm.double(), EPS)
    wanted = linear(read, weight.widened().double())
    if gated:
        wanted = silu(wanted[:, :40]) * wanted[:, 40:]
    out = some(1, 40, seed=5, dtype=torch.float32 if added else dtype)
    wanted = wanted + out.double() if added else wanted
    vector_product(
        x, weight.values, None, out, Strip(16, 4), dependent=False, scale=weight.scales, scaling=norm, eps=EPS,
        gated=gated, added=added,
    )  # fmt: skip
    near(out, wanted, torch.float32 if added else dtype)


def test_tiles_fit():
    """Of the released sizes, for every number of rows; others are multiples of 16."""
    for shape, tiles in INT8_TILES.items():
        assert list(tiles) == [16, 32, 64, 128]
        for tile in tiles.values():
            _check(tile, shape.inputs, alone=shape.gated or shape.outputs == 1152)
    _check(plain_tile(704), 704, alone=True)
    with pytest.raises(ValueError, match="24 inputs"):
        plain_tile(24)
