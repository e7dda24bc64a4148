"""Arranges constant weights in memory, so that matrix products need no copies, or packs them where this is faster.

Parameters keep their names, shapes and values. Networks also work without this, but slower.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import conv1d, linear

Product = Callable[[Tensor], Tensor]
"""A linear layer as a function: x [..., in] → [..., out]."""

PACKED_FOR_ROWS = 8  # oneDNN's default number of rows for packed weights; any number of rows works
MANY_ROWS = 256  # the number of rows for which weights are packed in networks that read many positions at once


class Linear(nn.Linear):
    """A linear layer that multiplies by packed weights after `pack`, except while gradients are recorded. After `pack`,
    its weights must not change, because the packed weights are a copy."""

    product: Product | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        return self.product(x)

    def pack(self) -> None:
        self.product = packed(self.weight, self.bias, MANY_ROWS) if packs(self.weight) else None


def packs(weight: Tensor) -> bool:
    """Return whether to pack a weight: on some CPUs, torch's float32 products take over twice the time of oneDNN's."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works()


def packed(weight: Tensor, bias: Tensor | None, rows: int = PACKED_FOR_ROWS) -> Product:
    """Return a linear layer with a packed copy of its weight. weight: [out, in]; bias: [out]; rows: usual number of
    rows in its input."""
    layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    bias = None if bias is None else bias.detach()
    # Return a closure, which deep copies of a module share: packed weights cannot be copied.
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")


@lru_cache(maxsize=1)
def _packing_works() -> bool:
    """Return whether torch has oneDNN's packed products, which it does not document, and their results are right."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with torch.inference_mode():
        weight, bias, x = torch.arange(96.0).view(8, 12), torch.arange(8.0), torch.arange(36.0).view(3, 12)
        try:
            layout = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
            found = torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")
        except (AttributeError, RuntimeError):
            return False
        return torch.equal(found, x @ weight.T + bias)


def laid_together(weights: Sequence[Tensor]) -> Tensor | None:
    """Return a view of several weights as one tensor, if they follow one another in memory, else None."""
    first, at = weights[0], weights[0].storage_offset()
    memory = first.untyped_storage().data_ptr()
    for weight in weights:
        if weight.untyped_storage().data_ptr() != memory or weight.storage_offset() != at or not weight.is_contiguous():
            return None
        at += weight.numel()
    return first.detach().as_strided((sum(map(len, weights)), *first.shape[1:]), first.stride(), first.storage_offset())


def lay_together(weights: Sequence[Tensor]) -> Tensor:
    """Join weights of equal widths to one tensor, and make them views of it, without a copy if they are already."""
    # The views must be inference tensors if, and only if, the weights were.
    with torch.inference_mode(weights[0].is_inference()), torch.no_grad():
        whole = laid_together(weights)
        if whole is None:
            whole = torch.cat([weight.detach() for weight in weights])
            for weight, part in zip(weights, whole.split([len(weight) for weight in weights]), strict=True):
                weight.data = part
    return whole


def biases_ahead(biases: Sequence[Tensor]) -> Tensor:
    """Return, for a residual stream that starts with the sum of all these output biases, the sums [n + 1, size] of the
    biases that it has too early: before layer i, biases i … n − 1."""
    wide = [bias.float() for bias in biases]
    return torch.stack((*wide, torch.zeros_like(wide[0]))).flip(0).cumsum(0).flip(0)


def mish(x: Tensor) -> Tensor:
    """Compute x · tanh(log(1 + eˣ)). On a CPU, torch computes three transcendental functions for each value; here one
    is enough: the result is x − x / z with z = 1 + eˣ + e²ˣ / 2. An infinite z gives x, which is the limit. The
    computation is in float32, because half precision would round intermediate values."""
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
    """Convolve along time. x: [batch, time + kernel − 1, in]; weight: [out, in, kernel]; bias: [out]; product: result
    of `pack_windows` for the same weights, or None → [batch, time, out]."""
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
