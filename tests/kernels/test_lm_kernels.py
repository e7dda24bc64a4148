"""The language model's kernels against torch and the plain sampler; what lies past a slot's length is NaN."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

pytest.importorskip("triton")

import triton
from tests.fast_flow import quick_interpreter
from vivavoce.engine.lm_stage.slots import SlotRows, repetition_aware
from vivavoce_kernels.common import compiled_ahead, launched
from vivavoce_kernels.layouts import IDLE, Field
from vivavoce_kernels.lm_attention import ROW_TILE, Rotations, SplitK, decode_attention, prefill_attention
from vivavoce_kernels.lm_products import Shape, Tile, multiply, product
from vivavoce_kernels.lm_rows import add_norm, embed_norm, swiglu
from vivavoce_kernels.lm_sampler import advance_slots

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


EPS = 1e-6
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Relative to the largest value; 16 bit rounds results and what stands between two products."""
DTYPES = list(BOUNDS)
HEADS, KV_HEADS, HEAD_DIM, CAPACITY, SLOTS = 6, 2, 16, 80, 4
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM


def some(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert got.shape == wanted.shape
    assert float((got.double() - wanted).abs().max()) <= BOUNDS[dtype] * float(wanted.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("planes", [1, 3])
def test_planes_are_added_and_normalised(dtype, planes):
    stream, added, weight = some(5, 48), some(planes, 5, 48, seed=1), some(48, seed=2, dtype=dtype)
    wanted = stream.double() + added.double().sum(0)
    x = stream.clone()
    got = add_norm(x, added, weight, EPS, dependent=False)
    assert got.dtype == dtype
    assert_near(got, rms_norm(wanted, (48,), weight.double(), EPS), dtype)
    assert_near(x, wanted, torch.float32)
    picked = add_norm(stream.clone(), added, weight, EPS, dependent=False, picked=torch.tensor([4, 0, 4]))
    assert torch.equal(picked, got[[4, 0, 4]])


def test_rows_come_from_their_tables():
    tables = (some(2, 48, seed=1), some(9, 48, seed=2), some(20, 48, seed=3))
    weight, kinds, ids = some(48, seed=4), torch.tensor([0, 1, 2, 2]), torch.tensor([1, 8, 19, 0])
    wanted = torch.stack([tables[kind][one] for kind, one in zip(kinds.tolist(), ids.tolist(), strict=True)])
    for given in (kinds, None):
        stream, x = embed_norm(ids[2:] if given is None else ids, given, tables, weight, EPS)
        rows = wanted if given is not None else wanted[2:]
        assert torch.equal(stream, rows)
        assert_near(x, rms_norm(rows.double(), (48,), weight.double(), EPS), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype):
    joined = some(3, 2 * 1100, dtype=dtype) * 3
    gate, up = joined.double().chunk(2, dim=-1)
    assert_near(swiglu(joined, dependent=False), silu(gate) * up, dtype)


@pytest.mark.parametrize(
    ("rows", "dtype"), [*((rows, torch.float32) for rows in (1, 17, 70, 130)), (17, torch.float16)]
)
@pytest.mark.parametrize(
    ("tile", "gated", "biased"),
    [
        (Tile(16, 32, 1, 4, 2), False, True),
        (Tile(32, 16, 3, 4, 2), False, False),
        (Tile(32, 32, 1, 4, 2), True, False),
    ],
)
def test_products_of_few_rows(dtype, rows, tile, gated, biased):
    x, weight = some(rows, 96, dtype=dtype), some(80 if gated else 40, 96, seed=1, dtype=dtype)
    bias = some(40, seed=2, dtype=dtype) if biased else None
    wanted = linear(x.double(), weight.double(), None if bias is None else bias.double())
    if gated:
        wanted = silu(wanted[:, :40]) * wanted[:, 40:]
    got = multiply(x, weight, bias, tile, dependent=False, gated=gated, wide=False)
    assert got.dtype == (torch.float32 if tile.splits > 1 else dtype)
    assert len(got) == tile.splits
    assert_near(got.double().sum(0), wanted, dtype)
    tiles = {Shape(40, 96, gated): {64: tile}}
    taken = product(x, weight, bias, tiles, dependent=False, gated=gated)
    assert len(taken) == (tile.splits if 32 < rows <= 64 else 1)
    assert_near(taken.double().sum(0), wanted, dtype)


def test_rows_of_a_product_do_not_mix():
    x, weight, tile = some(40, 96), some(40, 96, seed=1), Tile(16, 32, 3, 4, 2)
    whole = multiply(x, weight, None, tile, dependent=False, gated=False, wide=True)
    x[7:] = float("nan")
    spoilt = multiply(x, weight, None, tile, dependent=False, gated=False, wide=True)
    assert torch.equal(whole[:, :7], spoilt[:, :7])
    assert spoilt[:, 7:].isnan().all()


def test_tiles_that_do_not_fit_are_refused():
    x, weight = some(2, 96), some(40, 96)
    with pytest.raises(ValueError, match="2 splits in steps of 64 do not divide 96 inputs"):
        multiply(x, weight, None, Tile(16, 64, 2, 4, 2), dependent=False, gated=False, wide=False)
    with pytest.raises(ValueError, match="3 splits cannot be added up"):
        multiply(x, weight, weight[0], Tile(16, 32, 3, 4, 2), dependent=False, gated=False, wide=False)


def rotations() -> Rotations:
    angles = torch.arange(CAPACITY)[:, None] / 100.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return Rotations(angles.cos(), angles.sin())


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """[rows, heads, head_dim] float64, halves rotated."""
    tables = rotations()
    cos, sin = tables.cos.double()[positions][:, None], tables.sin.double()[positions][:, None]
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def parts(qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated query, rotated key, value, in float64."""
    heads = qkv.double().view(len(qkv), -1, HEAD_DIM)
    query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    return turned(query, positions), turned(key, positions), value


def attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query: [heads, head_dim]; keys, values: [kv_heads, n, head_dim]  →  [heads · head_dim], all float64."""
    grouped = query.view(KV_HEADS, -1, HEAD_DIM)
    weights = (grouped @ keys.transpose(1, 2) / math.sqrt(HEAD_DIM)).softmax(-1)
    return (weights @ values).reshape(-1)


def memory_of(lengths: list[int], dtype: torch.dtype) -> Tensor:
    """Slots with a past; what is past it is NaN."""
    memory = some(2, SLOTS, KV_HEADS, CAPACITY, HEAD_DIM, seed=9, dtype=dtype)
    for slot, length in enumerate(lengths):
        memory[:, slot, :, length:] = float("nan")
    return memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split_k", [SplitK(32, 1, 2, 2), SplitK(16, 3, 1, 2)])
def test_decode_attention(dtype, split_k):
    lengths = [37, 0, 64, 5]
    numbers = torch.zeros(SLOTS, 5, dtype=torch.int64)
    numbers[:, 1], numbers[:, 0] = torch.tensor(lengths), torch.tensor([1, 1, 1, 0])
    positions, memory, qkv = numbers[:, 1], memory_of(lengths, dtype), some(SLOTS, WIDTH, dtype=dtype)
    before = memory.clone()
    query, key, value = parts(qkv, positions)
    got = decode_attention(qkv, memory, positions, numbers[:, 0], rotations(), HEADS, split_k, dependent=False)
    for slot, length in enumerate(lengths[:3]):
        past = before[:, slot, :, :length].double()
        new = torch.stack((key[slot], value[slot]))[:, :, None]
        assert_near(memory[:, slot, :, length], new[:, :, 0], dtype)
        assert torch.equal(memory[:, slot, :, :length], before[:, slot, :, :length])
        assert_near(got[slot], attended(query[slot], *torch.cat((past, new), dim=2)), dtype)
    assert torch.equal(got[3], torch.zeros(HEADS * HEAD_DIM, dtype=dtype))
    torch.testing.assert_close(memory[:, 3], before[:, 3], rtol=0, atol=0, equal_nan=True)


def prefilled(counts: list[int], slots: list[int], starts: list[int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows of some sequences → outputs, the rows of each, memory before and after, rows, and positions."""
    tiles = [-(-count // ROW_TILE) * ROW_TILE for count in counts]
    rows = sum(tiles) + ROW_TILE
    places, positions = torch.full((rows,), SLOTS - 1), torch.zeros(rows, dtype=torch.int64)
    firsts = [sum(tiles[:number]) for number in range(len(counts))]
    for count, slot, start, first in zip(counts, slots, starts, firsts, strict=True):
        places[first : first + count] = slot
        positions[first : first + count] = torch.arange(start, start + count)
    lengths = [starts[slots.index(slot)] if slot in slots else 0 for slot in range(SLOTS)]
    memory, qkv = memory_of(lengths, dtype), some(rows, WIDTH, seed=5, dtype=dtype)
    for number, first in enumerate(firsts):
        qkv[first : first + tiles[number]] = some(tiles[number], WIDTH, seed=20 + slots[number], dtype=dtype)
    before = memory.clone()
    out = prefill_attention(qkv, memory, places, positions, rotations(), HEADS, dependent=False)
    return out, torch.tensor(firsts), before, memory, qkv, positions


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_attention(dtype):
    counts, slots, starts = [21, 16, 3], [2, 0, 1], [0, 30, 64]
    out, firsts, before, memory, qkv, positions = prefilled(counts, slots, starts, dtype)
    assert out.isfinite().all()
    query, key, value = parts(qkv, positions)
    for count, slot, start, first in zip(counts, slots, starts, firsts.tolist(), strict=True):
        own = slice(first, first + count)
        new = torch.stack((key[own], value[own])).transpose(1, 2)
        assert_near(memory[:, slot, :, start : start + count], new, dtype)
        keys, values = torch.cat((before[:, slot, :, :start].double(), new), dim=2)
        for row in range(count):
            upto = start + row + 1
            assert_near(out[first + row], attended(query[first + row], keys[:, :upto], values[:, :upto]), dtype)


def test_a_sequence_of_a_prefill_does_not_depend_on_its_company():
    together = prefilled([21, 16, 3], [2, 0, 1], [0, 30, 64], torch.float16)
    alone = prefilled([16], [0], [30], torch.float16)
    assert torch.equal(together[0][32:48], alone[0][:16])


CONTROLS, WINDOW, ROWS = 3, 20, 8
NUMBERS = {
    Field.RUNNING: (0, 1, 1, 1, 1),
    Field.POSITION: range(300),
    Field.COUNT: (0, 1, 3, 19, 20, 21, 400),
    Field.RUN_COUNT: range(10),
    Field.LAST: range(50),
    Field.FORCED_AT: (0, 5, 9, 100, 100, 100),
    Field.MIN_TOKENS: range(12),
    Field.SEED: range(-(2**40), 2**40),
    Field.TOP_K: (1, 2, 5, 25, 32),
    Field.WINDOW: (1, 5, 10, 20),
    Field.MAX_REPEATS: (0, 1, 1, 2, 4),
}


def states(rng: random.Random, ids: int) -> SlotRows:
    """Slots in the middle of anything; most of their past is of few ids, so that they repeat."""
    numbers = torch.zeros(ROWS, len(Field), dtype=torch.int64)
    for slot in range(ROWS):
        for field, values in NUMBERS.items():
            numbers[slot, field] = rng.choice(values)
        numbers[slot, Field.FORCED] = ids - rng.randrange(1, CONTROLS + 1)

    def flags() -> torch.Tensor:
        return torch.tensor([[rng.random() < 0.4 for _ in range(CONTROLS)] for _ in range(ROWS)])

    return SlotRows(
        numbers,
        torch.tensor([rng.choice([0.0, 0.3, 0.8, 0.95, 1.0]) for _ in range(ROWS)]),
        flags(),
        flags(),
        torch.tensor([[rng.randrange(min(ids, 12)) for _ in range(WINDOW)] for _ in range(ROWS)]),
    )


def copied(rows: SlotRows) -> SlotRows:
    return SlotRows(*(part.clone() for part in rows))


def plainly(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> torch.Tensor:
    """The plain path over the picked slots, whose state is put back."""
    picked = SlotRows(*(part[places] for part in rows))
    most = int(rows.numbers[:, Field.TOP_K].max())
    ids = picked.advance(scores.float().log_softmax(-1), repetition_aware, most)
    for part, new in zip(rows, picked, strict=True):
        part[places] = new
    return ids


def by_kernels(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> torch.Tensor:
    result = torch.full((len(places),), 10**6)
    advance_slots(scores, places, *rows, result, dependent=False)
    return result


def assert_same(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> None:
    plain, ours = copied(rows), copied(rows)
    assert plainly(scores.clone(), places, plain).tolist() == by_kernels(scores, places, ours).tolist()
    for name, one, other in zip(SlotRows._fields, plain, ours, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("seed", range(10))
@torch.inference_mode()
def test_ids_and_state_are_the_plain_paths(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ids = rng.choice([40, 300, 1000])
    scores = torch.randn(ROWS - 2, ids, generator=generator) * rng.choice([0.1, 1.0, 4.0])
    scores[:, :12] += rng.choice([0.0, 3.0])
    places = torch.randperm(ROWS, generator=generator)[: ROWS - 2]
    assert_same(scores, places, states(rng, ids))


@pytest.mark.parametrize("seed", range(4))
@torch.inference_mode()
def test_equal_scores_stand_in_the_order_of_ids(seed):
    generator = torch.Generator().manual_seed(seed)
    # Half of the scores: few values, each many times, as in 16 bit.
    scores = torch.randint(-3, 4, (ROWS, 300), generator=generator).float() / 2
    assert_same(scores, torch.arange(ROWS), states(random.Random(seed), 300))


@torch.inference_mode()
def test_a_sum_that_meets_top_p_ends_the_nucleus():
    """0.5 + 0.3 is 0.8 when added one by one in float32: the third candidate is out, whatever is drawn."""
    rng = random.Random(0)
    rows = states(rng, 40)
    for field, value in ((Field.RUNNING, 1), (Field.FORCED_AT, 99), (Field.TOP_K, 25), (Field.MAX_REPEATS, 99)):
        rows.numbers[:, field].fill_(value)
    rows.top_p.fill_(0.8)
    scores = torch.full((ROWS, 40), float("-inf"))
    scores[:, :5] = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log()
    drawn = set()
    for _ in range(8):
        drawn |= set(by_kernels(scores, torch.arange(ROWS), rows).tolist())
    assert drawn == {0, 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_scores_of_16_bits_are_read_as_they_are(dtype):
    rows = states(random.Random(3), 300)
    scores = torch.randn(ROWS, 300, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert_same(scores, torch.arange(ROWS), rows)


@torch.inference_mode()
def test_the_fallback_takes_what_is_not_forbidden():
    """One id but the candidate has weight: where the candidate stands too often, it comes."""
    rows = states(random.Random(1), 40)
    for field, value in ((Field.RUNNING, 1), (Field.FORCED_AT, 99), (Field.MAX_REPEATS, 0), (Field.TOP_K, 1)):
        rows.numbers[:, field].fill_(value)
    rows.forbidden.fill_(True)
    scores = torch.full((ROWS, 40), -200.0)
    scores[:, 7], scores[:, 22], scores[:, 39] = 9.0, -60.0, 50.0
    assert by_kernels(scores, torch.arange(ROWS), rows).tolist() == [22] * ROWS


@torch.inference_mode()
def test_an_idle_slot_stays_as_it_is_whatever_its_scores_are():
    rows = states(random.Random(2), 40)
    rows.numbers[:, Field.RUNNING].zero_()
    before = copied(rows)
    scores = torch.full((ROWS, 40), float("nan"))
    assert by_kernels(scores, torch.arange(ROWS), rows).tolist() == [IDLE] * ROWS
    assert all(map(torch.equal, before, rows))


class Kernel:
    """Says what is asked of it."""

    def warmup(self, *args, grid):
        return "compiled", args, grid

    def __getitem__(self, grid):
        return lambda *args: ("launched", args, grid)


def test_the_interpreter_launches(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with compiled_ahead() as compiling:
        assert not compiling
        assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))


def test_launches_inside_only_compile(monkeypatch):
    entered = []

    @contextmanager
    def mode(workers):
        entered.append(workers.submit(int).result())
        yield

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton, "AsyncCompileMode", mode, raising=False)
    with compiled_ahead() as compiling:
        assert compiling
        assert launched(Kernel(), (3,))(1) == ("compiled", (1,), (3,))
    assert entered == [0]
    assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))
    with pytest.raises(RuntimeError), compiled_ahead():
        raise RuntimeError
    assert launched(Kernel(), (3,))(1) == ("launched", (1,), (3,))
