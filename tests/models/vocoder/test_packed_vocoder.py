"""The packed vocoder is the plain one, row by row, and so is its convolution."""

import numpy as np
import pytest
import torch
from torch.nn.functional import conv1d, elu, leaky_relu

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.fast_flow import quick_interpreter
from tests.small_vocoder import causal_of, with_small_vocoder
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import LEAST_ALPHA, Snake, istft, stft
from vivavoce.models.vocoder.packed import (
    AFTER,
    FIRST,
    INSIDE,
    PackedFrames,
    PackedVocoder,
    gap_frames,
    pack_weights,
    snake_activation,
    supports,
)
from vivavoce_kernels.layouts import WIDTH, PackedRow
from vivavoce_kernels.snake_conv import Activated, Activation, Convolution, SnakeTile, convolve
from vivavoce_kernels.vocoder_source import forward_table, inverse_table, spectrum, wave

pytestmark = pytest.mark.slow

RATE, IN, OUT = 3, 24, 40
TAGS = torch.tensor([0, 3, 1, 1, 2, 0, 0, 0, 0, 3, 2, 0], dtype=torch.int32)
ROWS = ((1, 3), (9, 1))
TILES = [SnakeTile(16, 32, 16, 4, 2), SnakeTile(64, 64, 32, 4, 2)]


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


def of_rows(x, rate=RATE):
    return [x[start * rate : (start + size) * rate] for start, size in ROWS]


@pytest.mark.parametrize(
    ("tile", "taps", "dilation"), [(TILES[0], 1, 1), (TILES[1], 3, 1), (TILES[0], 5, 2), (TILES[1], 3, 5)]
)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 2e-5), (torch.float16, 2e-3)])
def test_it_is_a_convolution_of_each_row(tile, taps, dilation, dtype, error):
    weight, bias = (random(OUT, IN, taps, seed=1) / (IN * taps) ** 0.5).to(dtype), random(OUT, seed=2)
    pad = dilation * (taps // 2)
    x = signal(RATE, IN, dtype)
    made, nothing = convolve(x, convolution(weight, bias, dilation, pad), TAGS, tile, raw=dtype)
    assert nothing.numel() == 0
    for own, row in zip(of_rows(made), of_rows(x), strict=True):
        expected = conv1d(row.T[None].double(), weight.double(), bias.double(), padding=pad, dilation=dilation)[0].T
        torch.testing.assert_close(own.double(), expected, atol=error, rtol=error)
    made[RATE : 4 * RATE] = made[9 * RATE : 10 * RATE] = 0
    assert not made.any()


def test_strides_step_over_the_input():
    stride, taps = 4, 8
    weight, bias = random(OUT, IN, taps, seed=1), random(OUT, seed=2)
    x = signal(RATE * stride, IN)
    made, _ = convolve(x, convolution(weight, bias, 1, 2, stride=stride), TAGS, TILES[0], raw=torch.float32)
    for own, row in zip(of_rows(made), of_rows(x, RATE * stride), strict=True):
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


@pytest.mark.parametrize("alpha", [1e-5, 1e-7, 1e-10, 0.0])
def test_float16_holds_a_snake_whose_one_over_alpha_it_cannot_hold(alpha):
    """Published weights have such channels: 1 / α is above 65,504, float16's largest number."""
    weight, bias, x = random(OUT, IN, 1, seed=1).half(), random(OUT, seed=2), 8 * signal(RATE, IN, torch.float16)
    snake = Snake(OUT)
    with torch.no_grad():
        snake.alpha[::2] = alpha
    assert (1 / (snake.alpha + LEAST_ALPHA)).max() > torch.finfo(torch.float16).max
    raw, made = convolve(
        x, convolution(weight, bias), TAGS, TILES[0], raw=torch.float16, activated=snake_activation(snake)
    )
    with torch.inference_mode():
        expected = snake(raw.float().T[None, :, None])[0, :, 0].T
    torch.testing.assert_close(made[0].float(), expected, atol=2e-2, rtol=2e-3)


def test_an_open_end_is_one_position_more():
    weight, bias, x = random(OUT, IN, 1, seed=1), random(OUT, seed=2), random(len(TAGS) * RATE, IN)
    made, _ = convolve(x, convolution(weight, bias, open_end=True), TAGS, TILES[0], raw=torch.float32)
    expected = x @ weight[..., 0].T + bias
    for start, size in ROWS:
        end = (start + size) * RATE
        torch.testing.assert_close(made[start * RATE : end + 1], expected[start * RATE : end + 1])
        assert not made[end + 1 : end + RATE].any()


SIZES = (7, 1, 12)


def mels(sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 80, generator=generator) for size in sizes]


def packed(config, sizes, frames, first=0):
    """Rows one after another from frame `first` on."""
    return packed_anyhow(sizes, frames, gap_frames(config), first)


def packed_anyhow(sizes, frames, gap, first=0):
    tags, row_of, table = np.zeros(frames, np.int32), np.zeros(frames, np.int32), np.zeros((9, WIDTH), np.int64)
    start = first
    for row, size in enumerate(sizes):
        tags[start : start + size + 1] = [FIRST, *[INSIDE] * (size - 1), AFTER]
        row_of[start : start + size + 1] = row
        table[row] = PackedRow(start, size, seed=5 + row, kept_phase=size - 1)
        start += size + gap
    assert start <= frames
    return PackedFrames(torch.from_numpy(tags), torch.from_numpy(row_of), torch.from_numpy(table))


def laid(rows, frames, width=1):
    """What stands in rows, at their places; elsewhere zeros."""
    out = torch.zeros(len(frames.tags) * width, *rows[0].shape[1:])
    for row, (start, size, *_) in zip(rows, frames.rows.tolist(), strict=False):
        out[start * width : (start + size) * width] = row
    return out


def waves(vocoder, rows, frames, sources):
    hop = vocoder.config.samples_per_frame
    made = vocoder.decode(laid(rows, frames), frames, laid(sources, frames, hop))
    return [made[start * hop : (start + len(row)) * hop] for row, (start, *_) in zip(rows, frames.rows, strict=False)]


@pytest.fixture(scope="module", params=[False, True], ids=["v2", "v3"])
def small(models, request):
    return with_small_vocoder(models, causal=request.param).vocoder


@pytest.mark.parametrize("causal", [False, True], ids=["v2", "v3"])
@torch.inference_mode()
def test_a_packed_batch_is_its_rows(models, causal):
    torch.manual_seed(0)
    plain = causal_of(models.config.vocoder).requires_grad_(False) if causal else models.vocoder
    assert supports(plain)
    frames, sources = packed(plain.config, SIZES, 48), small_sources(plain)
    for made, mel, source in zip(
        waves(PackedVocoder(plain, torch.float32), mels(), frames, sources), mels(), sources, strict=True
    ):
        expected = plain.decode(mel.T[None], source[None, None])[0]
        torch.testing.assert_close(made, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def small_sources(small, sizes=SIZES):
    generator = torch.Generator().manual_seed(3)
    hop = small.config.samples_per_frame
    return [0.1 * torch.randn(size * hop, generator=generator) for size in sizes]


@pytest.fixture
def products_by_row(monkeypatch):
    """The interpreter's products, which are numpy's, differ in their last bit by a row's place; in float64 they
    round to the same float32.
    """

    def dot(_, a, b, d, *__):
        product = a.data.astype(np.float64) @ b.data.astype(np.float64)
        return TensorHandle((product + d.data).astype(np.float32), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@torch.inference_mode()
def test_a_row_is_the_same_anywhere(small, products_by_row):
    vocoder, sources = PackedVocoder(small, torch.float32), small_sources(small)
    together = waves(vocoder, mels(), packed(small.config, SIZES, 48), sources)
    for made, mel, source in zip(together, mels(), sources, strict=True):
        alone = packed(small.config, [len(mel)], 48, first=9)
        assert torch.equal(waves(vocoder, [mel], alone, [source])[0], made)


@torch.inference_mode()
def test_sixteen_bits_are_near(small):
    sources, frames = small_sources(small), packed(small.config, SIZES, 40)
    exact = torch.cat(waves(PackedVocoder(small, torch.float32), mels(), frames, sources))
    near = torch.cat(waves(PackedVocoder(small, torch.float16), mels(), frames, sources))
    assert 0 < (near - exact).square().mean().sqrt() / exact.square().mean().sqrt() < 4e-3


@torch.inference_mode()
def test_what_lies_between_rows_stays_silent(small):
    vocoder, frames = PackedVocoder(small, torch.float32), packed(small.config, SIZES, 40)
    hop = small.config.samples_per_frame
    made = vocoder.decode(laid(mels(), frames), frames, laid(small_sources(small), frames, hop))
    between = (frames.tags == 0) | (frames.tags == AFTER)
    assert not made.unflatten(0, (-1, hop))[between].any()


def excited(vocoder, small, frames, rows, *, noise):
    """What `excite` makes of rows without a past: sources and phases."""
    hop = small.config.samples_per_frame
    carried = torch.zeros(len(frames.rows), vocoder.lanes)
    source = torch.full((len(frames.tags) * hop,), 7.0)
    ends = vocoder.excite(laid(rows, frames), frames, carried, source, noise=noise)
    starts = frames.rows[:, 0].tolist()
    return [source[start * hop :][: len(row) * hop] for row, start in zip(rows, starts, strict=False)], ends


@pytest.mark.parametrize("noise", [False, True])
@torch.inference_mode()
def test_sources_are_the_plain_ones(small, noise):
    vocoder, frames = PackedVocoder(small, torch.float32), packed(small.config, SIZES, 40)
    made, ends = excited(vocoder, small, frames, mels(), noise=noise)
    hop, harmonics = small.config.samples_per_frame, small.config.num_harmonics + 1
    for row, (source, mel) in enumerate(zip(made, mels(), strict=True)):
        pitch = small.f0(mel.T[None], None)
        drawn = small.source.draw(torch.tensor([[5 + row]]), torch.arange(len(mel) * hop)[None])
        plain = small.source(pitch, drawn if noise else None)[0, 0]
        torch.testing.assert_close(source, plain, atol=2e-5, rtol=0)
        torch.testing.assert_close(
            ends[row, :harmonics], small.source.cycles(pitch, None)[0, -1] % 1, atol=1e-5, rtol=0
        )
    assert any((small.f0(mel.T[None], None) > small.config.voiced_threshold_hz).any() for mel in mels())


def test_the_causal_pitch_is_exact(small):
    """The source sums it up to phases; it is all that the packed vocoder has in float64."""
    weights = pack_weights(small, torch.float16)
    expected = torch.float64 if isinstance(small, CausalHiFT) else torch.float32
    assert {conv.weight.dtype for conv in weights.pitch} == {expected}
    assert {conv.weight.dtype for conv in (weights.first, weights.last)} == {torch.float16}


@torch.inference_mode()
def test_phases_run_on_and_known_sources_stay(small):
    vocoder, frames = PackedVocoder(small, torch.float32), packed(small.config, SIZES, 40)
    hop, harmonics = small.config.samples_per_frame, small.config.num_harmonics + 1
    frames.rows[2, [2, 3, 4]] = torch.tensor([5, 5, 1])  # five frames known, phases from there on
    frames.rows[1, 6] = 4  # in the middle of its stream
    carried = torch.rand(len(frames.rows), vocoder.lanes, generator=torch.Generator().manual_seed(1))
    source = torch.full((len(frames.tags) * hop,), 7.0)
    ends = vocoder.excite(laid(mels(), frames), frames, carried, source, noise=True)
    start, mel = int(frames.rows[2, 0]) * hop, mels()[2]
    assert (source[start : start + 5 * hop] == 7).all()
    pitch, begun = small.f0(mel.T[None], None)[:, 5:], carried[2:3, :harmonics]
    drawn = small.source.draw(torch.tensor([[7]]), torch.arange(5 * hop, 12 * hop)[None])
    plain = small.source(pitch, drawn, begun)[0, 0]
    torch.testing.assert_close(source[start + 5 * hop : start + 12 * hop], plain, atol=2e-5, rtol=0)
    torch.testing.assert_close(ends[2, :harmonics], small.source.cycles(pitch, begun)[0, -1] % 1, atol=1e-5, rtol=0)
    start, pitch = int(frames.rows[1, 0]) * hop, small.f0(mels()[1].T[None], None)
    drawn = small.source.draw(torch.tensor([[6]]), torch.arange(4 * hop, 5 * hop)[None])
    torch.testing.assert_close(source[start : start + hop], small.source(pitch, drawn)[0, 0], atol=2e-5, rtol=0)
    assert (source.unflatten(0, (-1, hop))[(frames.tags == 0) | (frames.tags == AFTER)] == 0).all()


@pytest.mark.parametrize("n_fft", [8, 16])
def test_transforms_are_torchs(n_fft):
    generator = torch.Generator().manual_seed(n_fft)
    hop, rate, sizes = 4, 6, (5, 1, 3)
    frames = packed_anyhow(sizes, 20, 2)
    rows = [torch.randn(size * rate * hop, generator=generator) for size in sizes]
    forward, inverse = forward_table(n_fft), inverse_table(n_fft)
    source = laid(rows, frames, rate * hop)
    out = spectrum(source, frames.tags, frames.row_of, frames.rows, forward, rate, hop, torch.float32)
    half, width = n_fft // 2 + 1, forward.shape[1] // 2
    for row, (start, size) in zip(rows, frames.rows[:, :2].tolist(), strict=False):
        theirs = stft(row[None], None, n_fft, hop)[0].T
        own = out[start * rate : (start + size) * rate + 1].unflatten(1, (2, width))[:, :, :half].flatten(1)
        torch.testing.assert_close(own, theirs, atol=1e-5, rtol=0)
    polar = torch.randn(len(frames.tags) * rate, 2 * width, generator=generator)
    envelope = torch.hann_window(n_fft).square()
    made = wave(polar, frames.tags, inverse, envelope, rate, hop, limit=0.9, largest=3.0)
    for start, size in frames.rows[: len(sizes), :2].tolist():
        own = polar[start * rate : (start + size) * rate + 1].T[None]
        magnitude, phase = own[:, :half].exp().clamp(max=3.0), own[:, width : width + half].sin()
        theirs = istft(magnitude, phase, None, n_fft, hop)[0].clamp(-0.9, 0.9)
        torch.testing.assert_close(made[start * rate * hop :][: len(theirs)], theirs, atol=1e-5, rtol=0)


def test_what_is_no_number_stays_so():
    """Clamped it would be the loudest sample there is."""
    frames = packed_anyhow((3, 2), 8, 1)
    inverse, envelope = inverse_table(8), torch.hann_window(8).square()
    polar = torch.zeros(8, forward_table(8).shape[1])
    polar[1, :3] = float("nan")
    made = wave(polar, frames.tags, inverse, envelope, 1, 4, limit=0.9, largest=3.0)
    assert made[4:8].isnan().all()
    assert made[12:].isfinite().all()
