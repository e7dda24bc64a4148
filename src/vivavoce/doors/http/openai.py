"""OpenAI's speech routes, with true streaming."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.doors.http.access import KnownCaller
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.identity import request_id
from vivavoce.doors.http.schemas import ErrorAnswer, ModelEntry, ModelList, RequestEntry, SpeechFields
from vivavoce.doors.http.speech_events import encoded, events
from vivavoce.doors.http.speech_input import check_model, order_of, read_speech
from vivavoce.doors.http.streaming import StreamedSpeech
from vivavoce.errors import ModelNotFound
from vivavoce.service.audio.formats import content_type, parse_format
from vivavoce.service.host.speaker import ModelAbout
from vivavoce.service.operations.ledger import Entry

DOOR = "openai"
_AUDIO = {"schema": {"type": "string", "format": "binary"}}
_EVENTS = {"schema": {"type": "string"}}
_FAILURES = {
    400: "A field is missing, unknown or out of its limits.",
    401: "No API key, or one that nobody has.",
    403: "The key may not do this.",
    404: "There is none of that name.",
    408: "The body stopped coming.",
    409: "The name is taken.",
    413: "The body is too large.",
    429: "No room now; Retry-After says when to come again.",
    503: "The engine is starting or stopping; Retry-After says when to come again.",
}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route's failures are documented."""
    return {status: {"model": ErrorAnswer, "description": _FAILURES[status]} for status in statuses}


ASKED = failures(401, 503)
"""Of whatever asks the speaker for something."""
FAILURES = failures(400, 401, 408, 413, 429, 503)
"""Of routes with a body."""
NOT_FOUND = failures(404)


def router(desk: Desk) -> APIRouter:
    """`/v1/audio/speech`, `/v1/models`, `/v1/audio/requests`."""
    routes = APIRouter()
    began = int(time.time())
    reception = desk.reception

    @routes.post(
        "/v1/audio/speech",
        response_class=Response,
        summary="Speak a text",
        responses={
            **FAILURES,
            **NOT_FOUND,
            200: {
                "description": "Audio as it is made. A body that ends cleanly is whole; one that breaks off is cut.",
                "content": {
                    "audio/mpeg": _AUDIO,
                    "audio/ogg": _AUDIO,
                    "audio/aac": _AUDIO,
                    "audio/flac": _AUDIO,
                    "audio/wav": _AUDIO,
                    "audio/pcm": _AUDIO,
                    "text/event-stream": _EVENTS,
                },
            },
        },
        openapi_extra={"requestBody": _request_body()},
    )
    async def speech(request: Request, caller: KnownCaller) -> Response:
        fields, recording = await read_speech(request)
        check_model(fields.model, reception.speaker.about)
        order = order_of(fields, fields.input, recording, caller)
        audio_format = parse_format(fields.response_format)
        visit = await reception.speak(caller, order, door=DOOR, request_id=request_id(request))
        as_events = fields.stream_format == "sse"
        return StreamedSpeech(
            visit,
            (events if as_events else encoded)(visit, audio_format),
            media_type="text/event-stream" if as_events else content_type(audio_format, visit.sample_rate),
            headers={"x-accel-buffering": "no"},
            patience_s=desk.settings.server.listener_timeout_s,
        )

    @routes.get("/v1/models", summary="The model that is served", responses=ASKED)
    async def models(_: KnownCaller) -> ModelList:
        return ModelList(data=[_model(reception.speaker.about, began)])

    @routes.get("/v1/models/{name}", summary="One model", responses={**ASKED, **NOT_FOUND})
    async def model(name: str, _: KnownCaller) -> ModelEntry:
        about = reception.speaker.about
        if name != about.name:
            raise ModelNotFound(f"model: {name[:80]!r} is not served here; use {about.name}")
        return _model(about, began)

    @routes.get("/v1/audio/requests/{identity}", summary="What became of a request", responses=failures(401, 404))
    async def requested(identity: str, caller: KnownCaller) -> RequestEntry:
        return _entry(reception.ledger.get(identity, caller))

    return routes


def _request_body() -> dict[str, Any]:
    """The schema of a body that the route reads by itself, for it may be JSON or a form."""
    schema = SpeechFields.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inlined = _inline(schema, definitions)
    form = {**inlined, "properties": {**inlined["properties"], "prompt_audio": {"type": "string", "format": "binary"}}}
    return {
        "required": True,
        "content": {"application/json": {"schema": inlined}, "multipart/form-data": {"schema": form}},
    }


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its references replaced by what they refer to."""
    if isinstance(value, list):
        return [_inline(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        rest = {key: one for key, one in value.items() if key != "$ref"}
        return {**_inline(definitions[value["$ref"].rpartition("/")[2]], definitions), **rest}
    return {key: _inline(one, definitions) for key, one in value.items()}


def _model(about: ModelAbout, created: int) -> ModelEntry:
    return ModelEntry(
        id=about.name,
        created=created,
        owned_by="vivavoce",
        description=about.description,
        sample_rate=about.sample_rate,
        demo=about.demo,
    )


def _entry(entry: Entry) -> RequestEntry:
    error = None if entry.error is None else {"code": entry.error_code, "message": entry.error}
    return RequestEntry(
        id=entry.request_id,
        status=entry.status.value,
        door=entry.door,
        created=int(entry.started),
        finish_reason=None if entry.reason is None else entry.reason.value,
        audio_seconds=round(entry.audio_s, 6),
        segments_spoken=entry.segments_spoken,
        segments_given=entry.segments_given,
        first_audio_seconds=entry.first_audio_s,
        total_seconds=entry.total_s,
        error=error,
    )
