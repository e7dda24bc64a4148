import pytest
import torch
from torch.nn.functional import conv1d, elu, leaky_relu

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from vivavoce.models.kernels.snake_conv import Activated, Activation, Convolution, Tile, convolve

RATE, IN, OUT = 3, 24, 40
TAGS = torch.tensor([0, 3, 1, 1, 2, 0, 0, 0, 0, 3, 2, 0], dtype=torch.int32)
ROWS = ((1, 3), (9, 1))
TILES = [Tile(16, 32, 16, 4, 2), Tile(64, 64, 32, 4, 2)]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def convolution(weight, bias, dilation=1, offset=0, **more):
    """weight: as of a Conv1d."""
    out, channels, taps = weight.shape
    laid = weight.permute(2, 1, 0).reshape(taps * channels, out).contiguous()
    return Convolution(laid, bias.float(), taps, channels, RATE, dilation, offset, **more)


def signal(rate, channels, dtype=torch.float32):
    """Zero outside of the rows."""
    x = random(len(TAGS) * rate, channels).to(dtype)
    for frame, tag in enumerate(TAGS.tolist()):
        if tag in (0, 2):
            x[frame * rate : (frame + 1) * rate] = 0
    return x


def rows(x, rate=RATE):
    return [x[start * rate : (start + size) * rate] for start, size in ROWS]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (5, 2), (3, 5)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-5), (torch.float16, 2e-3)])
def test_it_is_a_convolution_of_each_row(tile, taps, dilation, dtype, error):
    weight, bias = (random(OUT, IN, taps, seed=1) / (IN * taps) ** 0.5).to(dtype), random(OUT, seed=2)
    pad = dilation * (taps // 2)
    x = signal(RATE, IN, dtype)
    made, nothing = convolve(x, convolution(weight, bias, dilation, pad), TAGS, tile, raw=dtype)
    assert nothing.numel() == 0
    for own, row in zip(rows(made), rows(x), strict=True):
        expected = conv1d(row.T[None].float(), weight.float(), bias, padding=pad, dilation=dilation)[0].T
        torch.testing.assert_close(own.float(), expected, atol=error, rtol=error)
    made[RATE : 4 * RATE] = made[9 * RATE : 10 * RATE] = 0
    assert not made.any()


def test_strides_step_over_the_input():
    stride, taps = 4, 8
    weight, bias = random(OUT, IN, taps, seed=1), random(OUT, seed=2)
    x = signal(RATE * stride, IN)
    made, _ = convolve(x, convolution(weight, bias, 1, 2, stride=stride), TAGS, TILES[0], raw=torch.float32)
    for own, row in zip(rows(made), rows(x, RATE * stride), strict=True):
        expected = conv1d(row.T[None], weight, bias, padding=2, stride=stride)[0].T
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("kind", list(Activation))
def test_what_follows_a_convolution(count, kind):
    weight, bias, x = random(OUT, IN, 1, seed=1), random(OUT, seed=2), signal(RATE, IN)
    added = tuple(random(len(x), OUT, seed=3 + number) for number in range(count))
    total = 0.5 * (x @ weight[..., 0].T + bias + sum(added))
    inside = torch.cat([torch.arange(start * RATE, (start + size) * RATE) for start, size in ROWS])
    outside = torch.ones(len(x), dtype=torch.bool)
    outside[inside] = False
    for other in added:
        other[outside] = float("nan")  # what stands in the padding must not matter
    alpha = 0.5 + torch.rand(2, OUT)
    activated = Activated(kind, 2, alpha, 1 / alpha, slope=0.1)
    raw, made = convolve(
        x,
        convolution(weight, bias),
        TAGS,
        TILES[0],
        added=added,
        scale=0.5,
        raw=torch.float32,
        activated=activated,
    )
    torch.testing.assert_close(raw[inside], total[inside], atol=1e-5, rtol=1e-5)
    for which in range(2):
        expected = {
            Activation.SNAKE: total + torch.sin(alpha[which] * total).square() / alpha[which],
            Activation.LEAKY: leaky_relu(total, 0.1),
            Activation.ELU: elu(total),
        }[kind]
        torch.testing.assert_close(made[which][inside], expected[inside], atol=1e-5, rtol=1e-5)
    assert not raw[outside].any()
    assert not made[:, outside].any()


def test_an_open_end_is_one_position_more():
    weight, bias, x = random(OUT, IN, 1, seed=1), random(OUT, seed=2), random(len(TAGS) * RATE, IN)
    made, _ = convolve(x, convolution(weight, bias, open_end=True), TAGS, TILES[0], raw=torch.float32)
    expected = x @ weight[..., 0].T + bias
    for start, size in ROWS:
        end = (start + size) * RATE
        torch.testing.assert_close(made[start * RATE : end + 1], expected[start * RATE : end + 1])
        assert not made[end + 1 : end + RATE].any()
