"""Stands in for `triton_python_backend_utils`, which exists inside the server only (shaped as in its release 24.10).

`FakeBackend` is what models are handed, and what `sys.modules["triton_python_backend_utils"]` may be set to. Requests
between models go to `models`, by name: callables that take the request and give a response, or, where the model is
decoupled, an iterable of them, which is read only as far as its caller reads (`unary` and `sending` make such of a
model of ours).
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

PATIENCE_S = 50.0
"""How long a test waits for what must come; only a failing one waits so long."""
RESPONSE_COMPLETE_FINAL = 1
Served = Callable[["InferenceRequest"], Any]
"""A model: a request's response, or its responses."""


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
            raw = [one.encode() if isinstance(one, str) else bytes(one) for one in array.reshape(-1)]
            array = np.array(raw, dtype=object).reshape(array.shape)
        elif array.dtype.kind not in "fiub":
            raise TritonModelException(f"{name}: the backend has no tensors of {array.dtype}")
        self._name, self._array = name, np.ascontiguousarray(array)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    """Output tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        if not all(isinstance(tensor, Tensor) for tensor in output_tensors):
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
            raise TritonModelException("Inference Response object must be provided when the flags are zero.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("what is sent is an InferenceResponse")
        if response is not None and self._outputs:
            assert {tensor.name() for tensor in response.output_tensors()} <= set(self._outputs)
        self._closed = bool(flags & RESPONSE_COMPLETE_FINAL)
        self.sent.put((response, flags))

    def is_cancelled(self) -> bool:
        return self._left.is_set()


class Responses(Iterator[InferenceResponse]):
    """Responses of a decoupled inner request, each waited for when it is asked for; cancel: known from 25.04 on."""

    def __init__(self, responses: Iterable[InferenceResponse], cancel: Callable[[], None] | None) -> None:
        self._responses = iter(responses)
        if cancel is not None:
            self.cancel = cancel

    def __next__(self) -> InferenceResponse:
        return next(self._responses)


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
    ) -> None:
        if not all(isinstance(tensor, Tensor) for tensor in inputs):
            raise TypeError("a request is of tensors")
        self._backend, self._inputs = backend, list(inputs)
        self._outputs, self._name, self._id = list(requested_output_names), model_name, request_id
        self._left = threading.Event()
        self._sender = ResponseSender(self._left, self._outputs)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def model_name(self) -> str:
        return self._name

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def get_response_sender(self) -> ResponseSender:
        return self._sender

    def is_cancelled(self) -> bool:
        return self._left.is_set()

    def exec(self, decoupled: bool = False) -> Any:
        served = self._backend.models.get(self._name)
        if served is None:
            words = f"Failed for execute the inference request. Model '{self._name}' is not ready."
            answer = InferenceResponse(error=TritonError(words))
        else:
            self._backend.asked.append(self)
            answer = served(self)
        if decoupled:
            responses = [answer] if isinstance(answer, InferenceResponse) else answer
            return Responses(responses, self.leave if self._backend.inner_cancel else None)
        if not isinstance(answer, InferenceResponse):
            raise TritonModelException(f"model '{self._name}' is decoupled: use exec(decoupled=True)")
        if answer.has_error() or not self._outputs:
            return answer
        return InferenceResponse([tensor for tensor in answer.output_tensors() if tensor.name() in self._outputs])

    def leave(self) -> None:
        """For tests: whoever made the request goes away."""
        self._left.set()

    def answers(self) -> Iterator[InferenceResponse]:
        """For tests: what a decoupled model sends, until it says that it was all; a final flag alone gives nothing."""
        flags = 0
        while not flags & RESPONSE_COMPLETE_FINAL:
            response, flags = self._sender.sent.get(timeout=PATIENCE_S)
            if response is not None:
                yield response


class FakeBackend:
    """The module. inner_cancel: inner decoupled requests can be cancelled, which servers before 25.04 do not know."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = RESPONSE_COMPLETE_FINAL
    Tensor, InferenceResponse, TritonError = Tensor, InferenceResponse, TritonError

    def __init__(self, models: Mapping[str, Served] | None = None, *, inner_cancel: bool = False) -> None:
        self.models: dict[str, Served] = dict(models or {})
        self.asked: list[InferenceRequest] = []
        """Inner requests that reached a model, in order."""
        self.inner_cancel = inner_cancel

    def InferenceRequest(self, **given: Any) -> InferenceRequest:  # noqa: N802 (the backend's name)
        return InferenceRequest(self, **given)

    @staticmethod
    def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
        return next((tensor for tensor in request.inputs() if tensor.name() == name), None)

    @staticmethod
    def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
        return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)

    def request(self, request_id: str = "", /, *, model_name: str = "model", **tensors: np.ndarray) -> InferenceRequest:
        """For tests: what a client sends."""
        inputs = [Tensor(name, array) for name, array in tensors.items()]
        return self.InferenceRequest(
            inputs=inputs, requested_output_names=(), model_name=model_name, request_id=request_id
        )


def initialize_args(parameters: Mapping[str, str], *, name: str = "model", **config: Any) -> dict[str, str]:
    """What `initialize` is given; config: further entries of config.pbtxt."""
    values = {key: {"string_value": value} for key, value in parameters.items()}
    model_config = {"name": name, "max_batch_size": 16, "parameters": values, **config}
    return {"model_config": json.dumps(model_config), "model_name": name, "model_instance_kind": "CPU"}


def unary(model: Any) -> Served:
    """A model whose `execute` gives one response a request; as in the server, one batch runs at a time."""
    turn = threading.Lock()

    def serve(request: InferenceRequest) -> InferenceResponse:
        with turn:
            return model.execute([request])[0]

    return serve


def sending(model: Any) -> Served:
    """A model whose `execute` gives nothing and sends."""

    def serve(request: InferenceRequest) -> Iterator[InferenceResponse]:
        assert model.execute([request]) is None, "a decoupled model's execute gives nothing"
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
