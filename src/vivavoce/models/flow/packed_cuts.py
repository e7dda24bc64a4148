"""How the packed estimator's work is cut for the chip, by the size of the batch.

Chosen for one H200 at the released model's size. What a cut changes is speed and the order of sums, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.models.kernels.flow_attention import AttentionTile
from vivavoce.models.kernels.flow_conv import ConvTile
from vivavoce.models.kernels.flow_product import ProductTile


@dataclass(frozen=True)
class Cuts:
    """products: None: the library's."""

    attention: AttentionTile
    conv: ConvTile
    products: ProductTile | None = None


FEW_FRAMES = 512
"""Up to so many packed frames small tiles keep more of the chip at work."""
MANY_FRAMES = 4096
"""From so many on large tiles fill the chip."""

_FEW = Cuts(AttentionTile(64, 4, 3), ConvTile(16, 64, 4, 3))
_SOME = Cuts(AttentionTile(64, 4, 3), ConvTile(32, 64, 4, 3))
_MANY = Cuts(AttentionTile(64, 4, 3), ConvTile(128, 64, 8, 3))
_INVARIANT = Cuts(AttentionTile(64, 4, 3), ConvTile(64, 64, 8, 3), ProductTile(128, 128, 64, 8, 3))


def cuts_of(frames: int, *, invariant: bool) -> Cuts:
    """The cut of a batch of so many packed frames; invariant: one for all sizes, so that a row computes the same to the
    bit in any company.
    """
    if invariant:
        return _INVARIANT
    if frames <= FEW_FRAMES:
        return _FEW
    return _MANY if frames >= MANY_FRAMES else _SOME
