"""Numbers of eight bits in place of sixteen: what an operator may choose, and where it can run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models

_LEAST_CAPABILITY = (8, 9)
"""Compute capability from which on tensor cores multiply e4m3 (Ada, Hopper and later)."""


class LMWeights(str, Enum):
    """What the matrices of the language model's layers are read as."""

    BITS16 = "16bit"
    INT8 = "int8"


class FlowLinear(str, Enum):
    """What the products of the flow's transformer blocks are made of."""

    BITS16 = "16bit"
    FP8 = "fp8"


@dataclass(frozen=True)
class Precision:
    """lm_weights: int8 has a scale for each output; flow_linear: fp8 is e4m3 on both sides of the product."""

    lm_weights: LMWeights = LMWeights.BITS16
    flow_linear: FlowLinear = FlowLinear.BITS16

    @property
    def int8_lm(self) -> bool:
        """The language model reads int8."""
        return self.lm_weights is LMWeights.INT8

    @property
    def fp8_flow(self) -> bool:
        """The flow multiplies e4m3."""
        return self.flow_linear is FlowLinear.FP8


def check_precision(precision: Precision, models: Models, *, kernels: bool) -> None:
    """Refuse what cannot run; kernels: whether the stages run on our own.

    Raises:
        InvalidRequest: eight bits without our kernels, or e4m3 on a device whose tensor cores lack it.
    """
    asked = [name for name, on in (("int8-lm", precision.int8_lm), ("fp8-flow", precision.fp8_flow)) if on]
    if asked and not kernels:
        width = str(models.dtype).removeprefix("torch.")
        raise InvalidRequest(
            f"{asked[0]}: needs kernels of our own, which are not in use on {models.device} in {width}; use a CUDA "
            "device in float16 or bfloat16 with triton installed, or leave it out"
        )
    if precision.fp8_flow and models.device.type == "cuda":
        capability = torch.cuda.get_device_capability(models.device)
        if capability < _LEAST_CAPABILITY:
            has, needs = (".".join(map(str, one)) for one in (capability, _LEAST_CAPABILITY))
            raise InvalidRequest(
                f"fp8-flow: needs compute capability {needs} or higher, {models.device} has {has}; leave it out"
            )
