"""How the packed token encoder's work is cut for the chip, by the size of the batch.

What a cut changes is speed and the order of sums, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.models.kernels.encoder_attention import RelativeTile
from vivavoce.models.kernels.flow_product import ProductTile


@dataclass(frozen=True)
class EncoderCuts:
    """rows: of a program that takes whole rows; products: None: the library's."""

    attention: RelativeTile
    rows: int
    products: ProductTile | None = None


FEW_TOKENS = 256
"""Up to so many packed tokens small tiles keep more of the chip at work."""

_FEW = EncoderCuts(RelativeTile(16, 4, 3), 4)
_MANY = EncoderCuts(RelativeTile(64, 8, 3), 4)
_INVARIANT = EncoderCuts(RelativeTile(64, 8, 3), 4, ProductTile(64, 128, 64, 4, 3))


def encoder_cuts(tokens: int, *, invariant: bool) -> EncoderCuts:
    """The cut of a batch of so many packed tokens; invariant: one for all sizes, so that a row computes the same to the
    bit in any company.
    """
    if invariant:
        return _INVARIANT
    return _FEW if tokens <= FEW_TOKENS else _MANY
