"""The kernels of LoRA adapters against torch: tiles of one row and of several, parts, ranks, and tiles without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from tests.kernel_checks import DEVICE, close, draw
from vivavoce_kernels.lm_adapters import add_adapters

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("inputs", "ends", "tile", "places"),
    [
        (80, (64, 96, 128), 1, [1, 0, 2, 3, 1]),
        (48, (64,), 16, [2, 0, 1]),
        (2048 + 80, (16, 32), 1, [2, 1]),
    ],
)
def test_products_grow_by_each_tiles_adapter(dtype, inputs, ends, tile, places):
    down, up, memory = some_pairs(inputs, ends, dtype)
    rows = len(places) * tile - (3 if tile > 1 else 0)
    x, before = draw(rows, inputs, dtype=dtype, seed=2), draw(rows, ends[-1], seed=3, dtype=dtype)
    first = memory[0, : down[0].numel()].view(down[0].shape), memory[0, down[0].numel() :].view(up[0].shape)
    given = torch.tensor(places, device=DEVICE).repeat_interleave(3)[::3]
    out = before.clone()
    ranks = torch.tensor(RANKS, dtype=torch.int32, device=DEVICE)
    add_adapters(x, *first, ends, ranks, memory.stride(0), given, tile, out, dependent=False)
    close(out, before.double() + added(x, down, up, ends, places, tile), dtype, factor=2.0)
    for row in range(rows):
        if places[row // tile] in (0, 3):
            assert torch.equal(out[row], before[row])


def test_parts_of_odd_sizes_are_refused():
    down, up, _ = some_pairs(48, (24, 48), torch.float32)
    ranks, places = torch.zeros(PLACES, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"parts that end at \(24, 48\) outputs are not of multiples of 16"):
        add_adapters(draw(1, 48), down[0], up[0], (24, 48), ranks, 1, places, 1, draw(1, 48), dependent=False)
