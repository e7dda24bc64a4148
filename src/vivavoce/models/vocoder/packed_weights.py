"""A vocoder's weights as the packed convolutions read them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from vivavoce.models.kernels.short_fourier import lanes
from vivavoce.models.kernels.snake_conv import Activated, Activation, Convolution
from vivavoce.models.vocoder.hift import LAST_SLOPE, HiFT
from vivavoce.models.vocoder.resblock import LEAST_ALPHA, ResBlock, Snake


@dataclass(frozen=True, eq=False)
class Pair:
    """Two convolutions of a residual block and the activation between them."""

    first: Convolution
    between: Activated
    second: Convolution


@dataclass(frozen=True, eq=False)
class Block:
    """A residual block; `entry` is what its first convolution reads, `inner` what those of the other pairs read."""

    entry: Activated
    inner: tuple[Activated, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """One step up in rate."""

    up: Convolution
    down: Convolution
    """The source's spectrum, brought down to the stage's rate."""
    source: Block
    blocks: tuple[Block, ...]
    entries: Activated
    """The entries of all blocks in one."""
    leaving: Activated
    """What the next layer reads of the blocks' mean."""


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """All layers but the source's own."""

    pitch: tuple[Convolution, ...]
    """float32; the last one gives the pitch ± in column 0."""
    pitch_activation: Activated
    first: Convolution
    first_activation: Activated
    stages: tuple[Stage, ...]
    last: Convolution
    """Its columns: logarithms of magnitudes, then what phases are the sine of, each padded to `lanes`."""


def pack_weights(vocoder: HiFT, dtype: torch.dtype) -> PackedWeights:
    """Lay the weights out anew; dtype: of the products and of what they read, but for the pitch's."""
    config = vocoder.config
    rates = list(accumulate(config.upsample_rates, lambda a, b: a * b))
    leaky = Activated(Activation.LEAKY, slope=config.leaky_slope)
    per_stage, final = len(config.resblock_kernels), len(rates) - 1
    stages = []
    for number, rate in enumerate(rates):
        ends = number == final
        blocks = tuple(
            _block(block, rate, ends, dtype)
            for block in list(vocoder.resblocks)[number * per_stage : (number + 1) * per_stage]
        )
        source = _block(vocoder.source_resblocks[number], rate, ends, dtype)
        up = _transposed(vocoder.ups[number], rate, ends, dtype)
        down = _of_spectrum(vocoder.source_downs[number], rate, ends, config.n_fft, dtype)
        leaving = Activated(Activation.LEAKY, slope=LAST_SLOPE) if ends else leaky
        stages.append(Stage(up, down, source, blocks, _together([block.entry for block in blocks]), leaving))
    return PackedWeights(
        pitch=(*(_convolution(conv, 1, torch.float32) for conv in vocoder.f0.convs), _pitch(vocoder.f0.out)),
        pitch_activation=Activated(Activation.ELU),
        first=_convolution(vocoder.conv_pre, 1, dtype),
        first_activation=leaky,
        stages=tuple(stages),
        last=_to_spectrum(vocoder.conv_post, rates[-1], config.n_fft, dtype),
    )


def _convolution(conv: nn.Module, rate: int, dtype: torch.dtype, open_end: bool = False) -> Convolution:
    assert isinstance(conv, nn.Conv1d)
    return _laid(conv.weight.permute(2, 1, 0), conv.bias, rate, dtype, open_end, conv.dilation[0], int(conv.padding[0]))


def _laid(
    weight: Tensor,
    bias: Tensor | None,
    rate: int,
    dtype: torch.dtype,
    open_end: bool = False,
    dilation: int = 1,
    offset: int = 0,
    stride: int = 1,
) -> Convolution:
    """weight: [taps, channels in, columns]; bias: [columns]."""
    taps, channels, columns = weight.shape
    assert bias is not None
    return Convolution(
        weight=weight.reshape(taps * channels, columns).to(dtype).contiguous(),
        bias=bias.float().contiguous(),
        taps=taps,
        channels=channels,
        rate=rate,
        dilation=dilation,
        offset=offset,
        stride=stride,
        open_end=open_end,
    )


def _pitch(linear: nn.Linear) -> Convolution:
    # As many columns as a product has at least; those behind the first stay zero.
    weight = linear.weight.new_zeros(1, linear.in_features, 16)
    weight[0, :, 0] = linear.weight[0]
    bias = linear.bias.new_zeros(16)
    bias[0] = linear.bias[0]
    return _laid(weight, bias, 1, torch.float32)


def _transposed(conv: nn.Module, rate: int, last: bool, dtype: torch.dtype) -> Convolution:
    """A transposed convolution as one that gives the `fan` positions of each position that it reads.

    In the last stage all positions lie one further on: the first is the mirrored one of the centred STFT.
    """
    assert isinstance(conv, nn.ConvTranspose1d)
    fan, size, pad = conv.stride[0], conv.kernel_size[0], int(conv.padding[0])
    assert conv.bias is not None
    phases = [phase - int(last) for phase in range(fan)]
    # Output position u · fan + phase sees input u + reach through the kernel's place phase + pad − reach · fan.
    seen = [(phase, reach, phase + pad - reach * fan) for phase in phases for reach in range(-size, size)]
    seen = [(phase, reach, place) for phase, reach, place in seen if 0 <= place < size]
    least, most = min(reach for _, reach, _ in seen), max(reach for _, reach, _ in seen)
    channels, columns = conv.weight.shape[:2]
    weight = conv.weight.new_zeros(most - least + 1, channels, fan, columns)
    for phase, reach, place in seen:
        weight[reach - least, :, phase - phases[0]] = conv.weight[:, :, place]
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


def _of_spectrum(conv: nn.Module, rate: int, open_end: bool, n_fft: int, dtype: torch.dtype) -> Convolution:
    """A strided convolution over spectra whose halves are padded to `lanes`."""
    assert isinstance(conv, nn.Conv1d)
    weight, half = conv.weight.permute(2, 1, 0), n_fft // 2 + 1
    padded = weight.new_zeros(len(weight), 2, lanes(n_fft), weight.shape[2])
    padded[:, :, :half] = weight.unflatten(1, (2, half))
    return _laid(
        padded.flatten(1, 2),
        conv.bias,
        rate,
        dtype,
        open_end,
        offset=int(conv.padding[0]),
        stride=conv.stride[0],
    )


def _to_spectrum(conv: nn.Module, rate: int, n_fft: int, dtype: torch.dtype) -> Convolution:
    assert isinstance(conv, nn.Conv1d)
    assert conv.bias is not None
    weight, half, width = conv.weight.permute(2, 1, 0), n_fft // 2 + 1, lanes(n_fft)
    padded = weight.new_zeros(*weight.shape[:2], 2, width)
    padded[..., :half] = weight.unflatten(2, (2, half))
    bias = conv.bias.new_zeros(2, width)
    bias[:, :half] = conv.bias.unflatten(0, (2, half))
    return _laid(padded.flatten(2), bias.flatten(), rate, dtype, open_end=True, offset=int(conv.padding[0]))


def _block(block: nn.Module, rate: int, open_end: bool, dtype: torch.dtype) -> Block:
    assert isinstance(block, ResBlock)
    before = [_snake(snake) for snake in block.activations1]
    pairs = tuple(
        Pair(_convolution(first, rate, dtype, open_end), _snake(snake), _convolution(second, rate, dtype, open_end))
        for first, snake, second in zip(block.convs1, block.activations2, block.convs2, strict=True)
    )
    return Block(before[0], tuple(before[1:]), pairs)


def _snake(snake: nn.Module) -> Activated:
    assert isinstance(snake, Snake)
    alpha = snake.alpha.float()[None].contiguous()
    return Activated(Activation.SNAKE, alpha=alpha, inverse=1 / (alpha + LEAST_ALPHA))


def _together(entries: list[Activated]) -> Activated:
    alphas = [entry.alpha for entry in entries if entry.alpha is not None]
    inverses = [entry.inverse for entry in entries if entry.inverse is not None]
    return Activated(Activation.SNAKE, len(entries), torch.cat(alphas), torch.cat(inverses))
