"""The routes of voices: list, add, remove."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.speech import Recording
from vivavoce.frontend.speech_backend import VoiceOptions
from vivavoce.frontend.voices.consent import MAX_STATEMENT_CHARS, MAX_WHO_CHARS, given_consent
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.http.app_state import (
    MODEL_QUERY,
    AppState,
    KnownPrincipal,
    ListReader,
    backend_for,
    refuse_foreign_page,
)
from vivavoce.server.http.bodies import MULTIPART, Form, check_query, media_type, read_form
from vivavoce.server.http.errors import BODY_FAILURES, failures, renamed
from vivavoce.server.rate_limiter import voice_owner

_MAX_FORM_FIELDS = 20
_FILES = ("file", "audio_sample")
_TEXTS = ("name", "transcript", "prompt_text", "description", "replace", "public", "consent", "consent_by", "adapter")
_NAMES = {"reference audio": "file", "voice name": "name", "prompt_text": "transcript", "text": "transcript"}
_TEXT, _SWITCH = {"type": "string"}, {"type": "boolean"}
_AUDIO = "0.5 to 30 s of clear speech (wav, flac, mp3, m4a, webm …); or `audio_sample`."
_PUBLIC = "Show the voice to all callers. Default: only to the key's owner; without keys, always to all."
_PROPERTIES = {
    "name": {**_TEXT, "description": "The voice's name in requests: 1 to 100 letters, digits, - _ ."},
    "file": {**_TEXT, "format": "binary", "description": _AUDIO},
    "transcript": {**_TEXT, "description": "The words of the recording; or `prompt_text`."},
    "description": _TEXT,
    "replace": {**_SWITCH, "description": "Replace another voice of that name."},
    "public": {**_SWITCH, "description": _PUBLIC},
    "consent": {**_TEXT, "maxLength": MAX_STATEMENT_CHARS, "description": "The uses that the recorded person allows."},
    "consent_by": {**_TEXT, "maxLength": MAX_WHO_CHARS, "description": "The person who gave the consent."},
    "adapter": {**_TEXT, "description": "The voice's adapter, for requests that name none."},
}
_SCHEMA = {"type": "object", "required": ["name", "file"], "properties": _PROPERTIES}
_FORM = {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}


class VoiceEntry(BaseModel):
    """A voice that requests may name."""

    id: str
    name: str
    object: Literal["voice"] = "voice"
    kind: Literal["built_in", "stored", "alias"]
    public: bool = Field(description="Whether all callers see it, or only its owner.")
    description: str
    transcript: str = Field(description='Words of its reference recording, "" if unknown.')
    has_prompt: bool = Field(description="Whether it has reference speech besides a speaker embedding.")
    stands_for: str = Field(description='The voice that an alias stands for, otherwise "".')
    language: str = Field(description='Language of a built-in voice as an ISO 639 code, "" if unknown.')
    sex: str = Field(description='"female" or "male" for a built-in voice, "" if unknown.')
    consent: str = Field(description='The uses that the recorded person allows, "" if none are stored.')
    consent_by: str = Field(description='The person who gave the consent, "" if unknown.')
    consent_at: str = Field(description='When the consent was stored (ISO 8601, UTC), "" without one.')
    adapter: str = Field(description='Its adapter, for requests that name none; "" without one.')
    warnings: list[str] = Field(description="Faults of the recording; only in the answer that adds the voice.")
    created_at: int | None = Field(None, description="Unix time of storing it; only in the answer that adds it.")


class Label(BaseModel):
    """A voice or a model in a list to choose from."""

    id: str
    name: str


class VoiceList(BaseModel):
    """All voices that the caller may use."""

    object: Literal["list"] = "list"
    data: list[VoiceEntry]
    voices: list[Label] = Field(description="The same voices in the form that Open WebUI reads.")


class VoiceDeleted(BaseModel):
    """A removed voice."""

    id: str
    object: Literal["voice.deleted"] = "voice.deleted"
    deleted: bool = True


def router(state: AppState) -> APIRouter:
    routes = APIRouter()
    dispatcher = state.dispatcher

    @routes.get(
        "/v1/audio/voices", summary="All voices that the caller may use", responses=failures(400, 401, 404, 429, 503)
    )
    async def voices(principal: ListReader, model: str = MODEL_QUERY) -> VoiceList:
        async with dispatcher.permitted(principal):
            found = await (await backend_for(state, model, principal)).voices(principal.owner)
        labels = [Label(id=voice.name, name=voice.name) for voice in found]
        return VoiceList(data=[_entry(voice) for voice in found], voices=labels)

    @routes.post(
        "/v1/audio/voices",
        status_code=201,
        summary="Add a voice from a recording",
        responses={**BODY_FAILURES, **failures(403, 409)},
        openapi_extra={"requestBody": _FORM},
    )
    async def add(request: Request, principal: KnownPrincipal) -> VoiceEntry:
        refuse_foreign_page(request.headers, request.scope["scheme"], state.settings.server.cors_origins)
        check_query(request, {*_TEXTS, *_FILES})
        if media_type(request) != MULTIPART:
            raise InvalidRequest("body: is not a form; send multipart/form-data with name and file")
        async with dispatcher.permitted(principal):
            form = await read_form(request, _MAX_FORM_FIELDS)
            texts, content = _texts(form), _file(form)
            name = texts.get("name", "")
            if not name:
                raise InvalidRequest("name: is missing; give the voice a name")
            owner = voice_owner(principal, _flag("public", texts))
            recording = Recording(content, texts.get("transcript", ""))
            description, replace = texts.get("description", ""), _flag("replace", texts)
            consent = given_consent(texts.get("consent", ""), texts.get("consent_by", ""))
            options = VoiceOptions(
                description=description, replace=replace, consent=consent, adapter=texts.get("adapter", "")
            )
            try:
                voice = await dispatcher.backend.add_voice(owner, name, recording, **options)
            except InvalidRequest as error:
                raise renamed(error, _NAMES) from None
        return _entry(voice).model_copy(update={"created_at": int(time.time())})

    @routes.delete(
        "/v1/audio/voices/{name}",
        summary="Remove a stored voice",
        responses=failures(400, 401, 403, 404, 429, 503),
    )
    async def remove(name: str, principal: KnownPrincipal, public: bool = False) -> VoiceDeleted:
        owner = voice_owner(principal, public)
        async with dispatcher.permitted(principal):
            await dispatcher.backend.remove_voice(owner, name)
        return VoiceDeleted(id=name)

    return routes


def _texts(form: Form) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in form.texts:
        if name in _FILES:
            raise InvalidRequest(f"{name}: came as text; send the recording itself, as a file of the form")
        if name not in _TEXTS:
            raise InvalidRequest(f"{name[:40]!r}: is not a field of a voice; use {', '.join(_TEXTS)} and file")
        field = "transcript" if name == "prompt_text" else name
        if field in texts:
            raise InvalidRequest(f"{field}: prompt_text is a name of the same field; send one of them")
        texts[field] = value
    return texts


def _file(form: Form) -> bytes:
    for name, content in form.files:
        if name not in _FILES:
            raise InvalidRequest(f"{name[:40]!r}: this field does not take a file; send it as file")
        return content
    raise InvalidRequest("file: is missing; send a recording of 0.5 to 30 s")


def _flag(name: str, texts: dict[str, str]) -> bool:
    value = texts.get(name, "false").strip().lower()
    if value not in ("true", "1", "on", "yes", "false", "0", "off", "no", ""):
        raise InvalidRequest(f"{name}: {value[:40]!r} is neither true nor false")
    return value in ("true", "1", "on", "yes")


def _entry(voice: VoiceSummary) -> VoiceEntry:
    return VoiceEntry(id=voice.name, **asdict(voice))
