"""Errors as gRPC tells them: a status, one line, and in the trailing metadata what a program can act on."""

from __future__ import annotations

import asyncio
import math
from typing import TypeAlias

import grpc
import grpc.aio

from vivavoce.errors import VivavoceError
from vivavoce.service.operations.reception import retry_after_s

REQUEST_ID = "x-request-id"
ERROR_CODE = "error-code"
"""`VivavoceError.code`."""
RETRY_AFTER = "retry-after-ms"
"""Milliseconds after which the same request may succeed, only where waiting helps."""
PUSHBACK = "grpc-retry-pushback-ms"
"""The same for gRPC itself: clients whose channel has a retry policy wait that long and try again on their own."""

Metadata = tuple[tuple[str, str], ...]

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
"""Of a call whose messages cross as bytes."""


async def refuse(context: Context, error: VivavoceError, request_id: str, *, patience_s: float) -> None:
    """End the call with what went wrong; never returns.

    patience_s: how long a client that does not read may keep its status waiting.
    """
    status = grpc.StatusCode[error.grpc_status]
    await end(context, status, str(error), trailer(error, request_id), patience_s=patience_s)


async def end(
    context: Context, status: grpc.StatusCode, details: str, trailing: Metadata, *, patience_s: float
) -> None:
    """Abort the call; never returns. A status that cannot be sent in time is given up, and the call dropped."""
    try:
        # The status waits behind audio that the client has not read.
        await asyncio.wait_for(context.abort(status, details, trailing), patience_s)
    except (TimeoutError, asyncio.TimeoutError):
        raise asyncio.CancelledError from None


def trailer(error: VivavoceError, request_id: str) -> Metadata:
    """The trailing metadata of a call that ends with `error`."""
    pairs: Metadata = ((REQUEST_ID, request_id), (ERROR_CODE, error.code))
    seconds = retry_after_s(error)
    if seconds is None:
        return pairs
    milliseconds = str(math.ceil(seconds * 1000))
    return (*pairs, (RETRY_AFTER, milliseconds), (PUSHBACK, milliseconds))
