"""Where weights lie in memory: the same parameters, placed so that a product reads them without a copy.

A parameter keeps its name, its shape and its values; whoever finds it placed otherwise computes the same, and slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape, one below the other: [n · out, in]; a view of them if `lay_together` placed them so."""
    rows, columns = weights[0].shape
    if torch.is_grad_enabled() or not _adjacent(weights):
        return torch.cat(tuple(weights))
    return weights[0].as_strided((len(weights) * rows, columns), (columns, 1))


def lay_together(weights: Sequence[Tensor]) -> None:
    """Move matrices of one shape into one piece of memory."""
    if any(weight.is_inference() for weight in weights):
        return  # torch lets nobody move a parameter that was made in inference mode
    with torch.inference_mode(False), torch.no_grad():
        whole = torch.cat(tuple(weights))
        for weight, part in zip(weights, whole.chunk(len(weights)), strict=True):
            weight.data = part


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution without padding, as one product over windows.

    x: [batch, time + kernel − 1, in]; weight: [out, in, kernel]  →  [batch, time, out]
    """
    if torch.is_grad_enabled():
        return conv1d(x.transpose(1, 2), weight, bias).transpose(1, 2)
    out, channels, kernel = weight.shape
    batch, length = x.shape[:2]
    time = length - kernel + 1
    windows = x.contiguous().as_strided((batch, time, kernel * channels), (length * channels, channels, 1))
    product = linear(windows.reshape(-1, kernel * channels), weight.permute(0, 2, 1).reshape(out, -1), bias)
    return product.view(batch, time, out)


def lay_for_windows(conv: nn.Conv1d) -> None:
    """Order a convolution's weights as `convolve` reads them."""
    if conv.weight.is_inference():
        return
    with torch.inference_mode(False), torch.no_grad():
        conv.weight.data = conv.weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)


def _adjacent(weights: Sequence[Tensor]) -> bool:
    first, size = weights[0], weights[0].numel()
    memory = first.untyped_storage().data_ptr()
    return all(
        weight.is_contiguous()
        and weight.untyped_storage().data_ptr() == memory
        and weight.storage_offset() == first.storage_offset() + place * size
        for place, weight in enumerate(weights)
    )
