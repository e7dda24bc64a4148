"""The interface of the flow's velocity estimator in another runtime, with the inputs of the official exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vivavoce.models.flow.unet import VelocityContext
from vivavoce_runtimes.onnx_writer import optional_input


class EstimatorInputs(NamedTuple):
    """All rows with their conditions, then all without; names and order as in the official exports. x, mu, cond: [rows,
    bins, frames]; mask: [rows, 1, frames], 1 within the row's own frames; spks: [rows, bins], all of one dtype; t:
    [rows] float32 (16 bit would distort its sinusoids); attention_ends: [rows, frames] int32, number of the row's first
    frames that each frame sees. Only our exports have this input.
    """

    x: Tensor
    mask: Tensor
    mu: Tensor
    t: Tensor
    spks: Tensor
    cond: Tensor
    attention_ends: Tensor


OFFICIAL_INPUTS, ENDS = EstimatorInputs._fields[:-1], EstimatorInputs._fields[-1]
OUTPUT = "estimator_out"
OPTIONAL_ENDS = optional_input(ENDS, np.full((1, 1), 1 << 30, np.int32))
"""Bytes to append to an ONNX file: a default for `attention_ends`, with which every frame sees its whole row. They are
cut off for TensorRT, which would take this input for a constant."""


@dataclass(eq=False)
class EstimatorRunner:
    """run: contiguous tensors by name → velocity, in any shape of that size, on any device and in any dtype; dtypes: of
    the file's inputs, in its order; most_rows: rows of a batch before guidance doubles them, None: any number.
    """

    run: Callable[[dict[str, Tensor]], Tensor]
    dtypes: Mapping[str, torch.dtype]
    most_rows: int | None = None

    def __call__(self, inputs: EstimatorInputs) -> Tensor:
        """Velocity [rows, bins, frames], device and dtype of `x`; any values past a row's frames."""
        tensors, x = inputs._asdict(), inputs.x
        cast = {name: tensors[name].to(dtype).contiguous() for name, dtype in self.dtypes.items()}
        return self.run(cast).view(x.shape).to(x.device, x.dtype)


class ExportedEstimator:
    """Replaces `UNet` or `DiT` for rows without a past; out: the network's own last layer."""

    def __init__(self, out: nn.Linear | nn.Conv1d, run: EstimatorRunner) -> None:
        self.out, self.run = out, run

    @property
    def most_rows(self) -> int | None:
        return self.run.most_rows

    def time_biases(self, t: Tensor) -> Tensor:
        """Return the times unchanged, because the runtime embeds them. t: [steps]  →  [1, steps, 1, 1]."""
        return t[None, :, None, None]

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """Velocity of whole rows, in which each frame sees its row's first keys; the mask is additive."""
        if context.memory is not None:
            raise ValueError("an exported estimator computes whole rows only")
        rows, frames = features.shape[:2]
        x, mu, speaker, condition = (part.transpose(1, 2) for part in features.chunk(4, dim=-1))
        if context.mask is None:
            ends = torch.full((rows, frames), frames, device=features.device, dtype=torch.int32)
        else:
            ends = (context.mask[:, 0] == 0).sum(dim=-1, dtype=torch.int32).expand(rows, frames)
        # The last frame sees the whole row, and padding has the last frame's mask.
        own = torch.arange(frames, device=features.device) < ends[:, -1:]
        t = context.biases.flatten().float().expand(rows)
        inputs = EstimatorInputs(x, own[:, None].to(x.dtype), mu, t, speaker[..., 0], condition, ends)
        return self.run(inputs).transpose(1, 2)
