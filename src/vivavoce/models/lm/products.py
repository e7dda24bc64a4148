"""Matrix products of the decode path: layers' weights joined, and packed where the library is faster with it.

A decode step multiplies a handful of rows with every weight of the model. What limits it is how fast the weights are
read, and how many products there are.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Product = Callable[[Tensor], Tensor]
"""x: [rows, in]  →  [rows, out]."""

PACKED_FOR_ROWS = 8
"""The number of rows that oneDNN lays its packed weights out for; other numbers work, and with the same bits."""
SAFE_ROWS = 8
"""From this number of rows on, every library seen computes a row alike whatever stands beside it."""
_TRIED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 40, 64)


def joined(linears: Sequence[nn.Linear]) -> Product:
    """The outputs of several layers over one input, side by side, as one product.

    Unless weights are packed, the layers' own parameters become views of the joined one: nothing is held twice.
    """
    if _packs(linears[0].weight):
        return _packed(linears)
    weight, bias = shared(linears)

    def plain(x: Tensor) -> Tensor:
        return linear(x, weight, bias)

    return plain


def fewest_rows(products: Sequence[Product], sizes: Sequence[int], device: torch.device, dtype: torch.dtype) -> int:
    """The smallest step of row counts at which a row's result has the same bits as in a large batch: 1, 2, 4 or 8.

    Libraries choose their kernels by the number of rows. Here they are asked, on this machine, with these weights.
    sizes: the input size of each product.
    """
    if device.type != "cpu":
        return SAFE_ROWS
    generator = torch.Generator().manual_seed(0)
    different = set()
    for product, size in zip(products, sizes, strict=True):
        rows = torch.randn(_TRIED_ROWS[-1], size, generator=generator).to(dtype)
        whole = product(rows)
        for count in _TRIED_ROWS:
            if count not in different and not torch.equal(product(rows[:count]), whole[:count]):
                different.add(count)
    fitting = [step for step in (1, 2, 4) if not any(count % step == 0 for count in different)]
    return min(fitting, default=SAFE_ROWS)


def _packed(linears: Sequence[nn.Linear]) -> Product:
    weight = torch.cat([one.weight.detach() for one in linears]).contiguous()
    biases = [one.bias.detach() for one in linears if one.bias is not None]
    bias = torch.cat(biases) if biases else None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)

    def multiply(x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    return multiply


def _packs(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works()


@lru_cache(maxsize=1)
def _packing_works() -> bool:
    """Whether torch's binding of oneDNN's packed products is there and right; it is no public interface."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with torch.inference_mode():
        weight, bias, x = torch.arange(96.0).view(8, 12), torch.arange(8.0), torch.arange(36.0).view(3, 12)
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
            found = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):
            return False
        return torch.equal(found, x @ weight.T + bias)


def shared(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the joined product; the layers' own parameters become views of them.

    Returns [outputs, inputs] and [outputs] (None: no layer has a bias); asked again, it gives the same memory.
    """
    # What the parameters become must be as usable elsewhere as what they were.
    with torch.inference_mode(linears[0].weight.is_inference()), torch.no_grad():
        weight = _as_one([one.weight for one in linears])
        biases = [one.bias for one in linears if one.bias is not None]
        return weight, _as_one(biases) if biases else None


def _as_one(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters one below the other; they become views of it, unless they are already."""
    first = parameters[0]
    if len(parameters) == 1:
        return first.detach()
    shape = (sum(len(one) for one in parameters), *first.shape[1:])
    at = first.storage_offset()
    adjacent = True
    for one in parameters:
        same = one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        adjacent &= same and one.storage_offset() == at and one.is_contiguous()
        at += one.numel()
    if adjacent:
        return first.detach().as_strided(shape, first.stride(), first.storage_offset())
    whole = torch.cat([one.detach() for one in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(one) for one in parameters]), strict=True):
        parameter.data = part
    return whole
