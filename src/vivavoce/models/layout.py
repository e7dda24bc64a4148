"""Constant weights in memory: placed so that a product reads them without a copy, or packed where that is faster.

A parameter keeps its name, shape and values; with another placement code computes the same, but slower.
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
"""x: [..., in]  →  [..., out]."""

PACKED_FOR_ROWS = 8  # oneDNN's default number of rows for packed weights; other numbers work, too, with the same bits
MANY_ROWS = 256  # the same for networks that read many positions at once


class Linear(nn.Linear):
    """Multiplies by packed weights after `pack`, except where gradients are recorded; the weights must not change
    then."""

    product: Product | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        return self.product(x)

    def pack(self) -> None:
        self.product = packed(self.weight, self.bias, MANY_ROWS) if packs(self.weight) else None


def packs(weight: Tensor) -> bool:
    """Whether to pack: on some CPUs torch gives float32 products to a library with less than half of oneDNN's speed."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works()


def packed(weight: Tensor, bias: Tensor | None, rows: int = PACKED_FOR_ROWS) -> Product:
    """A product with a packed copy of the weight. weight: [out, in]; bias: [out]; rows: expected number of rows."""
    layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    bias = None if bias is None else bias.detach()
    # A closure, because deep copies of a module share it, and the packed layout cannot be copied.
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")


@lru_cache(maxsize=1)
def _packing_works() -> bool:
    """Whether torch has oneDNN's packed products, and they are right; torch does not document them."""
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
    """Weights of one width as one tensor, one below the other: a view if they lie so in memory, else None."""
    first, at = weights[0], weights[0].storage_offset()
    memory = first.untyped_storage().data_ptr()
    for weight in weights:
        if weight.untyped_storage().data_ptr() != memory or weight.storage_offset() != at or not weight.is_contiguous():
            return None
        at += weight.numel()
    return first.detach().as_strided((sum(map(len, weights)), *first.shape[1:]), first.stride(), first.storage_offset())


def lay_together(weights: Sequence[Tensor]) -> Tensor:
    """Move weights of one width into one tensor, unless they lie so already, and return it; they become its views."""
    # The views must be inference tensors exactly if the weights were.
    with torch.inference_mode(weights[0].is_inference()), torch.no_grad():
        whole = laid_together(weights)
        if whole is None:
            whole = torch.cat([weight.detach() for weight in weights])
            for weight, part in zip(weights, whole.split([len(weight) for weight in weights]), strict=True):
                weight.data = part
    return whole


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
