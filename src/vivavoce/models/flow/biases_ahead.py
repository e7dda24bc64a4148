"""Output biases of transformer blocks that are added to the residual stream before the first block, all at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivavoce.models.flow.token_encoder import ConformerBlock
from vivavoce.models.flow.unet import TransformerBlock


def biases_ahead(blocks: Sequence[ConformerBlock | TransformerBlock]) -> Tensor:
    """What the stream has too much where each attention and each feed-forward reads it, and behind the last: nothing.

    blocks: at least one, in order, whose attention and feed-forward have output biases  →  [2 · blocks + 1, size]
    float32; the first is what was added.
    """
    biases = [bias.float() for block in blocks for bias in (block.attention.out.bias, block.feed_forward.contract.bias)]
    return torch.stack((*biases, torch.zeros_like(biases[0]))).flip(0).cumsum(0).flip(0)
