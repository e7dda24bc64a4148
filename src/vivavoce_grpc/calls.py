"""The common part of all gRPC methods: keys, limits, reading of messages, and statuses."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from vivavoce.errors import DeadlineExceeded, InvalidRequest, Overloaded, VivavoceError
from vivavoce.logs import request_scope
from vivavoce.server.dispatcher import RequestDispatcher, sent_within
from vivavoce.server.keys import KeyRing, token_in
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.settings import ServerSection
from vivavoce_grpc.protos import message

PROTOCOL = "grpc"
LEAST_STREAMS = 8
"""Least value of two limits, even if `max_conc` is small: calls per connection, messages read at once per caller."""
REQUEST_ID, FINISH_REASON = "x-request-id", "finish-reason"
ERROR_CODE = "error-code"
RETRY_AFTER = "retry-after-ms"
"""Milliseconds after which the same request may succeed; sent only if waiting helps."""
PUSHBACK = "grpc-retry-pushback-ms"
"""The value of `RETRY_AFTER` for gRPC itself: clients with a retry policy wait this long and then try again."""

Metadata = tuple[tuple[str, str], ...]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Call:
    port: Calls
    context: Context
    principal: Principal
    request_id: str

    async def receive(self, name: str) -> Any:
        """Receive the only message of a unary call. name: the message's full name. Errors: see `Calls.message`."""
        return parsed(name, await self.port.message(self.context, self.principal.name) or b"")

    async def send(self, name: str, /, **fields: Any) -> None:
        """Send a message of this full name. ListenerStalled: the client has not read for too long."""
        content = message(name)(**fields).SerializeToString()
        await sent_within(self.port.patience_s, self.context.write(content))


Answer = Callable[[Call], Awaitable[Metadata]]
"""A function that answers a call and returns its trailing metadata; `serve` adds the request's id to them."""


class Calls:
    def __init__(self, dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSection) -> None:
        self.dispatcher, self._keys = dispatcher, keys
        self.patience_s, self._message_s = settings.listener_timeout_s, settings.request_timeout_s
        self._max_conc, self.at_once = settings.max_conc, max(LEAST_STREAMS, 2 * settings.max_conc)
        self._speaking = 0
        self._reading: Counter[str] = Counter()
        """Name of a key → number of messages that are being read; health checks count under their service's name."""

    async def serve(self, answer: Answer, _: object, context: Context) -> None:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        request_log = self.dispatcher.request_log
        trailing: Metadata
        request_id = request_log.accept_request_id(metadata.get(REQUEST_ID))
        parent, states = metadata.get("traceparent", ""), metadata.get("tracestate", "")
        try:
            principal = self._keys.authenticate(token_in(metadata))
            request_id = request_log.accept_request_id(request_id, principal)
            with request_scope(request_id, traceparent=parent, tracestate=states):
                trailing = await answer(Call(self, context, principal, request_id))
            context.set_trailing_metadata(((REQUEST_ID, request_id), *trailing))
        except VivavoceError as error:
            trailing = ((REQUEST_ID, request_id), (ERROR_CODE, error.code))
            if (seconds := error.retry_after_s) is not None:
                milliseconds = str(math.ceil(seconds * 1000))
                trailing = (*trailing, (RETRY_AFTER, milliseconds), (PUSHBACK, milliseconds))
            await self._end(context, grpc.StatusCode[error.grpc_status], str(error), trailing)
        except grpc.aio.BaseError:
            raise  # the client has disconnected during a send, which gRPC handles
        except Exception:
            log.exception("request failed: %(request_id)s", {"request_id": request_id})
            details = f"server: an internal error, which was logged; tell its operator the request's id {request_id}"
            trailing = ((REQUEST_ID, request_id), (ERROR_CODE, "internal_error"))
            await self._end(context, grpc.StatusCode.INTERNAL, details, trailing)

    async def message(self, context: Context, caller: str) -> bytes | None:
        """Read the next message; return None if the client has closed its side. caller: the name in `_reading`."""
        if self._reading[caller] >= self.at_once:
            raise Overloaded(f"calls: the server reads {self.at_once} of yours, which is the limit; try again soon")
        self._reading[caller] += 1
        try:
            content = await asyncio.wait_for(context.read(), self._message_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise DeadlineExceeded(
                f"request: did not come within {self._message_s:g} s; send it as soon as the call is open"
            ) from None
        finally:
            self._reading[caller] -= 1
        return content if isinstance(content, bytes) else None

    @asynccontextmanager
    async def speaking(self, call: Call) -> AsyncIterator[bytes]:
        """Yield a speech call's first message. In the block the call counts for `max_conc`. Errors: see `message`."""
        try:
            content = await self.message(call.context, call.principal.name)
            if self._speaking >= self._max_conc:
                raise Overloaded(
                    f"calls: {self._speaking} are being answered, which is the limit (max_conc); try again soon"
                )
        except VivavoceError as error:
            self.dispatcher.metrics.refuse(PROTOCOL, error.code)
            raise
        self._speaking += 1
        try:
            yield content or b""
        finally:
            self._speaking -= 1

    def deadline(self, call: Call) -> float | None:
        """Return the call's deadline on the dispatcher's clock, or None if the client set no deadline."""
        left_s = call.context.time_remaining()
        return None if left_s is None else self.dispatcher.clock() + left_s

    async def _end(self, context: Context, status: grpc.StatusCode, details: str, trailing: Metadata) -> None:
        """Abort the call; never returns. A call whose status cannot be sent in time is dropped."""
        try:
            # The status is sent after the audio, so it waits while the client does not read.
            await asyncio.wait_for(context.abort(status, details, trailing), self.patience_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise asyncio.CancelledError from None


def parsed(name: str, content: bytes) -> Any:
    made = message(name)()
    try:
        made.ParseFromString(content)
    except DecodeError:
        raise InvalidRequest(
            f"request: its {len(content)} bytes are not a {name}; make it with code from {made.DESCRIPTOR.file.name}"
        ) from None
    return made
