"""HiFT over packed batches: the frames of all rows one after another, with kernels of our own.

Between rows, and after the last, stand at least `gap_frames` frames of padding, which are zeros in every layer: what a
row computes depends neither on its place nor on its company.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from vivavoce.checkpoint.config import VocoderConfig
from vivavoce.models.kernels import harmonic_source, short_fourier
from vivavoce.models.kernels.snake_conv import Activated, Convolution, convolve, tile_for
from vivavoce.models.vocoder.hift import MAX_MAGNITUDE, HiFT
from vivavoce.models.vocoder.packed_weights import Block, Stage, pack_weights

PADDING, INSIDE, AFTER, FIRST = range(4)
"""What a packed frame is: between rows, of a row, the frame right after a row, a row's first frame."""


@dataclass(frozen=True, eq=False)
class PackedFrames:
    """Where the rows of a packed batch lie."""

    tags: Tensor
    """[frames] int32: PADDING, INSIDE, AFTER or FIRST."""
    row_of: Tensor
    """[frames] int32: the row of each frame that is not PADDING."""
    rows: Tensor
    """[rows, ROW_WIDTH] int64, see `kernels.row_table`."""


def supports(config: VocoderConfig) -> bool:
    """Whether the kernels can compute a vocoder of these sizes."""
    overlapping = config.n_fft % (2 * config.hop) == 0 and config.hop & (config.hop - 1) == 0
    upward = all(kernel > rate for rate, kernel in zip(config.upsample_rates, config.upsample_kernels, strict=True))
    return overlapping and upward and config.samples_per_frame // config.hop >= 3


def gap_frames(config: VocoderConfig) -> int:
    """Frames that must lie between two rows, so that no convolution reaches from one into the other."""
    rates = list(accumulate(config.upsample_rates, lambda a, b: a * b))
    blocks = [
        *zip(config.resblock_kernels, config.resblock_dilations, strict=True),
        *zip(config.source_resblock_kernels, config.source_resblock_dilations, strict=True),
    ]
    reach = max(kernel // 2 * max(dilations) for kernel, dilations in blocks)
    # Three frames are what the first convolution reaches; the last stage has one position more.
    return max(3, *(-(-(reach + 1) // rate) for rate in rates))


class PackedVocoder:
    """Weights laid out anew, and the steps from mel to samples. Nothing is waited for; launches are always the same.

    Args:
        vocoder: float32, on the device.
        dtype: of the products, of what they read, and of the sums that residual blocks pass on (in float32 these would
            take a quarter off the rounding, and half as much memory again); pitch, phases, source and both transforms
            stay in float32.
    """

    def __init__(self, vocoder: HiFT, dtype: torch.dtype) -> None:
        config = self.config = vocoder.config
        self._weights, self._dtype = pack_weights(vocoder, dtype), dtype
        device = vocoder.conv_pre.weight.device
        merge = vocoder.source.merge
        self.lanes = harmonic_source.lanes(config.num_harmonics + 1)
        self._merge = torch.zeros(self.lanes, device=device)
        self._merge[: config.num_harmonics + 1] = merge.weight[0]
        self._bias, self._norm = float(merge.bias), float(merge.weight.norm())
        self._forward = short_fourier.forward_table(config.n_fft).to(device)
        self._inverse = short_fourier.inverse_table(config.n_fft).to(device)
        self._envelope = torch.hann_window(config.n_fft, device=device).square()
        self._shape = harmonic_source.SourceShape(
            config.num_harmonics + 1,
            config.samples_per_frame,
            config.sample_rate,
            config.voiced_threshold_hz,
            config.sine_amplitude,
            config.noise_std,
        )

    def excite(self, mel: Tensor, frames: PackedFrames, carried: Tensor, source: Tensor, *, noise: bool) -> Tensor:
        """Pitch and source of all frames.

        mel: [frames, bins] float32, zero outside of the rows; carried: [rows, lanes] float32 cycles; source: [frames ·
        samples per frame] float32, written where it is not known  →  [rows, lanes], see `make_source`
        """
        x, (*convs, out) = mel, self._weights.pitch
        for conv in convs:
            x = self._convolve(x, conv, frames, activated=self._weights.pitch_activation)[1][0]
        pitch, _ = self._convolve(x, out, frames, raw=torch.float32)
        return harmonic_source.make_source(
            pitch,
            frames.tags,
            frames.row_of,
            frames.rows,
            carried,
            self._merge,
            self._bias,
            self._norm,
            source,
            self._shape,
            noise=noise,
        )

    def decode(self, mel: Tensor, frames: PackedFrames, source: Tensor) -> Tensor:
        """mel, source: as in `excite`  →  [frames · samples per frame] float32, zero outside of the rows."""
        config, weights = self.config, self._weights
        rate = config.samples_per_frame // config.hop
        spectrum = short_fourier.spectrum(
            source, frames.tags, frames.row_of, frames.rows, self._forward, rate, config.hop, self._dtype
        )
        x = self._convolve(mel, weights.first, frames, activated=weights.first_activation)[1][0]
        for stage in weights.stages:
            x = self._stage(stage, x, spectrum, frames)
        polar, _ = self._convolve(x, weights.last, frames, raw=torch.float32)
        return short_fourier.wave(
            polar, frames.tags, self._inverse, self._envelope, rate, config.hop, config.audio_limit, MAX_MAGNITUDE
        )

    def _stage(self, stage: Stage, x: Tensor, spectrum: Tensor, frames: PackedFrames) -> Tensor:
        """x: [positions, channels], activated  →  [positions · rate, channels / 2], activated."""
        up, _ = self._convolve(x, stage.up, frames, raw=self._dtype)
        injected, entry = self._convolve(spectrum, stage.down, frames, raw=self._dtype, activated=stage.source.entry)
        x, entries = self._block(stage.source, injected, entry[0], frames, (up,), self._dtype, stage.entries)
        total: tuple[Tensor, ...] = ()
        *others, last = zip(stage.blocks, entries, strict=True)
        for block, entry in others:
            total = (self._block(block, x, entry, frames, total, self._dtype, None)[0],)
        block, entry = last
        scale = 1 / len(stage.blocks)
        return self._block(block, x, entry, frames, total, None, stage.leaving, scale)[1][0]

    def _block(
        self,
        block: Block,
        x: Tensor,
        entry: Tensor,
        frames: PackedFrames,
        added: tuple[Tensor, ...],
        raw: torch.dtype | None,
        leaving: Activated | None,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """x: what the block adds to; entry: x activated; the rest: of its last convolution, as in `convolve`."""
        for pair, following in zip(block.pairs, block.inner, strict=False):
            h = self._convolve(entry, pair.first, frames, activated=pair.between)[1][0]
            x, made = self._convolve(h, pair.second, frames, added=(x,), raw=self._dtype, activated=following)
            entry = made[0]
        pair = block.pairs[-1]
        h = self._convolve(entry, pair.first, frames, activated=pair.between)[1][0]
        return self._convolve(h, pair.second, frames, added=(x, *added), scale=scale, raw=raw, activated=leaving)

    def _convolve(
        self,
        x: Tensor,
        conv: Convolution,
        frames: PackedFrames,
        *,
        added: tuple[Tensor, ...] = (),
        scale: float = 1.0,
        raw: torch.dtype | None = None,
        activated: Activated | None = None,
    ) -> tuple[Tensor, Tensor]:
        tile = tile_for(conv, len(frames.tags), x.device)
        return convolve(x, conv, frames.tags, tile, added=added, scale=scale, raw=raw, activated=activated)
