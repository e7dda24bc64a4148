"""Speech at a URL: a GET that plays, and signed URLs for players that cannot send a key."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.errors import InvalidRequest
from vivavoce.logs import note_principal
from vivavoce.server.http.app_state import TIMEOUT, AppState, Deadline, KnownPrincipal, refuse_foreign_page
from vivavoce.server.http.bodies import url_fields, validated
from vivavoce.server.http.errors import BODY_FAILURES, failures
from vivavoce.server.http.openai import SPEECH, spoken
from vivavoce.server.http.speech_fields import SpeechFields, read_speech
from vivavoce.server.keys import MAX_SIGNED_S, SPEECH_PATH, KeyEntry, signed_query, token_in

_LEFT_OUT = ("prompt_audio", "prompt_text", "sampling")
_SIGNED = {"expires": "End of a signed URL, in seconds since 1970.", "signature": "In place of a key in a signed URL."}


class SpeechUrl(BaseModel):
    """A URL that plays."""

    url: str
    expires_at: int | None = Field(description="Seconds since 1970; null: never, because this server needs no keys.")


def router(state: AppState) -> APIRouter:
    routes, keys, server = APIRouter(), state.keys, state.settings.server
    properties = _properties()
    signed = {name: {"type": "string", "description": about} for name, about in _SIGNED.items()}
    parameters = [
        {"name": name, "in": "query", "required": name == "input", "schema": schema}
        for name, schema in {**properties, **signed}.items()
    ]
    body = {"schema": {"type": "object", "required": ["input"], "properties": properties}}

    @routes.get(
        SPEECH_PATH,
        response_class=Response,
        summary="Play a text",
        responses={**failures(400, 401, 403, 404, 429, 503, 504), 200: SPEECH},
        openapi_extra={"parameters": [*parameters, TIMEOUT]},
    )
    async def play(request: Request, deadline: Deadline) -> Response:
        given, token = url_fields(request.scope["query_string"]), token_in(request.headers)
        by_signature = keys.required and token is None
        if not by_signature:  # a signed URL may be shown on any page
            refuse_foreign_page(request.headers, request.scope["scheme"], server.cors_origins, "play speech")
        principal = keys.authenticate_url(given) if by_signature else keys.authenticate(token)
        note_principal(principal.name)
        fields = {name: value for name, value in given if name not in _SIGNED}
        if len(fields) < len([name for name, _ in given if name not in _SIGNED]):
            raise InvalidRequest("query: holds a field twice; send each once")
        _check_room(fields)
        return await spoken(request, principal, deadline, validated(SpeechFields, fields, "query"))

    @routes.post(
        f"{SPEECH_PATH}/url",
        summary="A URL that plays a text for some time without a key",
        responses=BODY_FAILURES,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": body}}},
    )
    async def sign(
        request: Request,
        principal: KnownPrincipal,
        expires_in: Annotated[int, Query(ge=1, le=MAX_SIGNED_S, description="Seconds.")] = 3600,
    ) -> SpeechUrl:
        wanted, uploaded = await read_speech(request)
        values = wanted.model_dump(exclude_unset=True, exclude_none=True)
        _check_room({**values, **({} if uploaded is None else {"prompt_audio": ""})})
        if isinstance(voice := values.get("voice"), dict):
            values["voice"] = voice["id"]
        fields, until = [(name, str(value)) for name, value in values.items()], None
        if isinstance(principal, KeyEntry):
            query, until = signed_query(principal, fields, expires_in, time.time())
        else:
            query = urlencode(fields, quote_via=quote)
        if len(query) > (most := server.max_header_bytes // 2):
            raise InvalidRequest(
                f"input: its URL would have {len(query)} bytes, more than {most}; POST it to be spoken"
            )
        return SpeechUrl(url=f"{str(request.base_url).rstrip('/')}{SPEECH_PATH}?{query}", expires_at=until)

    return routes


def _check_room(fields: dict[str, Any]) -> None:
    for name in _LEFT_OUT:
        if name in fields:
            raise InvalidRequest(f"{name}: has no room in a URL; POST it to be spoken, or name a stored voice")


def _properties() -> dict[str, Any]:
    known = SpeechFields.model_json_schema()["properties"]
    voice = {"type": "string", "description": "A voice's name. Default: the model's first."}
    return {name: voice if name == "voice" else schema for name, schema in known.items() if name not in _LEFT_OUT}
