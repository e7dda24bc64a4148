"""One-dimensional convolutions over tensors that lie in memory as their device likes them best.

Signals are [batch, channels, 1, time]. On a CPU their channels lie side by side (torch's `channels_last`): oneDNN's
kernels for that layout do up to twice the work per second on the few channels and long signals of a vocoder, and
nothing is put into another order between layers. Elsewhere time lies side by side, as in [batch, channels, time].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d


def laid_out(x: Tensor) -> Tensor:
    """[batch, channels, time]  →  [batch, channels, 1, time] in the device's order."""
    order = torch.channels_last if x.device.type == "cpu" else torch.contiguous_format
    return x[:, :, None].contiguous(memory_format=order)


def convolve(conv: nn.Module, x: Tensor) -> Tensor:
    """What the Conv1d `conv` computes; x: [batch, channels in, 1, time]  →  [batch, channels out, 1, time']."""
    assert isinstance(conv, nn.Conv1d)
    across, beside, step = conv.stride[0], int(conv.padding[0]), conv.dilation[0]
    return conv2d(x, conv.weight[:, :, None], conv.bias, (1, across), (0, beside), (1, step))


def convolve_transposed(conv: nn.Module, x: Tensor) -> Tensor:
    """What the ConvTranspose1d `conv` computes; x: [batch, channels, 1, time]  →  [batch, channels out, 1, time']."""
    assert isinstance(conv, nn.ConvTranspose1d)
    return conv_transpose2d(x, conv.weight[:, :, None], conv.bias, (1, conv.stride[0]), (0, int(conv.padding[0])))
