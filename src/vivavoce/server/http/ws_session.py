"""WebSockets: text in while it is written, audio out while it is made; docs/websocket.md describes the messages."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from fastapi import APIRouter
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from vivavoce.errors import (
    EngineStopped,
    Forbidden,
    InvalidRequest,
    ListenerStalled,
    TooLarge,
    Unauthorized,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.server.dispatcher import sent_within
from vivavoce.server.http.app_state import AppState, deadline_of, is_own_page
from vivavoce.server.http.bodies import check_query, known_names, off_loop
from vivavoce.server.http.errors import response_of
from vivavoce.server.http.listener import drop_connection
from vivavoce.server.http.streaming import verdict_body
from vivavoce.server.http.ws_messages import (
    ClientMessage,
    MessageForm,
    Signal,
    Start,
    Text,
    error_reply,
    json_object,
    pause_s,
)
from vivavoce.server.keys import token_in
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.utterance import Reply, StreamedUtterance

log = logging.getLogger(__name__)

PROTOCOL = "websocket"
_QUERY = frozenset({"api_key", "inactivity_timeout"})
MAX_CONTEXTS = 5
IDLE_S = 120.0
"""Seconds for which a client may send nothing while nothing is spoken."""
KEY_S = 10.0
"""Seconds to wait for an API key in a message, if the request itself had none."""
CLOSING_S = 2.0
"""Seconds for sending the last frames of a connection that is being closed."""
NORMAL, GOING_AWAY, POLICY, TOO_BIG, DEFECT, NO_KEY = 1000, 1001, 1008, 1009, 1011, 4401
"""Close codes of RFC 6455, and this server's own code for a missing or unknown key."""


def router(state: AppState) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/v1/audio/stream")
    async def stream(socket: WebSocket) -> None:
        await Session(socket, state, MessageForm()).serve()

    return routes


class Session:
    """One WebSocket from its request to its close: messages come in while audio goes out."""

    def __init__(self, socket: WebSocket, state: AppState, form: MessageForm) -> None:
        self._socket, self._state, self._form = socket, state, form
        self._loop = asyncio.get_running_loop()
        self._began = self._last_at = self._loop.time()
        """`_last_at`: time of the last message in either direction; in an open utterance, only text and audio count."""
        self._idle_s = IDLE_S
        self._is_closed = False
        self._token: str | None = None
        self._principal: Principal | None = None
        self._has_spoken = False
        self._open: dict[str, StreamedUtterance] = {}
        self._is_leaving = False
        self._stray: Literal["begins", "is refused", "is ignored"] = "begins"
        """Treatment of text that comes while no utterance is open."""
        self._next_id: str | None = socket.state.request_id

    async def serve(self) -> None:
        socket = self._socket
        try:
            if not is_own_page(socket.headers, socket.scope["scheme"], self._state.settings.server.cors_origins):
                origin = socket.headers["origin"][:100]
                raise Forbidden(f"origin: pages of {origin!r} may not connect; allow it in cors_origins")
            if not self._state.dispatcher.ready:  # before accepting, so that a proxy can ask another server
                raise EngineStopped("server: it takes no requests now; ask another one, or again in some seconds")
            fields = known_names(Start) if self._form.is_own else frozenset[str]()
            known = _QUERY.union(*(dialect.socket_query for dialect in self._state.dialects))
            check_query(socket, fields, "start message", known)
            await deadline_of(socket)  # raises if the deadline is malformed
        except VivavoceError as refusal:
            await socket.send_denial_response(response_of(refusal))
            return
        try:
            await socket.accept()
        except (WebSocketDisconnect, RuntimeError, OSError):
            return
        try:
            self._token = token_in(socket.headers) or socket.query_params.get("api_key")
            if self._token is not None or not self._state.keys.required:  # else the first message must have the key
                self._principal = self._state.keys.authenticate(self._token)
            self._idle_s = pause_s(socket.query_params, IDLE_S)
        except VivavoceError as refusal:
            if isinstance(refusal, Unauthorized) and self._form.answers_to_a_start:
                await self._run()
                return
            with suppress(WebSocketDisconnect, VivavoceError, TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._send(error_reply(refusal)), CLOSING_S)
                await self._close(NO_KEY if isinstance(refusal, Unauthorized) else POLICY, str(refusal))
            return
        await self._run()

    async def _run(self) -> None:
        receiving = asyncio.create_task(self._socket.receive())
        try:
            while not self._is_closed:
                waited = {receiving, *(utterance.delivery for utterance in self._open.values())}
                done, _ = await asyncio.wait(waited, timeout=self._pause_left(), return_when=asyncio.FIRST_COMPLETED)
                for context, utterance in [*self._open.items()]:
                    if utterance.delivery in done:
                        await self._conclude(context, utterance)
                if receiving in done and not self._is_closed:
                    message = receiving.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    receiving = asyncio.create_task(self._socket.receive())
                    await self._received(message)
                await self._check_pause()  # messages without a key or text do not keep a connection open
        except WebSocketDisconnect:
            pass
        except ListenerStalled as error:
            await self._close(POLICY, str(error))
        except Exception:
            log.exception("websocket failed")
            await self._close(DEFECT, "internal error, which was logged")
        finally:
            receiving.cancel()
            for utterance in self._open.values():
                utterance.cancel()

    async def _received(self, message: Message) -> None:
        if not self._open or self._form.several:
            self._last_at = self._loop.time()
        is_start, context = False, ""
        try:
            text: str | None = message.get("text")
            if text is None:
                raise InvalidRequest("message: a binary frame came; send JSON in text frames")
            size, limit = len(text), self._state.settings.server.max_body_bytes
            if size > limit:
                raise TooLarge(f"message: {size} characters are larger than {limit}; send a shorter recording")
            fields = await off_loop(size, lambda: json_object(text))
            is_start = fields.get("type") == "start"
            if self._form.is_own and not self._has_spoken:
                query = self._socket.query_params
                forms = (dialect.first_message(fields, query) for dialect in self._state.dialects)
                self._form = next(filter(None, forms), self._form)
            self._has_spoken = True
            context = self._form.context_of(fields)
            for found in await off_loop(size, lambda: self._form.messages(fields)):
                await self._handle(found, context)
        except ListenerStalled:
            raise
        except VivavoceError as error:
            if self._stray == "begins":
                self._stray = "is refused"
            if not self._open and is_start:
                self._stray = "is ignored"
            await self._send(error_reply(error), context)
            await self._close_after(error)

    async def _close_after(self, error: VivavoceError) -> None:
        if isinstance(error, Unauthorized):
            await self._close(NO_KEY, "API key: none, or unknown")
        elif isinstance(error, TooLarge):
            await self._close(TOO_BIG, "message too large")
        elif self._form.is_strict or (self._form.several and not self._open):
            await self._close(POLICY, str(error))
        elif not self._open:
            await self._close_if_done()

    async def _handle(self, message: ClientMessage, context: str) -> None:
        if self._principal is None:
            self._token = self._token or (message.api_key if isinstance(message, Start) else None)
            self._principal = self._state.keys.authenticate(self._token)
        if isinstance(message, Text) and message.text:
            self._last_at = self._loop.time()
        if isinstance(message, Start):
            await self._start(message, context)
        elif message.type == "ping":
            await self._send({"type": "pong"}, context)
        elif message.type == "cancel":
            await self._cancel(context, None if message.played_ms is None else message.played_ms / 1000)
        elif message.type in ("close", "close_all"):
            await self._leave(message.type == "close_all", context)
        elif context in self._open or self._stray != "is ignored":
            await self._speak(message, context)

    async def _start(self, start: Start, context: str) -> None:
        if len(self._open) >= MAX_CONTEXTS:
            raise InvalidRequest(f"context_id: {MAX_CONTEXTS} contexts are open already; close one before the next")
        if context in self._open:
            raise InvalidRequest("start: an utterance is still open; send cancel, or send end and wait for done")
        self._stray = "is ignored"  # until the start is known to be valid
        dispatcher = self._state.dispatcher
        principal = self._state.keys.authenticate(self._token)  # the key may have been removed
        about = dispatcher.backend.about
        wanted = await start.request(None, principal, about, rules=dispatcher.rules)
        if self._form.is_own:  # `serve` also accepted names that only dialects read; here they have no effect
            self._socket.state.ignored = None
            check_query(self._socket, known_names(Start), "start message", _QUERY)
            if ignored := self._socket.state.ignored:
                wanted = replace(wanted, notes=(*wanted.notes, ignored))
        self._form.is_base64 = start.audio == "base64"
        wanted_id = self._form.request_id_of(context) or self._next_id
        identity = dispatcher.request_log.accept_request_id(wanted_id, principal)
        self._next_id = None
        deadline = await deadline_of(self._socket)
        start_request = partial(dispatcher.speak, principal, wanted, protocol=PROTOCOL, deadline=deadline)
        send = partial(self._send, context=context)
        output, rate = start.output(), about.of(wanted.model).sample_rate
        utterance = StreamedUtterance(
            identity,
            output,
            rate,
            start_request,
            send,
            WebSocketDisconnect,
            None if self._form.is_strict else lambda error: send(error_reply(error)),
            tag=dispatcher.tag(wanted.model),
            reasoning=wanted.reasoning,
        )
        self._open[context] = utterance
        if start.text:
            utterance.push(start.text)

    async def _speak(self, message: Text | Signal, context: str) -> None:
        if context not in self._open and isinstance(message, Text) and self._stray == "begins":
            await self._start(Start(), context)
        utterance = self._open.get(context)
        if utterance is None and message.type != "flush":
            raise InvalidRequest(f"{message.type}: no utterance is open; send start first")
        if utterance is None:  # nothing waits to be spoken
            await self._send({"type": "flushed"}, context)
        elif isinstance(message, Text):
            utterance.push(message.text)
        elif message.type == "flush":
            await utterance.flush()
        else:
            utterance.end()

    async def _leave(self, is_all: bool, context: str) -> None:
        """End the text of one or all utterances; cancel each that has unflushed text. A single one that has ended
        already is cancelled, too.
        """
        for one in [*self._open] if is_all else [context]:
            utterance = self._open.get(one)
            if utterance is None or (is_all and utterance.has_ended):
                continue
            if utterance.has_ended or not utterance.is_flushed:
                await self._cancel(one)
            else:
                utterance.end()
        self._is_leaving = self._is_leaving or is_all
        await self._close_if_done()

    async def _cancel(self, context: str, played_s: float | None = None) -> None:
        utterance = self._open.pop(context, None)
        if utterance is None:
            await self._send({"type": "cancelled", "request_id": None, "audio_seconds": 0.0, "reached": None})
            return
        utterance.cancel()
        await asyncio.wait({utterance.delivery})
        self._stray = "is ignored"
        await self._send(utterance.cancelled(played_s), context)
        await self._close_if_done()

    async def _conclude(self, context: str, utterance: StreamedUtterance) -> None:
        del self._open[context]
        failure = WebSocketDisconnect() if utterance.delivery.cancelled() else utterance.delivery.exception()
        if failure is not None and (isinstance(failure, ListenerStalled) or not isinstance(failure, VivavoceError)):
            raise failure
        if failure is not None:
            await self._send(error_reply(failure), context)
        # After a text has failed, its remaining pieces must not start another utterance.
        self._stray = "is refused" if failure is None else "is ignored"
        verdict = verdict_body(utterance.request_id, utterance.verdict(failure))
        await self._send({"type": "done", "verdict": verdict}, context)
        is_fatal = self._form.is_strict or (self._form.several and isinstance(failure, VoiceNotFound))
        if self._form.one_utterance or (failure is not None and is_fatal):
            await self._close(NORMAL if failure is None else POLICY, "" if failure is None else str(failure))
        await self._close_if_done()

    async def _send(self, reply: Reply, context: str = "") -> None:
        """Send a reply; several tasks may do so. ListenerStalled: the client has not read for too long."""
        frame = self._form.render(reply, context, context in self._open)
        if frame is None:
            return
        if self._is_closed:
            raise WebSocketDisconnect(1006)
        patience_s = self._state.settings.server.listener_timeout_s
        sending = self._socket.send_bytes(frame) if isinstance(frame, bytes) else self._socket.send_text(frame)
        try:
            await sent_within(patience_s, sending)
        except (OSError, RuntimeError):
            raise WebSocketDisconnect(1006) from None  # the code that Starlette uses for a lost connection
        if not self._open or reply["type"] == "audio":
            self._last_at = self._loop.time()

    def _pause_left(self) -> float:
        """Return the seconds until the client is silent for too long; while the server speaks, until the next check."""
        if not all(utterance.waits_for_text for utterance in self._open.values()):
            return self._idle_s
        # A client without a key has `KEY_S`, even if it sends other messages.
        until = self._began + KEY_S if self._principal is None else self._last_at + self._idle_s
        return max(0.0, until - self._loop.time())

    async def _check_pause(self) -> None:
        if self._pause_left() != 0.0:
            return
        if self._principal is None:
            error = Unauthorized(f"API key: none came within {KEY_S:g} s; send it in the first message")
            await self._send(error_reply(error))
            await self._close(NO_KEY, "API key: none")
            return
        reason = f"idle: no message came for {self._idle_s:g} s; send ping to stay"
        for context in self._open:
            reason = f"idle: no text came for {self._idle_s:g} s; send {self._form.end} when all of it has come"
            await self._send(error_reply(InvalidRequest(reason)), context)
        await self._close(NORMAL, reason)

    async def _close_if_done(self) -> None:
        if self._is_leaving and not self._open:
            await self._close(NORMAL, "")
        if self._state.dispatcher.draining and not self._open:
            await self._close(GOING_AWAY, "the server shuts down")

    async def _close(self, code: int, reason: str) -> None:
        """Close the WebSocket; drop the connection if the client does not read its last frames."""
        if self._is_closed:
            return
        self._is_closed = True
        short = reason.encode()[:123].decode(errors="ignore")  # the limit of a closing frame
        try:
            await asyncio.wait_for(self._socket.close(code, short), CLOSING_S)
        except (TimeoutError, asyncio.TimeoutError):
            drop_connection()
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # the client has disconnected
