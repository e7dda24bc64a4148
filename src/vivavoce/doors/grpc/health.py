"""`grpc.health.v1.Health/Check`, as probes of orchestrators ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from vivavoce.doors.grpc.messages import SERVICE
from vivavoce.doors.grpc.refusals import Context
from vivavoce.doors.grpc.wire import Field, file_descriptor, message_classes

HEALTH_SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2

_CLASSES = message_classes(
    file_descriptor(
        "health.proto",
        "grpc.health.v1",
        {
            "HealthCheckRequest": (Field("service", 1, "string"),),
            # An enum in the original file; the bytes are the same.
            "HealthCheckResponse": (Field("status", 1, "int32"),),
        },
    )
)


def health_handler(ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """The service; `ready`: whether requests are taken now."""

    async def check(content: bytes, context: Context) -> bytes:
        request: Any = _CLASSES["HealthCheckRequest"]()
        try:
            request.ParseFromString(content)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: it is no HealthCheckRequest")
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service: {request.service[:100]!r} is not served here")
        answer: Any = _CLASSES["HealthCheckResponse"](status=SERVING if ready() else NOT_SERVING)
        return answer.SerializeToString()

    return grpc.method_handlers_generic_handler(HEALTH_SERVICE, {"Check": grpc.unary_unary_rpc_method_handler(check)})
