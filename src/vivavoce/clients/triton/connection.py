"""A connection to Triton's gRPC interface, for one event loop.

The messages are those of `tritonclient`; its own asynchronous client cannot ask for the final response, without which
the end of a stream that closes with an empty one is not seen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np

from vivavoce.clients.triton.failures import ServerRefused, refused, too_late, unreachable
from vivavoce.clients.triton.model import WAVEFORM, ServedModel, served_model
from vivavoce.clients.triton.statistics import Statistics, parse_statistics
from vivavoce.clients.triton.tensors import Samples, Tensor
from vivavoce.errors import InvalidRequest, MissingDependency, ModelNotFound, VivavoceError

_FINAL = "triton_final_response"
_WANT_FINAL = "triton_enable_empty_final_response"
_LARGEST_MESSAGE = 2**31 - 1
_FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}


def require_tritonclient() -> None:
    """`MissingDependency` if there is nothing to speak gRPC with."""
    for package in ("grpc", "google.protobuf", "tritonclient.grpc"):
        try:
            import_module(package)
        except ImportError:
            raise MissingDependency(
                f"client: {package.split('.')[0]} is not installed; pip install 'vivavoce[triton-client]'"
            ) from None


class Connection:
    """An open channel; `async with Connection(address, timeout_s) as connection`."""

    def __init__(self, address: str, timeout_s: float) -> None:
        require_tritonclient()
        self._address = address
        self._timeout_s = timeout_s
        self._grpc: Any = import_module("grpc")
        self._messages: Any = import_module("tritonclient.grpc.service_pb2")
        self._to_dict: Any = import_module("google.protobuf.json_format").MessageToDict
        self._channel: Any = None
        self._stub: Any = None

    async def __aenter__(self) -> Connection:
        limits = [
            ("grpc.max_send_message_length", _LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        ]
        self._channel = self._grpc.aio.insecure_channel(self._address, options=limits)
        self._stub = import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def model(self, name: str) -> ServedModel:
        """A model's configuration.

        Raises:
            ModelNotFound: the server does not serve it.
            ServerUnreachable: nobody answers, or not in time.
            ServerRefused: the server answers with an error, or the model gives no audio.
        """
        answer = await self._call(self._stub.ModelConfig, self._messages.ModelConfigRequest(name=name), name)
        return served_model(self._to_dict(answer.config, preserving_proto_field_name=True))

    async def statistics(self) -> Statistics:
        """The server's counts of all its models; errors as in `model`."""
        answer = await self._call(self._stub.ModelStatistics, self._messages.ModelStatisticsRequest(), "")
        return parse_statistics(self._to_dict(answer, preserving_proto_field_name=True))

    async def whole(self, model: ServedModel, tensors: Sequence[Tensor], request_id: str) -> Samples:
        """The audio [n] of one request to a model that answers in one piece; errors as in `model`."""
        request = self._request(model, tensors, request_id)
        return self._waveform(await self._call(self._stub.ModelInfer, request, model.name), model)

    async def stream(
        self, model: ServedModel, tensors: Sequence[Tensor], request_id: str
    ) -> AsyncGenerator[Samples, None]:
        """The chunks [n] of one request as they come; closing it, or cancelling, ends the request on the server.

        Errors as in `model`; they may come after chunks.
        """
        request = self._request(model, tensors, request_id)
        request.parameters[_WANT_FINAL].bool_param = True
        call = self._stub.ModelStreamInfer(_once(request), timeout=self._timeout_s)
        ended, problem = False, ""
        try:
            # To the call's own end: a server whose call is cancelled just then keeps the request, and never unloads
            # its model (seen with 2.51).
            async for message in call:
                if message.error_message:
                    problem = problem or message.error_message
                    continue
                samples = self._waveform(message.infer_response, model)
                if len(samples):
                    yield samples
                ended = ended or message.infer_response.parameters[_FINAL].bool_param
            if problem or not ended:
                raise refused(problem or "the stream ended before its final response")
        except self._grpc.aio.AioRpcError as error:
            raise self._explained(error, model.name) from None
        finally:
            call.cancel()

    async def _call(self, method: Callable[..., Awaitable[Any]], request: Any, name: str) -> Any:
        try:
            return await method(request, timeout=self._timeout_s)
        except self._grpc.aio.AioRpcError as error:
            raise self._explained(error, name) from None

    def _request(self, model: ServedModel, tensors: Sequence[Tensor], request_id: str) -> Any:
        request = self._messages.ModelInferRequest(model_name=model.name, id=request_id)
        for tensor in tensors:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(tensor.raw())
        request.outputs.add(name=WAVEFORM)
        return request

    def _waveform(self, response: Any, model: ServedModel) -> Samples:
        if not response.outputs:
            return np.zeros(0, np.float32)  # the empty final response
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == WAVEFORM and output.datatype in _FLOATS:
                samples = np.frombuffer(raw, _FLOATS[output.datatype]).astype(np.float32)
                if not np.isfinite(samples).all():
                    raise refused(f"the model {model.name!r} gave audio with numbers that are not finite; see its log")
                return samples
        raise ServerRefused(f"server: the model {model.name!r} answered without a {WAVEFORM} of floats; see its log")

    def _explained(self, error: Any, name: str) -> VivavoceError:
        codes = self._grpc.StatusCode
        code, words = error.code(), str(error.details() or "")
        if code == codes.NOT_FOUND and name:
            return ModelNotFound(
                f"model: {self._address} does not serve {name!r} ({words}); name one that its log calls READY"
            )
        if code == codes.UNAVAILABLE:
            return unreachable(self._address, words)
        if code == codes.DEADLINE_EXCEEDED:
            return too_late(self._address, self._timeout_s)
        if code == codes.INVALID_ARGUMENT:
            return InvalidRequest(f"server: {words}")
        return refused(words)


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request
