"""Matrices in eight bits: whole numbers, or floating-point ones, and a scale for each output.

Both ways are symmetric, and the scale belongs to a whole row [inputs]: it comes out of the sum, so a product applies
it once, to what it has added up. Arithmetic that reads eight bits: "FP8 Formats for Deep Learning" (arXiv:2209.05433);
rows with scales of their own: "LLM.int8()" (arXiv:2208.07339).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_LARGEST, INT8_LARGEST = 448.0, 127.0
LEAST = 1e-30
"""Takes the place of the largest number in a row of zeros."""
GROUP = 128
"""Channels at most that share a scale where rows are made in pieces."""


@dataclass(frozen=True, eq=False)
class EightBits:
    """values: [outputs, inputs] int8 or float8_e4m3fn, contiguous; scales: [outputs] float32; the matrix is about
    values · scales[:, None].
    """

    values: Tensor
    scales: Tensor

    def widened(self) -> Tensor:
        """The matrix that is meant, [outputs, inputs] float32."""
        return self.values.float() * self.scales[:, None]


@torch.no_grad()
def int8_rows(weight: Tensor) -> EightBits:
    """The nearest whole numbers of −127 … 127; weight: [outputs, inputs]."""
    wide, scales = _scaled(weight, INT8_LARGEST)
    return EightBits(wide.round_().to(torch.int8), scales)


@torch.no_grad()
def e4m3_rows(weight: Tensor) -> EightBits:
    """The nearest numbers of four bits of exponent and three of mantissa; weight: [outputs, inputs]."""
    wide, scales = _scaled(weight, E4M3_LARGEST)
    return EightBits(wide.to(E4M3), scales)


def _scaled(weight: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Each row divided so that its largest number is `largest`, contiguous, and what it was divided by."""
    wide = weight.float()
    scales = wide.abs().amax(1).clamp_(min=LEAST) / largest
    return (wide / scales[:, None]).clamp_(-largest, largest), scales
