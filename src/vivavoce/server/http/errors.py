"""Errors in the form of OpenAI's API: one JSON object with message, type, param and code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from vivavoce.errors import (
    AdapterNotFound,
    InvalidRequest,
    InvalidText,
    ModelNotFound,
    TooLarge,
    Unauthorized,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.server.http.app_state import REQUEST_ID_HEADER

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_FIELDS = {
    "instruct": "instructions",
    "reference audio": "prompt_audio",
    "chunk policy": "chunk_policy",
}
_NOT_FIELDS = ("body", "query", "path", "form", "constrained-str", "VoiceId")
_METHODS = ("GET", "POST", "DELETE")
_MISTAKES = 10
_SHOWN = 40
_OBJECT = "input should be an object"
_DESCRIPTIONS = {
    400: "A field is missing, unknown or out of its limits.",
    401: "The API key is missing or unknown.",
    403: "The key may not do this.",
    404: "The name is unknown.",
    408: "The client stopped sending the body.",
    409: "The name is taken.",
    413: "The body is too large.",
    429: "No room now; Retry-After says when to try again.",
    503: "The engine is starting or stopping; Retry-After says when to try again.",
    504: "The time limit in x-request-timeout has passed.",
}


class ErrorBody(BaseModel):
    """An error."""

    message: str = Field(description="One line with the field, its value, the limit and a remedy.")
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The answer to a failed request, in OpenAI's form."""

    error: ErrorBody


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": _DESCRIPTIONS[status]} for status in statuses}


ENGINE_FAILURES = failures(401, 503)
BODY_FAILURES = failures(400, 401, 408, 413, 429, 503)
NOT_FOUND = failures(404)


def install(app: FastAPI) -> None:
    app.add_exception_handler(VivavoceError, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(Exception, _defect)


def error_body(error: VivavoceError, text_field: str = "input") -> dict[str, Any]:
    """Return the value of "error" in an answer or an event; text_field: the name of the route's text field."""
    param = None
    # Messages of these errors begin with the field's name.
    if isinstance(error, (InvalidRequest, VoiceNotFound, AdapterNotFound, ModelNotFound)):
        name = str(error).partition(":")[0]
        name = text_field if name == "text" else _FIELDS.get(name, name)
        param = name if name.replace("_", "").replace(".", "").isalnum() else None
    return _body(error.http_status, str(error), error.code, param)


def response_of(error: VivavoceError, text_field: str = "input") -> Response:
    """Return an error's answer, with `Retry-After` in whole seconds if waiting helps; text_field: see `error_body`."""
    headers = {}
    if (seconds := error.retry_after_s) is not None:
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="vivavoce"'
    if isinstance(error, TooLarge):
        headers["connection"] = "close"
    return JSONResponse({"error": error_body(error, text_field)}, status_code=error.http_status, headers=headers)


def error_response(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": _body(status, message, code, None)}, status_code=status, headers=headers)


def invalid(details: list[Any], where: str = "body") -> InvalidRequest:
    """Return one error for the mistakes that a schema found: the first one of each field, ten fields at most.

    InvalidText if the only mistakes are texts that are too long, else InvalidRequest.
    """
    mistakes: list[str] = []
    named, only_long = set[str](), True
    # A field may have several types; the most deeply nested mistake belongs to the type that was meant.
    for detail in sorted(details, key=lambda detail: -len(detail["loc"])):
        path = ".".join(_printable(part) for part in detail["loc"] if part not in _NOT_FIELDS) or where
        message = _OBJECT if detail["type"] in ("model_type", "dict_type") else str(detail["msg"])
        long = detail["type"] == "string_too_long"
        only_long = only_long and long and path.rpartition(".")[2] in ("text", "input")
        value = f"{len(detail['input'])} characters" if long else repr(shown(detail.get("input")))
        given = "" if _is_hidden(detail) else f" (given: {value})"
        if path not in named:
            mistakes.append(f"{path}: {message[:1].lower()}{message[1:]}{given}")
        named |= {path, path.partition(".")[0]}
    more = f"; {len(mistakes) - _MISTAKES} more" if len(mistakes) > _MISTAKES else ""
    return (InvalidText if only_long else InvalidRequest)(f"{'; '.join(mistakes[:_MISTAKES])}{more}; see /openapi.json")


def shown(value: object) -> str:
    """Return the first 40 characters of a value as JSON; a string is not quoted."""
    if isinstance(value, str):
        return value[:_SHOWN]
    # Encode piece by piece, since all of a deep or large value would take too long.
    pieces = islice(json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value), _SHOWN)
    return "".join(pieces)[:_SHOWN]


def _is_hidden(detail: dict[str, Any]) -> bool:
    """Return whether to hide the input: the whole body (missing field), or an unknown field's object, list or null."""
    is_unknown = detail["type"] == "extra_forbidden" and isinstance(detail.get("input"), (dict, list, type(None)))
    return is_unknown or detail["type"] == "missing"


def renamed(error: VivavoceError, names: Mapping[str, str]) -> VivavoceError:
    """Return the error with its field named as in the route. names: field name in messages → the route's field name."""
    field, _, rest = str(error).partition(":")
    return type(error)(f"{names[field]}:{rest}") if field in names else error


def _printable(part: object) -> str:
    """Return a field's name in a form that is safe in a message, since a client may have sent any string."""
    name = str(part)
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum() and len(name) <= 40
    return name if plain else f"{name[:40]!r}"


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = invalid(list(error.errors()))
    assert isinstance(error, VivavoceError)
    return response_of(error, getattr(request.state, "text_field", "input"))


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.scope["path"][:100]
    code, message, headers = "invalid_request", str(error.detail), error.headers
    if status == 404:
        code, message = "not_found", f"path: {path!r} does not exist; /openapi.json lists all paths"
    elif status == 405:
        code = "method_not_allowed"
        message = f"method: {path!r} does not take {request.method}; /openapi.json lists its methods"
        # A route knows only its own methods, and several routes may share a path.
        scopes = {method: {**request.scope, "method": method} for method in _METHODS}
        routes = request.app.routes
        taken = [one for one in scopes if any(route.matches(scopes[one])[0] is Match.FULL for route in routes)]
        headers = {"allow": ", ".join(taken).replace("GET", "GET, HEAD")}
    return error_response(status, message, code, headers)


async def _defect(request: Request, _: Exception) -> Response:
    # Only this answer is made outside the middleware, which adds the id to all others.
    message = "server: an internal error, which was logged; tell its operator the x-request-id of this answer"
    return error_response(500, message, "internal_error", {REQUEST_ID_HEADER: request.state.request_id})


def _body(status: int, message: str, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}
