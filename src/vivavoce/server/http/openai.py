"""OpenAI's speech routes, with true streaming."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.encode import parse_format
from vivavoce.frontend.speech import FinishReason, Mode
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.http.app_state import (
    TIMEOUT,
    AppState,
    Deadline,
    KnownPrincipal,
    ListReader,
    refuse_foreign_page,
    state_of,
)
from vivavoce.server.http.bodies import json_schema, url_fields, validated, without_ignored
from vivavoce.server.http.errors import BODY_FAILURES, ENGINE_FAILURES, NOT_FOUND, failures
from vivavoce.server.http.speech_fields import SpeechFields, read_speech
from vivavoce.server.http.streaming import AudioBody, EventBody, SpeechAnswer
from vivavoce.server.http.voices import Label
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.request_log import RequestRecord
from vivavoce.server.served_models import served_model

PROTOCOL = "openai"
SPEECH_PATH = "/v1/audio/speech"
PCM_RATE = 24_000
"""Samples per second of pcm: OpenAI's clients play samples without a header at this rate, whatever the model."""
_AUDIO = {"schema": {"type": "string", "format": "binary"}}
_EVENT = {"schema": {"type": "string", "description": "Server-sent events, whose data are JSON with a `type`."}}
_SPEECH = {
    "description": "Audio, sent while it is made. If it cannot be completed, the connection breaks off.",
    "content": {
        **{f"audio/{name}": _AUDIO for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm", "PCMU", "PCMA")},
        "text/event-stream": _EVENT,
    },
}
_NOT_IN_URLS = ("prompt_audio", "prompt_text", "sampling")


class ModelEntry(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    sample_rate: int = Field(description="Samples per second of all audio.")
    demo: bool = Field(description="A demo model, which is not meant for real use.")
    instructions: bool = Field(description="Whether it follows instructions; other models ignore them.")
    generation: str = Field(description="v1, v2 or v3: CosyVoice 1, 2 or 3; empty if it is unknown.")
    languages: list[str] = Field(description="Codes of the languages that it speaks.")
    modes: list[Mode] = Field(description="The ways in which it can use a voice.")
    streaming: bool = Field(True, description="Its audio is sent while it is made.")
    loaded: bool = Field(description="Whether it is in memory; if not, a request for it waits until it is loaded.")
    default: bool = Field(description="Whether it serves requests that name no model.")


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
    models: list[Label] = Field(description="The same models in the form that Open WebUI reads.")


class RequestEntry(BaseModel):
    """The state of a request."""

    id: str
    object: Literal["audio.request"] = "audio.request"
    status: Literal["running", "finished"]
    door: str = Field(description="The protocol of the request.")
    created: int
    finish_reason: FinishReason | None
    audio_seconds: float = Field(description="Seconds of delivered audio.")
    segments_spoken: int
    segments_given: int
    first_audio_seconds: float | None
    total_seconds: float | None
    error: dict[str, Any] | None


def router(state: AppState) -> APIRouter:
    routes = APIRouter()
    began = int(time.time())
    dispatcher = state.dispatcher

    @routes.post("/audio/speech", include_in_schema=False)  # the path of Triton-OpenAI-Speech
    @routes.post(
        SPEECH_PATH,
        response_class=Response,
        summary="Speak a text",
        responses={**BODY_FAILURES, **NOT_FOUND, **failures(504), 200: _SPEECH},
        openapi_extra={"requestBody": _request_body(), "parameters": [TIMEOUT]},
    )
    async def speech(request: Request, principal: KnownPrincipal, deadline: Deadline) -> Response:
        fields, uploaded = await read_speech(request)
        return await _spoken(request, principal, deadline, fields, uploaded)

    @routes.get(
        SPEECH_PATH,
        response_class=Response,
        summary="Play a text",
        responses={**failures(400, 401, 403, 404, 429, 503, 504), 200: _SPEECH},
        openapi_extra={"parameters": [*_url_parameters(), TIMEOUT]},
    )
    async def play(request: Request, principal: KnownPrincipal, deadline: Deadline) -> Response:
        refuse_foreign_page(request.headers, request.scope["scheme"], state.settings.server.cors_origins, "play speech")
        fields = without_ignored(request, SpeechFields, dict(url_fields(request.scope["query_string"])))
        asked = validated(SpeechFields, fields, "query")
        for name in (name for name in _NOT_IN_URLS if name in asked.model_fields_set):
            raise InvalidRequest(f"{name}: cannot be sent in a URL; use POST, or name a stored voice")
        return await _spoken(request, principal, deadline, asked)

    @routes.get("/v1/models", summary="The served models", response_model=ModelList, responses=ENGINE_FAILURES)
    @routes.get("/v1/audio/models", response_model=ModelList, include_in_schema=False)  # where Open WebUI asks first
    async def models(request: Request, _: ListReader) -> ModelList | Response:
        about = dispatcher.backend.about
        for dialect in state.dialects:
            if (listed := dialect.models(request.headers, about)) is not None:
                return JSONResponse(listed)
        served = _models(about, began)
        return ModelList(data=served, models=[Label(id=one.id, name=one.id) for one in served])

    @routes.get("/v1/models/{name:path}", summary="One model", responses={**ENGINE_FAILURES, **NOT_FOUND})
    async def model(name: str, _: ListReader) -> ModelEntry:
        about = dispatcher.backend.about
        meant = about.of(served_model(name, about, dispatcher.rules))
        found = next(one for one in _models(about, began) if one.id == meant.name)
        return found.model_copy(update={"id": name})

    @routes.get("/v1/audio/requests/{identity}", summary="The state of a request", responses=failures(401, 404))
    async def requested(identity: str, principal: KnownPrincipal) -> RequestEntry:
        return _entry(dispatcher.request_log.get(identity, principal))

    return routes


def _entry(entry: RequestRecord) -> RequestEntry:
    return RequestEntry(
        id=entry.request_id,
        status=entry.status,
        door=entry.protocol,
        created=int(entry.started),
        finish_reason=entry.reason,
        audio_seconds=round(entry.audio_s, 6),
        segments_spoken=entry.segments_spoken,
        segments_given=entry.segments_given,
        first_audio_seconds=entry.first_audio_s,
        total_seconds=entry.total_s,
        error=None if entry.error is None else {"code": entry.error_code, "message": entry.error},
    )


async def _spoken(
    request: Request, principal: Principal, deadline: float | None, fields: SpeechFields, uploaded: bytes | None = None
) -> SpeechAnswer:
    dispatcher = state_of(request).dispatcher
    wanted = await fields.request(fields.input, principal, dispatcher.backend.about, uploaded, dispatcher.rules)
    is_bare = fields.sample_rate is None and fields.response_format == "pcm"
    rate = PCM_RATE if is_bare else fields.sample_rate
    output, body = parse_format(fields.response_format, rate), EventBody if fields.stream_format == "sse" else AudioBody
    return SpeechAnswer(request, principal, wanted, output, protocol=PROTOCOL, deadline=deadline, body=body)


def _request_body() -> dict[str, Any]:
    inlined = json_schema(SpeechFields)
    form = {**inlined, "properties": {**inlined["properties"], "prompt_audio": {"type": "string", "format": "binary"}}}
    return {
        "required": True,
        "content": {"application/json": {"schema": inlined}, "multipart/form-data": {"schema": form}},
    }


def _url_parameters() -> list[dict[str, Any]]:
    known = SpeechFields.model_json_schema()["properties"]
    known["voice"] = {"type": "string", "description": known["voice"]["description"]}
    return [
        {"name": name, "in": "query", "required": name == "input", "schema": schema}
        for name, schema in known.items()
        if name not in _NOT_IN_URLS
    ]


def _models(about: ModelInfo, created: int) -> list[ModelEntry]:
    """Return the entries of all served models; about: the default model."""
    found = []
    for one in (about, *about.others):
        modes = [mode for mode in Mode if one.instructions or mode is not Mode.INSTRUCT]
        known = {name: value for name, value in vars(one).items() if name in ModelEntry.model_fields}
        known |= {"modes": modes, "default": one is about}
        found.append(ModelEntry(id=one.name, created=created, owned_by="vivavoce", **known))
    return found
