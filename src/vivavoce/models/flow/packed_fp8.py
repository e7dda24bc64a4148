"""A transformer block of the packed estimator whose products read e4m3."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vivavoce.models.flow.packed_weights import BlockWeights, Fp8Matrices
from vivavoce.models.kernels.flow_fp8_norm import shifted_layer_norm_e4m3
from vivavoce.models.kernels.flow_fp8_product import fp8_add, fp8_expand, fp8_product


def fp8_block(x: Tensor, block: BlockWeights, fp8: Fp8Matrices, attend: Callable[[Tensor], Tensor]) -> None:
    """The block over the residual stream, in place; queries, keys, values and the stream keep x's width.

    x: [rows, channels]; attend: products [rows, 3 · inner] → [rows, inner], as the other blocks have it.
    """
    products = fp8_product(shifted_layer_norm_e4m3(x, block.attention_norm), fp8.queries_and_keys, x.dtype)
    fp8_add(x, attend(products), fp8.mixed)
    wide = fp8_expand(shifted_layer_norm_e4m3(x, block.feed_forward_norm), fp8.expand, block.expand_bias)
    fp8_add(x, wide, fp8.contract)
