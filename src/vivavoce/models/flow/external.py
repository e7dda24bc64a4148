"""Interfaces for flow networks that run in another runtime, not in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from vivavoce.models.flow.unet import VelocityContext


class ExternalEstimator(Protocol):
    """Replaces `UNet` or `DiT` for rows without cached state. out: the last layer of the torch network. most_rows:
    maximum number of rows in a batch, before guidance doubles them; None if there is no limit."""

    out: nn.Linear | nn.Conv1d

    @property
    def most_rows(self) -> int | None: ...

    def time_biases(self, t: Tensor) -> Tensor: ...

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor: ...


class ExternalEncoder(Protocol):
    """Replaces `TokenEncoder` for single rows without cached state; `encode` has the same arguments."""

    @property
    def encode(self) -> Callable[..., Tensor]: ...


class ExternalFlow(NamedTuple):
    """Networks that run outside torch; where a field is None, the torch network is used."""

    estimator: ExternalEstimator | None
    encoder: ExternalEncoder | None
