"""Errors as clients of OpenAI's API know them: one JSON object with message, type, param and code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivavoce.doors.http.identity import HEADER, request_id
from vivavoce.errors import InvalidRequest, TooLarge, Unauthorized, VivavoceError
from vivavoce.service.operations.reception import retry_after_s

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_FIELDS = {
    "text": "input",
    "instruct": "instructions",
    "reference audio": "prompt_audio",
    "chunk policy": "chunk_policy",
}
"""What messages call a field → what this API calls it."""
_CHOICES = ("constrained-str", "VoiceId")
"""What a schema calls the forms that one field may have: no part of a field's name."""


def install(app: FastAPI) -> None:
    """Have the app answer every failure in one shape."""
    app.add_exception_handler(VivavoceError, _foreseen)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _defect)


def body_of(error: VivavoceError) -> dict[str, Any]:
    """The value of "error" in an answer or an event."""
    return _body(error.http_status, str(error), error.code, _field(error))


def response_of(error: VivavoceError) -> Response:
    """The whole answer; with `Retry-After` in whole seconds where waiting helps."""
    headers = {}
    seconds = retry_after_s(error)
    if seconds is not None:
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="vivavoce"'
    if isinstance(error, TooLarge):
        headers["connection"] = "close"
    return JSONResponse({"error": body_of(error)}, status_code=error.http_status, headers=headers)


def refusal(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of that shape for what no `VivavoceError` stands for: it never became a request."""
    return JSONResponse({"error": _body(status, message, code, None)}, status_code=status, headers=headers)


def invalid(details: list[Any], where: str = "body") -> InvalidRequest:
    """What a schema found wrong, as one line: the first field, and how many others there are."""
    first = details[0]
    path = [_name(part) for part in first["loc"] if part not in ("body", "query", "path", "form", *_CHOICES)]
    given = first.get("input")
    shown = "" if isinstance(given, (dict, list)) or given is None else f" (given: {str(given)[:40]!r})"
    others = f"; {len(details) - 1} more" if len(details) > 1 else ""
    message = str(first["msg"])
    return InvalidRequest(
        f"{'.'.join(path) or where}: {message[:1].lower()}{message[1:]}{shown}{others}; see /openapi.json"
    )


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors name a route's fields as the route does; names: what messages call a field → its name there."""
    try:
        yield
    except InvalidRequest as error:
        field, _, rest = str(error).partition(":")
        if field not in names:
            raise
        raise type(error)(f"{names[field]}:{rest}") from None


def _name(part: object) -> str:
    """A field's name as a message may hold it: a client may have sent any string, of any length."""
    name = str(part)
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum() and len(name) <= 40
    return name if plain else f"{name[:40]!r}"


async def _foreseen(_: Request, error: Exception) -> Response:
    assert isinstance(error, VivavoceError)
    return response_of(error)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return response_of(invalid(list(error.errors())))


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = str(error.detail)
    path = request.scope["path"][:100]
    if status == 404:
        message = f"path: there is no {path!r} here; /openapi.json lists what there is"
    elif status == 405:
        message = f"method: {request.method} is not what {path!r} takes; /openapi.json says what it does"
    elif status == 400:
        message = f"body: it cannot be read ({message}); send JSON or multipart/form-data"
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    return refusal(status, message, code, error.headers)


async def _defect(request: Request, _: Exception) -> Response:
    """What nobody foresaw: told without its innards; with them it is logged by whoever runs the app."""
    # This answer alone is given outside of `Identified`, which marks the others.
    message = "server: an internal error, which was logged; tell its operator the x-request-id of this answer"
    return refusal(500, message, "internal_error", {HEADER: request_id(request)})


def _body(status: int, message: str, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def _field(error: VivavoceError) -> str | None:
    """The field that a message begins with, as this API calls it."""
    if not isinstance(error, InvalidRequest):
        return None
    name = str(error).partition(":")[0]
    name = _FIELDS.get(name, name)
    return name if name.replace("_", "").replace(".", "").isalnum() else None
