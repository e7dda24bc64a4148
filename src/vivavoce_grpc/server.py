"""The gRPC port in the server's event loop: its services, limits and certificate, the health check and reflection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any

import grpc
import grpc.aio

from vivavoce.errors import DeadlineExceeded, InvalidRequest, Overloaded
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S
from vivavoce.server.dialect import Dialect
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing
from vivavoce.server.settings import ServerSection
from vivavoce_grpc.calls import Answer, Call, Calls, Context, Metadata, parsed
from vivavoce_grpc.protos import FILES, POOL, SERVICES, message
from vivavoce_grpc.speech import PACKAGE as SPEECH
from vivavoce_grpc.speech import add_voice, list_voices, remove_voice, speak

MOST_BYTES = int(2 * 16_000 * MAX_REFERENCE_S) + 240_000
"""Longest message in bytes: a recording of 16-bit samples at 16 kHz, and texts of 20,000 characters in UTF-8."""
CONNECTION_S, GRACE_S = 3_600, 6 * 3_600
"""After an hour a connection accepts no new calls; its last calls have six hours, longer than any speech."""
HEALTH, REFLECTION = "grpc.health.v1", "grpc.reflection.v1"
SERVING, NOT_SERVING = 1, 2


async def start_grpc(
    dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSection, dialects: Sequence[Dialect] = ()
) -> tuple[grpc.aio.Server, int]:
    """Start the server in the running event loop; return it and its port. grpc_port 0: the system chooses the port."""
    calls, patience_ms = Calls(dispatcher, keys, settings), int(1_000 * settings.request_timeout_s)
    host, port = settings.host, settings.grpc_port or 0
    # gRPC's own limit of all calls is not used: it would refuse health checks, too.
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", min(MOST_BYTES, settings.max_body_bytes)),
            ("grpc.http2.lookahead_bytes", 65_536),  # unread bytes of a call
            ("grpc.http2.bdp_probe", 0),  # the probe would raise this limit to megabytes
            ("grpc.max_concurrent_streams", calls.at_once),  # for each connection
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_connection_idle_ms", 1_000 * settings.keep_alive_s),
            ("grpc.max_connection_age_ms", 1_000 * CONNECTION_S),
            ("grpc.max_connection_age_grace_ms", 1_000 * GRACE_S),
            ("grpc.server_handshake_timeout_ms", patience_ms),  # for TLS
            ("grpc.http2.settings_timeout", patience_ms),  # until a connection's first frame
            ("grpc.so_reuseport", 0),  # otherwise two servers could share a port, and each would get some of the calls
        )
    )
    answers: dict[str, Mapping[str, Answer]] = {
        f"{SPEECH}.Speech": {
            "Speak": speak,
            "ListVoices": list_voices,
            "AddVoice": add_voice,
            "RemoveVoice": remove_voice,
        },
        f"{REFLECTION}.ServerReflection": {"ServerReflectionInfo": reflect},
        f"{REFLECTION}alpha.ServerReflection": {"ServerReflectionInfo": reflect},  # older name of the service
    }
    for dialect in dialects:
        answers |= dialect.grpc_services()
    # All methods are streams, since gRPC reads the message of a unary call before this code can check the key.
    services: Any = {f"{HEALTH}.Health": {"Check": grpc.stream_unary_rpc_method_handler(partial(check, calls))}}
    for service, methods in answers.items():
        stream = grpc.stream_stream_rpc_method_handler
        services[service] = {name: stream(partial(calls.serve, answer)) for name, answer in methods.items()}
    server.add_generic_rpc_handlers(tuple(starmap(grpc.method_handlers_generic_handler, services.items())))
    address, certified = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _credentials(settings)
    try:
        bound = server.add_secure_port(address, certified) if certified else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        doubt = "" if certified is None else ", or the certificate and its key are not PEM files of a pair"
        raise InvalidRequest(
            f"grpc port: {port} on {host} cannot be taken{doubt}; choose another one, or end the program that has it"
        )
    await server.start()
    return server, bound


def _credentials(settings: ServerSection) -> grpc.ServerCredentials | None:
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None or key is None:
        return None
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=None if client_ca is None else client_ca.read_bytes(),
        require_client_auth=client_ca is not None,
    )


async def check(calls: Calls, _: object, context: Context) -> bytes:
    """`Health/Check`, which orchestrators call without a key: SERVING while requests are accepted."""
    try:
        content = await calls.message(context, HEALTH)
        service = parsed(f"{HEALTH}.HealthCheckRequest", content or b"").service
    except Overloaded:
        service = ""  # the name was not read, but health checks are always answered, and all services share one health
    except (DeadlineExceeded, InvalidRequest) as error:
        await context.abort(grpc.StatusCode[error.grpc_status], str(error))
    if service not in ("", *SERVICES):
        await context.abort(grpc.StatusCode.NOT_FOUND, f"service: {service[:100]!r} is not served here")
    status = SERVING if calls.dispatcher.ready else NOT_SERVING
    answer: bytes = message(f"{HEALTH}.HealthCheckResponse")(status=status).SerializeToString()
    return answer


async def reflect(call: Call) -> Metadata:
    """`ServerReflection/ServerReflectionInfo`: send the .proto files of this port, by file name or by symbol."""
    while (content := await call.port.message(call.context, call.principal.name)) is not None:
        request = parsed(f"{REFLECTION}.ServerReflectionRequest", content)
        answer: dict[str, Any]
        if (kind := request.WhichOneof("message_request")) == "list_services":
            answer = {"list_services_response": {"service": [{"name": name} for name in SERVICES]}}
        elif (file := _file(kind, getattr(request, kind or "", ""))) is not None:
            answer = {"file_descriptor_response": {"file_descriptor_proto": [file]}}
        else:
            reason = {"error_code": grpc.StatusCode.NOT_FOUND.value[0], "error_message": "it is not served here"}
            answer = {"error_response": reason}
        response = f"{REFLECTION}.ServerReflectionResponse"
        await call.send(response, valid_host=request.host, original_request=request, **answer)
    return ()


def _file(kind: str | None, wanted: str) -> bytes | None:
    if kind == "file_containing_symbol":
        for symbol in (wanted, wanted.rpartition(".")[0]):  # the pool finds services, but not their methods
            with suppress(KeyError):
                wanted = POOL.FindFileContainingSymbol(symbol).name
                break
    elif kind != "file_by_filename":
        return None
    return next((file.SerializeToString() for file in FILES.file if file.name == wanted), None)
