"""Networks of the flow that another runtime computes, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from vivavoce.models.flow.unet import VelocityContext


class ExternalEstimator(Protocol):
    """Stands in for `UNet` and `DiT` where rows have no past. out: the network's own last layer; most_rows: rows of a
    batch, of which each is two of the inputs', None: any number.
    """

    out: nn.Linear | nn.Conv1d

    @property
    def most_rows(self) -> int | None: ...

    def time_biases(self, t: Tensor) -> Tensor: ...

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor: ...


class ExternalEncoder(Protocol):
    """Stands in for `TokenEncoder` where rows have no past, for one row at a time; encode: as that one's."""

    @property
    def encode(self) -> Callable[..., Tensor]: ...


class ExternalFlow(NamedTuple):
    """Networks that run outside torch; None: the model's own network is used."""

    estimator: ExternalEstimator | None
    encoder: ExternalEncoder | None
