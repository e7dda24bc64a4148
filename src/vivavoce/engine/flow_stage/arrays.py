"""A batch's numbers, worked out on the host and copied to the device as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import TokenEncoderConfig
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import SINK
from vivavoce.models.flow.matching import MAX_FRAMES

Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchArrays:
    """What the rows of a batch compute, padded to the longest; all int64.

    tokens: [rows, new tokens and lookahead]; lengths: [rows], tokens of each; past: [rows], tokens before them;
    frames: [new frames of all rows], their places in the noise; lookahead_ends: [rows, new tokens], places in
    `tokens` where the lookahead of each ends, empty if each hears all that there are (the bits of a row may depend on
    which of the two it is); ends: what tokens, the encoder's frames and the
    estimator's frames see, [rows, positions or 1] each, empty if every position sees every key; slots: [2, rows],
    pages beside which tails lie and will lie, empty without state.
    """

    tokens: Array
    lengths: Array
    past: Array
    frames: Array
    lookahead_ends: Array
    ends: tuple[Array, Array, Array]
    slots: Array

    @classmethod
    def of(cls, rows: Sequence[Row], config: TokenEncoderConfig) -> BatchArrays:
        """The numbers of `rows`."""
        up, size, keys = config.upsampling, max(row.new for row in rows), max(row.end for row in rows)
        tokens = np.zeros((len(rows), size + config.lookahead), dtype=np.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row.tokens)] = row.tokens
        past = np.array([row.past for row in rows])
        frames = past[:, None] * up + np.arange(size * up)
        slots = [(row.before.slot if row.before else SINK, row.after.slot) for row in rows if row.after]
        return cls(
            tokens,
            np.array([len(row.tokens) for row in rows]),
            past,
            np.minimum(frames, MAX_FRAMES - 1).ravel(),
            _lookahead_ends(rows, size, config.lookahead),
            (
                _ends([row.sight.tokens for row in rows], size, keys),
                _ends([row.sight.up_frames for row in rows], size * up, keys * up),
                _ends([row.sight.frames for row in rows], size * up, keys * up),
            ),
            np.array(slots, dtype=np.int64).reshape(-1, 2).T,
        )


def upload(arrays: Iterable[NDArray[Any]], device: torch.device, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    """The arrays on the device, integers of this width, in one copy that the host does not wait for."""
    arrays = list(arrays)
    sizes = [array.size for array in arrays]
    # Only from pinned memory is a copy asynchronous.
    staged = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate([array.ravel() for array in arrays], out=staged.numpy(), casting="same_kind")
    whole = staged.to(device, non_blocking=True)
    return [part.view(array.shape) for part, array in zip(torch.split(whole, sizes), arrays, strict=True)]


def _lookahead_ends(rows: Sequence[Row], size: int, lookahead: int) -> Array:
    if not any(row.cuts_lookahead(lookahead) for row in rows):
        return np.zeros(0, dtype=np.int64)
    return np.stack([np.pad(row.sight.lookahead_ends - row.past, (0, size - row.new), mode="edge") for row in rows])


def _ends(rows: Sequence[Array], size: int, keys: int) -> Array:
    if all(len(ends) == size and (ends == keys).all() for ends in rows):
        return np.zeros(0, dtype=np.int64)
    if all((ends == ends[-1]).all() for ends in rows):
        return np.array([[ends[-1]] for ends in rows])
    # Positions of padding see what the row's last one sees: a query that sees nothing would answer NaN.
    return np.stack([np.pad(ends, (0, size - len(ends)), mode="edge") for ends in rows])
