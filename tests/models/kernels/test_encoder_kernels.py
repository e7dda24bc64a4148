"""Each kernel of the token encoder against torch in double precision; whatever is not to be read is spoilt."""

import math

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from tests.kernel_checks import DEVICE, DTYPES, NAN, close, draw, numbers
from vivavoce.models.kernels.encoder_attention import (
    SPARE,
    RelativePlaces,
    RelativeTile,
    RelativeWeights,
    attend_relatively,
)
from vivavoce.models.kernels.encoder_norm import ShiftedNorm, layer_norm, silu_
from vivavoce.models.kernels.encoder_windows import PooledTails, TokenPlaces, windows_ahead, windows_behind


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_norm_of_what_lacks_a_bias(dtype, size):
    x, weight, bias = draw(19, size, dtype=dtype), draw(size, dtype=dtype, seed=1), draw(size, dtype=dtype, seed=2)
    shift, eps = draw(size, seed=3), 1e-12
    x[0], shift[:2] = 0, 1e-4
    made = layer_norm(x, ShiftedNorm(shift, weight, bias, eps), 8)
    close(made, functional.layer_norm(x.double() + shift, (size,), weight.double(), bias.double(), eps), dtype, 4)


def test_norm_takes_its_own_eps():
    x, ones = 1e-4 * draw(3, 32), torch.ones(32, device=DEVICE)
    for eps in (1e-5, 1e-12):
        made = layer_norm(x, ShiftedNorm(0 * ones, ones, 0 * ones, eps), 4)
        close(made, functional.layer_norm(x.double(), (32,), eps=eps), torch.float32, 4)


@DTYPES
def test_silu_in_place(dtype):
    x = draw(70, 96, dtype=dtype, scale=5.0)
    expected = functional.silu(x.double())
    assert silu_(x) is x
    close(x, expected, dtype)


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_windows_of_what_follows(dtype, size):
    table, shift = draw(7, size, dtype=dtype), draw(size, seed=1)
    ids = numbers(3, 5, 0, 5, 0, -1, 0, -1, -1, -1, -1, -1).view(4, 3)
    windows, x = windows_ahead(ids, table, shift, 2)
    padded = torch.cat((table, torch.zeros_like(table[:1])))
    assert torch.equal(windows, padded[ids.long()].flatten(1))
    close(x, padded[ids[:, 0].long()].double() + shift, dtype)


@DTYPES
@pytest.mark.parametrize("rate", [1, 2])
@pytest.mark.parametrize("size", [32, 48])
def test_windows_of_what_precedes(dtype, rate, size):
    """Rows of 1, 2 and 4 new tokens behind tails from the pool; what each leaves is what it and its tails end with."""
    taps, tail, lengths = 3, 2 * rate, (1, 2, 4)
    packed = torch.full((9, size), NAN, device=DEVICE, dtype=dtype)
    packed[:7] = draw(7, size, dtype=dtype)
    pool = torch.full((6, 1, 1, tail, size), NAN, device=DEVICE, dtype=dtype)
    pasts = [draw(2, size, dtype=dtype, seed=9 + row) for row in range(3)]
    for slot, past in zip((4, 2, 5), pasts, strict=True):
        pool[slot, 0, 0] = past.repeat_interleave(rate, 0)
    after = torch.full((4, 7, size), NAN, device=DEVICE, dtype=dtype)
    places = TokenPlaces(numbers(0, 1, 1, 2, 2, 2, 2, 0, 0), numbers(0, 0, 1, 0, 1, 2, 3, -1, -1), numbers(*lengths, 0))
    tails = PooledTails(pool, numbers(4, 2, 5, 0), after[:, 1 : 1 + tail])
    made = windows_behind(packed, places, tails, taps, 4, rate=rate, leaky=True)
    fresh = windows_behind(packed, places, None, taps, 4)
    for row, part in enumerate(packed[:7].split(lengths)):
        start = sum(lengths[:row])
        leaky = torch.cat((pasts[row], functional.leaky_relu(part, 0.01)))
        plain = torch.cat((0 * pasts[row], part))
        for token in range(len(part)):
            close(made[start + token], leaky[token : token + 3].flatten(), dtype)
            assert torch.equal(fresh[start + token], plain[token : token + 3].flatten())
        close(after[row, 1 : 1 + tail], leaky[-2:].repeat_interleave(rate, 0), dtype)
    assert not made[7:].any()
    assert after[:, 0].isnan().all()
    assert after[:, 1 + tail :].isnan().all()
    assert after[3].isnan().all()


REACH = 160


def attention_case(dtype, *, paged, rate=1, head=16, queries=16):
    """Rows of 20, 4 and 8 new positions with ends of their own, in 36 packed ones."""
    heads, new, past, page = 2, (20, 4, 8), (70, 0, 120) if paged else (0, 0, 0), 32 * rate
    inner, count = heads * head, 36
    keys = torch.full((12, 1, 3, 1, page, 2 * inner), NAN, device=DEVICE, dtype=dtype)
    pages = numbers(5, 2, 8, 0, 7, 0, 0, 0, 1, 4, 3, 9).view(3, 4)
    products = torch.full((count, 3 * inner), NAN, device=DEVICE, dtype=dtype)
    distances = torch.zeros(heads, 2 * (REACH + SPARE), head, device=DEVICE, dtype=dtype)
    distances[:, SPARE : SPARE + 2 * REACH - 1] = draw(heads, 2 * REACH - 1, head, dtype=dtype, seed=3)
    weights = RelativeWeights(distances, draw(inner, dtype=dtype, seed=4), draw(inner, dtype=dtype, seed=5))
    rows, ends, first, place = [], [], [], 0
    for number, (old, size) in enumerate(zip(past, new, strict=True)):
        known = draw(old + size, 2 * inner, dtype=dtype, seed=number)
        asked = draw(size, inner, dtype=dtype, seed=20 + number)
        products[place : place + size] = torch.cat((asked, known[old:]), dim=1)
        for position in range(old if paged else 0):
            keys[pages[number, position // page], 0, 2, 0, position % page] = known[position]
        middle = size // 2
        end = [old + middle + 1] * (middle + 1) + [old + size] * (size - middle - 1)
        rows.append((asked, known, old, end))
        ends += end
        first.append(place // rate)
        place += size
    tiles = [(number, start, size) for number, start, size in ((0, 0, 16), (0, 16, 4), (1, 20, 4), (2, 24, 8))]
    tiles += [(0, 32, 4), (0, 0, 0)]
    places = RelativePlaces(
        numbers(*(value for tile in tiles for value in tile)).view(-1, 3),
        numbers(*ends, 0, 0, 0, 0),
        numbers(*first),
        numbers(*(old // rate for old in past)),
        pages if paged else pages[:, :0],
    )
    cut = RelativeTile(queries, 4, 3)
    before = keys.clone()
    made = attend_relatively(products, keys if paged else None, places, weights, 2, cut, rate=rate)
    return rows, weights, made, (before, keys, pages, page)


def expected_of(row, weights):
    """[new, inner] float64."""
    asked, known, old, ends = row
    heads, _, head = weights.distances.shape
    split = (-1, heads, head)
    q, (k, v) = asked.double().view(split), (part.reshape(split).double() for part in known.chunk(2, dim=1))
    u, w = (bias.double().view(heads, head) for bias in (weights.content_bias, weights.position_bias))
    query, key = old + torch.arange(len(q), device=DEVICE), torch.arange(len(k), device=DEVICE)
    p = weights.distances[:, SPARE + REACH - 1 - (query[:, None] - key)].double()
    scores = torch.einsum("qhd,khd->hqk", q + u, k) + torch.einsum("qhd,hqkd->hqk", q + w, p)
    hidden = key >= torch.tensor(ends, device=DEVICE)[:, None]
    weight = (scores / math.sqrt(head)).masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weight, v).flatten(1)


@DTYPES
@pytest.mark.parametrize("rate", [1, 2])
def test_relative_attention_to_pages_and_products(dtype, rate):
    rows, weights, made, (before, keys, pages, page) = attention_case(dtype, paged=True, rate=rate)
    close(made[:32], torch.cat([expected_of(row, weights) for row in rows]), dtype, 4)
    assert not made[32:].any()
    for number, (_, known, old, _) in enumerate(rows):
        for position in range(old, len(known)):
            before[pages[number, position // page], 0, 2, 0, position % page] = known[position]
    torch.testing.assert_close(keys, before, equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("queries", [16, 64])
@pytest.mark.parametrize("head", [8, 16, 24])
def test_relative_attention_without_pages(head, queries):
    rows, weights, made, _ = attention_case(torch.float32, paged=False, head=head, queries=queries)
    close(made[:32], torch.cat([expected_of(row, weights) for row in rows]), torch.float32, 4)


@pytest.mark.parametrize("queries", [8, 128])
def test_tiles_that_would_read_past_the_distances(queries):
    with pytest.raises(ValueError, match="16 to 64"):
        RelativeTile(queries, 4, 3)
