"""Layout of weights in memory: the same parameters, placed so that a product reads them without a copy.

A parameter keeps its name, shape and values; with another placement code computes the same, but slower.
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
    """Correction of a residual stream at each reader, if all output biases of its blocks are added at its start."""
    wide = [bias.float() for bias in biases]
    return torch.stack((*wide, torch.zeros_like(wide[0]))).flip(0).cumsum(0).flip(0)


def mish(x: Tensor) -> Tensor:
    """x · tanh(log(1 + eˣ)). torch on a CPU takes three transcendental functions per value, but one is enough: with z =
    1 + eˣ + e²ˣ / 2 the result is x − x / z. An infinite z gives x, which is the limit. Computed in float32, because
    intermediate values would round.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return functional.mish(x)
    wide = x.float()
    z = wide.exp()
    z.addcmul_(z, z, value=0.5).add_(1)
    return torch.addcdiv(wide, wide, z, value=-1).to(x.dtype)


def joined(weights: Sequence[Tensor]) -> Tensor:
    whole = None if torch.is_grad_enabled() else laid_together(weights)
    return torch.cat(tuple(weights)) if whole is None else whole


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, product: Product | None = None) -> Tensor:
    """x: [batch, time + kernel − 1, in]; weight: [out, in, kernel]; product: of `pack_windows`  →  [.., time, out]."""
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
    weight = conv.weight.detach().permute(0, 2, 1).flatten(1)
    return packed(weight, conv.bias, MANY_ROWS) if packs(weight) else None


def lay_for_windows(conv: nn.Conv1d) -> None:
    if conv.weight.is_inference():
        return
    with torch.inference_mode(False), torch.no_grad():
        conv.weight.data = conv.weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)
