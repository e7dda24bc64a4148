"""The flow's kernels of e4m3 against torch's arithmetic on the same eight bits."""

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from tests.eight_bit_interpreter import eight_bit_interpreter
from vivavoce.models.kernels.flow_fp8_norm import shifted_layer_norm_e4m3
from vivavoce.models.kernels.flow_fp8_product import Rows, fp8_add, fp8_expand, fp8_product
from vivavoce.models.kernels.flow_norm import Norm
from vivavoce.models.quantised import E4M3, e4m3_rows

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
    # A GPU's maximum of nothing but NaN is silent.
    pytest.mark.filterwarnings("ignore:All-NaN slice"),
]

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Largest difference for values of about 1, where no rounding to eight bits stands in between."""
DTYPES = pytest.mark.parametrize("dtype", BOUNDS)
STEP = 1 / 16
"""The relative half of a step of e4m3; a sum that is rounded otherwise may fall on the other side of it."""


@pytest.fixture(autouse=True, scope="module")
def quick():
    with eight_bit_interpreter():
        yield


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale).to(dtype)


def rows_of(count, size, groups):
    """Rows in e4m3, whose groups' scales differ by much."""
    made = e4m3_rows(draw(count * groups, size // groups) * torch.logspace(-1, 1, count * groups)[:, None])
    return Rows(made.values.view(count, size), made.scales.view(count, groups))


def widened(rows):
    count, groups = rows.scales.shape
    return (rows.values.double().view(count, groups, -1) * rows.scales.double()[..., None]).view(count, -1)


def close(made, expected, dtype):
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(made.double(), expected, atol=BOUNDS[dtype] * size, rtol=0)


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_norm(dtype, size):
    x, shift = draw(19, size, dtype=dtype), draw(size, seed=3)
    norm = Norm(shift, draw(size, dtype=dtype, seed=1), draw(size, dtype=dtype, seed=2))
    expected = functional.layer_norm(x.double() + shift, (size,), norm.weight.double(), norm.bias.double(), 1e-5)
    made = shifted_layer_norm_e4m3(x, norm)
    assert made.values.dtype == E4M3
    close(made.scales[:, 0] * 448, expected.abs().amax(1), torch.float32)
    bound = torch.maximum(expected.abs() * STEP, made.scales.double() * 2**-10) + 1e-5
    assert bool(((widened(made) - expected).abs() <= bound).all())


@DTYPES
@pytest.mark.parametrize(("size", "columns"), [(64, 96), (48, 16), (144, 48), (256, 32)])
def test_product(dtype, size, columns):
    """Of inputs that are a tile, less, and more than one, whole and not."""
    x, weight = rows_of(35, size, 1), e4m3_rows(draw(columns, size, seed=1))
    expected = widened(x) @ weight.widened().double().T
    made = fp8_product(x, weight, dtype)
    assert made.dtype == dtype
    close(made / expected.abs().amax(), expected / expected.abs().amax(), dtype)


@DTYPES
def test_sum_of_groups(dtype):
    x, weight, into = rows_of(35, 192, 3), e4m3_rows(draw(32, 192, seed=1)), draw(35, 32, dtype=dtype, seed=5)
    expected = into.double() + widened(x) @ weight.widened().double().T
    fp8_add(into, x, weight)
    close(into, expected, dtype)


@DTYPES
@pytest.mark.parametrize("size", [64, 160])
def test_rows_of_16_bit_are_turned_into_eight(dtype, size):
    """In groups of 128 from the first channel on, as far as there are any."""
    x, weight, into = draw(35, size, dtype=dtype), e4m3_rows(draw(32, size, seed=1)), draw(35, 32, dtype=dtype, seed=5)
    groups = x.split(128, dim=1)
    read = torch.cat([e4m3_rows(group).widened() for group in groups], dim=1).double()
    expected = into.double() + read @ weight.widened().double().T
    fp8_add(into, x, weight)
    # A number on the border of two steps may fall on the other side: its step times one weight.
    torch.testing.assert_close(into.double(), expected, atol=0.02 * float(expected.abs().max()), rtol=0)
    assert float((into.double() - expected).norm() / expected.norm()) < 2e-3


@pytest.mark.parametrize("columns", [64, 256])
def test_expanding(columns):
    x, weight, bias = rows_of(35, 64, 1), e4m3_rows(draw(columns, 64, seed=1)), draw(columns, seed=2)
    expected = functional.gelu(widened(x) @ weight.widened().double().T + bias, approximate="tanh")
    made = fp8_expand(x, weight, bias)
    assert made.values.dtype == E4M3
    assert made.scales.shape == (35, max(1, columns // 128))
    step = made.scales.double().repeat_interleave(columns // made.scales.shape[1], 1) * 2**-10
    assert bool(((widened(made) - expected).abs() <= torch.maximum(expected.abs() * STEP, step) * 1.01 + 1e-5).all())


def test_rows_do_not_mix():
    x, weight, into = draw(40, 160), e4m3_rows(draw(32, 160, seed=1)), draw(40, 32, seed=5)
    alone, spoilt = into[:7].clone(), into.clone()
    fp8_add(alone, x[:7].contiguous(), weight)
    x[7:] = float("nan")
    fp8_add(spoilt, x, weight)
    assert torch.equal(spoilt[:7], alone)
    assert bool(spoilt[7:].isnan().all())
