"""The flow's velocity estimator in another runtime, with the inputs that the official exports have."""

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
    """All rows with their conditions, then all without; names and order are the official exports'. x, mu, cond: [rows,
    bins, frames]; mask: [rows, 1, frames], 1 where a frame is the row's own; spks: [rows, bins], all of one dtype; t:
    [rows] float32 (in 16 bit its sinusoids would be off); attention_ends: [rows, frames] int32, how many frames each
    frame sees, from the row's first on. Only our exports have this input.
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
"""The end of an ONNX file: a default for `attention_ends`, with which every frame sees all of its row. TensorRT would
take this input for a constant, so it is cut off there."""


@dataclass(eq=False)
class EstimatorRunner:
    """run: contiguous tensors by name → velocity, any shape of that size, any device and dtype; dtypes: of the inputs
    that the file has, in its order; most_rows: of a batch, of which each is two of the inputs', None: any.
    """

    run: Callable[[dict[str, Tensor]], Tensor]
    dtypes: Mapping[str, torch.dtype]
    most_rows: int | None = None

    def __call__(self, inputs: EstimatorInputs) -> Tensor:
        """Velocity [rows, bins, frames], device and dtype as `x`; anything past a row's frames."""
        tensors, x = inputs._asdict(), inputs.x
        cast = {name: tensors[name].to(dtype).contiguous() for name, dtype in self.dtypes.items()}
        return self.run(cast).view(x.shape).to(x.device, x.dtype)


class ExportedEstimator:
    """Takes the place of `UNet` and `DiT` where rows have no past; out: the network's own last layer."""

    def __init__(self, out: nn.Linear | nn.Conv1d, run: EstimatorRunner) -> None:
        self.out, self.run = out, run

    @property
    def most_rows(self) -> int | None:
        return self.run.most_rows

    def time_biases(self, t: Tensor) -> Tensor:
        """The time itself, as the runtime embeds it. t: [steps]  →  [1, steps, 1, 1]."""
        return t[None, :, None, None]

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """Whole rows, each frame sees its row's first keys; the mask is additive."""
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
