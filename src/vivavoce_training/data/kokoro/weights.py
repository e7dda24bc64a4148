"""Converts the teacher's weights, an int8 ONNX graph, to the float32 state of `network.Kokoro`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce_training.data.kokoro.network import HARMONICS, Kokoro

_GATES = (0, 2, 3, 1)
"""Reorders an LSTM's gates from ONNX (input, output, forget, cell) to PyTorch (input, forget, cell, output)."""
_INNER = "_(quantized|scale|zero_point|shape)$"


def load_teacher(path: Path) -> Kokoro:
    """Build the network with the weights of an int8 ONNX file, in float32 on the CPU."""
    model = Kokoro()
    model.load_state_dict(_state(path))
    return model.eval().requires_grad_(False)


def _state(path: Path) -> dict[str, Tensor]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    maker = {output: node for node in graph.node for output in node.output}
    user = {name: node for node in graph.node for name in node.input}
    state: dict[str, NDArray[Any]] = {}
    for node in graph.node:
        module = _module(node.name)
        if node.op_type == "DynamicQuantizeLSTM":
            state |= {f"{module}.{name}": value for name, value in _lstm(node, arrays).items()}
        elif node.op_type in ("MatMulInteger", "ConvInteger"):
            weight, bias = _integer(node, arrays, maker, user)
            state[f"{module}.weight"] = weight.T if node.op_type == "MatMulInteger" else weight
            if bias is not None:
                state[f"{module}.bias"] = bias
        elif node.op_type in ("Conv", "ConvTranspose") and "istft" not in node.name:
            state[f"{module}.weight"], state[f"{module}.bias"] = (arrays[name] for name in node.input[1:3])
        elif node.op_type == "MatMul" and "l_linear" in node.name:
            state["decoder.generator.m_source.l_linear.weight"] = arrays[node.input[1]].reshape(1, HARMONICS)
    for name, value in _plain(arrays).items():
        state.setdefault(name, value)
    return {name: torch.from_numpy(np.array(value, np.float32)) for name, value in state.items()}


def _module(node: str) -> str:
    """Name the module that a node computes: /encoder/F0.1/conv1/Conv_quant → predictor.F0.1.conv1."""
    path = ".".join(node.strip("/").split("/")[:-1])
    path = path.removeprefix("decoder.") if path.startswith("decoder.decoder") else path
    path = re.sub(r"^encoder\.(?=(F0|N|F0_proj|N_proj|shared)\b)", "predictor.", path)
    path = re.sub(r"\b(asr_res|cnn\.\d)\.\1\.", r"\1.", path)  # The graph names a Sequential twice.
    path = re.sub(r"\b(query|key|value|dense|ffn|ffn_output)_\d+$", r"\1", path)  # A shared layer's name has a number.
    return path.removeprefix("encoder.")


def _integer(
    node: Any, arrays: dict[str, NDArray[Any]], maker: dict[str, Any], user: dict[str, Any]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return float weight and bias of an integer product. The weight's scale is an input of the Mul node after it."""
    last = user[node.output[0]]
    before = node.output[0]
    while last.op_type != "Mul":
        before, last = last.output[0], user[last.output[0]]
    scale_of_both = next(name for name in last.input if name != before)
    scale = next(arrays[name] for name in maker[scale_of_both].input if name in arrays)
    zero = arrays[node.input[3]] if len(node.input) > 3 else np.zeros((), np.float32)
    weight = (arrays[node.input[1]].astype(np.float32) - zero.astype(np.float32)) * scale
    return weight, arrays.get(scale_of_both.removesuffix("_scale")) if node.op_type == "ConvInteger" else None


def _lstm(node: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Weights and biases of both directions of an LSTM, under PyTorch's names."""
    _, inputs, hiddens, bias, *_, input_scale, input_zero, hidden_scale, hidden_zero = node.input
    found = {}
    for kind, numbers, scale, zero in (
        ("ih", inputs, input_scale, input_zero),
        ("hh", hiddens, hidden_scale, hidden_zero),
    ):
        factor, offset = (_each(arrays[name]) for name in (scale, zero))
        found[kind] = ((arrays[numbers].astype(np.float32) - offset) * factor).transpose(0, 2, 1)
    size = found["hh"].shape[2]
    order = np.concatenate([np.arange(size) + gate * size for gate in _GATES])
    made = {}
    for direction, suffix in enumerate(("", "_reverse")):
        biases = arrays[bias][direction].reshape(2, -1)
        for place, kind in enumerate(("ih", "hh")):
            made[f"weight_{kind}_l0{suffix}"] = found[kind][direction][order]
            made[f"bias_{kind}_l0{suffix}"] = biases[place][order]
    return made


def _each(values: NDArray[Any]) -> NDArray[Any]:
    """Reshape scales or zero points, so that they broadcast to weights [directions, inputs, outputs]."""
    values = values.astype(np.float32)
    return values.reshape(len(values), 1, -1) if values.ndim else values


def _plain(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Weights that the graph stores under the module's name: floats, and embedding tables in int8."""
    found = {}
    zero_of_tables = arrays["encoder.bert.embeddings.word_embeddings.weight_zero_point"]
    for name, value in arrays.items():
        if not name.startswith(("encoder.", "decoder.")) or ".stft." in name:
            continue
        if re.search(_INNER, name):
            if not re.search(r"embeddings?\.weight_quantized$", name):
                continue
            name = name.removesuffix("_quantized")
            zero = arrays.get(f"{name}_zero_point", zero_of_tables).astype(np.float32)
            value = (value.astype(np.float32) - zero) * arrays[f"{name}_scale"]
        own = name.removeprefix("decoder.") if name.startswith("decoder.decoder.") else name.removeprefix("encoder.")
        found[own] = np.atleast_1d(value)
    return found
