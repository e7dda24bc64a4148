"""HiFT, the vocoder of CosyVoice 1 and 2: a harmonic source drives an inverse-STFT generator (arXiv:2309.09493)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, elu, fold, interpolate, leaky_relu, linear, pad

from vivavoce.checkpoint.config import VocoderConfig
from vivavoce.models.layers import PairRunner, in_turn, valid_positions, zero_padding
from vivavoce.models.randomness import normal, uniform
from vivavoce_kernels.layouts import NoiseStream


def laid_out(x: Tensor) -> Tensor:
    """Convert [batch, channels, time] to [batch, channels, 1, time], in the device's fastest memory format."""
    order = torch.channels_last if x.device.type == "cpu" else torch.contiguous_format
    return x[:, :, None].contiguous(memory_format=order)


def convolve(conv: nn.Module, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Apply a convolution: x [batch, channels in, 1, time] → [batch, channels out, 1, time'], zero beyond each row's
    end. inside: [batch, 1, 1, time'], 1 within a row and 0 beyond its end; None if all rows are full."""
    assert isinstance(conv, nn.Conv1d)
    across, beside, step = conv.stride[0], int(conv.padding[0]), conv.dilation[0]
    out = conv2d(x, conv.weight[:, :, None], conv.bias, (1, across), (0, beside), (1, step))
    return out if inside is None else out.mul_(inside)


def convolve_behind(conv: nn.Module, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Apply a causal convolution, which reads zeros before the start of x; shapes as in `convolve`."""
    assert isinstance(conv, nn.Conv1d)
    return convolve(conv, pad(x, ((conv.kernel_size[0] - 1) * conv.dilation[0], 0)), inside)


def convolve_transposed(conv: nn.Module, x: Tensor) -> Tensor:
    """Apply a transposed convolution: x [batch, channels in, 1, time] → [batch, channels out, 1, time']."""
    assert isinstance(conv, nn.ConvTranspose1d)
    return conv_transpose2d(x, conv.weight[:, :, None], conv.bias, (1, conv.stride[0]), (0, int(conv.padding[0])))


def stft(signal: Tensor, lengths: Tensor | None, n_fft: int, hop: int) -> Tensor:
    """Compute a centred STFT with a periodic Hann window; each row is reflected at its own end. signal: [batch,
    samples]; lengths: [batch], samples of each row, or None if all rows are full → [batch, n_fft + 2, samples // hop +
    1], real parts, then imaginary parts; zero beyond a row's end."""
    samples = signal.shape[1]
    last = (torch.full((1,), samples, device=signal.device) if lengths is None else lengths)[:, None] - 1
    position = torch.arange(-(n_fft // 2), samples + n_fft // 2, device=signal.device).abs()
    mirrored = torch.where(position > last, 2 * last - position, position).clamp(0, samples - 1)
    padded = signal.gather(1, mirrored.expand(len(signal), -1))
    window = torch.hann_window(n_fft, device=signal.device)
    spectrum = torch.stft(padded, n_fft, hop, n_fft, window, center=False, return_complex=True)
    parts = torch.cat((spectrum.real, spectrum.imag), dim=1)
    if lengths is None:
        return parts
    return parts * valid_positions(lengths // hop + 1, parts.shape[-1])[:, None]


def istft(magnitude: Tensor, phase: Tensor, lengths: Tensor | None, n_fft: int, hop: int) -> Tensor:
    """Invert the centred STFT, by windowed overlap-add of each row's frames. magnitude, phase: [batch, n_fft / 2 + 1,
    frames]; lengths: [batch], frames of each row, or None if all rows are full → [batch, (frames − 1) · hop]."""
    frames = magnitude.shape[-1]
    window = torch.hann_window(n_fft, device=magnitude.device)
    pieces = torch.fft.irfft(torch.polar(magnitude, phase), n=n_fft, dim=1) * window[:, None]
    envelope = window.square()[None, :, None].expand(1, -1, frames)
    if lengths is not None:
        inside = valid_positions(lengths, frames)[:, None]
        pieces, envelope = pieces * inside, envelope * inside
    length, half = (frames - 1) * hop + n_fft, n_fft // 2
    signal, weight = (
        fold(x, (1, length), kernel_size=(1, n_fft), stride=(1, hop))[:, 0, 0, half : length - half]
        for x in (pieces, envelope)
    )
    return signal / weight.clamp(min=1e-11)


class HarmonicSource(nn.Module):
    """CosyVoice2's source: phases are summed frame by frame, and interpolated linearly between the centres of frames. A
    stream carries the phase from one chunk to the next."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.merge = nn.Linear(config.num_harmonics + 1, 1)

    def forward(self, f0: Tensor, noise: Tensor | None, carried: Tensor | None = None) -> Tensor:
        """f0: [batch, frames] Hz, 0 beyond a row's end → signal [batch, 1, samples]. noise: standard normal, [batch,
        samples, harmonics], or [batch, samples, 1] for the sum over harmonics; None for no noise. carried: [batch,
        harmonics], `cycles` % 1 of the last frame in the previous chunk, or None for the first chunk."""
        return self.excite(f0, self.cycles(f0, carried), noise, carried)

    def cycles(self, f0: Tensor, carried: Tensor | None) -> Tensor:
        """Return the phase of each harmonic in cycles, divided by the number of samples of a frame: [batch, frames,
        harmonics]. `_phases` multiplies by this number at the end, as the official code does, because float32 rounding
        depends on the order."""
        multiples = torch.arange(1, self.config.num_harmonics + 2, device=f0.device, dtype=f0.dtype)
        per_sample = (f0[..., None] * multiples / self.config.sample_rate) % 1
        start = 0 if carried is None else carried[:, None]
        return start + torch.cumsum(per_sample, dim=1)

    def excite(self, f0: Tensor, cycles: Tensor, noise: Tensor | None, carried: Tensor | None) -> Tensor:
        config, hop = self.config, self.config.samples_per_frame
        phase = self._phases(f0, cycles, carried)
        voiced = (f0 > config.voiced_threshold_hz).float().repeat_interleave(hop, dim=1)[:, None]
        signal = voiced * (config.sine_amplitude * (self.merge.weight @ torch.sin(phase))) + self.merge.bias
        if noise is not None:
            strength = voiced * config.noise_std + (1 - voiced) * (config.sine_amplitude / 3)
            # A weighted sum of independent normal numbers equals a normal number times the norm of the weights.
            weight = self.merge.weight
            merged = noise * weight.norm() if noise.shape[-1] == 1 else linear(noise, weight)
            signal = signal + strength * merged.transpose(1, 2)
        return torch.tanh(signal)

    def draw(self, seeds: Tensor, places: Tensor) -> Tensor:
        """Return noise [batch, samples, 1], which does not depend on the chunks. seeds: [batch, 1] int64; places:
        [batch, samples] int64, positions of the samples in the stream. One number replaces the sum over all harmonics:
        on a CPU, drawing a number for each harmonic would take half as long as the whole vocoder."""
        return normal(seeds, NoiseStream.SOURCE, places)[..., None]

    def _phases(self, f0: Tensor, cycles: Tensor, carried: Tensor | None) -> Tensor:
        """Return phases [batch, harmonics, samples] in radians; for the arguments see `forward`."""
        hop = self.config.samples_per_frame
        drawn = cycles if carried is None else torch.cat((carried[:, None], cycles), dim=1)
        radians = (drawn * (2 * math.pi)).transpose(1, 2) * hop
        return interpolate(radians, scale_factor=float(hop), mode="linear")[..., 0 if carried is None else hop :]

    def initial(self, seeds: Tensor) -> Tensor | None:
        """Return the initial `carried` of a new stream with noise, or None if its phases start at 0. seeds: [batch]."""
        return None


class SampledSource(HarmonicSource):
    """CosyVoice 1's source: phases are summed sample by sample, and overtones start with random phases (`initial`)."""

    def cycles(self, f0: Tensor, carried: Tensor | None) -> Tensor:
        """Return the cycles from the start of the first frame to the end of each frame, [batch, frames, harmonics]
        float64."""
        multiples = torch.arange(1, self.config.num_harmonics + 2, device=f0.device)
        per_sample = f0[..., None] * multiples / self.config.sample_rate
        return torch.cumsum(per_sample.double() * self.config.samples_per_frame, dim=1)

    def initial(self, seeds: Tensor) -> Tensor | None:
        """seeds: [batch] int64 → random phases [batch, harmonics] in cycles; 0 for the fundamental."""
        harmonics = torch.arange(self.config.num_harmonics + 1, device=seeds.device)
        return uniform(seeds[:, None], NoiseStream.PHASE, harmonics) * (harmonics > 0)

    def _phases(self, f0: Tensor, cycles: Tensor, carried: Tensor | None) -> Tensor:
        hop = self.config.samples_per_frame
        in_frame = cycles.diff(dim=1, prepend=torch.zeros_like(cycles[:, :1]))
        back = torch.arange(1 - hop, 1, device=f0.device) / hop
        # This is more exact than the official code, whose float32 sum changes the third digit after thousands of
        # cycles.
        turns = (cycles[..., None] + in_frame[..., None] * back).float() % 1
        turns = turns if carried is None else turns + carried[:, None, :, None]
        return turns.permute(0, 2, 1, 3).flatten(2) * (2 * math.pi)


F0_CONVS = 5
F0_KERNEL = 3


class F0Predictor(nn.Module):
    """Predicts the pitch in Hz, as an absolute value; it depends on `F0_CONVS` frames on either side."""

    def __init__(self, mel_bins: int, channels: int) -> None:
        super().__init__()
        sizes = [mel_bins] + [channels] * F0_CONVS
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, F0_KERNEL, padding=F0_KERNEL // 2) for before, after in pairwise(sizes)
        )
        self.out = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, lengths: Tensor | None) -> Tensor:
        """mel: [batch, bins, frames]; lengths: [batch], None if full → [batch, frames] Hz, 0 beyond a row's end."""
        x = zero_padding(mel, lengths)
        # The source sums the pitch to phases, so an error of 0.1 % grows to half a cycle within a second. Therefore
        # CUDA convolutions run here without TF32 (torch's default, with 10 bits of mantissa). The switch affects the
        # process.
        before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
        try:
            for conv in self.convs:
                x = zero_padding(elu(conv(x)), lengths)
        finally:
            torch.backends.cudnn.allow_tf32 = before
        f0 = torch.abs(self.out(x.transpose(1, 2)))[..., 0]
        return zero_padding(f0[:, None], lengths)[:, 0]


LEAST_ALPHA = 1e-9  # added to α before the division, as in the official code


class Snake(nn.Module):
    """The activation x + sin²(αx) / α, with an α for each channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None, None]
        if torch.is_grad_enabled():
            return x + torch.sin(alpha * x).square() / (alpha + LEAST_ALPHA)
        # Allocation takes longer than arithmetic, so only one tensor is allocated, and then changed in place.
        return (alpha * x).sin_().square_().div_(alpha + LEAST_ALPHA).add_(x)


class ResBlock(nn.Module):
    """A residual block. causal: whether outputs depend only on their own and earlier positions."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], *, causal: bool = False) -> None:
        super().__init__()
        self._convolve = convolve_behind if causal else convolve
        half = 0 if causal else kernel // 2
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * half) for d in dilations
        )
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.convs2 = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=half) for _ in dilations)

    def forward(self, x: Tensor, inside: Tensor | None) -> Tensor:
        """x: [batch, channels, 1, time], zero beyond each row's end; inside: as in `convolve`. Returns x's shape."""
        stages = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in stages:
            h = self._convolve(conv1, snake1(x), inside)
            x = self._convolve(conv2, snake2(h), inside).add_(x)
        return x


OUTER_KERNEL = 7
MAX_MAGNITUDE = 100.0
LAST_SLOPE = 0.01  # slope of the last leaky ReLU: PyTorch's default, as in the official code


class Reach(NamedTuple):
    """How many frames before and after its own frame a sample depends on; a chunk must include these frames."""

    before: int
    after: int


def waveform(x: Tensor, lengths: Tensor | None, config: VocoderConfig) -> Tensor:
    """x: [batch, n_fft + 2, frames], log magnitudes, then angles; a phase is an angle's sine → samples, see `istft`."""
    bins = config.n_fft // 2 + 1
    magnitude = torch.exp(x[:, :bins]).clamp(max=MAX_MAGNITUDE)
    wave = istft(magnitude, torch.sin(x[:, bins:]), lengths, config.n_fft, config.hop)
    return wave.clamp(-config.audio_limit, config.audio_limit)


class HiFT(nn.Module):
    reach: Reach | None = None  # None, because chunks have less context than needed, and are cross-faded

    def __init__(
        self, config: VocoderConfig, source: type[HarmonicSource] = HarmonicSource, overlap: int | None = None
    ) -> None:
        super().__init__()
        self.overlap = overlap  # frames that consecutive chunks share; only for CosyVoice 1
        self.config = config
        rates, kernels = config.upsample_rates, config.upsample_kernels
        channels = [config.base_channels // 2**i for i in range(len(rates) + 1)]
        spectrum = config.n_fft + 2
        self.f0 = F0Predictor(config.f0_mel_bins, config.f0_channels)
        self.source = source(config)
        self.conv_pre = nn.Conv1d(config.num_mel_bins, channels[0], OUTER_KERNEL, padding=OUTER_KERNEL // 2)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(channels[i], channels[i + 1], kernels[i], rates[i], padding=(kernels[i] - rates[i]) // 2)
            for i in range(len(rates))
        )
        # These convolutions reduce the source's spectrum from the last stage's rate to the rate of each stage.
        strides = list(accumulate(reversed((*rates[1:], 1)), lambda a, b: a * b))[::-1]
        self.source_downs = nn.ModuleList(
            nn.Conv1d(spectrum, channels[i + 1], 1)
            if stride == 1
            else nn.Conv1d(spectrum, channels[i + 1], 2 * stride, stride, padding=stride // 2)
            for i, stride in enumerate(strides)
        )
        self.source_resblocks, self.resblocks = residual_blocks(config, channels[1:])
        self.conv_post = nn.Conv1d(channels[-1], spectrum, OUTER_KERNEL, padding=OUTER_KERNEL // 2)

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None, both: PairRunner = in_turn) -> Tensor:
        """mel: [batch, bins, frames]; source: [batch, 1, frames · samples_per_frame]; lengths: [batch] frames, or None
        if all rows are full → samples [batch, samples] within ± audio_limit, arbitrary beyond a row's end. both: may
        compute the last residual block of each stage in parallel with the other blocks."""
        config = self.config
        samples = None if lengths is None else lengths * config.samples_per_frame
        spectrum = laid_out(stft(source[:, 0], samples, config.n_fft, config.hop))
        inside = None if lengths is None else _inside(lengths, mel)
        x = convolve(self.conv_pre, laid_out(zero_padding(mel, lengths)), inside)
        for stage, (up, rate) in enumerate(zip(self.ups, config.upsample_rates, strict=True)):
            # Each stage upsamples the signal, adds the source's spectrum, and takes the mean of its residual blocks.
            x = convolve_transposed(up, leaky_relu(x, config.leaky_slope))
            is_last = stage == len(self.ups) - 1
            if is_last:
                # The centred STFT has one frame more, so the signal is mirrored at its start.
                x = torch.cat((x[..., 1:2], x), dim=-1)
            if lengths is not None:
                lengths = lengths * rate + is_last
                inside = _inside(lengths, x)
            x = self.source_resblocks[stage](convolve(self.source_downs[stage], spectrum, inside), inside).add_(x)
            if inside is not None:
                x.mul_(inside)
            count = len(config.resblock_kernels)
            x = mean_of_blocks(self.resblocks[stage * count : (stage + 1) * count], x, inside, both)
        return waveform(convolve(self.conv_post, leaky_relu(x, LAST_SLOPE))[:, :, 0], lengths, config)


def residual_blocks(
    config: VocoderConfig, channels: Sequence[int], *, causal: bool = False
) -> tuple[nn.ModuleList, nn.ModuleList]:
    """Build the residual blocks for the source, one for each stage, and those for the signal, several for each stage.
    channels: number of channels of each stage."""
    of_source = zip(channels, config.source_resblock_kernels, config.source_resblock_dilations, strict=True)
    parallel = list(zip(config.resblock_kernels, config.resblock_dilations, strict=True))
    return (
        nn.ModuleList(ResBlock(size, kernel, dilations, causal=causal) for size, kernel, dilations in of_source),
        nn.ModuleList(
            ResBlock(size, kernel, dilations, causal=causal) for size in channels for kernel, dilations in parallel
        ),
    )


def mean_of_blocks(blocks: nn.ModuleList, x: Tensor, inside: Tensor | None, both: PairRunner) -> Tensor:
    """Return the mean of the blocks' results. The last block, with the longest kernel, takes half of the time: `both`
    may run it in parallel with the other blocks. x, inside: see `ResBlock.forward`."""
    *most, last = blocks
    if not most:
        return last(x, inside)
    sums = both(lambda: reduce(Tensor.add_, (block(x, inside) for block in most)), lambda: last(x, inside))
    return sums[0].add_(sums[1]) / len(blocks)


def _inside(lengths: Tensor, x: Tensor) -> Tensor:
    return valid_positions(lengths, x.shape[-1])[:, None, None].to(x.dtype)
