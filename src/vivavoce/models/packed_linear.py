"""Products with constant weights, which are packed ahead where the library is faster with packed weights."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

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
