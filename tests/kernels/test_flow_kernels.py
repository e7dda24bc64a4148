"""Each kernel of the flow and its encoder against torch in double precision; what is not to be read is spoilt."""

import math

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from tests.fast_flow import products_in_order, quick_interpreter
from tests.kernel_checks import DEVICE, DTYPES, NAN, close, draw, in_pairs, numbers
from vivavoce_kernels.common import tile_of
from vivavoce_kernels.encoder_attention import (
    SPARE,
    RelativePlaces,
    RelativeTile,
    RelativeWeights,
    attend_relatively,
)
from vivavoce_kernels.encoder_windows import EncoderTails, windows_ahead, windows_behind
from vivavoce_kernels.flow_attention import AttentionTile, attend, keep_in_pages
from vivavoce_kernels.flow_products import (
    ConvTails,
    ConvTile,
    ConvWeights,
    ProductTile,
    causal_conv,
    product,
)
from vivavoce_kernels.flow_rows import Modulations, ShiftedNorm, advance, layer_norm, modulated, silu_
from vivavoce_kernels.layouts import PackedTables
from vivavoce_kernels.position_conv import grouped_weights, position_conv

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_norm_of_what_lacks_a_bias(dtype, size):
    x, weight, bias = draw(19, size, dtype=dtype), draw(size, dtype=dtype, seed=1), draw(size, dtype=dtype, seed=2)
    shift = draw(size, seed=3)
    x[0], shift[:2] = 0, 1e-4
    made = layer_norm(x, ShiftedNorm(shift, weight, bias, 1e-5), 16)
    close(made, functional.layer_norm(x.double() + shift, (size,), weight.double(), bias.double(), 1e-5), dtype, 4)


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_norm_that_flow_time_modulates(dtype, size):
    x, more = draw(19, size, dtype=dtype), draw(19, size, dtype=dtype, seed=1)
    times = Modulations(draw(3, 4, 2, size), draw(3, 2, 2, size, seed=1), numbers(2))
    factor, summand = times.norms[2, 3].double()
    gate, bias = times.gates[2, 1].double()

    def expected(stream):
        return functional.layer_norm(stream, (size,), eps=1e-6) * factor + summand

    close(modulated(x, None, times, 3, 1e-6, 16), expected(x.double()), dtype, 8)
    stream = x.double() + gate * more.double() + bias
    close(modulated(x, (more, 1), times, 3, 1e-6, 16), expected(stream), dtype, 8)
    close(x, stream, dtype)


@in_pairs(("groups", "tailed"), [(16, True), (2, False)], [(16, False), (2, True)])
def test_convolution_in_groups(dtype, groups, tailed):
    """Rows of 9 and 40 new frames and padding, behind tails of 30; a row of few frames leaves some of what it found."""
    taps, size, frames, new = 31, 64, 64, (9, 40)
    conv = torch.nn.Conv1d(size, size, taps, groups=groups, device=DEVICE, dtype=dtype).requires_grad_(False)
    x, skip = draw(2, frames, size, dtype=dtype), draw(2, frames, size, dtype=dtype, seed=1)
    before = draw(2, 3, taps - 1, 16 + size, dtype=dtype)
    x[:, sum(new) :], before[:, 2] = NAN, NAN
    row, local = numbers(*[0] * 9, *[1] * 40, *[0] * 15), numbers(*range(9), *range(40), *[-1] * 15)
    tails = ConvTails(before, torch.full_like(before, NAN)) if tailed else None
    made = position_conv(
        x.flatten(0, 1), grouped_weights(conv, 16), (row, local, numbers(9, 40, 0)), numbers(0, 9, 0), tails,
        ConvTile(32, 64, 4, 2), skip.flatten(0, 1),
    ).view(x.shape)  # fmt: skip
    for number, span in enumerate((slice(0, 9), slice(9, 49))):
        own = before[:, number, :, 16:] if tailed else torch.zeros(2, taps - 1, size, device=DEVICE, dtype=dtype)
        given = torch.cat((own, x[:, span]), dim=1).double()
        weight, bias = conv.weight.double(), conv.bias.double()
        expected = functional.mish(functional.conv1d(given.mT, weight, bias, groups=groups)).mT
        close(made[:, span], expected + skip[:, span].double(), dtype)
        if tailed:
            torch.testing.assert_close(tails.after[:, number, :, 16:].double(), given[:, 1 - taps :], atol=0, rtol=0)
    if tailed:
        assert tails.after[..., :16].isnan().all()
        assert tails.after[:, 2].isnan().all()


@DTYPES
@pytest.mark.parametrize("cut", [ProductTile(16, 16, 16, 4, 2), ProductTile(32, 32, 64, 4, 2)], ids=["parts", "whole"])
def test_product(dtype, cut):
    x, weight, bias = draw(35, 64, dtype=dtype), draw(32, 64, dtype=dtype, seed=1, scale=0.1), draw(32, dtype=dtype)
    expected = x.double() @ weight.double().T
    close(product(x, weight, bias, cut), expected + bias.double(), dtype)
    for how in ("none", "tanh"):
        wanted = functional.gelu(expected + bias.double(), approximate=how)
        close(product(x, weight, bias, cut, gelu=how), wanted, dtype)
    into = draw(35, 32, dtype=dtype, seed=5)
    before = into.double()
    assert product(x, weight, None, cut, into=into) is into
    close(into, before + expected, dtype)


def pages_of(inner, dtype):
    """Three rows in a pool: pages [pages, steps, sites, 2, 64, 2 · inner], spoilt."""
    keys = torch.full((8, 2, 3, 2, 64, 2 * inner), NAN, device=DEVICE, dtype=dtype)
    return keys, torch.tensor([[5, 2], [7, 0], [1, 4]], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
def test_new_keys_go_to_their_pages_and_nowhere_else(paged, rotated):
    """Rotated: the first head's queries and keys, by their positions."""
    inner, frames, head = 16, 32, 8
    keys, pages = pages_of(inner, torch.float32)
    row = numbers(*[0] * 10, *[2] * 20, 0, 0)
    local = numbers(*range(10), *range(20), -1, -1)
    position = numbers(*range(60, 70), *range(3, 23), 0, 0)
    none = numbers()
    tables = PackedTables(row, local, position, none, none, none, none, pages)
    products = draw(2 * frames, 3 * inner)
    angles = torch.arange(100, device=DEVICE)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001], device=DEVICE)
    wanted = products.view(2, frames, -1).clone()
    for first in (0, inner) if rotated else ():
        pairs = torch.view_as_complex(wanted[:, :30, first : first + head].unflatten(-1, (-1, 2)).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[position[:30]]
        wanted[:, :30, first : first + head] = torch.view_as_real(turned).flatten(-2)
    rotation = torch.cat((angles.cos(), angles.sin()), dim=1) if rotated else None
    keep_in_pages(products, keys if paged else None, tables, numbers(1), 2, rotation)
    expected = torch.full_like(keys, NAN)
    for frame in range(30 if paged else 0):
        page = pages[row[frame], position[frame] // 64]
        expected[page, 1, 2, :, position[frame] % 64] = wanted[:, frame, inner:]
    exact = 1e-6 if rotated else 0
    torch.testing.assert_close(keys, expected, equal_nan=True, atol=exact, rtol=0)
    in_place = products.view(2, frames, -1)[..., : inner if paged else 3 * inner]
    torch.testing.assert_close(in_place, wanted[..., : in_place.shape[2]], atol=exact, rtol=0)


def attention_case(dtype, *, paged, head=16, past=(70, 0, 120)):
    """Rows of 20, 3 and 8 new frames with ends of their own, in 34 packed frames."""
    heads, new, frames = 2, (20, 3, 8), 34
    inner = heads * head
    keys, pages = pages_of(inner, dtype)
    products = torch.full((2, frames, 3 * inner), NAN, device=DEVICE, dtype=dtype)
    known, ends, first, place = [], [], [], 0
    for number, (old, count) in enumerate(zip(past, new, strict=True)):
        row = draw(2, old + count, 2 * inner, dtype=dtype, seed=number)
        products[:, place : place + count, :inner] = draw(2, count, inner, dtype=dtype, seed=9 + number)
        products[:, place : place + count, inner:] = row[:, old:]
        for position in range(old + count if paged else 0):
            keys[pages[number, position // 64], 1, 2, :, position % 64] = row[:, position]
        middle = count // 2
        ends += [old + middle + 1] * (middle + 1) + [old + count] * (count - middle - 1)
        known.append(row)
        first.append(place)
        place += count
    tiles = numbers(0, 0, 16, 0, 16, 4, 1, 20, 3, 2, 23, 8, 0, 31, 3, 0, 0, 0).view(-1, 3)
    none = numbers()
    tables = PackedTables(none, none, none, numbers(*ends, 0, 0, 0), numbers(*first), none, tiles, pages)
    made = attend(
        products.flatten(0, 1), keys if paged else None, tables, numbers(1), 2, heads, AttentionTile(16, 4, 3)
    ).view(2, frames, inner)
    query = products[:, :, :inner].double().unflatten(-1, (heads, head))
    expected = []
    for frame, end in enumerate(ends):
        number = max(one for one in range(3) if first[one] <= frame)
        key, value = known[number][:, :end].double().unflatten(-1, (2, heads, head)).unbind(2)
        weights = torch.einsum("chd,cthd->cht", query[:, frame], key).div(math.sqrt(head)).softmax(-1)
        expected.append(torch.einsum("cht,cthd->chd", weights, value).flatten(1))
    return made, torch.stack(expected, dim=1)


@DTYPES
@pytest.mark.parametrize("head", [16, 24])
def test_attention_to_pages(dtype, head):
    made, expected = attention_case(dtype, paged=True, head=head)
    close(made[:, :31], expected, dtype)
    assert not made[:, 31:].any()


@DTYPES
def test_attention_to_the_batch_itself(dtype):
    made, expected = attention_case(dtype, paged=False, past=(0, 0, 0))
    close(made[:, :31], expected, dtype)
    assert not made[:, 31:].any()


def test_where_keys_lie_changes_nothing():
    with products_in_order():
        from_pages, _ = attention_case(torch.float32, paged=True, past=(0, 0, 0))
        from_batch, _ = attention_case(torch.float32, paged=False, past=(0, 0, 0))
    assert torch.equal(from_pages, from_batch)


@in_pairs(
    ("channels", "with_tails"),
    [((32, 32), True), ((48, 48), False), ((64, 32), True)],
    [((32, 32), False), ((48, 48), True), ((64, 32), False)],
)
def test_convolution(dtype, channels, with_tails):
    size, out = channels
    frames = (numbers(*[0] * 20, *[1] * 2, 0, 0), numbers(*range(20), 0, 1, -1, -1), numbers(20, 2))
    x = draw(2, 24, size, dtype=dtype)
    x[:, 22:] = NAN
    tails = ConvTails(
        draw(2, 2, 2, size + 16, dtype=dtype), torch.full((2, 2, 2, size + 16), NAN, device=DEVICE).to(dtype)
    )
    weight, bias = draw(out, 3, size, dtype=dtype, seed=1, scale=size**-0.5), draw(out, dtype=dtype, seed=2)
    norm = draw(out, dtype=dtype, seed=3), draw(out, dtype=dtype, seed=4)
    times, skip = draw(2, 3, out, dtype=dtype), draw(48, 32, dtype=dtype, seed=5)
    skip_weight, skip_bias = draw(out, 32, dtype=dtype, seed=6, scale=0.2), draw(out, seed=7)
    made = causal_conv(
        x.flatten(0, 1),
        ConvWeights(weight, bias, 16),
        frames,
        tails if with_tails else None,
        ConvTile(16, 16, 4, 2),
        norm=norm,
        time=(times, numbers(1), 2),
        skip=(skip, skip_weight, skip_bias),
    ).view(2, 24, out)
    assert made.isfinite().all()
    for number, span in enumerate((slice(0, 20), slice(20, 22))):
        before = tails.before[:, number, :, 16:] if with_tails else torch.zeros(2, 2, size, device=DEVICE)
        extended = torch.cat((before.double(), x[:, span].double()), dim=1).transpose(1, 2)
        h = functional.conv1d(extended, weight.double().transpose(1, 2), bias.double()).transpose(1, 2)
        h = functional.mish(functional.layer_norm(h, (out,), *(one.double() for one in norm), 1e-5))
        added = skip.view(2, 24, -1)[:, span].double() @ skip_weight.double().T + skip_bias
        close(made[:, span], h + times[1, 2].double() + added, dtype, 4)
        if with_tails:
            assert torch.equal(tails.after[:, number, :, 16:], x[:, span][:, -2:])
    if with_tails:
        assert tails.after[..., :16].isnan().all()


def test_steps_of_the_solver():
    x, velocity, features = draw(5, 16), draw(10, 16, seed=1), torch.full((10, 64), NAN, device=DEVICE)
    spans = torch.tensor([[0.25, 0.0], [0.5, 0.5]], device=DEVICE)
    start, guided = x.double(), 1.7 * velocity[:5].double() - 0.7 * velocity[5:].double()
    advance(x, velocity, features, spans, numbers(0, 7), 0.7)
    assert torch.equal(x.double(), start)
    close(features[:5, :16], start + 0.25 * guided, torch.float32)
    advance(x, velocity, features, spans, numbers(1, 7), 0.7)
    close(x, start + 0.5 * guided, torch.float32)
    assert torch.equal(features[:, :16], torch.cat((x, x)))
    assert features[:, 16:].isnan().all()


def test_sizes_that_kernels_do_not_take_are_refused():
    assert (tile_of(144, 64), tile_of(256, 64), tile_of(80, 64)) == (16, 64, 16)
    with pytest.raises(ValueError, match="100 channels, the flow's kernels need a multiple of 16"):
        tile_of(100, 64)


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


@in_pairs(("rate", "size"), [(1, 32), (2, 48)], [(1, 48), (2, 32)])
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
    places = (numbers(0, 1, 1, 2, 2, 2, 2, 0, 0), numbers(0, 0, 1, 0, 1, 2, 3, -1, -1), numbers(*lengths, 0))
    tails = EncoderTails(pool, numbers(4, 2, 5, 0), after[:, 1 : 1 + tail])
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


def relative_case(dtype, *, paged, rate=1, head=16, queries=16):
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


def relatively_expected(row, weights):
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
    rows, weights, made, (before, keys, pages, page) = relative_case(dtype, paged=True, rate=rate)
    close(made[:32], torch.cat([relatively_expected(row, weights) for row in rows]), dtype, 4)
    assert not made[32:].any()
    for number, (_, known, old, _) in enumerate(rows):
        for position in range(old, len(known)):
            before[pages[number, position // page], 0, 2, 0, position % page] = known[position]
    torch.testing.assert_close(keys, before, equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("queries", [16, 64])
@pytest.mark.parametrize("head", [8, 16, 24])
def test_relative_attention_without_pages(head, queries):
    rows, weights, made, _ = relative_case(torch.float32, paged=False, head=head, queries=queries)
    close(made[:32], torch.cat([relatively_expected(row, weights) for row in rows]), torch.float32, 4)


@pytest.mark.parametrize("queries", [8, 128])
def test_tiles_that_would_read_past_the_distances(queries):
    with pytest.raises(ValueError, match="16 to 64"):
        RelativeTile(queries, 4, 3)
