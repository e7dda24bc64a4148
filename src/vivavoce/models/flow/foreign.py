"""The flow's velocity estimator in another runtime, with the inputs that the official exports have."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from vivavoce.models.layers import Memory


class EstimatorInputs(NamedTuple):
    """Tensors by the names and in the order of the official exports, of one dtype; a batch has rows with their
    conditions, and then as many without.

    x, mu, cond: [2 · batch, bins, frames]; mask: [2 · batch, 1, frames], 1 where a frame is the row's own; t: [2 ·
    batch]; spks: [2 · batch, bins]; attention_mask: [2 · batch, 1, frames, frames], what is added to attention's
    scores, an input of our exports alone; None: every frame sees all frames of its row.
    """

    x: Tensor
    mask: Tensor
    mu: Tensor
    t: Tensor
    spks: Tensor
    cond: Tensor
    attention_mask: Tensor | None = None


class EstimatorRun(Protocol):
    """Runs the exported estimator."""

    most_rows: int | None
    """Rows of one batch at most; None: any number."""

    def __call__(self, given: EstimatorInputs) -> Tensor:
        """Velocity [2 · batch, bins, frames] on the inputs' device; what stands past a row's frames says nothing."""


class ForeignEstimator:
    """Takes the place of `UNet` and `DiT` where rows have no past.

    out: the network's own last layer, whose device and dtype its neighbours go by; run: what computes.
    """

    def __init__(self, out: nn.Linear | nn.Conv1d, run: EstimatorRun) -> None:
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
        """As `UNet.velocity` of whole rows; biases: of `time_biases`."""
        if memory is not None:
            raise ValueError("an exported estimator computes whole rows only")
        x, mu, speaker, condition = (part.transpose(1, 2) for part in features.chunk(4, dim=-1))
        if mask is None:
            own = features.new_ones(len(features), 1, features.shape[1])
        else:  # a row's last frame sees all of the row, and padding sees as much
            own = (mask[:, :, -1] == 0).to(features.dtype)
        attention = mask if mask is not None and mask.shape[2] > 1 else None
        t = biases.flatten().to(features.dtype).expand(len(features))
        return self.run(EstimatorInputs(x, own, mu, t, speaker[..., 0], condition, attention)).transpose(1, 2)
