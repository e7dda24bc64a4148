"""The body of `/v1/audio/speech`: JSON, or a form with a recording as a file."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request

from vivavoce.doors.http.errors import invalid
from vivavoce.doors.http.forms import MULTIPART, URLENCODED, media_type, read_form
from vivavoce.doors.http.json_input import aside, check_values
from vivavoce.doors.http.schemas import SpeechFields, VoiceId
from vivavoce.doors.http.ws_messages import Start
from vivavoce.errors import InvalidAudio, InvalidRequest, ModelNotFound
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.speaker import ModelAbout
from vivavoce.service.operations.callers import Caller

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that programs written for OpenAI's service send, some with a date: the served model answers to them."""
_OPENAI_MODEL = re.compile(rf"({'|'.join(OPENAI_MODELS)})(-\d+)*", re.ASCII)
_STRUCTURED = ("voice", "sampling")
_MOST_FIELDS = 40
_WHITE_SPACE = b" \t\r\n"


async def read_speech(request: Request) -> tuple[SpeechFields, Recording | None]:
    """The fields of a request, and the recording that came with them.

    Raises:
        InvalidRequest: no JSON and no form, an unknown field, a value out of its limits.
    """
    if media_type(request) in (MULTIPART, URLENCODED):
        return await _from_form(request)
    # `request.body()` would keep it for as long as its answer takes: minutes, of speech.
    body = b"".join([piece async for piece in request.stream()])
    return await aside(len(body), lambda: _from_json(body))


def order_of(
    fields: SpeechFields | Start, text: str | None, recording: Recording | None, caller: Caller
) -> SpeechOrder:
    """What the speaker is asked for; text: None if it arrives piece by piece.

    Raises:
        InvalidRequest: both a voice and a recording.
    """
    if recording is not None and fields.voice is not None:
        raise InvalidRequest("voice: a recording came as well; leave voice or prompt_audio out")
    name = fields.voice.id if isinstance(fields.voice, VoiceId) else fields.voice
    return SpeechOrder(
        text=text,
        voice=recording or name,
        owner=caller.owner,
        mode=fields.mode,
        instruct=fields.instructions or None,
        speed=fields.speed,
        seed=fields.seed,
        sampling=fields.sampling.value(),
        policy=fields.chunk_policy,
        language=fields.language,
    )


def check_model(name: str, about: ModelAbout) -> None:
    """Refuse another model than the one that is served.

    Raises:
        ModelNotFound: lists the names that are known.
    """
    if name and name != about.name and not _OPENAI_MODEL.fullmatch(name):
        known = ", ".join((about.name, *OPENAI_MODELS))
        raise ModelNotFound(f"model: {name[:80]!r} is not served here; use one of {known}")


def recording_from_base64(encoded: str, transcript: str) -> Recording:
    """A recording out of JSON; a data URL is as good as plain base64.

    Raises:
        InvalidAudio: no base64.
    """
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        plain = encoded.encode("ascii").translate(None, _WHITE_SPACE)
        return Recording(base64.b64decode(plain, validate=True), transcript)
    except (binascii.Error, ValueError):
        raise InvalidAudio("prompt_audio: is no base64; encode the audio file's bytes") from None


def _from_json(body: bytes) -> tuple[SpeechFields, Recording | None]:
    values = _json(body, "body")
    if not isinstance(values, dict):
        raise InvalidRequest(f"body: is a {type(values).__name__}, not an object; send an object with the field input")
    fields = _checked(values)
    return fields, _recording(fields, None)


async def _from_form(request: Request) -> tuple[SpeechFields, Recording | None]:
    form = await read_form(request, _MOST_FIELDS)
    for name, _ in form.files:
        if name != "prompt_audio":
            raise InvalidRequest(f"{name[:40]!r}: a file came where none is taken; send it as prompt_audio")
    values: dict[str, Any] = {}
    for name, text in form.texts:
        structured = name in _STRUCTURED and text.lstrip().startswith("{")
        values[name] = _json(text.encode(), name) if structured else text
    fields = _checked(values)
    return fields, _recording(fields, form.files[-1][1] if form.files else None)


def _json(text: bytes, field: str) -> Any:
    check_values(text, field)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f'{field}: is no JSON; send an object like {{"input": "Hello."}}, or a form') from None


def _recording(fields: SpeechFields, uploaded: bytes | None) -> Recording | None:
    if uploaded is not None:
        return Recording(uploaded, fields.prompt_text)
    if fields.prompt_audio is not None:
        return recording_from_base64(fields.prompt_audio, fields.prompt_text)
    if fields.prompt_text:
        raise InvalidRequest("prompt_text: belongs to a recording, and none came; send prompt_audio, or leave it out")
    return None


def _checked(values: dict[str, Any]) -> SpeechFields:
    try:
        return SpeechFields.model_validate(values)
    except ValidationError as error:
        raise invalid(list(error.errors(include_url=False, include_context=False))) from None
