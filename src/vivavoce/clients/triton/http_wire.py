"""Bodies of Triton's HTTP interface: JSON, tensors in binary, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.clients.triton.failures import ServerRefused, refused
from vivavoce.clients.triton.model import WAVEFORM
from vivavoce.clients.triton.tensors import Tensor

Samples = NDArray[np.float32]

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that tells how many bytes of a body are JSON; tensors in binary follow."""

_FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_DATA = "data:"


def infer_body(tensors: Sequence[Tensor], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """(body, HTTP headers) of `/v2/models/{model}/infer`."""
    inputs: list[dict[str, Any]] = []
    blocks: list[bytes] = []
    for tensor in tensors:
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
        if binary:
            blocks.append(tensor.raw())
            entry["parameters"] = {"binary_data_size": len(blocks[-1])}
        else:
            entry["data"] = tensor.plain()
        inputs.append(entry)
    outputs = [{"name": WAVEFORM, "parameters": {"binary_data": binary}}]
    header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    if not binary:
        return header, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return b"".join([header, *blocks]), headers


def infer_samples(body: bytes, headers: Mapping[str, str]) -> Samples:
    """The waveform [n] float32 of an answer; `ServerRefused` if it is none."""
    length = headers.get(HEADER_LENGTH)
    try:
        size = len(body) if length is None else int(length)
        answer = json.loads(body[:size])
        output = next(output for output in answer["outputs"] if output["name"] == WAVEFORM)
        if "data" in output:
            return _finite(np.asarray(output["data"], dtype=np.float32).reshape(-1))
        offset = size
        for other in answer["outputs"]:
            if other is output:
                break
            offset += int(other.get("parameters", {}).get("binary_data_size", 0))
        count = int(output["parameters"]["binary_data_size"])
        if offset + count > len(body):
            raise ValueError(f"{count} bytes of audio are promised, {max(0, len(body) - offset)} are there")
        return _finite(np.frombuffer(body[offset : offset + count], _FLOATS[output["datatype"]]).astype(np.float32))
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise _no_answer(error) from None


def generate_body(tensors: Sequence[Tensor]) -> bytes:
    """The body of `/v2/models/{model}/generate_stream`: a value or a list per input, whose shape the server finds."""
    values = {}
    for tensor in tensors:
        plain = tensor.plain()
        values[tensor.name] = plain[0] if isinstance(tensor.values, str) else plain
    return json.dumps(values).encode()


def event_samples(line: str) -> Samples | None:
    """The chunk [n] float32 in one line of server-sent events; None: it holds none.

    Raises:
        ServerRefused: the line tells an error, or is not what such a line should be.
    """
    if not line.startswith(_DATA):
        return None
    try:
        event = json.loads(line[len(_DATA) :])
        if "error" in event:
            raise refused(str(event["error"]))
        if WAVEFORM not in event:
            return None
        return _finite(np.asarray(event[WAVEFORM], dtype=np.float32).reshape(-1))
    except (TypeError, ValueError) as error:
        raise _no_answer(error) from None


def error_words(body: bytes) -> str | None:
    """What Triton says is wrong, in JSON or in an event that holds it; None: the answer is not Triton's."""
    try:
        return str(json.loads(body.strip().removeprefix(_DATA.encode()))["error"])
    except (KeyError, TypeError, ValueError):
        return None


def _finite(samples: Samples) -> Samples:
    if not np.isfinite(samples).all():
        raise ValueError("the audio holds numbers that are not finite")
    return samples


def _no_answer(error: Exception) -> ServerRefused:
    return ServerRefused(
        f"server: its answer cannot be read ({type(error).__name__}: {error}); is it a Triton server with such a model?"
    )
