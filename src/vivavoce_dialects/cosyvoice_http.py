"""The routes of CosyVoice's own HTTP service: form fields in, raw 16-bit samples out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.server.http.app_state import TIMEOUT, AppState, Deadline, KnownPrincipal
from vivavoce.server.http.bodies import MAX_FORM_FIELDS, read_form, url_fields
from vivavoce.server.http.errors import BODY_FAILURES, NOT_FOUND, failures
from vivavoce.server.http.streaming import SpeechAnswer

PROTOCOL = "cosyvoice"
RECORDING, STORED = "prompt_wav", "zero_shot_spk_id"
_NAMES = {"text": "tts_text", "instruct": "instruct_text", "reference audio": RECORDING}


@dataclass(frozen=True)
class _Route:
    """A route of the service. texts: required form fields; takes_recording: whether it needs a recording, too."""

    path: str
    mode: str
    summary: str
    texts: tuple[str, ...]
    takes_recording: bool


_ROUTES = (
    _Route("/inference_sft", "sft", "A voice of the server", ("tts_text", "spk_id"), False),
    _Route("/inference_zero_shot", "zero_shot", "A recording and its words", ("tts_text", "prompt_text"), True),
    _Route("/inference_cross_lingual", "cross_lingual", "A recording, another language", ("tts_text",), True),
    _Route(
        "/inference_instruct", "instruct", "A voice, with instructions", ("tts_text", "spk_id", "instruct_text"), False
    ),
    _Route("/inference_instruct2", "instruct", "A recording, with instructions", ("tts_text", "instruct_text"), True),
)
_TEXT = {"type": "string", "minLength": 1}
_FILE = {"type": "string", "format": "binary"}
_SPEED = {"type": "number", "minimum": 0.5, "maximum": 2, "default": 1, "description": "0.5 to 2; the pitch stays."}
_FIELDS: dict[str, dict[str, Any]] = {
    "tts_text": {**_TEXT, "description": "The text."},
    "spk_id": {**_TEXT, "description": "A voice's name."},
    "prompt_text": {**_TEXT, "description": "The words of the recording."},
    "instruct_text": {**_TEXT, "description": "How to say it, in words."},
    RECORDING: {**_FILE, "description": "0.5 to 30 s of clear speech: an audio file, at any rate."},
    STORED: {**_TEXT, "description": "A stored voice's name, in place of a recording and its words."},
    "speed": _SPEED,
}
_SAMPLES = {
    "description": "16-bit little-endian mono samples at the model's rate, as they are made; no header.",
    "content": {"audio/pcm": {"schema": _FILE}},
}


def router(_: AppState) -> APIRouter:
    routes = APIRouter()
    for route in _ROUTES:
        endpoint = _endpoint(route)
        routes.add_api_route(
            route.path,
            endpoint,
            methods=["POST"],
            response_class=Response,
            summary=route.summary,
            responses={**BODY_FAILURES, **NOT_FOUND, **failures(504), 200: _SAMPLES},
            openapi_extra={"requestBody": _request_body(route), "parameters": [TIMEOUT]},
        )
        # The service's own client sends its form with GET, which a schema cannot express.
        routes.add_api_route(route.path, endpoint, methods=["GET"], response_class=Response, include_in_schema=False)
    return routes


def _endpoint(route: _Route) -> Callable[[Request, KnownPrincipal, Deadline], Awaitable[Response]]:
    async def endpoint(request: Request, principal: KnownPrincipal, deadline: Deadline) -> Response:
        form = await read_form(request, MAX_FORM_FIELDS)
        # A field of the form overrides the field of this name in the query. Unknown fields are ignored.
        query = url_fields(request.scope["query_string"])
        texts, recording = {**dict(query), **dict(form.texts)}, dict(form.files).get(RECORDING)
        wanted = _request(route, texts, recording, principal.owner)
        return SpeechAnswer(
            request,
            principal,
            wanted,
            OutputFormat(AudioFormat.PCM),
            protocol=PROTOCOL,
            deadline=deadline,
            field_names={**_NAMES, "voice": "spk_id" if "spk_id" in route.texts else STORED},
        )

    endpoint.__name__ = route.path[1:]
    return endpoint


def _request(route: _Route, texts: dict[str, str], recording: bytes | None, owner: str) -> SpeechRequest:
    stored = texts.get(STORED, "") if route.takes_recording else ""
    given = {name: texts.get(name, "") for name in route.texts}
    for name, text in given.items():
        if not text and not (stored and name == "prompt_text"):
            raise InvalidRequest(f"{name}: is missing; {route.path} needs it as a form field or in the query")
    voice: str | Recording = given.get("spk_id", stored)
    if route.takes_recording and not stored:
        if not recording:
            raise InvalidAudio(f"{RECORDING}: {_recording_problem(route, texts, recording)}")
        voice = Recording(recording, given.get("prompt_text", ""))
    try:
        speed = float(texts.get("speed") or 1.0)
    except ValueError:
        raise InvalidRequest(f"speed: {texts['speed'][:40]!r} is not a number; choose one from 0.5 to 2") from None
    instruct = given.get("instruct_text")
    options: dict[str, Any] = {"mode": route.mode, "instruct": instruct, "speed": speed, "reading": "official"}
    return SpeechRequest(given["tts_text"], voice, owner=owner, **options)


def _recording_problem(route: _Route, texts: dict[str, str], recording: bytes | None) -> str:
    if recording is not None:
        return "is empty (0 bytes); send a recording with speech in it"
    if RECORDING in texts:
        return "is text; send the recording itself, as a file of a multipart form"
    return f"is missing; {route.path} needs a recording as a file, or a stored voice's name in {STORED}"


def _request_body(route: _Route) -> dict[str, Any]:
    fields = [*route.texts, *((RECORDING, STORED) if route.takes_recording else ()), "speed"]
    alone = [RECORDING, *(name for name in route.texts if name == "prompt_text")]
    required = [name for name in route.texts if name not in alone]
    schema = {"type": "object", "required": required, "properties": {name: _FIELDS[name] for name in fields}}
    if route.takes_recording:
        schema["anyOf"] = [{"required": alone}, {"required": [STORED]}]
    media = ["multipart/form-data", *([] if route.takes_recording else ["application/x-www-form-urlencoded"])]
    return {"required": True, "content": {name: {"schema": schema} for name in media}}
