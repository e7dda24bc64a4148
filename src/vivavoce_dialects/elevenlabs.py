"""ElevenLabs' API: speech, voices, models over HTTP, and the messages of its two WebSockets (docs/integrations.md)."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.text.text_input import LANGUAGE_NAMES, parse_language, readable
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.dispatcher import ActiveRequest, RequestDispatcher
from vivavoce.server.http.app_state import TIMEOUT, AppState, Deadline, KnownPrincipal, ListReader
from vivavoce.server.http.bodies import (
    AnyText,
    Number,
    Whole,
    check_query,
    json_schema,
    known_names,
    read_json,
    validated,
)
from vivavoce.server.http.errors import BODY_FAILURES, ENGINE_FAILURES, NOT_FOUND, failures
from vivavoce.server.http.speech_fields import CommonFields
from vivavoce.server.http.streaming import AudioBody, SpeechAnswer, TimedBody, compact_json
from vivavoce.server.http.ws_messages import ClientMessage, MessageForm, Signal, Start, Text, natural
from vivavoce.server.http.ws_session import Session
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.utterance import Reply
from vivavoce_textnorm import MAX_TEXT_CHARS

PROTOCOL = "elevenlabs"
DEFAULT_FORMAT = "mp3_44100_128"
_THEIR_MODELS, _ANY_MODEL = re.compile("eleven_.*"), re.compile(".*", re.DOTALL)
_CODECS = frozenset(format.value for format in AudioFormat)
_MAX_FAILED = 64
_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]|.", re.DOTALL)  # a text may have surrogate pairs
_READ = {"voice_id", "model_id", "output_format", "seed", "language_code", "sync_alignment"}
_WITHOUT_EFFECT = {"auto_mode", "enable_logging", "enable_ssml_parsing", "apply_text_normalization"}
SOCKET_QUERY = frozenset(_READ | _WITHOUT_EFFECT | {"optimize_streaming_latency"})
"""Query parameters that this dialect's clients may send to a WebSocket, besides those that all WebSockets accept."""
_SPEECH = "/v1/text-to-speech/{voice_id}"
_QUERY = frozenset(("output_format", "optimize_streaming_latency", "enable_logging"))
_OUTPUT_FORMAT = {"name": "output_format", "in": "query", "schema": {"type": "string"}}
_AUDIO = {"description": "Audio as it is made.", "content": {"audio/*": {"schema": {"type": "string"}}}}


class VoiceSettings(BaseModel):
    """Settings of a voice; only `speed` has an effect here."""

    model_config = ConfigDict(extra="ignore")
    speed: Number | None = Field(None, ge=0.5, le=2.0)


class SpeechBody(BaseModel):
    """A request for speech; further fields of ElevenLabs' clients are ignored, and named in x-warning."""

    model_config = ConfigDict(extra="ignore")
    text: AnyText = Field(min_length=1, max_length=MAX_TEXT_CHARS)
    voice_settings: VoiceSettings | None = None
    language_code: str | None = None
    seed: Whole | None = None
    model_id: Any = Field(None, description="A served model's name; other names mean the default one.")


class SocketMessage(BaseModel):
    """A WebSocket message of ElevenLabs' clients."""

    model_config = ConfigDict(extra="ignore")
    text: AnyText | None = Field(None, max_length=MAX_TEXT_CHARS)
    flush: bool | None = None
    voice_settings: VoiceSettings | None = None
    xi_api_key: str | None = Field(None, max_length=200, validation_alias=AliasChoices("xi_api_key", "xi-api-key"))
    authorization: str | None = Field(None, max_length=200)
    context_id: str | None = Field(None, max_length=200, validation_alias=AliasChoices("context_id", "contextId"))
    close_context: bool | None = None
    close_socket: bool | None = None


class _Fields(CommonFields):
    def usual_models(self, about: ModelInfo) -> re.Pattern[str]:
        return _usual_models(about)


class _Start(Start):
    output_format: str

    def usual_models(self, about: ModelInfo) -> re.Pattern[str]:
        return _usual_models(about)

    def output(self) -> OutputFormat:
        return output_format(self.output_format)


def router(state: AppState) -> APIRouter:
    routes = APIRouter()
    dispatcher = state.dispatcher
    request_body = {"required": True, "content": {"application/json": {"schema": json_schema(SpeechBody)}}}
    documented = {"requestBody": request_body, "parameters": [TIMEOUT, _OUTPUT_FORMAT]}
    for path, summary, body in (
        ("", "Speak a text", AudioBody),
        ("/stream", "Speak a text", AudioBody),
        ("/with-timestamps", "Speak, with the time of each character in one JSON object", ObjectBody),
        ("/stream/with-timestamps", "Speak, with the time of each character in JSON lines", LineBody),
    ):
        routes.add_api_route(
            _SPEECH + path,
            _endpoint(dispatcher, body),
            methods=["POST"],
            response_class=Response,
            summary=f"{summary}, as ElevenLabs' clients ask",
            responses={**BODY_FAILURES, **NOT_FOUND, **failures(504), 200: _AUDIO},
            openapi_extra=documented,
        )

    async def voices_of(principal: Principal) -> list[dict[str, Any]]:
        async with dispatcher.permitted(principal):
            return [_voice(voice) for voice in await dispatcher.backend.voices(principal.owner)]

    @routes.get("/v1/voices", summary="All voices, for ElevenLabs' clients", responses=failures(401, 429, 503))
    async def voices(principal: ListReader) -> dict[str, Any]:
        return {"voices": await voices_of(principal)}

    @routes.get("/v2/voices", summary="All voices in one page", responses=failures(401, 429, 503))
    async def found_voices(principal: ListReader, search: str = "") -> dict[str, Any]:
        wanted, known = search.lower(), await voices_of(principal)
        found = [one for one in known if wanted in f"{one['name']} {one['description']}".lower()]
        return {"voices": found, "has_more": False, "total_count": len(found), "next_page_token": None}

    @routes.get("/v1/voices/{voice_id}", summary="One voice", responses=failures(401, 404, 429, 503))
    async def voice(voice_id: str, principal: ListReader) -> dict[str, Any]:
        for one in await voices_of(principal):
            if one["voice_id"] == voice_id:
                return one
        raise VoiceNotFound(f"voice: {voice_id[:80]!r} is not registered; GET /v1/voices lists those that are")

    @routes.get("/v1/user", summary="The caller", responses=ENGINE_FAILURES)
    async def user(principal: KnownPrincipal) -> dict[str, Any]:
        return {"user_id": principal.name, "workspace_id": principal.owner, **_USER}

    @routes.get("/v1/user/subscription", summary="A subscription without limits", responses=ENGINE_FAILURES)
    async def subscription(_: KnownPrincipal) -> dict[str, Any]:
        return _SUBSCRIPTION

    @routes.websocket("/v1/text-to-speech/{voice_id}/stream-input")
    async def stream_input(socket: WebSocket, voice_id: str) -> None:
        await Session(socket, state, ElevenLabsForm(voice_id, socket.query_params)).serve()

    @routes.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
    async def multi_stream_input(socket: WebSocket, voice_id: str) -> None:
        await Session(socket, state, ElevenLabsForm(voice_id, socket.query_params, several=True)).serve()

    return routes


_NO_LIMIT = 1_000_000_000
_SUBSCRIPTION: dict[str, Any] = {
    **{"tier": "self_hosted", "status": "active", "character_count": 0, "character_limit": _NO_LIMIT},
    **dict.fromkeys(("voice_slots_used", "professional_voice_slots_used", "voice_add_edit_counter"), 0),
    **{"professional_voice_slots_used_in_workspace": 0, "voice_limit": _NO_LIMIT, "professional_voice_limit": 0},
    **dict.fromkeys(("can_extend_character_limit", "allowed_to_extend_character_limit"), False),
    **{"can_extend_voice_limit": False, "can_use_instant_voice_cloning": False},
    **{"can_use_professional_voice_cloning": False, "max_credit_limit_extension": 0, "open_invoices": []},
    **{"has_open_invoices": False, "current_overage": {"amount": "0", "currency": "usd"}},
}
"""Clients read here how many characters are left this month. This server has no such quota; errors tell its limits."""
_USER: dict[str, Any] = {
    **{"created_at": 0, "seat_type": "workspace_admin", "subscription": _SUBSCRIPTION},
    **dict.fromkeys(("is_new_user", "can_use_delayed_payment_methods"), False),
    **dict.fromkeys(("is_onboarding_completed", "is_onboarding_checklist_completed"), True),
}


def _endpoint(
    dispatcher: RequestDispatcher, body: type[AudioBody]
) -> Callable[[Request, str, KnownPrincipal, Deadline], Awaitable[Response]]:
    async def text_to_speech(
        request: Request, voice_id: str, principal: KnownPrincipal, deadline: Deadline
    ) -> Response:
        request.state.text_field = "text"
        check_query(request, known_names(SpeechBody), known=_QUERY)
        asked = await read_json(request, SpeechBody)
        output = output_format(request.query_params.get("output_format", DEFAULT_FORMAT))
        found = _fields(voice_id, asked.voice_settings, asked.seed, asked.language_code, asked.model_id)
        fields = validated(_Fields, found)
        wanted = await fields.request(asked.text, principal, dispatcher.backend.about, rules=dispatcher.rules)
        if asked.language_code and "language" not in found:
            told = f"language_code: {asked.language_code[:20]!a} is unknown; the language is told from the text"
            wanted = replace(wanted, notes=(*wanted.notes, told))
        wanted = replace(wanted, word_times=issubclass(body, AlignedBody))
        return SpeechAnswer(request, principal, wanted, output, protocol=PROTOCOL, deadline=deadline, body=body)

    return text_to_speech


def models(headers: Headers, about: ModelInfo) -> list[dict[str, Any]] | None:
    """Return the models in ElevenLabs' form, or None for other clients, because OpenAI's API has the same path."""
    if "xi-api-key" not in headers and "elevenlabs" not in headers.get("x-fern-sdk-name", ""):
        return None
    return [_model(one) for one in (about, *about.others)]


def _model(about: ModelInfo) -> dict[str, Any]:
    known = {"model_id": about.name, "name": about.name, "description": about.description}
    names: dict[str, str] = dict(LANGUAGE_NAMES.items())
    languages = [{"language_id": code, "name": names.get(code, code)} for code in about.languages]
    others = ("can_be_finetuned", "can_do_voice_conversion", "can_use_style", "can_use_speaker_boost")
    limit = {"maximum_text_length_per_request": MAX_TEXT_CHARS, "languages": languages}
    return {**known, "can_do_text_to_speech": True, **dict.fromkeys(others, False), **limit}


def first_message(fields: Mapping[str, Any], query: Mapping[str, str]) -> MessageForm | None:
    """Return ElevenLabs' form for our own WebSocket if the first message has a text but no type; else return None."""
    return ElevenLabsForm(query.get("voice_id"), query) if "text" in fields and "type" not in fields else None


def output_format(name: str) -> OutputFormat:
    """Parse one of ElevenLabs' names of formats: codec_rate or codec_rate_kbit. InvalidRequest: it is not supported."""
    codec, _, numbers = name.partition("_")
    rate, *kbits = map(natural, numbers.split("_"))
    try:
        if codec in _CODECS and rate is not None and len(kbits) <= 1 and None not in kbits:
            return OutputFormat(AudioFormat(codec), rate, *[1000 * kbit for kbit in kbits if kbit is not None])
    except InvalidRequest:
        pass
    raise InvalidRequest(
        f"output_format: {name[:40]!r} is not supported; use {DEFAULT_FORMAT}, pcm_16000, wav_24000, ulaw_8000, "
        "opus_48000_64 or another rate of these"
    )


def _usual_models(about: ModelInfo) -> re.Pattern[str]:
    """Return which names mean the default model: all names on a server with one model, else those of ElevenLabs."""
    return _THEIR_MODELS if about.others else _ANY_MODEL


def _fields(
    voice: str | None, settings: VoiceSettings | None, seed: Any, language: str | None, model: Any
) -> dict[str, Any]:
    found = {"voice": voice, "seed": seed, "speed": settings.speed if settings else None}
    found["model"] = None if model is None else str(model)[:200]
    with suppress(InvalidRequest):  # the language is then detected from the text
        found["language"] = parse_language(language or "auto")
    return {name: value for name, value in found.items() if value is not None}


def _voice(voice: VoiceSummary) -> dict[str, Any]:
    settings = {"stability": 0.5, "similarity_boost": 0.75, "style": 0.0, "use_speaker_boost": True, "speed": 1.0}
    labels = {key: value for key, value in (("language", voice.language), ("gender", voice.sex)) if value}
    return {
        **{"voice_id": voice.name, "name": voice.name, "description": voice.description, "labels": labels},
        **{"category": "cloned" if voice.kind == "stored" else "premade", "preview_url": None, "settings": settings},
    }


class Alignment:
    """Times of a text's characters, interpolated between the known times of words and of segments."""

    def __init__(self, text: str = "") -> None:
        self.text, self.last = text, " "
        self._timed, self.until = 0, 0.0

    def add(self, text: str) -> None:
        self.text, self.last = self.text + text, text[-1]

    def take(self, marks: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[float]]:
        """Take the characters of words, or of a complete segment, with white space around them, and [characters + 1]
        times in seconds; marks: events of a `SegmentClock`, about words or the end of a segment.
        """
        knots, end, end_s = [(self._timed, self.until)], self._timed, None
        for mark in marks:
            for word in mark.get("words", ()):
                end = word["end_character"]
                knots += [(word["start_character"], word["start"]), (end, word["end"])]
            if "end" in mark:
                end, end_s = mark["end_character"], mark["end"]
                if not self.until:  # a spoken notice may come before the first segment
                    knots[0] = (self._timed, mark["start"])
        count = max(0, end - self._timed)
        if end_s is not None:
            while count < len(self.text) and self.text[count].isspace():
                count += 1
            knots.append((self._timed + count, end_s))
        count = min(count, len(self.text))
        characters = [*_CHARACTER.finditer(self.text, 0, count)]
        starts = np.array([*(one.start() for one in characters), count])
        places, times = zip(*knots, strict=True)
        edges = np.interp(starts + self._timed, places, np.maximum.accumulate(times))
        self._timed, self.until, self.text = self._timed + count, float(edges[-1]), self.text[count:]
        return [readable(one[0]) for one in characters], edges.tolist()


class AlignedBody(TimedBody):
    """Audio with the alignment of words that were spoken; subclasses define the frames."""

    media_type = "application/json"

    def __init__(self, active: ActiveRequest) -> None:
        super().__init__(active)
        self._alignment = Alignment(active.request.text or "")

    def _aligned(self, marks: list[dict[str, Any]]) -> dict[str, Any] | None:
        characters, times = self._alignment.take([mark for mark in marks if mark["type"] in ("done", "words")])
        if not characters:
            return None
        times = [round(time, 3) for time in times]
        return {
            "characters": characters,
            "character_start_times_seconds": times[:-1],
            "character_end_times_seconds": times[1:],
        }


class LineBody(AlignedBody):
    def frame(self, data: bytes, marks: list[dict[str, Any]]) -> bytes:
        alignment = self._aligned(marks)
        if not data and alignment is None:
            return b""
        audio = base64.b64encode(data).decode()
        line = {"audio_base64": audio, "alignment": alignment, "normalized_alignment": alignment}
        return compact_json(line).encode() + b"\n"


class ObjectBody(AlignedBody):
    def __init__(self, active: ActiveRequest) -> None:
        super().__init__(active)
        self._head, self._rest = b'{"audio_base64":"', b""
        self._whole: dict[str, list[Any]] = {}

    def end(self, data: bytes) -> bytes:
        frame = super().end(data)
        times = compact_json(self._whole).encode()
        rest = base64.b64encode(self._rest)
        return frame + rest + b'","alignment":' + times + b',"normalized_alignment":' + times + b"}"

    def frame(self, data: bytes, marks: list[dict[str, Any]]) -> bytes:
        for name, values in (self._aligned(marks) or {}).items():
            self._whole.setdefault(name, []).extend(values)
        data = self._rest + data
        size = len(data) // 3 * 3  # base64 writes three bytes at a time
        head, self._head, self._rest = self._head, b"", data[size:]
        return head + base64.b64encode(data[:size])


class ElevenLabsForm(MessageForm):
    """The messages of ElevenLabs' WebSockets; docs/integrations.md lists those without an effect here.

    voice: None for the model's first voice; query: the URL's parameters; several: True for `multi-stream-input`, in
    which each text has a context; False for `stream-input`, with one text per connection.
    """

    is_own = False

    def __init__(self, voice: str | None, query: Mapping[str, str], several: bool = False) -> None:
        self._voice, self._query, self.several, self.one_utterance = voice, query, several, not several
        self.is_strict = not several
        self._contexts: dict[str, Alignment] = {}
        self._closing: set[str] = set()
        self._failed: deque[str] = deque(maxlen=_MAX_FAILED)
        self._has_ended = self._is_leaving = False

    def context_of(self, fields: dict[str, Any]) -> str:
        given = fields.get("context_id") or fields.get("contextId")
        return given[:200] if self.several and isinstance(given, str) else ""

    def messages(self, fields: dict[str, Any]) -> list[ClientMessage]:
        """The messages in a frame; the first frame of a context also starts its utterance."""
        self.is_strict = self.is_strict and not self._has_ended  # later errors do not end the speech of a complete text
        message, context = validated(SocketMessage, fields, "message"), self.context_of(fields)
        if not self.several:
            if message.context_id is not None or message.close_context:
                raise InvalidRequest(
                    "context_id: this endpoint takes one text per connection; use multi-stream-input for several"
                )
            if message.text is None and not message.flush:
                raise InvalidRequest("text: field required; send more text, or an empty string to end it")
            if self._has_ended:
                if (message.text or "").strip():
                    raise InvalidRequest("text: it comes after the empty text, which ended it; open another connection")
                return []
        elif message.close_socket:
            last_words, self._is_leaving = self._last_words(message, context), True
            self._closing.update(self._contexts)
            return [*last_words, Signal(type="close_all")]
        elif message.close_context:
            return self._close(message, context)
        elif not message.text and not message.flush:
            return [Signal(type="ping")]
        return self._pieces(message, context)

    def _close(self, message: SocketMessage, context: str) -> list[ClientMessage]:
        last_words = self._last_words(message, context)
        if context in self._failed:
            self._failed.remove(context)
        if context not in self._contexts:
            return []
        self._closing.add(context)
        return [*last_words, Signal(type="close")]

    def _last_words(self, message: SocketMessage, context: str) -> list[ClientMessage]:
        """Return the text of a message that also closes its context, with a flush, so that the text is spoken."""
        if not message.flush and message.text is None:
            return []
        return self._pieces(message.model_copy(update={"flush": True}), context)

    def _pieces(self, message: SocketMessage, context: str) -> list[ClientMessage]:
        """Return the message's text and flush, with a `Start` before them if the context is new."""
        if context in self._failed or context in self._closing:
            return []
        if self.several and not message.text and context not in self._contexts:
            return []
        if self._is_leaving:
            raise InvalidRequest(f"context_id: {context[:40]!r} comes after close_socket; open another connection")
        found: list[ClientMessage] = [] if context in self._contexts else [self._start(message)]
        alignment = self._contexts.setdefault(context, Alignment())
        text = message.text or ""
        if self.several and message.flush and not (text or alignment.last)[-1].isspace():
            text += " "  # a flush ends the last word
        if text:
            alignment.add(text)
            found.append(Text(text=text))
        if message.flush:
            found.append(Signal(type="flush"))
        self._has_ended = not self.several and not (text or message.flush)
        return [*found, Signal(type="end")] if self._has_ended else found

    def render(self, reply: Reply, context: str = "", is_open: bool = False) -> str | None:
        kind = reply["type"]
        if kind == "error":
            error = reply["error"]
            frame = {"message": error["message"], "error": error["code"], "code": 1008}
            if self.several and not is_open:
                if context not in self._closing:  # `_failed` keeps the name until a `close_context`, which came already
                    self._failed.append(context)
                frame["isFinal"] = self._forget(context)
        elif kind == "audio":
            frame = self._frame(base64.b64encode(reply["audio"]).decode())
        elif kind in ("segment_done", "words") and context in self._contexts:
            alignment = self._aligned(self._contexts[context], reply)
            if not alignment["chars"]:
                return None
            frame = self._frame("", alignment)
        elif kind == "cancelled" or (kind == "done" and reply["verdict"]["error"] is None):
            frame = {**self._frame(None), "isFinal": self._forget(context)}
        else:
            return None
        if self.several:
            frame["contextId"] = context or None
            if frame.get("isFinal"):
                frame["is_final"] = True  # the name in ElevenLabs' description of these frames
        return compact_json(frame)

    def _frame(self, audio: str | None, alignment: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"audio": audio, "isFinal": None, "normalizedAlignment": alignment, "alignment": alignment}

    def _aligned(self, alignment: Alignment, mark: Reply) -> dict[str, Any]:
        """Times in ms from the end of the previous alignment or, with `sync_alignment`, from the start of the audio."""
        first = 0.0 if self._query.get("sync_alignment") == "true" else alignment.until
        characters, times = alignment.take([mark])
        edges = [round(1000 * (time - first)) for time in times]
        durations = [end - start for start, end in pairwise(edges)]
        return {"chars": characters, "charStartTimesMs": edges[:-1], "charDurationsMs": durations}

    def _forget(self, context: str) -> bool:
        self._contexts.pop(context, None)
        self._closing.discard(context)
        return True

    def _start(self, message: SocketMessage) -> Start:
        output_format(named := self._query.get("output_format", DEFAULT_FORMAT))
        seed, language, model = (self._query.get(name) for name in ("seed", "language_code", "model_id"))
        fields = _fields(self._voice, message.voice_settings, seed, language, model)
        fields["word_times"] = True
        fields["api_key"] = message.xi_api_key or (message.authorization or "").removeprefix("Bearer ") or None
        return validated(_Start, {**fields, "output_format": named}, "message")
