"""Layout of weights in memory: the same parameters, placed so that a product reads them without a copy.

A parameter keeps its name, its shape and its values; code that finds it placed otherwise computes the same, and slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import conv1d, linear

from vivavoce.models.layers import laid_together
from vivavoce.models.packed_linear import MANY_ROWS, Product, packed, packs


def biases_ahead(biases: Sequence[Tensor]) -> Tensor:
    """Excess of a residual stream at each reader if all output biases of its blocks are added at its start.

    biases: [size] each, of attention and feed-forward of every block in order  →  [biases + 1, size] float32; the first
    row is the sum of all, the last is zeros.
    """
    wide = [bias.float() for bias in biases]
    return torch.stack((*wide, torch.zeros_like(wide[0]))).flip(0).cumsum(0).flip(0)


def mish(x: Tensor) -> Tensor:
    """x · tanh(log(1 + eˣ)), of any shape.

    On a CPU torch takes three transcendental functions per value. One is enough: with z = 1 + eˣ + e²ˣ / 2 it is
    x − x / z. An infinite z gives x, which is the limit. It is worked out in float32: intermediate values would round.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return functional.mish(x)
    wide = x.float()
    z = wide.exp()
    z.addcmul_(z, z, value=0.5).add_(1)
    return torch.addcdiv(wide, wide, z, value=-1).to(x.dtype)


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Matrices one below the other: a view of them if `lay_together` placed them so."""
    whole = None if torch.is_grad_enabled() else laid_together(weights)
    return torch.cat(tuple(weights)) if whole is None else whole


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, product: Product | None = None) -> Tensor:
    """Convolution without padding, as one product over windows.

    x: [batch, time + kernel − 1, in]; weight: [out, in, kernel]; product: of `pack_windows`  →  [batch, time, out]
    """
    if torch.is_grad_enabled():
        return conv1d(x.transpose(1, 2), weight, bias).transpose(1, 2)
    out, channels, kernel = weight.shape
    batch, length = x.shape[:2]
    time = length - kernel + 1
    windows = x.contiguous().as_strided((batch, time, kernel * channels), (length * channels, channels, 1))
    if product is not None:
        return product(windows)
    flat = linear(windows.reshape(-1, kernel * channels), weight.permute(0, 2, 1).reshape(out, -1), bias)
    return flat.view(batch, time, out)


def pack_windows(conv: nn.Conv1d) -> Product | None:
    """The product of `convolve` with this convolution's weights packed; None: packing does not help."""
    weight = conv.weight.detach().permute(0, 2, 1).flatten(1)
    return packed(weight, conv.bias, MANY_ROWS) if packs(weight) else None


def lay_for_windows(conv: nn.Conv1d) -> None:
    """Put a convolution's weights in the order in which `convolve` reads them."""
    if conv.weight.is_inference():
        return
    with torch.inference_mode(False), torch.no_grad():
        conv.weight.data = conv.weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)
