"""Each kernel of the flow against torch in double precision; whatever is not to be read is spoilt."""

import math

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from tests.fast_flow import products_in_order, quick_interpreter
from tests.kernel_checks import DEVICE, DTYPES, NAN, close, draw, numbers
from vivavoce.models.kernels.flow_attention import AttentionTile, attend
from vivavoce.models.kernels.flow_conv import ConvTile, ConvWeights, Frames, Tails, causal_conv
from vivavoce.models.kernels.flow_euler import advance
from vivavoce.models.kernels.flow_math import tile_of
from vivavoce.models.kernels.flow_norm import shifted_layer_norm
from vivavoce.models.kernels.flow_pages import PagePlaces, keep_in_pages
from vivavoce.models.kernels.flow_product import ProductTile, product


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@DTYPES
@pytest.mark.parametrize("size", [32, 48])
def test_norm_of_what_lacks_a_bias(dtype, size):
    x, weight, bias = draw(19, size, dtype=dtype), draw(size, dtype=dtype, seed=1), draw(size, dtype=dtype, seed=2)
    shift = draw(size, seed=3)
    made = shifted_layer_norm(x, shift, weight, bias)
    close(made, functional.layer_norm(x.double() + shift, (size,), weight.double(), bias.double(), 1e-5), dtype, 4)


@DTYPES
@pytest.mark.parametrize("cut", [ProductTile(16, 16, 16, 4, 2), ProductTile(32, 32, 64, 4, 2)], ids=["parts", "whole"])
def test_product(dtype, cut):
    x, weight, bias = draw(35, 64, dtype=dtype), draw(32, 64, dtype=dtype, seed=1, scale=0.1), draw(32, dtype=dtype)
    expected = x.double() @ weight.double().T
    close(product(x, weight, bias, cut), expected + bias.double(), dtype)
    close(product(x, weight, bias, cut, gelu=True), functional.gelu(expected + bias.double()), dtype)
    into = draw(35, 32, dtype=dtype, seed=5)
    before = into.double()
    assert product(x, weight, None, cut, into=into) is into
    close(into, before + expected, dtype)


def pages_of(inner, dtype):
    """Three rows in a pool: pages [pages, steps, sites, 2, 64, 2 · inner], spoilt."""
    keys = torch.full((8, 2, 3, 2, 64, 2 * inner), NAN, device=DEVICE, dtype=dtype)
    return keys, torch.tensor([[5, 2], [7, 0], [1, 4]], dtype=torch.int32, device=DEVICE)


def test_new_keys_go_to_their_pages_and_nowhere_else():
    inner, frames = 16, 32
    keys, pages = pages_of(inner, torch.float32)
    row = numbers(*[0] * 10, *[2] * 20, 0, 0)
    local = numbers(*range(10), *range(20), -1, -1)
    position = numbers(*range(60, 70), *range(3, 23), 0, 0)
    places = PagePlaces(keys, row, local, position, pages, numbers(1))
    products = draw(2 * frames, 3 * inner)
    keep_in_pages(products, places, 2)
    expected = torch.full_like(keys, NAN)
    for frame in range(30):
        page = pages[row[frame], position[frame] // 64]
        expected[page, 1, 2, :, position[frame] % 64] = products.view(2, frames, -1)[:, frame, inner:]
    torch.testing.assert_close(keys, expected, equal_nan=True, atol=0, rtol=0)


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
    made = attend(
        products.flatten(0, 1),
        keys if paged else None,
        tiles,
        numbers(*ends, 0, 0, 0),
        numbers(*first),
        pages,
        numbers(1),
        2,
        heads,
        AttentionTile(16, 4, 3),
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


@DTYPES
@pytest.mark.parametrize("channels", [(32, 32), (48, 48), (64, 32)])
@pytest.mark.parametrize("with_tails", [True, False])
def test_convolution(dtype, channels, with_tails):
    size, out = channels
    frames = Frames(numbers(*[0] * 20, *[1] * 2, 0, 0), numbers(*range(20), 0, 1, -1, -1), numbers(20, 2))
    x = draw(2, 24, size, dtype=dtype)
    x[:, 22:] = NAN
    tails = Tails(draw(2, 2, 2, size + 16, dtype=dtype), torch.full((2, 2, 2, size + 16), NAN, device=DEVICE).to(dtype))
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


def test_euler_step():
    x, velocity, features = draw(5, 16), draw(10, 16, seed=1), torch.full((10, 64), NAN, device=DEVICE)
    spans = torch.tensor([0.25, 0.5], device=DEVICE)
    expected = x.double() + 0.5 * (1.7 * velocity[:5].double() - 0.7 * velocity[5:].double())
    advance(x, velocity, features, spans, numbers(1), 0.7)
    close(x, expected, torch.float32)
    assert torch.equal(features[:, :16], torch.cat((x, x)))
    assert features[:, 16:].isnan().all()


def test_sizes_that_kernels_do_not_take_are_refused():
    assert (tile_of(144, 64), tile_of(256, 64), tile_of(80, 64)) == (16, 64, 16)
    with pytest.raises(ValueError, match="100 channels, the flow's kernels need a multiple of 16"):
        tile_of(100, 64)
