"""The kernels of LoRA adapters against torch: tiles of one row and of several, parts, ranks, and rows without one.

Few rows and ranks have kernels of their own, so most tests take both ways.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from tests.kernel_checks import DEVICE, close, draw
from vivavoce_kernels import lm_adapters, lm_products
from vivavoce_kernels.lm_adapters import RowAdapters, add_norm_shrink, expand, shrink
from vivavoce_kernels.lm_products import Shape, Tile, product, row_class
from vivavoce_kernels.lm_rows import add_norm

RANK, PLACES = 32, 3
RANKS = (5, 32, 0)
"""Of each place; the last one does not change the product."""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@pytest.fixture(params=["few", "many"])
def way(request, monkeypatch):
    most = 1 << 20 if request.param == "few" else 0
    for limit in ("_ROW_VALUES", "_JOINED"):
        monkeypatch.setattr(lm_adapters, limit, most)


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
def test_products_of_the_library_grow_by_each_rows_adapter(dtype, inputs, ends, tile, places, way):
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
def test_our_products_grow_by_each_rows_adapter(dtype, ends, with_bias, how, split, places, way):
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("tile", "places"), [(1, [1, 0, 2, 3, 1]), (16, [2, 0])])
def test_a_norm_also_gives_the_products_of_its_rows_and_a(dtype, tile, places, way):
    rows, size, ends = len(places) * tile - (3 if tile > 1 else 0), 80, (64, 96, 128)
    down, up, memory = some_pairs(size, ends, dtype)
    stream, planes, weight = draw(rows, size, seed=2), draw(3, rows, size, seed=3), draw(size, dtype=dtype, seed=4)
    summed = stream.clone()
    wanted = add_norm(summed, planes, weight, 1e-6, dependent=False)
    pair, adapters = pairs_of(memory, down, up), row_adapters(places, tile, memory)
    found, x, low = add_norm_shrink(stream, planes, weight, 1e-6, *pair, ends, adapters, dependent=False)
    assert torch.equal(found, summed)
    assert torch.equal(x, wanted)
    for row in range(rows):
        place = places[row // tile] - 1
        if place >= 0:
            close(low.sums[:, row].sum(0), down[place].double() @ x[row].double(), torch.float32, factor=2.0)


@pytest.mark.parametrize("rank", [16, 48])
def test_a_row_has_the_same_bits_alone_and_in_company(rank, way, monkeypatch):
    """Sums of rows without an adapter are never read: they are NaN here."""

    def spoilt(*shape, **options):
        return torch.full(shape, float("nan"), **options)

    monkeypatch.setattr(torch, "empty", spoilt)
    size, outputs, places, count = 96, 64, [1, 0, 2, 2, 0, 1, 0], 2
    down, up = draw(count, rank, size, seed=1, scale=0.1), draw(count, outputs, rank, seed=2, scale=0.3)
    memory = torch.cat((down.flatten(1), up.flatten(1)), dim=1)
    stream, weight = draw(len(places), size, seed=3), draw(outputs, size, seed=4, scale=0.1)
    scaling, tiles = draw(size, seed=5), {Shape(outputs, size): {16: Tile(32, 32, 1, 4, 2)}}

    def made(rows, places):
        adapters = RowAdapters(torch.tensor(places, device=DEVICE), 1, count, memory.stride(0))
        given = (scaling, 1e-6, *pairs_of(memory, down, up), (outputs,), adapters)
        _, x, low = add_norm_shrink(rows.clone(), rows[None], *given, dependent=False)
        ours = product(x, weight, None, tiles, low=low, dependent=False)[0]
        return x, ours, product(x, weight, None, {}, low=low, dependent=False)[0]

    x, *together = made(stream, places)
    wanted = x.double() @ weight.double().T
    for row, place in enumerate(places):
        if place:
            wanted[row] += up[place - 1].double() @ (down[place - 1].double() @ x[row].double())
    for found in together:
        close(found, wanted, torch.float32, factor=2.0)
    for row, place in enumerate(places):
        for whole, other in zip(
            together, made(stream, [place if at == row else 0 for at in range(7)])[1:], strict=True
        ):
            assert torch.equal(whole[row], other[row])
        assert torch.equal(together[0][row], made(stream[row : row + 1], [place])[1][0])


def test_with_adapters_more_products_are_ours(monkeypatch):
    down, up, memory = some_pairs(64, (64,), torch.float32)
    x, weight = draw(2, 64, seed=2), draw(64, 64, seed=3, scale=0.1)
    low = shrink(x, *pairs_of(memory, down, up), (64,), row_adapters([1, 2], 1, memory), dependent=False)
    monkeypatch.setattr(lm_products, "ADAPTED_TILES", {Shape(64, 64): {16: Tile(32, 32, 1, 4, 2)}})
    monkeypatch.setattr(lm_products, "expand", None)
    found = product(x, weight, None, {}, low=low, dependent=False)[0]
    wanted = x.double() @ weight.double().T + added(x, down, up, (64,), [1, 2], 1)
    close(found, wanted, torch.float32, factor=2.0)
