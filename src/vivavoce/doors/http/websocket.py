"""WebSockets: text in while it is written, audio out while it is made; docs/websocket.md describes the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.elevenlabs import ElevenLabsDialect, pause_s
from vivavoce.doors.http.errors import response_of
from vivavoce.doors.http.identity import request_id
from vivavoce.doors.http.ws_dialect import Dialect, OwnDialect
from vivavoce.doors.http.ws_origin import may_connect
from vivavoce.doors.http.ws_outbox import LEAVING_S, Outbox, failure_of
from vivavoce.doors.http.ws_session import IDLE_S, NO_KEY, POLICY, Session, Terms
from vivavoce.errors import Forbidden, Unauthorized, VivavoceError
from vivavoce.service.operations.keys import token_in


def router(desk: Desk) -> APIRouter:
    """`/v1/audio/stream`, and ElevenLabs' `/v1/text-to-speech/{voice_id}/stream-input`."""
    routes = APIRouter()

    def elevenlabs(socket: WebSocket, voice: str | None) -> Dialect:
        return ElevenLabsDialect(voice, socket.query_params, lambda: desk.reception.speaker.about.sample_rate)

    @routes.websocket("/v1/audio/stream")
    async def stream(socket: WebSocket) -> None:
        own = OwnDialect()

        def choose(first: dict[str, Any]) -> Dialect:
            if "type" in first or "text" not in first:
                return own
            return elevenlabs(socket, socket.query_params.get("voice_id"))

        await _serve(socket, desk, own, choose)

    @routes.websocket("/v1/text-to-speech/{voice_id}/stream-input")
    async def stream_input(socket: WebSocket, voice_id: str) -> None:
        dialect = elevenlabs(socket, voice_id)
        await _serve(socket, desk, dialect, lambda _: dialect)

    return routes


async def _serve(socket: WebSocket, desk: Desk, dialect: Dialect, choose: Callable[[dict[str, Any]], Dialect]) -> None:
    if not may_connect(socket.headers, socket.scope["scheme"], desk.settings.server.cors_origins):
        origin = socket.headers["origin"][:100]
        await socket.send_denial_response(
            response_of(Forbidden(f"origin: pages of {origin!r} may not connect; allow it in cors_origins"))
        )
        return
    try:
        await socket.accept()
    except (WebSocketDisconnect, RuntimeError, OSError):
        return
    try:
        token = token_in(socket.headers) or socket.query_params.get("api_key")
        # Without a key: the first message has to bring one.
        caller = None if token is None and desk.keys.required else desk.keys.caller(token)
        idle_s = pause_s(socket.query_params, IDLE_S)
    except VivavoceError as error:
        await _turn_away(socket, dialect, error)
        return
    await Session(socket, desk, Terms(token, caller, dialect, choose, idle_s, request_id(socket))).run()


async def _turn_away(socket: WebSocket, dialect: Dialect, error: VivavoceError) -> None:
    outbox = Outbox(socket, dialect.render, LEAVING_S)
    try:
        await outbox.send(failure_of(error))
    except (WebSocketDisconnect, VivavoceError):
        return
    await outbox.close(NO_KEY if isinstance(error, Unauthorized) else POLICY, str(error))
