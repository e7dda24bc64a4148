"""The WebSocket's messages, in this server's own form and in that of ElevenLabs' clients (docs/websocket.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from vivavoce.entrypoints.http.errors import error_body
from vivavoce.entrypoints.http.speech_input import CommonFields, check_separators, validated
from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.service.speaker import Speaker
from vivavoce.service.text.checks import MAX_TEXT_CHARS, excerpt

DEFAULT_FORMAT = "mp3_44100_128"
"""What ElevenLabs' service sends if nothing else is asked for."""
MAX_PAUSE_S = 180.0
"""The longest `inactivity_timeout`, as there."""
_KBITS = range(16, 321)
"""Bitrates of theirs that are taken for mp3 and opus."""

Reply = dict[str, Any]
"""A message of the server, with its "type"; audio as {"type": "audio", "audio": bytes}."""


class Start(CommonFields):
    """An utterance begins; everything has a default, and a text without a start begins one of defaults."""

    type: Literal["start"] = "start"
    response_format: Literal["pcm", "opus", "mp3", "wav", "flac", "aac", "ulaw", "alaw"] = Field(
        "pcm", description="pcm: 16-bit little-endian mono samples."
    )
    audio: Literal["binary", "base64"] = Field("binary", description="base64: audio comes in JSON, for plain clients.")
    text: str = Field("", max_length=MAX_TEXT_CHARS, description="A first piece of the text.")
    api_key: str | None = Field(None, max_length=200, description="For browsers, which cannot send headers.")


class Text(BaseModel):
    """More of the text, in pieces of any length; characters count as they come, white space too."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_TEXT_CHARS)


class Signal(BaseModel):
    """flush: speak what has come; end: all of the text has come; cancel: drop what is not sent; ping: answer pong."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["flush", "end", "cancel", "ping"]


ClientMessage = Start | Text | Signal
_TYPES: dict[str, type[ClientMessage]] = {
    **{"start": Start, "text": Text},
    **dict.fromkeys(("flush", "end", "cancel", "ping"), Signal),
}


def json_object(text: str) -> dict[str, Any]:
    """The object that a text frame holds. InvalidRequest: not JSON, not an object, or one of too many values."""
    check_separators(text, "message")
    try:
        found = from_json(text)
    except ValueError as error:
        raise InvalidRequest(f"message: no JSON ({error}); send one object to a frame") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f'message: {excerpt(text)} is no JSON object; send {{"type": …}}')
    return found


def error_reply(error: VivavoceError) -> Reply:
    """An error as all entrypoints word it; what HTTP's body calls input is called text here."""
    body = error_body(error)
    return {"type": "error", "error": {**body, "param": "text" if body["param"] == "input" else body["param"]}}


class Dialect:
    """How a client writes and reads; this one is the server's own, as docs/websocket.md has it."""

    one_utterance = False
    """The connection ends with its first utterance."""
    is_base64 = False
    """Audio goes out in JSON."""

    def messages(self, fields: dict[str, Any]) -> list[ClientMessage]:
        """The messages in a frame's object; InvalidRequest names the field that is wrong."""
        kind = fields.get("type")
        model = _TYPES.get(kind) if isinstance(kind, str) else None
        if model is None:
            raise InvalidRequest(f"type: {str(kind)[:40]!r} is unknown; use one of {', '.join(_TYPES)}")
        return [validated(model, fields, "message")]

    def render(self, reply: Reply) -> str | bytes | None:
        """The text frame of a reply, or the binary one; None: this client does not know it."""
        if reply["type"] != "audio":
            return _json(reply)
        data: bytes = reply["audio"]
        return _json({"type": "audio", "audio": base64.b64encode(data).decode()}) if self.is_base64 else data


class VoiceSettings(BaseModel):
    """Of these only `speed` means something here."""

    model_config = ConfigDict(extra="ignore")
    speed: float = Field(1.0, ge=0.5, le=2.0)


class ElevenLabsMessage(BaseModel):
    """Any message of their clients: the first brings settings, an empty text ends."""

    model_config = ConfigDict(extra="ignore")
    text: str = Field(max_length=MAX_TEXT_CHARS)
    flush: bool = False
    voice_settings: VoiceSettings | None = None
    xi_api_key: str | None = Field(None, max_length=200)
    authorization: str | None = Field(None, max_length=200)


class ElevenLabsDialect(Dialect):
    """ElevenLabs' `stream-input`, as far as it has a meaning here; docs/websocket.md lists the rest.

    voice: None for the model's first; query: of the address; speaker: knows the sample rate once its engine runs.
    """

    one_utterance = True

    def __init__(self, voice: str | None, query: Mapping[str, str], speaker: Speaker) -> None:
        self._voice, self._query, self._speaker = voice, query, speaker
        self._is_first = True

    def messages(self, fields: dict[str, Any]) -> list[ClientMessage]:
        """The first frame starts the utterance, whatever else it says; EngineStopped: no sample rate is known yet."""
        if "context_id" in fields or "close_context" in fields:
            raise InvalidRequest("context_id: several contexts on one connection are not known here; open one for each")
        message = validated(ElevenLabsMessage, fields, "message")
        was_first, self._is_first = self._is_first, False
        found: list[ClientMessage] = [self._start(message)] if was_first else []
        if message.text:
            found.append(Text(text=message.text))
        if message.flush:
            found.append(Signal(type="flush"))
        return found or [Signal(type="end")]

    def render(self, reply: Reply) -> str | None:
        """Audio, the end of it, and failures."""
        if reply["type"] == "error":
            error = reply["error"]
            return _json({"message": error["message"], "error": error["code"], "code": 1008})
        is_final = reply["type"] == "done" and reply["verdict"]["error"] is None
        if reply["type"] != "audio" and not is_final:
            return None
        audio = None if is_final else base64.b64encode(reply["audio"]).decode()
        return _json({"audio": audio, "isFinal": is_final or None, "normalizedAlignment": None, "alignment": None})

    def _start(self, message: ElevenLabsMessage) -> Start:
        key = message.xi_api_key or (message.authorization or "").removeprefix("Bearer ") or None
        wanted = self._query.get("output_format", DEFAULT_FORMAT)
        fields: dict[str, Any] = {"voice": self._voice, "api_key": key}
        fields["response_format"] = response_format(wanted, self._speaker.about.sample_rate)
        if message.voice_settings is not None:
            fields["speed"] = message.voice_settings.speed
        if "seed" in self._query:
            fields["seed"] = self._query["seed"]
        language = self._query.get("language_code", "")[:2]
        if language in ("en", "zh"):
            fields["language"] = language
        return validated(Start, fields, "message")


def response_format(output_format: str, sample_rate: int) -> str:
    """Our format for one of ElevenLabs': codec_rate or codec_rate_kbit.

    MP3 and Opus tell their rate themselves, so that any will do; bare samples must have the model's. InvalidRequest:
    nothing here is like it.
    """
    codec, _, numbers = output_format.partition("_")
    parts = [_natural(part) for part in numbers.split("_")]
    if codec == "pcm" and parts == [sample_rate]:
        return codec
    if codec in ("mp3", "opus") and len(parts) == 2 and parts[0] is not None and parts[1] in _KBITS:
        return codec
    raise InvalidRequest(
        f"output_format: {output_format[:40]!r} is not made here; use pcm_{sample_rate}, {DEFAULT_FORMAT} or "
        "opus_48000_64"
    )


def pause_s(query: Mapping[str, str], usual: float) -> float:
    """Seconds that a client may send nothing. InvalidRequest: its `inactivity_timeout` is no number, 0 or too large."""
    given = query.get("inactivity_timeout")
    if given is None:
        return usual
    seconds = _natural(given)
    if seconds is None or not 0 < seconds <= MAX_PAUSE_S:
        raise InvalidRequest(f"inactivity_timeout: {given[:20]!r} is not in 1 … {MAX_PAUSE_S:g} s; leave it out")
    return float(seconds)


def _natural(digits: str) -> int | None:
    """The number; None: it has other characters than digits, or is larger than all that could be meant."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
