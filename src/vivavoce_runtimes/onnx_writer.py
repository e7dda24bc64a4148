"""Writes a few operators as an ONNX file, without the onnx package: just enough for small models.

ONNX is protobuf (onnx/onnx.proto). A message is a series of fields: key (number · 8 + wire type), then value. Two
wire types occur here: 0, a variable-length integer of 7 bits per byte, and 2, a length followed by bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOAT, INT32, INT64, FLOAT16 = 1, 6, 7, 10

IR_VERSION = 8
OPSET = 13

_DATA_TYPES = {"float32": FLOAT, "float16": FLOAT16, "int32": INT32, "int64": INT64}
_ATTRIBUTE_INT, _ATTRIBUTE_INTS = 2, 7


@dataclass(frozen=True)
class Port:
    name: str
    data_type: int
    shape: tuple[int | str, ...]


def node(operator: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    body = b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, operator)
    for name, value in attributes.items():
        if isinstance(value, int):
            attribute = _field(1, name) + _field(3, value) + _field(20, _ATTRIBUTE_INT)
        else:
            numbers = b"".join(_field(8, number) for number in value)
            attribute = _field(1, name) + numbers + _field(20, _ATTRIBUTE_INTS)
        body += _field(5, attribute)
    return body


def onnx_model(
    nodes: Sequence[bytes],
    constants: Mapping[str, NDArray[np.generic]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
) -> bytes:
    """Return the bytes of a model file (ModelProto); nodes: results of `node`, in the order of computation."""
    graph = b"".join(_field(1, encoded) for encoded in nodes) + _field(2, "graph")
    graph += b"".join(_constant(name, array) for name, array in constants.items())
    for number, port in [*((11, port) for port in inputs), *((12, port) for port in outputs)]:
        shape = b"".join(_field(1, _field(1 if isinstance(size, int) else 2, size)) for size in port.shape)
        tensor_type = _field(1, port.data_type) + _field(2, shape)
        graph += _field(number, _field(1, port.name) + _field(2, _field(1, tensor_type)))
    opset = _field(1, "") + _field(2, OPSET)
    return _field(1, IR_VERSION) + _field(2, "vivavoce") + _field(7, graph) + _field(8, opset)


def optional_input(name: str, value: NDArray[np.generic]) -> bytes:
    """Return bytes that, appended to an ONNX file, give an input a default value.

    This works because protobuf merges concatenated messages.
    """
    return _field(7, _constant(name, value))


def _constant(name: str, array: NDArray[np.generic]) -> bytes:
    sizes = b"".join(_field(1, size) for size in array.shape)
    content = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return _field(5, sizes + _field(2, _DATA_TYPES[str(array.dtype)]) + _field(8, name) + _field(9, content))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    encoded = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(encoded)) + encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
