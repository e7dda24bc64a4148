"""The routes of voices: list, add, remove."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from vivavoce.doors.http.access import KnownCaller, namespace, refuse_foreign_page
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.errors import fields_named
from vivavoce.doors.http.forms import MULTIPART, Form, media_type, read_form
from vivavoce.doors.http.openai import ASKED, FAILURES, failures
from vivavoce.doors.http.schemas import VoiceDeleted, VoiceEntry, VoiceLabel, VoiceList
from vivavoce.errors import InvalidRequest
from vivavoce.service.host.order import Recording
from vivavoce.service.host.speaker import VoiceSummary

_MOST_FIELDS = 20
_FILES = ("file", "audio_sample")
_TEXTS = {
    "name": "name",
    "transcript": "transcript",
    "prompt_text": "transcript",
    "description": "description",
    "replace": "replace",
    "public": "public",
    "consent": "consent",
}
"""Fields of the form → what they mean; `consent` is OpenAI's, and is for its rules only."""
_NAMES = {"reference audio": "file", "voice name": "name", "prompt_text": "transcript", "text": "transcript"}
"""What messages call a field → its name in the form."""
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["name", "file"],
                "properties": {
                    "name": {"type": "string", "description": "What requests call it: 1 to 100 letters, digits, - _ ."},
                    "file": {
                        "type": "string",
                        "format": "binary",
                        "description": "0.5 to 30 s of clear speech (wav, flac, mp3, m4a, webm …); or `audio_sample`.",
                    },
                    "transcript": {"type": "string", "description": "What is said there; or `prompt_text`."},
                    "description": {"type": "string"},
                    "replace": {"type": "boolean", "description": "In place of another voice of that name."},
                    "public": {
                        "type": "boolean",
                        "description": "For all callers. Default: for the key's owner; without keys always for all.",
                    },
                },
            }
        }
    },
}


def router(desk: Desk) -> APIRouter:
    """`/v1/audio/voices`."""
    routes = APIRouter()
    speaker = desk.reception.speaker

    @routes.get("/v1/audio/voices", summary="Voices that may be asked for", responses=ASKED)
    async def voices(caller: KnownCaller) -> VoiceList:
        found = await speaker.voices(caller.owner)
        labels = [VoiceLabel(id=voice.name, name=voice.name) for voice in found]
        return VoiceList(data=[_entry(voice) for voice in found], voices=labels)

    @routes.post(
        "/v1/audio/voices",
        status_code=201,
        summary="Add a voice from a recording",
        responses={**FAILURES, **failures(403, 409)},
        openapi_extra={"requestBody": _FORM},
    )
    async def add(request: Request, caller: KnownCaller) -> VoiceEntry:
        refuse_foreign_page(request.headers, desk.settings.server.cors_origins)
        if media_type(request) != MULTIPART:
            raise InvalidRequest("body: is no form; send multipart/form-data with name and file")
        form = await read_form(request, _MOST_FIELDS)
        texts, content = _texts(form), _file(form)
        name = texts.get("name", "")
        if not name:
            raise InvalidRequest("name: is missing; give the voice a name")
        owner = namespace(caller, _flag("public", texts))
        recording, replace = Recording(content, texts.get("transcript", "")), _flag("replace", texts)
        with fields_named(_NAMES):
            voice = await speaker.add_voice(
                owner, name, recording, description=texts.get("description", ""), replace=replace
            )
        return _entry(voice)

    @routes.delete(
        "/v1/audio/voices/{name}", summary="Remove a stored voice", responses={**ASKED, **failures(400, 403, 404)}
    )
    async def remove(name: str, caller: KnownCaller, public: bool = False) -> VoiceDeleted:
        await speaker.remove_voice(namespace(caller, public), name)
        return VoiceDeleted(id=name)

    return routes


def _texts(form: Form) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in form.texts:
        if name not in _TEXTS:
            raise InvalidRequest(f"{name[:40]!r}: is no field of a voice; use {', '.join(_TEXTS)} and file")
        texts[_TEXTS[name]] = value
    return texts


def _file(form: Form) -> bytes:
    for name, content in form.files:
        if name not in _FILES:
            raise InvalidRequest(f"{name[:40]!r}: a file came where none is taken; send it as file")
        return content
    raise InvalidRequest("file: is missing; send a recording of 0.5 to 30 s")


def _flag(name: str, texts: dict[str, str]) -> bool:
    value = texts.get(name, "false").strip().lower()
    if value not in ("true", "1", "on", "yes", "false", "0", "off", "no", ""):
        raise InvalidRequest(f"{name}: {value[:40]!r} is neither true nor false")
    return value in ("true", "1", "on", "yes")


def _entry(voice: VoiceSummary) -> VoiceEntry:
    return VoiceEntry(
        id=voice.name,
        name=voice.name,
        kind=voice.kind,
        public=voice.public,
        description=voice.description,
        transcript=voice.transcript,
        has_prompt=voice.has_prompt,
    )
