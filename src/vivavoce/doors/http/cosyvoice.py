"""The routes of CosyVoice's own HTTP service: form fields in, raw 16-bit samples out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.doors.http.access import current_caller
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.errors import fields_named
from vivavoce.doors.http.forms import read_form
from vivavoce.doors.http.identity import request_id
from vivavoce.doors.http.openai import FAILURES, NOT_FOUND
from vivavoce.doors.http.speech_events import encoded
from vivavoce.doors.http.streaming import StreamedSpeech
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.service.audio.formats import AudioFormat, content_type
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.operations.callers import Caller

DOOR = "cosyvoice"
RECORDING, STORED = "prompt_wav", "zero_shot_spk_id"
_MOST_FIELDS = 40
_NAMES = {"text": "tts_text", "instruct": "instruct_text", "reference audio": RECORDING}
"""What messages call a field → its name in the form."""


@dataclass(frozen=True)
class _Manner:
    """One route; texts: the fields that it cannot do without; recorded: it wants a recording too."""

    path: str
    mode: str
    summary: str
    texts: tuple[str, ...]
    recorded: bool


_MANNERS = (
    _Manner("/inference_sft", "sft", "A voice of the server", ("tts_text", "spk_id"), False),
    _Manner("/inference_zero_shot", "zero_shot", "A recording and its words", ("tts_text", "prompt_text"), True),
    _Manner("/inference_cross_lingual", "cross_lingual", "A recording, another language", ("tts_text",), True),
    _Manner("/inference_instruct", "instruct", "A voice, told how", ("tts_text", "spk_id", "instruct_text"), False),
    _Manner("/inference_instruct2", "instruct", "A recording, told how", ("tts_text", "instruct_text"), True),
)

_DESCRIPTIONS = {
    "tts_text": "What to say.",
    "spk_id": "A voice's name.",
    "prompt_text": "What the recording says.",
    "instruct_text": "How to say it, in words.",
    RECORDING: "0.5 to 30 s of clear speech: an audio file, at any rate.",
    STORED: "A stored voice's name, in place of a recording and its words.",
    "speed": "0.5 to 2; the pitch stays.",
}


@dataclass(frozen=True)
class _Form:
    """What a request brought: its texts by field, and the recording's bytes."""

    texts: dict[str, str]
    recording: bytes | None


def router(desk: Desk) -> APIRouter:
    """`/inference_sft`, `_zero_shot`, `_cross_lingual`, `_instruct` and `_instruct2`, for GET and POST."""
    routes = APIRouter()
    for manner in _MANNERS:
        answer = _endpoint(desk, manner)
        routes.add_api_route(
            manner.path,
            answer,
            methods=["POST"],
            response_class=Response,
            summary=manner.summary,
            responses={**FAILURES, **NOT_FOUND, 200: _SAMPLES},
            openapi_extra={"requestBody": _request_body(manner)},
        )
        # The service's own client sends its form with GET, which no schema can say.
        routes.add_api_route(manner.path, answer, methods=["GET"], response_class=Response, include_in_schema=False)
    return routes


_SAMPLES = {
    "description": "16-bit little-endian mono samples at the model's rate, as they are made; no header.",
    "content": {"audio/pcm": {"schema": {"type": "string", "format": "binary"}}},
}


def _endpoint(desk: Desk, manner: _Manner) -> Callable[[Request, Caller], Awaitable[Response]]:
    async def answer(request: Request, caller: Annotated[Caller, Depends(current_caller)]) -> Response:
        order = _order(manner, await _read(request), caller.owner)
        with fields_named(_NAMES):
            visit = await desk.reception.speak(caller, order, door=DOOR, request_id=request_id(request))
        return StreamedSpeech(
            visit,
            encoded(visit, AudioFormat.PCM),
            media_type=content_type(AudioFormat.PCM, visit.sample_rate),
            headers={"x-accel-buffering": "no"},
            patience_s=desk.settings.server.listener_timeout_s,
        )

    answer.__name__ = manner.path[1:]
    return answer


async def _read(request: Request) -> _Form:
    """Fields of the query and of a form in the body; the form's go first. What is not known is not looked at."""
    sent = await read_form(request, _MOST_FIELDS)
    return _Form({**request.query_params, **dict(sent.texts)}, dict(sent.files).get(RECORDING))


def _order(manner: _Manner, form: _Form, owner: str) -> SpeechOrder:
    """What a request asks for.

    Raises:
        InvalidRequest: a field is missing, or no number where one belongs.
        InvalidAudio: the recording is missing or empty.
    """
    stored = form.texts.get(STORED, "") if manner.recorded else ""
    needed = [name for name in manner.texts if not (stored and name == "prompt_text")]
    given = {name: _given(form, name, manner) for name in needed}
    voice: str | Recording
    if not manner.recorded:
        voice = given["spk_id"]
    else:
        voice = stored or Recording(_recording(form, manner), given.get("prompt_text", ""))
    return SpeechOrder(
        given["tts_text"],
        voice,
        owner=owner,
        mode=manner.mode,
        instruct=given.get("instruct_text"),
        speed=_speed(form.texts.get("speed", "")),
    )


def _given(form: _Form, name: str, manner: _Manner) -> str:
    value = form.texts.get(name, "")
    if not value:
        raise InvalidRequest(f"{name}: is missing; {manner.path} needs it as a form field or in the query")
    return value


def _recording(form: _Form, manner: _Manner) -> bytes:
    if form.recording:
        return form.recording
    if form.recording is not None:
        raise InvalidAudio(f"{RECORDING}: is empty (0 bytes); send a recording with speech in it")
    if RECORDING in form.texts:
        raise InvalidAudio(f"{RECORDING}: is text; send the recording itself, as a file of a multipart form")
    raise InvalidAudio(
        f"{RECORDING}: is missing; {manner.path} needs a recording as a file, or a stored voice's name in {STORED}"
    )


def _speed(value: str) -> float:
    try:
        return float(value) if value else 1.0
    except ValueError:
        raise InvalidRequest(f"speed: {value[:40]!r} is no number; choose one from 0.5 to 2") from None


def _request_body(manner: _Manner) -> dict[str, Any]:
    """The schema of a form that the route reads by itself, for it may come with GET and in the query."""
    fields = [*manner.texts, *((RECORDING, STORED) if manner.recorded else ()), "speed"]
    kinds: dict[str, dict[str, Any]] = {
        RECORDING: {"type": "string", "format": "binary"},
        "speed": {"type": "number", "minimum": 0.5, "maximum": 2, "default": 1},
    }
    text: dict[str, Any] = {"type": "string", "minLength": 1}
    properties = {name: {**kinds.get(name, text), "description": _DESCRIPTIONS[name]} for name in fields}
    required = [name for name in manner.texts if not (manner.recorded and name == "prompt_text")]
    schema = {"type": "object", "required": required, "properties": properties}
    media = ["multipart/form-data", *([] if manner.recorded else ["application/x-www-form-urlencoded"])]
    return {"required": True, "content": {name: {"schema": schema} for name in media}}
