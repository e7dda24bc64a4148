"""CosyVoice's gRPC service in the event loop of the server's other doors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from vivavoce.doors.grpc.health import health_handler
from vivavoce.doors.grpc.messages import METHOD, SERVICE, response
from vivavoce.doors.grpc.orders import order_of
from vivavoce.doors.grpc.refusals import ERROR_CODE, REQUEST_ID, Context, end, refuse
from vivavoce.doors.grpc.tls import credentials
from vivavoce.errors import InvalidRequest, Overloaded, VivavoceError
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.host.speaker import SpeechPiece
from vivavoce.service.operations.keys import KeyRing, token_in
from vivavoce.service.operations.reception import Reception, Visit
from vivavoce.service.operations.scope import request_scope
from vivavoce.service.operations.settings import ServerSettings

DOOR = "grpc"
FINISH_REASON = "finish-reason"

log = logging.getLogger(__name__)


class Desk(Protocol):
    """What the service works with; the HTTP doors have the same."""

    @property
    def reception(self) -> Reception:
        """Where requests come in."""

    @property
    def keys(self) -> KeyRing:
        """Who may ask."""

    @property
    def settings(self) -> ServerSettings:
        """Limits."""


@dataclass(frozen=True, eq=False)
class GrpcServer:
    """A running server; port: where it listens."""

    port: int
    _server: grpc.aio.Server

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, and cancel those that have not ended after so many seconds (None: at once)."""
        await self._server.stop(grace)


async def start_grpc(desk: Desk, host: str, port: int, max_conc: int) -> GrpcServer:
    """Serve `cosyvoice.CosyVoice` and `grpc.health.v1.Health` in the running event loop.

    port: 0 for a free one. max_conc: calls at once; more are refused with RESOURCE_EXHAUSTED.

    Raises:
        InvalidRequest: max_conc is below 1, a certificate cannot be read, or the port cannot be taken.
    """
    if max_conc < 1:
        raise InvalidRequest(f"max_conc: {max_conc} is below 1; allow one call or more")
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", desk.settings.server.max_body_bytes),
            ("grpc.so_reuseport", 0),  # else two servers share a port, and each gets some of the calls
        )
    )
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        METHOD: grpc.unary_stream_rpc_method_handler(_Inference(desk, max_conc).answer)
    }
    health = health_handler(lambda: desk.reception.ready)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods), health))
    bound = _bind(server, host, port, credentials(desk.settings.server))
    await server.start()
    return GrpcServer(bound, server)


def _bind(server: grpc.aio.Server, host: str, port: int, certified: grpc.ServerCredentials | None) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if certified is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, certified)
    except RuntimeError:
        bound = 0
    if not bound:
        doubt = "" if certified is None else ", or the certificate and its key are no PEM files of a pair"
        raise InvalidRequest(
            f"grpc port: {port} on {host} cannot be taken{doubt}; choose another one, or end who has it"
        )
    return bound


class _Inference:
    """The one method; max_conc: calls that are answered at once."""

    def __init__(self, desk: Desk, max_conc: int) -> None:
        self._desk, self._max_conc = desk, max_conc
        self._calls = 0
        """Calls that are being answered."""

    async def answer(self, content: bytes, context: Context) -> None:
        """One call, from its request to its status."""
        metadata = _texts(context)
        request_id = self._desk.reception.ledger.accept_request_id(metadata.get(REQUEST_ID))
        patience_s = self._desk.settings.server.listener_timeout_s
        trace = {name: metadata.get(name, "") for name in ("traceparent", "tracestate")}
        try:
            with request_scope(request_id, **trace):
                await self._speak(content, context, metadata, request_id)
        except VivavoceError as error:
            await refuse(context, error, request_id, patience_s=patience_s)
        except grpc.aio.BaseError:
            raise  # the client has left while something was sent to it; gRPC knows
        except Exception:
            log.exception("request %s failed", request_id)
            details = f"server: an internal error, which was logged; tell its operator the request's id {request_id}"
            trailing = ((REQUEST_ID, request_id), (ERROR_CODE, "internal_error"))
            await end(context, grpc.StatusCode.INTERNAL, details, trailing, patience_s=patience_s)

    async def _speak(self, content: bytes, context: Context, metadata: dict[str, str], request_id: str) -> None:
        caller = self._desk.keys.caller(token_in(metadata))
        if self._calls >= self._max_conc:
            self._desk.reception.meters.refused(DOOR, Overloaded.code)
            raise Overloaded(f"calls: {self._calls} are being answered, which is the limit (max_conc); try again soon")
        self._calls += 1
        try:
            order = order_of(content, caller.owner)
            async with await self._desk.reception.speak(caller, order, door=DOOR, request_id=request_id) as visit:
                await context.send_initial_metadata(((REQUEST_ID, request_id),))
                await self._send(visit, context)
        finally:
            self._calls -= 1
        context.set_trailing_metadata(((REQUEST_ID, request_id), (FINISH_REASON, visit.whole().reason.value)))

    async def _send(self, visit: Visit, context: Context) -> None:
        """Hand the audio over, each piece when the one before is on its way."""
        patience_s = self._desk.settings.server.listener_timeout_s
        async for event in visit:
            if isinstance(event, SpeechPiece):
                pcm = to_int16(event.samples).astype("<i2").tobytes()
                await visit.sent_within(patience_s, context.write(response(pcm)))


def _texts(context: Context) -> dict[str, str]:
    """The call's metadata, less what is binary."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
