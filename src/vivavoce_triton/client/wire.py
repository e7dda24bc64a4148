"""Names and data types of the models' tensors, and a gRPC client.

The client uses the messages of `tritonclient`, but not its asynchronous client, which cannot request the empty final
response that marks the end of a stream.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, MissingDependency, ModelNotFound, VivavoceError
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.samples import Audio, Samples
from vivavoce.loopback import is_local
from vivavoce_triton.client.report import Statistics, parse_statistics
from vivavoce_triton.client.utterance import Manner, Utterance

WAVEFORM = "waveform"
"""Name of the output tensor with the audio: floats in ±1, [n] or [1, n]."""
_NAMES = {
    "BYTES": "target_text reference_text voice instruct_text reading",
    "BOOL": "finalize stop streaming exclude_input_in_output",
    "INT32": "reference_wav_len prompt_speech_tokens target_speech_tokens token_offset input_ids input_lengths "
    "request_output_len min_length end_id pad_id runtime_top_k output_ids sequence_length batch_index sequence_index",
    "INT64": "seed",
    "UINT64": "random_seed",
    "FP16": "prompt_speech_feat prompt_spk_embedding",
    "FP32": "reference_wav speed waveform mel tts_speech runtime_top_p temperature repetition_penalty embedding_bias",
}
DATATYPES = {name: datatype for datatype, names in _NAMES.items() for name in names.split()}
"""Tensor name → Triton's data type, for all models."""
DTYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "UINT64": "<u8", "BOOL": "|b1"}
"""Triton's data type → NumPy's, little-endian."""
DEFAULT_SAMPLE_RATE = 24_000
REFERENCE_RATE = 16_000

_FINAL = "triton_final_response"
_WANT_FINAL = "triton_enable_empty_final_response"
_LARGEST_MESSAGE = 2**31 - 1


class ServerUnreachable(VivavoceError):
    code = "server_unreachable"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class ServerRefused(VivavoceError):
    code = "server_refused"
    http_status = 502


def unreachable(address: str, why: str) -> ServerUnreachable:
    return ServerUnreachable(f"server: {address} is not available ({why}); check the address and that it is ready")


def refused(words: str) -> ServerRefused:
    return ServerRefused(f"server: {words.strip() or 'it refused without a message; see its log'}")


def not_served(address: str, name: str, words: str) -> ModelNotFound:
    return ModelNotFound(f"model: {address} does not serve {name!r} ({words}); name a model that is READY in its log")


def array(name: str, value: Any) -> NDArray[Any]:
    """Convert numbers to an array with the tensor's data type. A single number becomes [1]."""
    return np.ascontiguousarray(np.atleast_1d(value), dtype=DTYPES[DATATYPES[name]])


def decoded(raw: bytes, datatype: str) -> Samples:
    """Decode a tensor's bytes to audio, [n] float32; `ValueError`: not floats, or not finite."""
    if not datatype.startswith("FP"):
        raise ValueError(f"the audio is of {datatype}, not of floats")
    return finite(np.frombuffer(raw, DTYPES[datatype]).astype(np.float32))


def finite(samples: Samples) -> Samples:
    if not np.isfinite(samples).all():
        raise ValueError("the audio holds numbers that are not finite")
    return samples


def read_reference(source: Path | bytes) -> Samples:
    """Read a recording's path or bytes: [n] float32, mono at 16 kHz. `InvalidAudio`: it cannot be decoded."""
    return at_reference_rate(decode_audio(source))


def at_reference_rate(audio: Audio) -> Samples:
    samples = audio.samples
    if audio.sample_rate != REFERENCE_RATE:
        samples = soxr.resample(samples, audio.sample_rate, REFERENCE_RATE)
    return np.ascontiguousarray(samples, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Tensor:
    """One input tensor. values: numbers [n], or one text; batched: whether its shape has a batch dimension."""

    name: str
    values: NDArray[Any] | str
    batched: bool

    @property
    def datatype(self) -> str:
        return DATATYPES[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """[n], or [1, n] if the model batches."""
        size = 1 if isinstance(self.values, str) else len(self.values)
        return (1, size) if self.batched else (size,)

    def raw(self) -> bytes:
        """The bytes of the tensor: numbers in little-endian order, or UTF-8 text after its length in 4 bytes."""
        if isinstance(self.values, str):
            encoded = self.values.encode("utf-8")
            return struct.pack("<I", len(encoded)) + encoded
        return self.values.tobytes()

    def plain(self) -> list[Any]:
        return [self.values] if isinstance(self.values, str) else list(self.values.tolist())


@dataclass(frozen=True)
class ServedModel:
    """A model on a server. decoupled: it responds in chunks; batched: its tensors have a batch dimension."""

    name: str
    decoupled: bool
    batched: bool
    inputs: frozenset[str]
    sample_rate: int


def served_model(config: Mapping[str, Any]) -> ServedModel:
    """Parse a model's configuration in JSON; numbers may be strings. `ServerRefused`: the model has no waveform."""
    name = str(config.get("name", ""))
    outputs = [str(output.get("name")) for output in config.get("output", ())]
    if WAVEFORM not in outputs:
        raise ServerRefused(
            f"model: {name!r} has the outputs {', '.join(outputs) or 'nothing'}, no {WAVEFORM}; name one that speaks"
        )
    rate = config.get("parameters", {}).get("sample_rate", {}).get("string_value", "")
    return ServedModel(
        name=name,
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        batched=int(config.get("max_batch_size", 0)) > 0,
        inputs=frozenset(str(given.get("name")) for given in config.get("input", ())),
        sample_rate=int(rate) if str(rate).isdigit() and int(rate) > 0 else DEFAULT_SAMPLE_RATE,
    )


def request_tensors(
    utterance: Utterance, manner: Manner, model: ServedModel, reference: Samples | None
) -> Sequence[Tensor]:
    """Make the input tensors of one request. `InvalidRequest`: the model lacks an input.

    reference: [n] float32 in ±1, mono at 16 kHz, or None to send neither a recording nor a transcript.
    """
    values: dict[str, Any] = {"target_text": utterance.text}
    if reference is not None:
        values |= {
            "reference_wav": reference,
            "reference_wav_len": len(reference),
            "reference_text": utterance.reference_text,
        }
    values |= {name: value for name, value in vars(manner).items() if value is not None}
    for name in values:
        if name not in model.inputs:
            raise InvalidRequest(
                f"{name}: the model {model.name!r} takes {', '.join(sorted(model.inputs))}; leave it out, or ask a "
                "model that takes it"
            )
    return [
        Tensor(name, value if isinstance(value, str) else array(name, value), model.batched)
        for name, value in values.items()
    ]


def require_tritonclient() -> None:
    for package in ("grpc", "google.protobuf", "tritonclient.grpc"):
        try:
            import_module(package)
        except ImportError:
            raise MissingDependency(
                f"client: {package.split('.')[0]} is not installed; pip install 'vivavoce[triton-client]'"
            ) from None


class Connection:
    """An open gRPC channel, for one event loop; `async with Connection(address, timeout_s) as connection`."""

    def __init__(self, address: str, timeout_s: float) -> None:
        require_tritonclient()
        self._address, self._timeout_s = address, timeout_s
        self._grpc: Any = import_module("grpc")
        self._messages: Any = import_module("tritonclient.grpc.service_pb2")
        self._to_dict: Any = import_module("google.protobuf.json_format").MessageToDict
        self._channel: Any = None
        self._stub: Any = None

    async def __aenter__(self) -> Connection:
        limits = [(f"grpc.max_{way}_message_length", _LARGEST_MESSAGE) for way in ("send", "receive")]
        limits.append(("grpc.enable_http_proxy", 0 if is_local(self._address) else 1))
        self._channel = self._grpc.aio.insecure_channel(self._address, options=limits)
        self._stub = import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def model(self, name: str) -> ServedModel:
        """Ask for a model's description. `ModelNotFound`; `ServerUnreachable`; `ServerRefused`: error, or no audio."""
        answer = await self._call(self._stub.ModelConfig, self._messages.ModelConfigRequest(name=name), name)
        return served_model(self._to_dict(answer.config, preserving_proto_field_name=True))

    async def statistics(self) -> Statistics:
        answer = await self._call(self._stub.ModelStatistics, self._messages.ModelStatisticsRequest(), "")
        return parse_statistics(self._to_dict(answer, preserving_proto_field_name=True))

    async def speak(
        self, model: ServedModel, tensors: Sequence[Tensor], request_id: str, *, stream: bool = True
    ) -> AsyncGenerator[Samples, None]:
        """Yield the chunks [n], n ≥ 1, of one request as they arrive, or without `stream` one chunk with all audio.

        Closing or cancelling the generator ends the request on the server. Raises `model`'s errors, even after chunks.
        """
        request = self._request(model, tensors, request_id)
        if not stream:
            whole = self._waveform(await self._call(self._stub.ModelInfer, request, model.name), model)
            if len(whole):
                yield whole
            return
        request.parameters[_WANT_FINAL].bool_param = True
        call = self._stub.ModelStreamInfer(_once(request), timeout=self._timeout_s)
        ended, problem = False, ""
        try:
            # Read to the end of the call: if a call is cancelled after its final response, the server (2.51) keeps the
            # request and never unloads its model.
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
            return np.zeros(0, np.float32)  # the final response is empty
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == WAVEFORM and output.datatype.startswith("FP"):
                try:
                    return decoded(raw, output.datatype)
                except ValueError:
                    raise refused(
                        f"the model {model.name!r} gave audio with numbers that are not finite; see its log"
                    ) from None
        raise ServerRefused(f"server: the model {model.name!r} answered without a {WAVEFORM} of floats; see its log")

    def _explained(self, error: Any, name: str) -> VivavoceError:
        codes = self._grpc.StatusCode
        code, words = error.code(), str(error.details() or "")
        if code == codes.NOT_FOUND and name:
            return not_served(self._address, name, words)
        if code == codes.UNAVAILABLE:
            return unreachable(self._address, words)
        if code == codes.DEADLINE_EXCEEDED:
            return ServerUnreachable(
                f"timeout: no whole answer from {self._address} within {self._timeout_s:g} s; allow more, or see what "
                "keeps it busy"
            )
        return InvalidRequest(f"server: {words}") if code == codes.INVALID_ARGUMENT else refused(words)


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request
