"""The flow's velocity estimator in another runtime, with the inputs that the official exports have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vivavoce.checkpoint.onnx_writer import optional_input
from vivavoce.models.layers import Memory

if TYPE_CHECKING:
    from vivavoce.models.exported.script_encoder import ScriptEncoder


class EstimatorInputs(NamedTuple):
    """Tensors by the names and in the order of the official exports; a batch has its rows with their conditions, and
    then the same without.

    x, mu, cond: [rows, bins, frames]; mask: [rows, 1, frames], 1 where a frame is the row's own; spks: [rows, bins],
    all of one dtype; t: [rows] float32 (in 16 bit its sinusoids would be off); attention_ends: [rows, frames] int32,
    how many frames each one sees, from the row's first on: an input of our exports alone.
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
"""At the end of an ONNX file: where `attention_ends` is not given, every frame sees all of its row. For TensorRT, which
would take it for a constant, it is taken away."""


class EstimatorRunner(Protocol):
    """Runs an exported estimator."""

    most_rows: int | None
    """Rows of a batch at most, each of which is two of the inputs'; None: any number."""

    def __call__(self, given: EstimatorInputs) -> Tensor:
        """Velocity [rows, bins, frames] on the inputs' device; what stands past a row's frames says nothing."""


class ForeignFlow(NamedTuple):
    """What takes the place of the flow's networks; None: the network itself."""

    estimator: ForeignEstimator | None
    encoder: ScriptEncoder | None


class ForeignEstimator:
    """Takes the place of `UNet` and `DiT` where rows have no past.

    out: the network's own last layer, whose device and dtype its neighbours go by; run: what computes.
    """

    def __init__(self, out: nn.Linear | nn.Conv1d, run: EstimatorRunner) -> None:
        self.out, self.run = out, run

    def time_biases(self, t: Tensor) -> Tensor:
        """The time itself: the runtime embeds it. t: [steps]  →  [1, steps, 1, 1]."""
        return t[None, :, None, None]

    def velocity(
        self,
        features: Tensor,
        biases: Tensor,
        mask: Tensor | None,
        memory: Memory | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As `UNet.velocity` of whole rows; biases: of `time_biases`; mask: additive, keys from the first on."""
        if memory is not None:
            raise ValueError("an exported estimator computes whole rows only")
        rows, frames = features.shape[:2]
        x, mu, speaker, condition = (part.transpose(1, 2) for part in features.chunk(4, dim=-1))
        if mask is None:
            ends = torch.full((rows, frames), frames, device=features.device, dtype=torch.int32)
        else:
            ends = (mask[:, 0] == 0).sum(dim=-1, dtype=torch.int32).expand(rows, frames)
        # The last frame sees all of its row, and padding sees as much.
        own = torch.arange(frames, device=features.device) < ends[:, -1:]
        t = biases.flatten().float().expand(rows)
        given = EstimatorInputs(x, own[:, None].to(x.dtype), mu, t, speaker[..., 0], condition, ends)
        return self.run(given).transpose(1, 2)
