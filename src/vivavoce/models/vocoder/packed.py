"""Runs HiFT and CausalHiFT, with kernels of `vivavoce_kernels`, on packed batches: one row's frames after another's.

At least `gap_frames` frames of padding follow each row. Padding is zero in every layer, so that a row's result depends
neither on its position nor on other rows. The weights are rearranged for the packed convolutions.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.config import CausalVocoderConfig, VocoderConfig
from vivavoce.models.vocoder.causal import PITCH_LOOKAHEAD, CausalHiFT, SteppedSource
from vivavoce.models.vocoder.hift import LAST_SLOPE, LEAST_ALPHA, MAX_MAGNITUDE, HarmonicSource, HiFT, ResBlock, Snake
from vivavoce_kernels import vocoder_source
from vivavoce_kernels.snake_conv import Activated, Activation, Convolution, convolve, tile_for
from vivavoce_kernels.vocoder_source import spectrum_lanes


class Pair(NamedTuple):
    first: Convolution
    between: Activated
    second: Convolution


class PackedBlock(NamedTuple):
    """A residual block. entry: activation before the first pair of convolutions; inner: those before later pairs."""

    entry: Activated
    inner: tuple[Activated, ...]
    pairs: tuple[Pair, ...]


class PackedStage(NamedTuple):
    """A stage. up: upsamples the signal. down: reduces the source's spectrum to the stage's rate. source: residual
    block of the source. entries: the `entry` of all blocks, joined. leaving: activation of the mean of the blocks."""

    up: Convolution
    down: Convolution
    source: PackedBlock
    blocks: tuple[PackedBlock, ...]
    entries: Activated
    leaving: Activated


class PackedVocoderWeights(NamedTuple):
    """pitch: convolutions in float32, or float64 for the causal vocoder; column 0 of the last convolution's output is
    the pitch with a sign. last: the columns of its output are log magnitudes, then angles; the sine of an angle is a
    phase. Both are padded to `spectrum_lanes`."""

    pitch: tuple[Convolution, ...]
    pitch_activation: Activated
    first: Convolution
    first_activation: Activated
    stages: tuple[PackedStage, ...]
    last: Convolution


def pack_weights(vocoder: HiFT | CausalHiFT, dtype: torch.dtype) -> PackedVocoderWeights:
    """Rearrange a vocoder's weights. dtype: for matrix products and their inputs, except in the pitch predictor."""
    config, exact = vocoder.config, torch.float32
    # Number of later positions that a layer reads; None means as many as earlier positions.
    ahead = pitch_ahead = first_ahead = None
    if isinstance(config, CausalVocoderConfig):
        exact, ahead, pitch_ahead, first_ahead = torch.float64, 0, PITCH_LOOKAHEAD, config.lookahead
    rates = list(accumulate(config.upsample_rates, lambda a, b: a * b))
    leaky = Activated(Activation.LEAKY, slope=config.leaky_slope)
    per_stage, final = len(config.resblock_kernels), len(rates) - 1
    stages, resblocks = [], list(vocoder.resblocks)
    for number, rate in enumerate(rates):
        ends = number == final
        own = resblocks[number * per_stage : (number + 1) * per_stage]
        blocks = tuple(_block(block, rate, ends, dtype, ahead) for block in own)
        source = _block(vocoder.source_resblocks[number], rate, ends, dtype, ahead)
        up = _up(vocoder.ups[number], rate, config.upsample_rates[number], ends, dtype)
        down = _of_spectrum(vocoder.source_downs[number], rate, ends, config.n_fft, dtype, ahead)
        leaving = Activated(Activation.LEAKY, slope=LAST_SLOPE) if ends else leaky
        stages.append(PackedStage(up, down, source, blocks, _together([block.entry for block in blocks]), leaving))
    pitch = [
        _convolution(conv, 1, exact, ahead if index else pitch_ahead) for index, conv in enumerate(vocoder.f0.convs)
    ]
    return PackedVocoderWeights(
        pitch=(*pitch, _pitch(vocoder.f0.out, exact)),
        pitch_activation=Activated(Activation.ELU),
        first=_convolution(vocoder.conv_pre, 1, dtype, first_ahead),
        first_activation=leaky,
        stages=tuple(stages),
        last=_to_spectrum(vocoder.conv_post, rates[-1], config.n_fft, dtype, ahead),
    )


def _convolution(
    conv: nn.Module, rate: int, dtype: torch.dtype, ahead: int | None, open_end: bool = False
) -> Convolution:
    assert isinstance(conv, nn.Conv1d)
    placed = {"dilation": conv.dilation[0], "offset": _behind(conv, ahead)}
    return _laid(conv.weight.permute(2, 1, 0), conv.bias, rate, dtype, open_end, **placed)


def _behind(conv: nn.Conv1d, ahead: int | None) -> int:
    """Return the number of earlier positions that an output reads; ahead: number of later positions, None if equal."""
    reach = (conv.kernel_size[0] - 1) * conv.dilation[0]
    return reach // 2 if ahead is None else reach - ahead


def _laid(
    weight: Tensor, bias: Tensor | None, rate: int, dtype: torch.dtype, open_end: bool = False, **placed: Any
) -> Convolution:
    """weight: [taps, channels in, columns]; bias: [columns]; placed: dilation, offset and stride."""
    assert bias is not None
    (taps, channels), flat = weight.shape[:2], weight.flatten(0, 1).to(dtype).contiguous()
    return Convolution(flat, bias.float().contiguous(), taps, channels, rate, open_end=open_end, **placed)


def _pitch(linear: nn.Linear, dtype: torch.dtype) -> Convolution:
    # A product has at least 16 columns; all columns except the first are zero.
    weight = linear.weight.new_zeros(1, linear.in_features, 16)
    weight[0, :, 0] = linear.weight[0]
    bias = linear.bias.new_zeros(16)
    bias[0] = linear.bias[0]
    return _laid(weight, bias, 1, dtype)


def _up(conv: nn.Module, rate: int, fan: int, last: bool, dtype: torch.dtype) -> Convolution:
    """Convert an upsampling layer to a convolution with `fan` outputs for each input position. conv: a transposed
    convolution, or a convolution over a signal in which each value is repeated `fan` times. In the last stage, outputs
    are shifted by one, because the centred STFT has a mirrored position at the start."""
    assert isinstance(conv, nn.ConvTranspose1d | nn.Conv1d)
    size, kernel = conv.kernel_size[0], conv.weight
    assert conv.bias is not None
    phases = [phase - int(last) for phase in range(fan)]
    # Output position u · fan + phase reads input position u + reach with this tap of the kernel.
    if isinstance(conv, nn.ConvTranspose1d):
        pad = int(conv.padding[0])
        seen = [(phase, reach, phase + pad - reach * fan) for phase in phases for reach in range(-size, size)]
        seen = [(phase, reach, tap) for phase, reach, tap in seen if 0 <= tap < size]
    else:
        kernel = kernel.transpose(0, 1)
        seen = [(phase, (phase + tap + 1 - size) // fan, tap) for phase in phases for tap in range(size)]
    least, most = min(reach for _, reach, _ in seen), max(reach for _, reach, _ in seen)
    channels, columns = kernel.shape[:2]
    weight = kernel.new_zeros(most - least + 1, channels, fan, columns)
    for phase, reach, tap in seen:
        weight[reach - least, :, phase - phases[0]] += kernel[:, :, tap]
    return Convolution(
        weight=weight.reshape(-1, fan * columns).to(dtype).contiguous(),
        bias=conv.bias.float().repeat(fan),
        taps=len(weight),
        channels=channels,
        rate=rate // fan,
        offset=-least,
        fan=fan,
        open_end=last,
        mirrored=last,
    )


def _of_spectrum(
    conv: nn.Module, rate: int, open_end: bool, n_fft: int, dtype: torch.dtype, ahead: int | None
) -> Convolution:
    """Convert a strided convolution for spectra whose real and imaginary halves are padded to `spectrum_lanes`."""
    assert isinstance(conv, nn.Conv1d)
    weight, half = conv.weight.permute(2, 1, 0), n_fft // 2 + 1
    padded = weight.new_zeros(len(weight), 2, spectrum_lanes(n_fft), weight.shape[2])
    padded[:, :, :half] = weight.unflatten(1, (2, half))
    placed = {"offset": int(conv.padding[0]) if ahead is None else conv.stride[0] - 1, "stride": conv.stride[0]}
    return _laid(padded.flatten(1, 2), conv.bias, rate, dtype, open_end, **placed)


def _to_spectrum(conv: nn.Module, rate: int, n_fft: int, dtype: torch.dtype, ahead: int | None) -> Convolution:
    assert isinstance(conv, nn.Conv1d)
    assert conv.bias is not None
    weight, half, width = conv.weight.permute(2, 1, 0), n_fft // 2 + 1, spectrum_lanes(n_fft)
    padded = weight.new_zeros(*weight.shape[:2], 2, width)
    padded[..., :half] = weight.unflatten(2, (2, half))
    bias = conv.bias.new_zeros(2, width)
    bias[:, :half] = conv.bias.unflatten(0, (2, half))
    return _laid(padded.flatten(2), bias.flatten(), rate, dtype, open_end=True, offset=_behind(conv, ahead))


def _block(block: nn.Module, rate: int, open_end: bool, dtype: torch.dtype, ahead: int | None) -> PackedBlock:
    assert isinstance(block, ResBlock)
    laid = partial(_convolution, rate=rate, dtype=dtype, ahead=ahead, open_end=open_end)
    before = [snake_activation(snake) for snake in block.activations1]
    pairs = tuple(
        Pair(laid(first), snake_activation(snake), laid(second))
        for first, snake, second in zip(block.convs1, block.activations2, block.convs2, strict=True)
    )
    return PackedBlock(before[0], tuple(before[1:]), pairs)


def snake_activation(snake: nn.Module) -> Activated:
    """Return the activation with α and 1 / α in float32: in float16, the inverse of a small α would be infinite."""
    assert isinstance(snake, Snake)
    alpha = snake.alpha.float()[None].contiguous()
    return Activated(Activation.SNAKE, alpha=alpha, inverse=1 / (alpha + LEAST_ALPHA))


def _together(entries: list[Activated]) -> Activated:
    alphas = [entry.alpha for entry in entries if entry.alpha is not None]
    inverses = [entry.inverse for entry in entries if entry.inverse is not None]
    return Activated(Activation.SNAKE, len(entries), torch.cat(alphas), torch.cat(inverses))


PADDING, INSIDE, AFTER, FIRST = range(4)
"""Tags of packed frames: padding, frame within a row, padding right after a row, first frame of a row."""


class PackedFrames(NamedTuple):
    """tags: [frames] int32: PADDING, INSIDE, AFTER or FIRST. row_of: [frames] int32, row of each frame that is not
    PADDING. rows: [rows, WIDTH] int64, see `vivavoce_kernels.layouts.PackedRow`. stages: for each stage, tags in which
    frames that it need not compute are PADDING; () if each stage computes all frames."""

    tags: Tensor
    row_of: Tensor
    rows: Tensor
    stages: tuple[Tensor, ...] = ()


def supports(vocoder: HiFT | CausalHiFT) -> bool:
    config, known = vocoder.config, type(vocoder.source) in (HarmonicSource, SteppedSource)
    overlapping = config.n_fft % (2 * config.hop) == 0 and config.hop & (config.hop - 1) == 0
    upward = isinstance(config, CausalVocoderConfig) or all(
        kernel > rate for rate, kernel in zip(config.upsample_rates, config.upsample_kernels, strict=True)
    )
    return known and overlapping and upward and config.samples_per_frame // config.hop >= 3


def gap_frames(config: VocoderConfig) -> int:
    """Return the number of padding frames between two rows for which no convolution reads from a neighbouring row."""
    rates = list(accumulate(config.upsample_rates, lambda a, b: a * b))
    blocks = [
        *zip(config.resblock_kernels, config.resblock_dilations, strict=True),
        *zip(config.source_resblock_kernels, config.source_resblock_dilations, strict=True),
    ]
    # The first convolution, and the causal pitch predictor, read at least three frames beyond a row.
    outer, sides = 3, 2
    if isinstance(config, CausalVocoderConfig):
        outer, sides = max(outer, config.lookahead), 1
    reach = max((kernel - 1) * max(dilations) // sides for kernel, dilations in blocks)
    steps_up = (-(-kernel // rate) for rate, kernel in zip(config.upsample_rates, config.upsample_kernels, strict=True))
    # + 1, because the last stage has one more position.
    return max(outer, *steps_up, *(-(-(reach + 1) // rate) for rate in rates))


class PackedVocoder:
    """Runs a vocoder on packed frames. The kernel launches are always the same, without synchronisation with the GPU.
    dtype: of matrix products, their inputs, and sums between residual blocks (float32 would reduce rounding errors by a
    quarter, and take 1.5 times the memory). Pitch, phases, source and both transforms are always in float32 or better.
    """

    def __init__(self, vocoder: HiFT | CausalHiFT, dtype: torch.dtype) -> None:
        config = self.config = vocoder.config
        self.heard = vocoder.heard_before[1:] if isinstance(vocoder, CausalHiFT) else ()
        """For each stage, the number of earlier output frames on which a sample depends; () to compute all frames."""
        self._weights, self._dtype = pack_weights(vocoder, dtype), dtype
        device = vocoder.conv_pre.weight.device
        merge = vocoder.source.merge
        self.lanes = vocoder_source.lanes(config.num_harmonics + 1)
        self._merge = torch.zeros(self.lanes, device=device)
        self._merge[: config.num_harmonics + 1] = merge.weight[0]
        self._bias, self._norm = float(merge.bias), float(merge.weight.norm())
        self._forward = vocoder_source.forward_table(config.n_fft).to(device)
        self._inverse = vocoder_source.inverse_table(config.n_fft).to(device)
        self._envelope = torch.hann_window(config.n_fft, device=device).square()
        self._shape = vocoder_source.SourceShape(
            config.num_harmonics + 1,
            config.samples_per_frame,
            config.sample_rate,
            config.voiced_threshold_hz,
            config.sine_amplitude,
            config.noise_std,
            stepped=isinstance(vocoder.source, SteppedSource),
        )

    def excite(self, mel: Tensor, frames: PackedFrames, carried: Tensor, source: Tensor, *, noise: bool) -> Tensor:
        """Write the source, and return the new `carried`, see `make_source`. mel: [frames, bins] float32, zero outside
        rows. carried: phases [rows, lanes] float32 in cycles. source: [frames · samples per frame] float32; the rows'
        new frames are written."""
        x, (*convs, out) = mel, self._weights.pitch
        for conv in convs:
            x = self._convolve(x, conv, frames.tags, activated=self._weights.pitch_activation)[1][0]
        pitch, _ = self._convolve(x, out, frames.tags, raw=torch.float32)
        merge = (self._merge, self._bias, self._norm)
        return vocoder_source.make_source(pitch, *frames[:3], carried, *merge, source, self._shape, noise=noise)

    def decode(self, mel: Tensor, frames: PackedFrames, source: Tensor) -> Tensor:
        """Return the samples [frames · samples per frame] float32, zero outside rows; mel, source: as in `excite`."""
        config, weights = self.config, self._weights
        rate = config.samples_per_frame // config.hop
        tags, row_of, rows, stages = frames
        x = self._convolve(mel, weights.first, tags, activated=weights.first_activation)[1][0]
        stages = stages or (tags,) * len(weights.stages)
        spectrum = vocoder_source.spectrum(
            source, stages[0], row_of, rows, self._forward, rate, config.hop, self._dtype
        )
        for stage, tags in zip(weights.stages, stages, strict=True):
            x = self._stage(stage, x, spectrum, tags)
        polar, _ = self._convolve(x, weights.last, tags, raw=torch.float32)
        return vocoder_source.wave(
            polar, tags, self._inverse, self._envelope, rate, config.hop, config.audio_limit, MAX_MAGNITUDE
        )

    def _stage(self, stage: PackedStage, x: Tensor, spectrum: Tensor, tags: Tensor) -> Tensor:
        """x: [positions, channels], after its activation → [positions · rate, channels / 2], after `leaving`."""
        up, _ = self._convolve(x, stage.up, tags, raw=self._dtype)
        injected, entry = self._convolve(spectrum, stage.down, tags, raw=self._dtype, activated=stage.source.entry)
        x, entries = self._block(stage.source, injected, entry[0], tags, (up,), self._dtype, stage.entries)
        total: tuple[Tensor, ...] = ()
        *others, last = zip(stage.blocks, entries, strict=True)
        for block, entry in others:
            total = (self._block(block, x, entry, tags, total, self._dtype, None)[0],)
        block, entry = last
        scale = 1 / len(stage.blocks)
        return self._block(block, x, entry, tags, total, None, stage.leaving, scale)[1][0]

    def _block(
        self,
        block: PackedBlock,
        x: Tensor,
        entry: Tensor,
        tags: Tensor,
        added: tuple[Tensor, ...],
        raw: torch.dtype | None,
        leaving: Activated | None,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Run a residual block on x. entry: x after activation. Other arguments go to the last `convolve`."""
        for pair, following in zip(block.pairs, block.inner, strict=False):
            h = self._convolve(entry, pair.first, tags, activated=pair.between)[1][0]
            x, made = self._convolve(h, pair.second, tags, added=(x,), raw=self._dtype, activated=following)
            entry = made[0]
        pair = block.pairs[-1]
        h = self._convolve(entry, pair.first, tags, activated=pair.between)[1][0]
        return self._convolve(h, pair.second, tags, added=(x, *added), scale=scale, raw=raw, activated=leaving)

    def _convolve(self, x: Tensor, conv: Convolution, tags: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        return convolve(x, conv, tags, tile_for(conv, len(tags), x.device), **options)
