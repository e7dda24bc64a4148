"""Code that the models share: tensors of Triton's Python backend, parameters, inner requests, and an event loop.

`triton_python_backend_utils` exists inside the server only, so it is passed as the argument `backend`. Every request
holds one utterance: its tensors are `[1, n]` if the model batches, else `[n]`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.errors import EngineStopped, InvalidRequest, ModelNotFound, RequestCancelled, StageFailed, VivavoceError
from vivavoce.frontend.model_choice import choose_device
from vivavoce_triton.client.wire import array

log = logging.getLogger(__name__)

T = TypeVar("T")

ASK_EVERY_S = 0.25
"""Seconds between checks whether a client has disconnected. Each check is a message between processes."""
_SWITCHES = {"true": True, "1": True, "false": False, "0": False, "": False}
_CODES = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "NOT_FOUND": "NOT_FOUND",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
    "UNIMPLEMENTED": "UNSUPPORTED",
    "UNAVAILABLE": "UNAVAILABLE",
    "RESOURCE_EXHAUSTED": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
}
"""gRPC status → Triton's error code; the default is INTERNAL."""


class InnerError(Exception):
    """An error of another model on the server. code: Triton's error code."""

    def __init__(self, message: str, code: Any) -> None:
        super().__init__(message)
        self.code = code


def python_model(kind: Any, backend: Any) -> type:
    """Make the class that Triton's Python backend loads, from `kind`, a class with `load`, `execute` and `close`."""

    class TritonPythonModel:
        def initialize(self, args: Mapping[str, str]) -> None:
            self._model = kind.load(Parameters(args), backend)

        def execute(self, requests: Sequence[Any]) -> Any:
            return self._model.execute(requests)

        def finalize(self) -> None:
            self._model.close()

    return TritonPythonModel


class Parameters:
    """The parameters of a config.pbtxt. Empty and missing parameters are ""."""

    def __init__(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._given = {name: str(value["string_value"]) for name, value in config.get("parameters", {}).items()}
        self.model = str(config.get("name", ""))
        self.decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        self.max_batch_size = int(config.get("max_batch_size", 0))

    def __getitem__(self, name: str) -> str:
        return self._given.get(name, "")

    def switch(self, name: str) -> bool:
        word = self[name].strip().lower()
        if word not in _SWITCHES:
            raise InvalidRequest(f"{name}: {self[name]!r} in config.pbtxt is unknown; write true or false")
        return _SWITCHES[word]

    def number(self, name: str, kind: Callable[[str], T], wanted: str) -> T | None:
        """Return the parameter's number, or None if empty. `InvalidRequest`, which asks for `wanted`: not a number."""
        try:
            return kind(self[name]) if self[name] else None
        except ValueError:
            raise InvalidRequest(f"{name}: {self[name]!r} is not a number; give {wanted}") from None

    def path(self, name: str) -> Path | None:
        return Path(self[name]).expanduser() if self[name] else None

    @property
    def model_folder(self) -> Path:
        """The folder in `model_dir`. `ModelNotFound`: it is not a folder."""
        folder = self.path("model_dir")
        if folder is None or not folder.is_dir():
            name = self["model_dir"]
            raise ModelNotFound(f"model_dir: {name!r} is not a folder; fill the template with the folder of the model")
        return folder

    @property
    def device(self) -> torch.device:
        """The device to run on. `InvalidRequest`: the device is unknown, or this machine lacks it."""
        return choose_device(self["device"] or "auto")


class Inputs:
    """Input tensors of one request; a missing tensor is None. A bad tensor raises `InvalidRequest` with its name."""

    def __init__(self, backend: Any, request: Any) -> None:
        self._backend, self.request = backend, request

    def array(self, name: str) -> NDArray[Any] | None:
        tensor = self._backend.get_input_tensor_by_name(self.request, name)
        if tensor is None:
            return None
        values: NDArray[Any] = tensor.as_numpy()
        if values.ndim > 1 and values.shape[0] != 1:
            raise InvalidRequest(f"{name}: a batch of {values.shape[0]} in one request; send one utterance per request")
        return values

    def floats(self, name: str) -> NDArray[np.float32] | None:
        """The tensor as finite numbers, [n] float32."""
        values = self.array(name)
        if values is None:
            return None
        numbers = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        if not np.isfinite(numbers).all():
            raise InvalidRequest(f"{name}: holds a number that is not finite; send numbers only")
        return numbers

    def ids(self, name: str) -> tuple[int, ...] | None:
        values = self.array(name)
        return None if values is None else tuple(values.reshape(-1).tolist())

    def _single(self, name: str) -> Any:
        values = self.array(name)
        if values is None:
            return None
        if values.size != 1:
            raise InvalidRequest(f"{name}: {values.size} values; send one")
        return values.reshape(-1)[0]

    def number(self, name: str) -> float | None:
        value = self._single(name)
        return None if value is None else value.item()

    def text(self, name: str) -> str:
        raw = self._single(name)
        try:
            return raw.decode("utf-8") if isinstance(raw, bytes) else str(raw or "")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{name}: not UTF-8 at byte {error.start}; send UTF-8") from error

    def switch(self, name: str, default: bool = False) -> bool:
        value = self.number(name)
        return default if value is None else bool(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.number(name)
        if value is not None and (not low <= value <= high or value != int(value)):
            raise InvalidRequest(f"{name}: {value} is outside of {low} … {high}; choose a whole number inside")
        return None if value is None else int(value)

    def real(self, name: str, low: float, high: float) -> float | None:
        value = self.number(name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name}: {value:g} is outside of {low:g} … {high:g}; choose a number inside")
        return value


def check_present(left: Callable[[], bool]) -> None:
    if left():
        raise RequestCancelled("request: its client has disconnected")


def answer(backend: Any, **tensors: NDArray[Any]) -> Any:
    return backend.InferenceResponse(output_tensors=[backend.Tensor(name, value) for name, value in tensors.items()])


def refusal(backend: Any, error: Exception) -> Any:
    """Make an error response. Unexpected errors are logged with their traceback."""
    if isinstance(error, InnerError):
        return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(str(error), error.code))
    if isinstance(error, VivavoceError):
        message, code = str(error), _CODES.get(error.grpc_status, "INTERNAL")
    else:
        log.error("request failed", exc_info=error)
        message, code = f"internal error: {type(error).__name__}: {error}", "INTERNAL"
    # Older servers lack some of these error codes.
    number = getattr(backend.TritonError, code, backend.TritonError.INTERNAL)
    return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(message, number))


def answered(backend: Any, name: str, work: Callable[[], NDArray[Any]]) -> Any:
    """Make a response from the result of `work` (an array without batch dimension), or from its error."""
    try:
        return answer(backend, **{name: work()[None]})
    except Exception as error:
        return refusal(backend, error)


def end(backend: Any, sender: Any, error: Exception | None = None) -> None:
    """End a stream, with an error if one is given.

    The error's traceback is dropped, because its frames keep requests and senders alive, which keep the model loaded.
    """
    response = () if error is None else (refusal(backend, error),)
    try:
        sender.send(*response, flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception:
        log.exception("end not sent: the end of a stream could not be sent")
    if error is not None:
        traceback.clear_frames(error.__traceback__)


def inner_request(backend: Any, model: str, outputs: Sequence[str], values: Mapping[str, Any], name: str = "") -> Any:
    """Make a request to another model of the server. values: tensors without batch dimension; name: the request id."""
    inputs = [backend.Tensor(tensor, array(tensor, value)[None]) for tensor, value in values.items()]
    return backend.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs, request_id=name
    )


def checked(response: Any) -> Any:
    """Return the response; `InnerError`: the inner model failed."""
    if response.has_error():
        error = response.error()
        raise InnerError(error.message(), error.code())
    return response


def output(backend: Any, response: Any, name: str) -> NDArray[Any] | None:
    """Copy an output without the batch dimension; None if it is not in the response."""
    tensor = backend.get_output_tensor_by_name(response, name)
    return None if tensor is None else np.array(tensor.as_numpy()[0])


def ask_inner(backend: Any, model: str, name: str, values: Mapping[str, Any], request_id: str = "") -> NDArray[Any]:
    """Request the only output of another model. `InnerError`: the model refused the request or failed."""
    found = output(backend, checked(inner_request(backend, model, (name,), values, request_id).exec()), name)
    if found is None:
        raise StageFailed(f"{model}: sent no output {name}; see its log")
    return found


class AsyncModel:
    """A model that serves all requests on one event loop in a thread. Subclasses implement `answers`.

    If decoupled, `execute` returns at once and responses are streamed. Otherwise `execute` waits and returns them.
    """

    def __init__(self, backend: Any, name: str, *, decoupled: bool) -> None:
        self._backend, self._decoupled = backend, decoupled
        self._streams: set[Future[None]] = set()
        self._askers = ThreadPoolExecutor(2, f"{name}-presence")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def answers(self, request: Any, left: Callable[[], bool]) -> AsyncGenerator[tuple[Any, bool], None]:
        """Yield (response, whether it is the last): once if not decoupled. left: whether the client disconnected."""
        raise NotImplementedError

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if not self._decoupled:
            return [one.result() for one in [self._run(self._whole(request)) for request in requests]]
        for request in requests:
            running = self._run(self._stream(request, request.get_response_sender()))
            self._streams.add(running)
            running.add_done_callback(self._streams.discard)
        return None

    def close(self) -> None:
        """Cancel and await all running requests."""
        self._run(_cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._askers.shutdown()

    @asynccontextmanager
    async def watched(self, left: Callable[[], bool], give_up: Callable[[], None]) -> AsyncIterator[None]:
        """Inside the block, poll `left`, because the server has no callback. When `left` is true, call `give_up`."""
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                if await asyncio.get_running_loop().run_in_executor(self._askers, left):
                    give_up()
                    return
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), ASK_EVERY_S)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            over.set()
            await watching

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _whole(self, request: Any) -> Any:
        try:
            async with aclosing(self.answers(request, request.is_cancelled)) as answers:
                return (await anext(answers))[0]
        except Exception as error:
            return refusal(self._backend, error)

    async def _stream(self, request: Any, sender: Any) -> None:
        last, final = False, self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            async with aclosing(self.answers(request, sender.is_cancelled)) as answers:
                async for response, last in answers:
                    sender.send(response, flags=final if last else 0)
        except asyncio.CancelledError:
            words = "server: the model is being unloaded; send the request again"
            end(self._backend, sender, EngineStopped(words))
        except Exception as error:
            end(self._backend, sender, error)
        else:
            if not last:
                end(self._backend, sender)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
