"""CosyVoice3's velocity estimator and lookahead over packed rows, which `packed_unet` and `packed_encoder` describe.

Most weights are views of the network's parameters. The modulations of all norms and gates are computed in advance for
each evaluation; those of the gates include the output biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vivavoce.models.flow.dit import NORM_EPS, PER_BLOCK, DiT, DiTBlock, LookaheadEncoder, rotation_of
from vivavoce.models.flow.model import MAX_FRAMES, Flow, FlowSchedule
from vivavoce.models.flow.packed_encoder import EncoderBatch, EncoderCuts, encoder_cuts, windowed
from vivavoce.models.flow.packed_unet import PackedBatch, PackedEstimator
from vivavoce.models.flow.unet import HISTORY_KERNEL
from vivavoce.models.layout import joined
from vivavoce_kernels.common import tile_of
from vivavoce_kernels.encoder_windows import windows_ahead, windows_behind
from vivavoce_kernels.flow_attention import keep_in_pages
from vivavoce_kernels.flow_products import product
from vivavoce_kernels.flow_rows import Modulations, modulated
from vivavoce_kernels.position_conv import grouped_weights, position_conv

NORM_ROWS = 4  # rows of each norm program: few, so that small batches such as a first chunk use the GPU better


class DiTBlockWeights(NamedTuple):
    """Matrices [out, in] and biases [out] of a block; the gates add the biases of `mixed` and `contract`."""

    queries_and_keys: tuple[Tensor, Tensor]
    mixed: Tensor
    expand: tuple[Tensor, Tensor]
    contract: Tensor


class PackedDiT(PackedEstimator):
    @torch.no_grad()
    def __init__(
        self, dit: DiT, schedules: Sequence[FlowSchedule], guidance: float, *, invariant: bool = False
    ) -> None:
        super().__init__(dit, schedules, guidance, invariant=invariant)
        config = dit.config
        for size in (config.in_channels, config.out_channels, config.size, config.head_dim):
            tile_of(size, 16)
        blocks = [cast(DiTBlock, block) for block in dit.blocks]
        first, condition, mu, speaker = dit.input.weight.chunk(4, dim=1)
        self._input = torch.cat((first, mu, speaker, condition), dim=1), dit.input.bias
        self._convs = [
            grouped_weights(cast(nn.Conv1d, conv), index * config.size)
            for index, conv in enumerate(dit.position_conv.convs)
        ]
        self._blocks = [_block(block) for block in blocks]
        self._velocity = dit.out.weight, dit.out.bias
        self._norms, self._gates = _modulations(blocks, [bias for one in schedules for bias in one.biases])
        positions = torch.arange(MAX_FRAMES, device=dit.out.weight.device)
        self._rotation = torch.cat(rotation_of(positions, config.head_dim), dim=1)

    def velocity(self, batch: PackedBatch) -> Tensor:
        cuts, tables = self.cuts(len(batch.x)), batch.tables
        cut, times = cuts.products, Modulations(self._norms, self._gates, batch.step)
        in_rows = ((tables.row, tables.local, tables.length), tables.first, batch.tails, cuts.conv)
        in_pages = (batch.keys, tables, batch.kept_at)

        def normal(added: Tensor | None, norm: int) -> Tensor:
            return modulated(x, None if added is None else (added, norm - 1), times, norm, NORM_EPS, NORM_ROWS)

        start = product(batch.features, *self._input, cut)
        x = position_conv(position_conv(start, self._convs[0], *in_rows), self._convs[1], *in_rows, start)
        h = normal(None, 0)
        for site, block in enumerate(self._blocks):
            products = product(h, *block.queries_and_keys, cut)
            keep_in_pages(products, *in_pages, site, self._rotation)
            mixed = self._attend(products, *in_pages, site, cuts.attention)
            h = normal(product(mixed, block.mixed, None, cut), 2 * site + 1)
            wide = product(h, *block.expand, cut, gelu="tanh")
            h = normal(product(wide, block.contract, None, cut), 2 * site + 2)
        return product(h, *self._velocity, cut)


def _block(block: DiTBlock) -> DiTBlockWeights:
    attention, feed_forward = block.attention, block.feed_forward
    parts = (attention.query, attention.key, attention.value)
    return DiTBlockWeights(
        (joined([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        attention.out.weight,
        (feed_forward.expand.weight, feed_forward.expand.bias),
        feed_forward.contract.weight,
    )


def _modulations(blocks: list[DiTBlock], by_evaluation: list[Tensor]) -> tuple[Tensor, Tensor]:
    times = torch.stack(by_evaluation).float().flatten(2)
    by_block, (scale, shift) = times[:, :-2].unflatten(1, (-1, 2, PER_BLOCK // 2)), times[:, -2:].unbind(1)
    shifts, scales, gates = by_block.flatten(1, 2).unbind(2)
    biases = torch.stack(
        [bias.float() for one in blocks for bias in (one.attention.out.bias, one.feed_forward.contract.bias)]
    )
    norms = torch.stack(
        (1 + torch.cat((scales, scale[:, None]), dim=1), torch.cat((shifts, shift[:, None]), dim=1)), dim=2
    )
    return norms.contiguous(), torch.stack((gates, gates * biases), dim=2).contiguous()


class PackedLookahead:
    def __init__(self, flow: Flow, *, invariant: bool = False) -> None:
        encoder, self._table = flow.encoder, flow.token_embedding.weight
        assert isinstance(encoder, LookaheadEncoder)
        for size in (encoder.config.input_size, encoder.config.channels):
            tile_of(size, 16)
        ahead, behind, self._invariant = encoder.lookahead_conv, encoder.history_conv, invariant
        assert behind.bias is not None
        self._ahead, self._behind = (windowed(ahead), ahead.bias), (windowed(behind), behind.bias.float())
        self._up = encoder.config.upsampling

    def cuts(self, tokens: int) -> EncoderCuts:
        return encoder_cuts(tokens, invariant=self._invariant)

    def encode(self, batch: EncoderBatch) -> None:
        tables = batch.tables
        cuts, (weight, bias) = self.cuts(len(tables.row)), self._behind
        windows, x = windows_ahead(tables.ids, self._table, bias, cuts.rows)
        heard = product(windows, *self._ahead, cuts.products)
        places, tails = (tables.row, tables.local, tables.length), batch.past[0].tails if batch.past else None
        product(
            windows_behind(heard, places, tails, HISTORY_KERNEL, cuts.rows, leaky=True),
            weight,
            None,
            cuts.products,
            into=x,
        )
        batch.mu.view(len(x), self._up, -1).copy_(x[:, None])
