"""The largest absolute inputs and outputs of a layer's matrices, channel by channel, over the calibration prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""A layer's matrices by Hugging Face's names."""


@dataclass(frozen=True, eq=False)
class LayerRanges:
    """inputs, outputs: by the name of a matrix, [inputs] and [outputs] float32."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def see(self, name: str, given: Tensor, made: Tensor) -> None:
        """Take in what a matrix was given and what it made of it: [..., inputs], [..., outputs]."""
        for largest, values in ((self.inputs, given), (self.outputs, made)):
            seen = values.detach().float().abs().flatten(0, -2).amax(dim=0)
            largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

    @property
    def qkv_output(self) -> Tensor:
        """The largest output of the query, key and value matrices: one number."""
        return torch.cat([self.outputs[name] for name in LINEARS[:3]]).max()

    def saved(self, layer: int) -> dict[str, Tensor]:
        """As a file keeps them: `model.layers.N.NAME.x` and `.y`."""
        sides = ((self.inputs, "x"), (self.outputs, "y"))
        return {f"model.layers.{layer}.{name}.{side}": values[name] for values, side in sides for name in LINEARS}

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], layer: int) -> LayerRanges:
        """The reverse of `saved`. Raises KeyError with the first name that is missing."""
        inputs, outputs = (
            {name: tensors[f"model.layers.{layer}.{name}.{side}"].float() for name in LINEARS} for side in ("x", "y")
        )
        return cls(inputs, outputs)
