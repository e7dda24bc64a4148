"""Stands in for `triton_python_backend_utils`, which exists inside the server only (shaped as in its release 24.10).

`FakeBackend` is what models are handed, and what `sys.modules["triton_python_backend_utils"]` may be set to. Requests
between models go to `models`, by name: callables that take the request and give a response, or, where the model is
decoupled, an iterable of them, which is read only as far as its caller reads (`unary` and `decoupled` make such of a
model of ours).
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

PATIENCE_S = 50.0
"""How long a test waits for what must come; only a failing one waits so long."""

Served = Callable[["InferenceRequest"], Any]
"""A model: a request's response, or its responses."""

RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    """What the backend raises."""


class TritonError:
    """An error of one response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not isinstance(message, str) or not isinstance(code, int):
            raise TypeError(f"message {message!r}, code {code!r}")
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    """A named array; strings arrive as bytes, whatever they were given as."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: {type(array).__name__} is no numpy array")
        if array.dtype.kind in "USO":
            array = np.array([_bytes(one) for one in array.reshape(-1)], dtype=object).reshape(array.shape)
        elif array.dtype.kind not in "fiub":
            raise TritonModelException(f"{name}: the backend has no tensors of {array.dtype}")
        self._name, self._array = name, np.ascontiguousarray(array)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        return True


class InferenceResponse:
    """Output tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        if any(not isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TypeError("a response is of tensors")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("a response's error is a TritonError")
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class PreferredMemory:
    """Where the caller wants outputs of an inner request."""

    def __init__(self, memory_type: int, memory_type_id: int = 0) -> None:
        self.memory_type, self.memory_type_id = memory_type, memory_type_id


class ResponseSender:
    """The way of a decoupled model's responses; it takes none with outputs that were not asked for.

    The real one takes them out, but frees them without holding Python's lock.
    """

    def __init__(self, left: threading.Event, outputs: Sequence[str]) -> None:
        self._left, self._outputs = left, outputs
        self._closed = False
        self.sent: queue.Queue[tuple[InferenceResponse | None, int]] = queue.Queue()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("what is sent is an InferenceResponse")
        if response is not None and self._outputs:
            assert {tensor.name() for tensor in response.output_tensors()} <= set(self._outputs)
        self._closed = bool(flags & RESPONSE_COMPLETE_FINAL)
        self.sent.put((response, flags))

    def is_cancelled(self) -> bool:
        return self._left.is_set()


class ResponseIterator:
    """Responses of a decoupled inner request, each waited for when it is asked for."""

    def __init__(self, responses: Iterable[InferenceResponse]) -> None:
        self._responses = iter(responses)

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        return next(self._responses)


class CancellableIterator(ResponseIterator):
    """As from 25.04 on."""

    def __init__(self, responses: Iterable[InferenceResponse], request: InferenceRequest) -> None:
        super().__init__(responses)
        self._request = request

    def cancel(self) -> None:
        self._request.leave()


class InferenceRequest:
    """A request, as a model gets it and as a model makes it for another. `FakeBackend.InferenceRequest` makes them."""

    def __init__(
        self,
        backend: FakeBackend,
        *,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        request_id: str = "",
        correlation_id: int = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if any(not isinstance(tensor, Tensor) for tensor in inputs):
            raise TypeError("a request is of tensors")
        self._backend, self._inputs = backend, list(inputs)
        self._outputs, self._name, self._id = list(requested_output_names), model_name, request_id
        self._correlation_id, self._version, self._flags, self._timeout = correlation_id, model_version, flags, timeout
        self._parameters = dict(parameters or {})
        self._left = threading.Event()
        self._sender = ResponseSender(self._left, self._outputs)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int:
        return self._correlation_id

    def model_name(self) -> str:
        return self._name

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def timeout(self) -> int:
        return self._timeout

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def get_response_sender(self) -> ResponseSender:
        return self._sender

    def is_cancelled(self) -> bool:
        return self._left.is_set()

    def exec(self, decoupled: bool = False) -> Any:
        served = self._backend.models.get(self._name)
        if served is None:
            error = TritonError(f"Failed for execute the inference request. Model '{self._name}' is not ready.")
            response = InferenceResponse(error=error)
            return self._backend.iterator([response], self) if decoupled else response
        self._backend.asked.append(self)
        answer = served(self)
        if decoupled:
            return self._backend.iterator([answer] if isinstance(answer, InferenceResponse) else answer, self)
        if not isinstance(answer, InferenceResponse):
            raise TritonModelException(f"model '{self._name}' is decoupled: use exec(decoupled=True)")
        return self._backend.only_asked_for(self, answer)

    async def async_exec(self, decoupled: bool = False) -> Any:
        return await asyncio.to_thread(self.exec, decoupled)

    def leave(self) -> None:
        """For tests: whoever made the request goes away."""
        self._left.set()

    def answers(self) -> Iterator[InferenceResponse]:
        """For tests: what a decoupled model sends, until it says that it was all; a final flag alone gives nothing."""
        while True:
            response, flags = self._sender.sent.get(timeout=PATIENCE_S)
            if response is not None:
                yield response
            if flags & RESPONSE_COMPLETE_FINAL:
                return


class FakeBackend:
    """The module.

    Args:
        models: what answers requests between models, by name.
        inner_cancel: whether inner decoupled requests can be cancelled, which servers before 25.04 do not know.
    """

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = RESPONSE_COMPLETE_FINAL
    TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED, TRITONSERVER_MEMORY_GPU = range(3)
    Tensor, InferenceResponse, TritonError = Tensor, InferenceResponse, TritonError
    TritonModelException, PreferredMemory = TritonModelException, PreferredMemory

    def __init__(self, models: Mapping[str, Served] | None = None, *, inner_cancel: bool = False) -> None:
        self.models: dict[str, Served] = dict(models or {})
        self.asked: list[InferenceRequest] = []
        """Inner requests that reached a model, in order."""
        self._inner_cancel = inner_cancel

    def InferenceRequest(self, **given: Any) -> InferenceRequest:  # noqa: N802 (the backend's name)
        return InferenceRequest(self, **given)

    @staticmethod
    def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
        return next((tensor for tensor in request.inputs() if tensor.name() == name), None)

    @staticmethod
    def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
        return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)

    @staticmethod
    def using_decoupled_model_transaction_policy(config: Mapping[str, Any]) -> bool:
        return bool(config.get("model_transaction_policy", {}).get("decoupled", False))

    def request(self, request_id: str = "", /, *, model_name: str = "model", **tensors: np.ndarray) -> InferenceRequest:
        """For tests: what a client sends."""
        inputs = [Tensor(name, array) for name, array in tensors.items()]
        return InferenceRequest(
            self, inputs=inputs, requested_output_names=(), model_name=model_name, request_id=request_id
        )

    def iterator(self, responses: Iterable[InferenceResponse], request: InferenceRequest) -> ResponseIterator:
        return CancellableIterator(responses, request) if self._inner_cancel else ResponseIterator(responses)

    @staticmethod
    def only_asked_for(request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Of the outputs those that were asked for, if any were named."""
        names = request.requested_output_names()
        if response.has_error() or not names:
            return response
        return InferenceResponse([tensor for tensor in response.output_tensors() if tensor.name() in names])


def initialize_args(parameters: Mapping[str, str], *, name: str = "model", **config: Any) -> dict[str, str]:
    """What `initialize` is given; config: further entries of config.pbtxt."""
    values = {key: {"string_value": value} for key, value in parameters.items()}
    model_config = json.dumps({"name": name, "max_batch_size": 16, "parameters": values, **config})
    return {
        "model_config": model_config,
        "model_name": name,
        "model_version": "1",
        "model_instance_name": f"{name}_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_repository": "",
    }


def unary(model: Any) -> Served:
    """A model whose `execute` gives one response a request; as in the server, one batch runs at a time."""
    turn = threading.Lock()

    def serve(request: InferenceRequest) -> InferenceResponse:
        with turn:
            return model.execute([request])[0]

    return serve


def decoupled(model: Any) -> Served:
    """A model whose `execute` gives nothing and sends."""

    def serve(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if model.execute([request]) is not None:
            raise TritonModelException("a decoupled model's execute gives nothing")
        return request.answers()

    return serve


def output(response: InferenceResponse, name: str) -> np.ndarray:
    """An output of a response that must not be an error."""
    if response.has_error():
        raise AssertionError(f"an error where {name} should be: {response.error().message()}")
    found = FakeBackend.get_output_tensor_by_name(response, name)
    assert found is not None, f"no output {name} in {[tensor.name() for tensor in response.output_tensors()]}"
    return found.as_numpy()


def refused(response: InferenceResponse, code: int = TritonError.INVALID_ARG) -> str:
    """The message of a response that must be an error of this code."""
    error = response.error()
    assert error is not None, f"no error: {[tensor.name() for tensor in response.output_tensors()]}"
    assert error.code() == code, f"code {error.code()}: {error.message()}"
    assert "\n" not in error.message()
    return error.message()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
