"""Writes torch layers as an ONNX graph, with the weights in float16.

The graph computes in float32: a Cast node converts each weight, and ONNX Runtime does this once when it loads the file.
The graph computes the same as a torch module whose weights `round_to_half` has rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce_runtimes.onnx_writer import FLOAT, Port, node, onnx_model


@torch.no_grad()
def round_to_half(module: nn.Module) -> None:
    """Round all parameters in place to values of float16; their dtype stays float32."""
    for parameter in module.parameters():
        parameter.copy_(parameter.half().float())


class Graph:
    """Builds a graph of operators; methods take and return the names of values."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: dict[str, NDArray[np.generic]] = {}

    def op(self, operator: str, *inputs: str, output: str | None = None, **attributes: int | list[int]) -> str:
        """Add an operator; its output is named `output`, or gets a new name."""
        output = output or f"value{len(self._nodes)}"
        self._nodes.append(node(operator, inputs, output, **attributes))
        return output

    def constant(self, value: Sequence[float] | NDArray[np.generic] | float | int, dtype: str = "float32") -> str:
        """Add a constant of any shape: float32, int32 or int64."""
        return self._keep(np.asarray(value, dtype))

    def weight(self, tensor: Tensor) -> str:
        """Add a weight, stored in float16 and cast to float32."""
        stored = self._keep(tensor.detach().cpu().half().numpy())
        return self.op("Cast", stored, to=FLOAT)

    def linear(self, x: str, layer: nn.Linear) -> str:
        """Add a linear layer. x: [.., inputs]  →  [.., outputs]."""
        product = self.op("MatMul", x, self.weight(layer.weight.T))
        return product if layer.bias is None else self.op("Add", product, self.weight(layer.bias))

    def conv(self, x: str, layer: nn.Conv1d) -> str:
        """Add a convolution. x: [1, inputs, time], padded with zeros at both ends  →  [1, outputs, time / stride]."""
        assert not isinstance(layer.padding, str)
        (stride,), (dilation,), (padding,) = layer.stride, layer.dilation, layer.padding
        weights = [self.weight(layer.weight)] + ([] if layer.bias is None else [self.weight(layer.bias)])
        return self.op(
            "Conv", x, *weights, strides=[stride], dilations=[dilation], pads=[padding, padding], group=layer.groups
        )

    def layer_norm(self, x: str, layer: nn.LayerNorm) -> str:
        """Add a normalisation of x [1, time, size] over its last dimension."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[2]))
        variance = self.op("ReduceMean", self.op("Mul", centred, centred), axes=[2])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(layer.eps)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.weight(layer.weight))
        return self.op("Add", scaled, self.weight(layer.bias))

    def gelu(self, x: str) -> str:
        """Add the exact GELU, x · Φ(x) (arXiv:1606.08415)."""
        error = self.op("Erf", self.op("Mul", x, self.constant(math.sqrt(0.5))))
        doubled = self.op("Mul", x, self.op("Add", error, self.constant(1.0)))
        return self.op("Mul", doubled, self.constant(0.5))

    def swap(self, x: str) -> str:
        """Swap the last two dimensions: [1, a, b]  →  [1, b, a]."""
        return self.op("Transpose", x, perm=[0, 2, 1])

    def model(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> bytes:
        return onnx_model(self._nodes, self._constants, inputs, outputs)

    def _keep(self, array: NDArray[np.generic]) -> str:
        name = f"constant{len(self._constants)}"
        self._constants[name] = array
        return name
