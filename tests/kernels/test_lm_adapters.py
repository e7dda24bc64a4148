"""The kernels of LoRA adapters against torch: tiles of one row and of several, parts, ranks, and rows without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from tests.kernel_checks import DEVICE, close, draw
from vivavoce_kernels.lm_adapters import RowAdapters, expand, shrink
from vivavoce_kernels.lm_products import Shape, Tile, product, row_class

RANK, PLACES = 32, 3
RANKS = (5, 32, 0)
"""Of each place; the last one does not change the product."""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


def some_pairs(inputs: int, ends: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """[places, parts · rank, inputs], [places, outputs, rank], and both in rows of one memory; zeros beyond a rank."""
    down = draw(PLACES, len(ends) * RANK, inputs, dtype=dtype, scale=inputs**-0.5)
    up = draw(PLACES, ends[-1], RANK, dtype=dtype, seed=1, scale=0.3)
    for place, rank in enumerate(RANKS):
        for part in range(len(ends)):
            down[place, part * RANK + rank : (part + 1) * RANK] = 0
        up[place, :, rank:] = 0
    return down, up, torch.cat((down.flatten(1), up.flatten(1)), dim=1)


def added(x: Tensor, down: Tensor, up: Tensor, ends: tuple[int, ...], places: list[int], tile: int) -> Tensor:
    """What is to be added to each row, float64."""
    rows = []
    for row, one in enumerate(x.double()):
        place, begin, parts = places[row // tile] - 1, 0, []
        for part, end in enumerate(ends):
            low = down[place, part * RANK : (part + 1) * RANK].double() @ one
            parts.append(up[place, begin:end].double() @ low)
            begin = end
        rows.append(torch.cat(parts) * (place >= 0))
    return torch.stack(rows)


def pairs_of(memory: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first place, as views."""
    size = down[0].numel()
    return memory[0, :size].view(down[0].shape), memory[0, size:].view(up[0].shape)


def row_adapters(places: list[int], tile: int, memory: Tensor) -> RowAdapters:
    """Their numbers stand apart."""
    given = torch.tensor(places, device=DEVICE).repeat_interleave(3)[::3]
    return RowAdapters(given, tile, PLACES, memory.stride(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("inputs", "ends", "tile", "places"),
    [
        (80, (64, 96, 128), 1, [1, 0, 2, 3, 1]),
        (48, (64,), 16, [2, 0, 1]),
        (2048 + 80, (16, 32), 1, [2, 1]),
        (48, (64,), 1, [0] * 17),
    ],
)
def test_products_of_the_library_grow_by_each_rows_adapter(dtype, inputs, ends, tile, places):
    down, up, memory = some_pairs(inputs, ends, dtype)
    rows = len(places) * tile - (3 if tile > 1 else 0)
    x, before = draw(rows, inputs, dtype=dtype, seed=2), draw(rows, ends[-1], seed=3, dtype=dtype)
    out = before.clone()
    low = shrink(x, *pairs_of(memory, down, up), ends, row_adapters(places, tile, memory), dependent=False)
    expand(low, out, dependent=False)
    close(out, before.double() + added(x, down, up, ends, places, tile), dtype, factor=2.0)
    for row in range(rows):
        if places[row // tile] in (0, 3):
            assert torch.equal(out[row], before[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("ends", "with_bias", "how", "split", "places"),
    [
        ((64, 96, 128), True, {}, 1, [1, 0, 2, 3, 1]),
        ((64, 128), False, {"gated": True}, 1, [2, 2, 0]),
        ((64,), False, {"wide": True}, 2, [3, 1] * 9),
    ],
)
def test_our_products_grow_by_each_rows_adapter(dtype, ends, with_bias, how, split, places):
    inputs, outputs, rows = 64, ends[-1], len(places)
    down, up, memory = some_pairs(inputs, ends, dtype)
    x, weight = draw(rows, inputs, dtype=dtype, seed=2), draw(outputs, inputs, dtype=dtype, seed=3, scale=0.1)
    bias = draw(outputs, dtype=dtype, seed=4) if with_bias else None
    shape = Shape(outputs // 2 if how.get("gated") else outputs, inputs, how.get("gated", False))
    tiles = {shape: {row_class(rows): Tile(32, 32, split, 4, 2)}}
    low = shrink(x, *pairs_of(memory, down, up), ends, row_adapters(places, 1, memory), dependent=False)
    found = product(x, weight, bias, tiles, low=low, dependent=False, **how)
    plain = product(x, weight, bias, tiles, dependent=False, **how)
    wanted = x.double() @ weight.double().T + added(x, down, up, ends, places, 1)
    wanted += 0.0 if bias is None else bias.double()
    if how.get("gated"):
        wanted = torch.nn.functional.silu(wanted[:, : outputs // 2]) * wanted[:, outputs // 2 :]
    close(found.double().sum(0).to(found.dtype), wanted, dtype, factor=2.0)
    for row, place in enumerate(places):
        assert torch.equal(found[:, row], plain[:, row]) == (place in (0, 3))


def test_parts_of_odd_sizes_are_refused():
    down, up, memory = some_pairs(48, (24, 48), torch.float32)
    low = shrink(draw(1, 48), *pairs_of(memory, down, up), (24, 48), row_adapters([1], 1, memory), dependent=False)
    with pytest.raises(ValueError, match=r"parts that end at \(24, 48\) outputs do not end at multiples of 16"):
        expand(low, draw(1, 48), dependent=False)
