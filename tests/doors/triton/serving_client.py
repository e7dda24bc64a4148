"""A client of the real server: one stream or one answer, with whatever tensors a test wants to send."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from numpy.typing import NDArray

PATIENCE_S = 120.0
_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "bool": "BOOL", "object": "BYTES"}


def tensor(name: str, value: Any, datatype: str | None = None) -> grpc.InferInput:
    """A value with the batch dimension of one utterance; strings, numbers and arrays."""
    array = np.array([value.encode()], dtype=object) if isinstance(value, str) else np.atleast_1d(np.asarray(value))
    array = array[None]
    made = grpc.InferInput(name, list(array.shape), datatype or _TYPES[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


@dataclass
class Asked:
    """What came of one request so far."""

    answers: queue.Queue[Any]
    ended: bool = False

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """Audio as it comes; an error of the server is raised."""
        while True:
            result, error = self.answers.get(timeout=PATIENCE_S)
            self.ended = error is not None or result.get_response().parameters["triton_final_response"].bool_param
            if error is not None:
                raise error
            samples = result.as_numpy("waveform")
            if samples is not None and samples.size:
                yield samples.reshape(-1)
            if self.ended:
                return


@contextmanager
def stream(url: str, model: str, request_id: str = "", **tensors: Any) -> Iterator[Asked]:
    """One request of a decoupled model; leaving the context leaves the server, finished or not."""
    client = grpc.InferenceServerClient(url)
    asked = Asked(queue.Queue())
    client.start_stream(lambda result, error: asked.answers.put((result, error)))
    try:
        inputs = [tensor(name, value) for name, value in tensors.items()]
        client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)
        yield asked
    finally:
        # The server keeps a request whose call is cancelled in the moment in which it ends; see Connection.stream.
        client.stop_stream(cancel_requests=not asked.ended)
        client.close()


def streamed(url: str, model: str, **tensors: Any) -> NDArray[np.float32]:
    """All audio of one stream."""
    with stream(url, model, **tensors) as asked:
        return np.concatenate(list(asked.chunks()))


def infer(url: str, model: str, tensors: Mapping[str, tuple[Any, str]], output: str) -> NDArray[Any]:
    """One answer of a model that is not decoupled; each tensor with its type."""
    with grpc.InferenceServerClient(url) as client:
        inputs = [tensor(name, value, kind) for name, (value, kind) in tensors.items()]
        found: NDArray[Any] = client.infer(model, inputs, client_timeout=PATIENCE_S).as_numpy(output)
    return found[0]
