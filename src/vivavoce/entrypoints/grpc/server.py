"""CosyVoice's gRPC service in the event loop of the server's other entry points.

Its messages and those of gRPC's health check are built at run time, so that no generated code is bound to one protobuf
release. Fields are as in cosyvoice.proto beside this file.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import DeadlineExceeded, InvalidAudio, InvalidRequest, Overloaded, VivavoceError
from vivavoce.service.audio.encoders import wav_header
from vivavoce.service.audio.samples import MAX_REFERENCE_S, to_int16
from vivavoce.service.logs import request_scope
from vivavoce.service.operations.dispatcher import RequestDispatcher
from vivavoce.service.operations.keys import KeyRing, token_in
from vivavoce.service.operations.rate_limiter import Principal
from vivavoce.service.operations.settings import ServerSection
from vivavoce.service.speech import Recording, SpeechRequest

ENTRY_POINT = "grpc"
SERVICE, METHOD = "cosyvoice.CosyVoice", "Inference"
HEALTH_SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
PROMPT_RATE = 16_000
"""Samples per second of `prompt_audio`, which comes without a header."""
MOST_BYTES = int(2 * PROMPT_RATE * MAX_REFERENCE_S) + 240_000
"""Of a request: its recording, and texts of 20,000 characters in UTF-8."""
LEAST_STREAMS = 8
"""Calls of one connection at once, and messages of one caller that are read, whatever `max_conc` says."""
CONNECTION_S, GRACE_S = 3_600, 6 * 3_600
"""After an hour a connection takes no new calls; its last ones have longer than any speech."""
REQUEST_ID, FINISH_REASON, WARNING = "x-request-id", "finish-reason", "x-warning"
ADMISSION = "x-admission-seconds"
"""How long the request took to be taken: its text, its voice, and the wait for room."""
ERROR_CODE = "error-code"
"""`VivavoceError.code`."""
RETRY_AFTER = "retry-after-ms"
"""Milliseconds after which the same request may succeed, only where waiting helps."""
PUSHBACK = "grpc-retry-pushback-ms"
"""The same for gRPC itself: clients whose channel has a retry policy wait that long and try again on their own."""

Metadata = tuple[tuple[str, str], ...]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
"""Of a call whose messages cross as bytes."""
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"

log = logging.getLogger(__name__)


def file_descriptor(name: str, package: str, messages: Mapping[str, str], oneofs: Mapping[str, str]) -> Any:
    """A proto3 file. messages: by name, "type field, …", numbered from 1; oneofs: of messages whose fields are one."""
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        if message_name in oneofs:
            message.oneof_decl.add(name=oneofs[message_name])
        for number, field in enumerate(fields.split(", "), start=1):
            kind, field_name = field.split()
            added = message.field.add(name=field_name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if kind in messages:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if message_name in oneofs:
                added.oneof_index = 0
    return file


def message_classes(file: FileDescriptorProto) -> dict[str, type[Message]]:
    """The classes of a file's messages, by name."""
    pool = DescriptorPool()  # of its own: the process may hold generated code for the same file
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: GetMessageClass(descriptor) for name, descriptor in found.items()}


FILE = file_descriptor(
    "cosyvoice.proto",
    "cosyvoice",
    {
        "Request": "sftRequest sft_request, zeroshotRequest zero_shot_request, "
        "crosslingualRequest cross_lingual_request, instructRequest instruct_request",
        "sftRequest": "string spk_id, string tts_text",
        "zeroshotRequest": "string tts_text, string prompt_text, bytes prompt_audio",
        "crosslingualRequest": "string tts_text, bytes prompt_audio",
        "instructRequest": "string tts_text, string spk_id, string instruct_text",
        "Response": "bytes tts_audio",
    },
    {"Request": "RequestPayload"},
)
_HEALTH = {"HealthCheckRequest": "string service", "HealthCheckResponse": "int32 status"}
"""The status is an enum in the original file; the bytes are the same."""
_CLASSES = {
    **message_classes(FILE),
    **message_classes(file_descriptor("health.proto", "grpc.health.v1", _HEALTH, {})),
}


def _parsed(name: str, content: bytes) -> Any:
    """A message of this name; InvalidRequest where the bytes are not one."""
    message: Any = _CLASSES[name]()
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise InvalidRequest(
            f"request: its {len(content)} bytes are no {message.DESCRIPTOR.full_name}; make it with code from "
            "cosyvoice.proto"
        ) from None
    return message


def _serialized(name: str, **fields: Any) -> bytes:
    content: bytes = _CLASSES[name](**fields).SerializeToString()
    return content


def _speech_request(content: bytes, owner: str) -> SpeechRequest:
    """What a serialised `Request` asks for; InvalidRequest or InvalidAudio: it is malformed, or lacks something."""
    request = _parsed("Request", content)
    kind = request.WhichOneof("RequestPayload")
    if kind is None:
        raise InvalidRequest(
            "request: holds nothing to do; set one of sft_request, zero_shot_request, cross_lingual_request, "
            "instruct_request"
        )
    payload = getattr(request, kind)

    def given(field: str) -> str:
        value: str = getattr(payload, field)
        if not value:
            raise InvalidRequest(f"{field}: is missing; a {payload.DESCRIPTOR.name} needs it")
        return value

    text, mode = given("tts_text"), kind.removesuffix("_request")
    voice = given("spk_id") if mode in ("sft", "instruct") else None
    instruct = given("instruct_text") if mode == "instruct" else None
    if voice is not None:
        return SpeechRequest(text, voice, owner, mode=mode, instruct=instruct)
    transcript, samples = given("prompt_text") if mode == "zero_shot" else "", payload.prompt_audio
    if not samples:
        raise InvalidAudio(f"prompt_audio: is missing; send 16-bit mono samples at {PROMPT_RATE} Hz")
    if len(samples) % 2:
        raise InvalidAudio(
            f"prompt_audio: {len(samples)} bytes are no whole number of 16-bit samples; "
            f"send mono samples at {PROMPT_RATE} Hz, without a header"
        )
    recording = Recording(wav_header(PROMPT_RATE, len(samples) // 2) + samples, transcript)
    return SpeechRequest(text, recording, owner, mode=mode)


async def start_grpc(
    dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSection
) -> tuple[grpc.aio.Server, int]:
    """Serve `cosyvoice.CosyVoice` and `grpc.health.v1.Health` in the running event loop: the server, and its port.

    The settings' grpc_port may be 0, for a free one.
    InvalidRequest: the port cannot be taken, or the certificate and its key are no pair.
    """
    service, patience_ms = _Service(dispatcher, keys, settings), int(1_000 * settings.request_timeout_s)
    host, port = settings.host, settings.grpc_port or 0
    # gRPC's own bound of all calls is left out: it would refuse health checks, too.
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", min(MOST_BYTES, settings.max_body_bytes)),
            ("grpc.http2.lookahead_bytes", 65_536),  # what a call may send that is not read
            ("grpc.http2.bdp_probe", 0),  # which would raise that to megabytes
            ("grpc.max_concurrent_streams", service.at_once),  # of a connection
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_connection_idle_ms", 1_000 * settings.keep_alive_s),
            ("grpc.max_connection_age_ms", 1_000 * CONNECTION_S),
            ("grpc.max_connection_age_grace_ms", 1_000 * GRACE_S),
            ("grpc.server_handshake_timeout_ms", patience_ms),  # of TLS
            ("grpc.http2.settings_timeout", patience_ms),  # until a connection's first frame
            ("grpc.so_reuseport", 0),  # else two servers share a port, and each gets some of the calls
        )
    )
    # As streams: messages of unary calls are read before anything here sees the call, and its key.
    speaking: Handlers = {METHOD: grpc.stream_stream_rpc_method_handler(service.speak)}
    checking: Handlers = {"Check": grpc.stream_unary_rpc_method_handler(service.check)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, speaking),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, checking),
        )
    )
    address, certified = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _credentials(settings)
    try:
        bound = server.add_secure_port(address, certified) if certified else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        doubt = "" if certified is None else ", or the certificate and its key are no PEM files of a pair"
        raise InvalidRequest(
            f"grpc port: {port} on {host} cannot be taken{doubt}; choose another one, or end the program that has it"
        )
    await server.start()
    return server, bound


def _credentials(settings: ServerSection) -> grpc.ServerCredentials | None:
    """The certificate of the settings, whose files were checked; None: the port has no TLS."""
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None or key is None:
        return None
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=None if client_ca is None else client_ca.read_bytes(),
        require_client_auth=client_ca is not None,
    )


class _Service:
    """The two methods."""

    def __init__(self, dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSection) -> None:
        self._dispatcher, self._keys = dispatcher, keys
        self._patience_s, self._message_s = settings.listener_timeout_s, settings.request_timeout_s
        self._max_conc, self.at_once = settings.max_conc, max(LEAST_STREAMS, 2 * settings.max_conc)
        self._calls = 0
        """Calls that are being answered."""
        self._reading: Counter[str] = Counter()
        """Messages that are being read, by the names of keys; of health checks by their service's."""

    async def check(self, _: object, context: Context) -> bytes:
        """`grpc.health.v1.Health/Check`, as probes of orchestrators ask it: SERVING while requests are taken."""
        try:
            service = _parsed("HealthCheckRequest", await self._message(context, HEALTH_SERVICE)).service
        except Overloaded:
            service = ""  # all are in the same health, and a probe is answered however many others do not end
        except (DeadlineExceeded, InvalidRequest) as error:
            await context.abort(grpc.StatusCode[error.grpc_status], str(error))
        if service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service: {service[:100]!r} is not served here")
        return _serialized("HealthCheckResponse", status=SERVING if self._dispatcher.ready else NOT_SERVING)

    async def speak(self, _: object, context: Context) -> None:
        """`Inference`: one call, from its key to its status."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        request_log = self._dispatcher.request_log
        request_id = request_log.accept_request_id(metadata.get(REQUEST_ID))
        trace = {name: metadata.get(name, "") for name in ("traceparent", "tracestate")}
        try:
            principal = self._keys.authenticate(token_in(metadata))
            request_id = request_log.accept_request_id(request_id, principal)
            with request_scope(request_id, **trace):
                await self._answer(context, principal, request_id)
        except VivavoceError as error:
            await self._end(context, grpc.StatusCode[error.grpc_status], str(error), _trailer(error, request_id))
        except grpc.aio.BaseError:
            raise  # the client has left while something was sent to it; gRPC knows
        except Exception:
            log.exception("request failed: %(request_id)s", {"request_id": request_id})
            details = f"server: an internal error, which was logged; tell its operator the request's id {request_id}"
            trailing = ((REQUEST_ID, request_id), (ERROR_CODE, "internal_error"))
            await self._end(context, grpc.StatusCode.INTERNAL, details, trailing)

    async def _message(self, context: Context, caller: str) -> bytes:
        """What a call brings. Overloaded: too many are being read; DeadlineExceeded: it did not come in time."""
        if self._reading[caller] >= self.at_once:
            raise Overloaded(f"calls: {self.at_once} are being read, which is the limit; try again soon")
        self._reading[caller] += 1
        try:
            content = await asyncio.wait_for(context.read(), self._message_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise DeadlineExceeded(f"request: did not come within {self._message_s:g} s; send it at once") from None
        finally:
            self._reading[caller] -= 1
        return content if isinstance(content, bytes) else b""

    async def _answer(self, context: Context, principal: Principal, request_id: str) -> None:
        left_s = context.time_remaining()
        deadline = None if left_s is None else self._dispatcher.clock() + left_s
        try:
            content = await self._message(context, principal.name)
            if (calls := self._calls) >= self._max_conc:
                raise Overloaded(f"calls: {calls} are being answered, which is the limit (max_conc); try again soon")
        except VivavoceError as error:
            self._dispatcher.metrics.refuse(ENTRY_POINT, error.code)
            raise
        self._calls += 1
        try:
            wanted, speak = _speech_request(content, principal.owner), self._dispatcher.speak
            active = await speak(principal, wanted, door=ENTRY_POINT, request_id=request_id, deadline=deadline)
            async with active:
                waited = (ADMISSION, f"{active.admission_s:.3f}")
                notes = ((WARNING, "; ".join(active.request.notes)),) if active.request.notes else ()
                await context.send_initial_metadata(((REQUEST_ID, request_id), waited, *notes))
                async for event in active:
                    if isinstance(event, AudioChunk):  # each when the one before is on its way
                        pcm = to_int16(event.samples).astype("<i2").tobytes()
                        sending = context.write(_serialized("Response", tts_audio=pcm))
                        await active.sent_within(self._patience_s, sending)
        finally:
            self._calls -= 1
        context.set_trailing_metadata(((REQUEST_ID, request_id), (FINISH_REASON, active.whole().reason.value)))

    async def _end(self, context: Context, status: grpc.StatusCode, details: str, trailing: Metadata) -> None:
        """Abort the call; never returns. A status that cannot be sent in time is given up, and the call dropped."""
        try:
            # The status waits behind audio that the client has not read.
            await asyncio.wait_for(context.abort(status, details, trailing), self._patience_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise asyncio.CancelledError from None


def _trailer(error: VivavoceError, request_id: str) -> Metadata:
    """The trailing metadata of a call that ends with `error`."""
    pairs: Metadata = ((REQUEST_ID, request_id), (ERROR_CODE, error.code))
    seconds = error.retry_after_s
    if seconds is None:
        return pairs
    milliseconds = str(math.ceil(seconds * 1000))
    return (*pairs, (RETRY_AFTER, milliseconds), (PUSHBACK, milliseconds))
