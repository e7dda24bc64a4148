"""A U-Net's levels for rows of few new frames: one launch for many layers, a cluster of programs for each row.

A short row is a listener's first chunk. Its layers are so small that ordinary kernels spend their time waiting for one
another. Here the programs of a cluster exchange their results through shared memory, while the weights of the next
layers are being copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vivavoce_kernels.cuda_kernel import Run, Source
from vivavoce_kernels.flow_products import ConvTails, ConvWeights
from vivavoce_kernels.layouts import KEY_TILE, PackedTables

PROGRAMS = 8
"""Number of programs in a cluster."""
HEAD = 64
HIDDEN = 128
"""Number of inner feed-forward channels that one program computes."""
SOURCE = Source("unet_levels", 256)
_UNIT = 16384
_LOG2_E = 1.4426950408889634


class Linear(NamedTuple):
    """weight: [out, in]; bias: [out]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def behind(cls, norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> Linear:
        """Make a layer that includes the weight and bias of the norm before it, for inputs normalised without them."""
        wide, given = weight.float(), 0 if bias is None else bias.float()
        return cls((wide * norm.weight.float()).to(weight.dtype), wide @ norm.bias.float() + given)


class Block(NamedTuple):
    """queries_and_keys: gives values, too; mixed: attention's output layer; expand, contract: feed-forward layers."""

    queries_and_keys: Linear
    mixed: Linear
    expand: Linear
    contract: Linear


class Resnet(NamedTuple):
    """norms: weight and bias of the norm after each convolution."""

    convs: tuple[ConvWeights, ConvWeights]
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    shortcut: Linear


class Level(NamedTuple):
    """resnet: None if the level's input is already the resnet block's result."""

    resnet: Resnet | None
    blocks: Sequence[Block]


class Evaluation(NamedTuple):
    """times: the additive biases of all evaluations and levels [evaluations, levels, 256]; step: [2] int32, the
    evaluation's index in `times`, and its index in its own schedule, by which its part of the pages is found.
    """

    times: Tensor
    step: Tensor


class ShortLevels:
    """Levels of a U-Net with 256 channels and eight heads; either all levels have a resnet block, or none has.

    levels: in their blocks, layers after a norm include the norm's weight and bias (`Linear.behind`). first: number of
    levels before them in the network; every level of the network has the same number of blocks.
    """

    SIZES = (256, 8, HEAD)
    """Channels, heads, and channels of a head."""

    def __init__(self, levels: Sequence[Level], first: int, run: Run) -> None:
        blocks, resnets = [block for one in levels for block in one.blocks], [one.resnet for one in levels]
        weights, biases = zip(*(_of_program(levels, program) for program in range(PROGRAMS)), strict=True)
        self._weights, self._biases = torch.cat(weights), _by_block(biases, len(blocks))
        self._first_tail, self._level_params, self._entry = 0, self._biases, self._biases
        if (resnet := resnets[0]) is None:
            # The input already includes all blocks' output biases. Subtract them, because each block adds its biases.
            self._entry = -torch.stack([b.float() for one in blocks for b in (one.mixed.bias, one.contract.bias)]).sum(
                0
            )
        else:
            self._first_tail = resnet.convs[0].first
            self._level_params = torch.cat([_resnet_params(one) for one in resnets if one is not None])
            firsts = [conv.first for one in resnets if one is not None for conv in one.convs]
            assert firsts == [self._first_tail + 256 * n for n in range(2 * len(levels))]
        self._sizes = len(levels), len(levels[0].blocks), int(resnets[0] is not None)
        self._first, self._site, self._run = first, first * len(levels[0].blocks), run

    def __call__(self, x: Tensor, keys: Tensor, tails: ConvTails, tables: PackedTables, evaluation: Evaluation) -> None:
        """Compute all layers in place. x: [2 · frames, 256]; keys: as in `flow_attention.attend`; tables: all rows
        have at most `SHORT_FRAMES` new frames.
        """
        assert keys.shape[4] == KEY_TILE
        times, step = evaluation
        given = (self._weights, self._biases, self._level_params, self._entry, keys, *tails, times)
        where = (tables.tiles, tables.ends, tables.position, tables.pages, step)
        numbers = (self._site, keys.shape[2], *self._sizes, self._first_tail, tails.before.shape[3], self._first)
        shapes = (times.shape[1], len(tables.row), len(tables.length), tables.pages.shape[1])
        scale = _LOG2_E / HEAD**0.5
        arguments = (x, *given, *where, *numbers, *shapes, ctypes.c_uint64(keys[0].numel()), scale)
        self._run(2 * len(tables.tiles) * PROGRAMS, arguments)


def _in_fragments(weight: Tensor) -> Tensor:
    """Put a weight in the order in which a warp's threads read it: [tiles of 8 outputs, steps of 32 inputs, 256]."""
    out, size = weight.shape
    return weight.reshape(out // 8, 8, size // 32, 4, 4, 2).permute(0, 2, 1, 4, 3, 5).flatten(2)


def _shared(weight: Tensor) -> Tensor:
    """Order a weight for products whose inputs are divided among warps or programs: [groups of 32 outputs, steps, 4
    tiles, 256]. A thread has two columns of each tile; the columns of all four tiles are neighbours in the result.
    """
    weight = weight.reshape(-1, 4, 4, 2, weight.shape[1]).transpose(1, 2).flatten(0, 3)
    return _in_fragments(weight).unflatten(0, (-1, 4)).transpose(1, 2)


def _of_program(levels: Sequence[Level], program: int) -> tuple[Tensor, Tensor]:
    """Return one program's weights, as units of `unet_levels.cu` in the order of use, and its biases of all blocks."""
    weights, biases = [], []
    head, hidden, own = (_span(program, size) for size in (HEAD, HIDDEN, 256 // PROGRAMS))
    for level in levels:
        if level.resnet is not None:
            first, second = (conv.weight[own].flatten(1) for conv in level.resnet.convs)
            parts = [_shared(one).flatten() for one in (first, level.resnet.shortcut.weight[own], second)]
            weights += [*parts, parts[1].new_zeros(_UNIT // 2)]
        for block in level.blocks:
            queries, query_bias = (one.unflatten(0, (3, -1, HEAD)) for one in block.queries_and_keys)
            weights += [_in_fragments(part).flatten() for part in queries[:, program]]
            weights += [
                _shared(block.mixed.weight[:, head]).flatten(),
                _in_fragments(block.expand.weight[hidden]).flatten(),
            ]
            weights.append(_shared(block.contract.weight[:, hidden]).flatten())
            biases += [query_bias[:, program].flatten(), block.expand.bias[hidden]]
            biases += [block.mixed.bias[own], block.contract.bias[own]]
    return torch.cat(weights), torch.cat([bias.float() for bias in biases])


def _by_block(biases: Sequence[Tensor], blocks: int) -> Tensor:
    return torch.stack([of_program.view(blocks, -1) for of_program in biases], dim=1).flatten()


def _resnet_params(resnet: Resnet) -> Tensor:
    """Return all programs' biases and norms of a resnet block, [programs · parameters] float32."""
    own = [(*(conv.bias for conv in resnet.convs), resnet.shortcut.bias)]
    shares = (
        torch.stack([bias.float() for biases in own for bias in biases]).unflatten(1, (PROGRAMS, -1)).transpose(0, 1)
    )
    norms = torch.cat([part.float() for norm in resnet.norms for part in norm]).expand(PROGRAMS, -1)
    return torch.cat((shares.flatten(1), norms), dim=1).flatten()


def _span(number: int, size: int) -> slice:
    return slice(number * size, (number + 1) * size)
