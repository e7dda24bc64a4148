"""One WebSocket from its first message to its close: what comes in is heard while audio goes out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.json_input import aside
from vivavoce.doors.http.ws_dialect import Dialect
from vivavoce.doors.http.ws_messages import Cancel, ClientMessage, End, Flush, Ping, Start, Text, json_object
from vivavoce.doors.http.ws_order import order_from
from vivavoce.doors.http.ws_outbox import Outbox, failure_of
from vivavoce.doors.http.ws_utterance import Utterance
from vivavoce.errors import InvalidRequest, ListenerStalled, StageFailed, TooLarge, Unauthorized, VivavoceError
from vivavoce.service.audio.formats import parse_format
from vivavoce.service.operations.callers import Caller
from vivavoce.service.operations.ledger import new_request_id
from vivavoce.service.operations.reception import Visit

log = logging.getLogger(__name__)

DOOR = "websocket"
IDLE_S = 120.0
"""How long a client may send nothing while nothing is spoken."""
KEY_S = 10.0
"""How long a client may take to send the key that it has not sent with its request."""
NORMAL, GOING_AWAY, POLICY, TOO_BIG, DEFECT, NO_KEY = 1000, 1001, 1008, 1009, 1011, 4401
"""Close codes of RFC 6455, and one of our own."""


@dataclass
class Terms:
    """What one connection has agreed upon.

    token: its key, None: none has come; caller: who has that key, None until it has come; dialect: for a client that
    has not said anything; choose: the dialect of a client by its first object; idle_s: how long it may pause;
    request_id: of its first utterance.
    """

    token: str | None
    caller: Caller | None
    dialect: Dialect
    choose: Callable[[dict[str, Any]], Dialect]
    idle_s: float
    request_id: str


class Session:
    """Of one accepted WebSocket; `run` is its life."""

    def __init__(self, socket: WebSocket, desk: Desk, terms: Terms) -> None:
        self._socket, self._desk, self._terms = socket, desk, terms
        self._outbox = Outbox(socket, terms.dialect.render, desk.settings.server.listener_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._began = self._heard_at = self._loop.time()
        self._utterance: Utterance | None = None
        self._chosen = self._closed = False
        self._may_begin = True
        """A text without a start begins an utterance of defaults: nothing was said yet."""
        self._deaf = False
        """What comes belongs to an utterance that is no more; it ends with the next start."""
        self._next_id: str | None = terms.request_id

    async def run(self) -> None:
        """Until either side closes; nothing is left behind."""
        receiving = asyncio.create_task(self._socket.receive())
        try:
            while not self._closed:
                going_on = {receiving} if self._utterance is None else {receiving, self._utterance.delivery}
                done, _ = await asyncio.wait(going_on, timeout=self._pause_left(), return_when=asyncio.FIRST_COMPLETED)
                if self._utterance is not None and self._utterance.delivery in done:
                    await self._conclude(self._utterance)
                if receiving in done and not self._closed:
                    message = receiving.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    receiving = asyncio.create_task(self._socket.receive())
                    await self._received(message)
                if not done or self._terms.caller is None:  # who has no key may not stay by sending
                    await self._check_pause()
        except WebSocketDisconnect:
            pass
        except ListenerStalled as error:
            await self._close(POLICY, str(error))
        except Exception:
            log.exception("a WebSocket failed")
            await self._close(DEFECT, "internal error, which was logged")
        finally:
            receiving.cancel()
            if self._utterance is not None:
                self._utterance.close()

    async def _received(self, message: Message) -> None:
        self._heard_at = self._loop.time()
        begins = False
        try:
            text = self._text(message)
            fields = await aside(len(text), lambda: json_object(text))
            begins = fields.get("type") == "start"
            if not self._chosen:
                self._terms.dialect = self._terms.choose(fields)
                self._outbox.render, self._chosen = self._terms.dialect.render, True
            for found in await aside(len(text), lambda: self._terms.dialect.messages(fields)):
                await self._handle(found)
        except VivavoceError as error:
            if isinstance(error, ListenerStalled):
                raise
            self._may_begin = False
            if self._utterance is None and begins:
                self._deaf = True
            await self._tell(error)
            await self._close_after(error)

    def _text(self, message: Message) -> str:
        text: str | None = message.get("text")
        if text is None:
            raise InvalidRequest("message: a binary frame came; send JSON in text frames")
        limit = self._desk.settings.server.max_body_bytes
        if len(text) > limit:
            raise TooLarge(f"message: {len(text)} characters are larger than {limit}; send a shorter recording")
        return text

    async def _close_after(self, error: VivavoceError) -> None:
        """Some failures leave nothing to go on with."""
        if isinstance(error, Unauthorized):
            await self._close(NO_KEY, "API key: none, or unknown")
        elif isinstance(error, TooLarge):
            await self._close(TOO_BIG, "message too large")
        elif self._utterance is None and self._terms.dialect.one_utterance:
            await self._close(POLICY, str(error))
        elif self._utterance is None and self._desk.reception.draining:
            await self._close(GOING_AWAY, "the server shuts down")

    async def _handle(self, message: ClientMessage) -> None:
        if self._terms.caller is None:
            self._terms.token = message.api_key if isinstance(message, Start) else None
            self._terms.caller = self._desk.keys.caller(self._terms.token)
        if isinstance(message, Ping):
            await self._outbox.send({"type": "pong"})
        elif isinstance(message, Start):
            await self._start(message)
        elif isinstance(message, Cancel):
            await self._cancel()
        elif not self._deaf:
            await self._speak(message)

    async def _start(self, start: Start) -> None:
        if self._utterance is not None:
            raise InvalidRequest("start: an utterance goes on; send cancel, or end and wait for done, before the next")
        self._may_begin, self._deaf = False, True  # until it is known to be good
        reception = self._desk.reception
        caller = self._desk.keys.caller(self._terms.token)  # it may have been removed since the last utterance
        order = await order_from(start, caller, reception.speaker.about)

        async def ask(request_id: str) -> Visit:
            return await reception.speak(caller, order, door=DOOR, request_id=request_id)

        self._terms.dialect.started(start)
        request_id, self._next_id = self._next_id or new_request_id(), None
        self._utterance = Utterance(request_id, parse_format(start.response_format), ask, self._outbox.send)
        self._deaf = False
        if start.text:
            self._utterance.push(start.text)

    async def _speak(self, message: Text | Flush | End) -> None:
        if self._utterance is None and isinstance(message, Text) and self._may_begin:
            await self._start(Start())
        if self._utterance is None:
            raise InvalidRequest(f"{message.type}: no utterance is open; send start first")
        if isinstance(message, Text):
            self._utterance.push(message.text)
        elif isinstance(message, Flush):
            await self._utterance.flush()
        else:
            self._utterance.end()

    async def _cancel(self) -> None:
        utterance, self._utterance = self._utterance, None
        if utterance is None:
            nothing = {"request_id": None, "audio_seconds": 0.0, "reached": None}
            await self._outbox.send({"type": "cancelled", **nothing})
            return
        await utterance.stop()
        self._deaf = True
        await self._outbox.send(utterance.cancelled())
        await self._close_if_draining()

    async def _conclude(self, utterance: Utterance) -> None:
        """All was sent, or it failed."""
        self._utterance = None
        failure = WebSocketDisconnect() if utterance.delivery.cancelled() else utterance.delivery.exception()
        if isinstance(failure, WebSocketDisconnect):
            utterance.close()
            raise failure
        if failure is not None and not isinstance(failure, VivavoceError):
            log.error("request %s failed", utterance.request_id, exc_info=failure)
            failure = StageFailed("server: an internal error, which was logged; tell its operator the request's id")
        utterance.close(failure)
        if isinstance(failure, ListenerStalled):
            raise failure
        if failure is not None:
            await self._tell(failure)
        # What still comes of a text that broke off is not to be spoken in another voice.
        self._deaf = failure is not None
        await self._outbox.send(utterance.done(failure))
        self._heard_at = self._loop.time()
        if self._terms.dialect.one_utterance:
            await self._close(NORMAL if failure is None else POLICY, "" if failure is None else str(failure))
        await self._close_if_draining()

    async def _tell(self, error: VivavoceError) -> None:
        await self._outbox.send(failure_of(error))

    def _pause_left(self) -> float | None:
        """Seconds until the client has paused for too long; None: it need not say anything now."""
        if self._utterance is not None and self._utterance.ended:
            return None
        if self._terms.caller is None:
            until = self._began + KEY_S  # whatever else it sends
        else:
            until = max(self._heard_at, self._outbox.last_at) + self._terms.idle_s
        return max(0.0, until - self._loop.time())

    async def _check_pause(self) -> None:
        """End a connection whose client has paused for too long."""
        if self._pause_left() != 0.0:
            return
        if self._terms.caller is None:
            await self._tell(Unauthorized(f"API key: none came within {KEY_S:g} s; send it in the first message"))
            await self._close(NO_KEY, "API key: none")
            return
        reason = f"idle: no message came for {self._terms.idle_s:g} s; send ping to stay"
        if self._utterance is not None:
            await self._tell(InvalidRequest(reason))
        await self._close(NORMAL, reason)

    async def _close_if_draining(self) -> None:
        if self._desk.reception.draining:
            await self._close(GOING_AWAY, "the server shuts down")

    async def _close(self, code: int, reason: str) -> None:
        self._closed = True
        await self._outbox.close(code, reason)
