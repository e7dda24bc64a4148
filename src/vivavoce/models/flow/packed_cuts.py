"""How the packed estimator's work is cut for the chip, by the size of the batch.

Chosen for one H200 at the released model's size. What a cut changes is speed and the order of sums, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.models.kernels.flow_attention import AttentionTile
from vivavoce.models.kernels.flow_conv import ConvTile
from vivavoce.models.kernels.flow_product import ProductTile


@dataclass(frozen=True)
class ProductTiles:
    """Cuts of the products: queries and keys, attention's output, the feed-forward's two, the velocity."""

    queries_and_keys: ProductTile
    mixed: ProductTile
    expand: ProductTile
    contract: ProductTile
    velocity: ProductTile


@dataclass(frozen=True)
class Cuts:
    """products: None: the library's; dependent: launch kernels while the one before drains."""

    attention: AttentionTile
    conv: ConvTile
    products: ProductTiles | None
    dependent: bool = False


FEW_FRAMES = 384
"""Up to so many packed frames launches and the reading of weights are what takes time."""
MANY_FRAMES = 4096
"""From so many on large tiles fill the chip."""

_FEW = Cuts(
    AttentionTile(16, 4, 3),
    ConvTile(16, 64, 4, 3),
    ProductTiles(
        ProductTile(64, 64, 256, 4, 2),
        ProductTile(64, 32, 128, 4, 3),
        ProductTile(64, 64, 256, 4, 2),
        ProductTile(32, 32, 1024, 4, 2),
        ProductTile(32, 16, 256, 4, 2),
    ),
)
_SOME = Cuts(AttentionTile(64, 4, 3), ConvTile(32, 64, 4, 3), None)
_MANY = Cuts(AttentionTile(64, 4, 3), ConvTile(128, 64, 8, 3), None)
_INVARIANT = Cuts(
    AttentionTile(64, 4, 3),
    ConvTile(64, 64, 8, 3),
    ProductTiles(
        ProductTile(64, 128, 256, 4, 2),
        ProductTile(64, 128, 64, 4, 3),
        ProductTile(64, 128, 256, 4, 2),
        ProductTile(64, 128, 64, 4, 3),
        ProductTile(64, 16, 64, 4, 3),
    ),
)


def cuts_of(frames: int, *, invariant: bool, dependent: bool) -> Cuts:
    """The cut of a batch of so many packed frames.

    invariant: one for all sizes, so that a row computes the same to the bit in any company; dependent: the device
    launches kernels while others drain.
    """
    if invariant:
        return _INVARIANT
    if frames <= FEW_FRAMES:
        return Cuts(_FEW.attention, _FEW.conv, _FEW.products, dependent)
    return _MANY if frames >= MANY_FRAMES else _SOME
