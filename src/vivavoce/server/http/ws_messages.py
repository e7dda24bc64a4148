"""Messages of this server's own WebSocket protocol (docs/websocket.md); dialects define other messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.frontend.audio.encode import OutputFormat, parse_format
from vivavoce.server.http.bodies import AnyText, parse_json, validated
from vivavoce.server.http.errors import error_body
from vivavoce.server.http.speech_fields import CommonFields
from vivavoce.server.http.streaming import compact_json
from vivavoce.server.utterance import Reply
from vivavoce_textnorm import MAX_TEXT_CHARS, excerpt

MAX_PAUSE_S = 180.0


class Start(CommonFields):
    """Begins an utterance. All fields have defaults. A text without a start begins an utterance with defaults."""

    type: Literal["start"] = "start"
    response_format: Literal["pcm", "opus", "mp3", "wav", "flac", "aac", "ulaw", "alaw"] = Field(
        "pcm", description="pcm: 16-bit little-endian mono samples."
    )
    audio: Literal["binary", "base64"] = Field("binary", description="base64: audio comes in JSON, for plain clients.")
    text: AnyText = Field("", max_length=MAX_TEXT_CHARS, description="A first piece of the text.")
    api_key: str | None = Field(None, max_length=200, description="For browsers, which cannot send headers.")

    def output(self) -> OutputFormat:
        return parse_format(self.response_format, self.sample_rate)


class Text(BaseModel):
    """More of the text, in pieces of any length. The pieces are joined unchanged, with their white space."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"] = "text"
    text: AnyText = Field(max_length=MAX_TEXT_CHARS)


class Signal(BaseModel):
    """flush: speak the text so far; end: the text is complete; cancel: drop unsent audio; ping: answer pong.

    played_ms: with cancel, milliseconds of audio that the client has played; the answer says which text was heard.
    ElevenLabs' clients also send close (end, but drop unflushed text) and close_all (close all, then disconnect).
    """

    model_config = ConfigDict(extra="forbid")
    type: Literal["flush", "end", "cancel", "ping", "close", "close_all"]
    played_ms: float | None = Field(None, ge=0)


ClientMessage = Start | Text | Signal
_TYPES: dict[str, type[ClientMessage]] = {
    **{"start": Start, "text": Text},
    **dict.fromkeys(("flush", "end", "cancel", "ping"), Signal),
}


def json_object(text: str) -> dict[str, Any]:
    found = parse_json(text, "message", "send one object in each frame")
    if not isinstance(found, dict):
        raise InvalidRequest(f'message: {excerpt(text)} is not a JSON object; send {{"type": …}}')
    return found


def error_reply(error: VivavoceError) -> Reply:
    """Return an error in the form of the HTTP API; the field `input` is called `text` here."""
    return {"type": "error", "error": error_body(error, "text")}


class MessageForm:
    """A form of messages to and from clients; this is the server's own form (docs/websocket.md)."""

    is_own = True
    one_utterance = False
    """Whether the connection closes after one utterance."""
    several = False
    """Whether several utterances may be open at once; a failure of one does not affect the others."""
    is_strict = False
    """Whether an error ends the utterance and the connection."""
    answers_to_a_start = False
    """Whether the error about a wrong key is sent only after the client's first message."""
    end = "end"
    """The name of the message that ends a text."""
    is_base64 = False

    def context_of(self, _: dict[str, Any]) -> str:
        return ""

    def request_id_of(self, _: str) -> str | None:
        """Return the request id that the form derives from a context's name; None if it derives none."""
        return None

    def messages(self, fields: dict[str, Any]) -> list[ClientMessage]:
        kind = fields.get("type")
        model = _TYPES.get(kind) if isinstance(kind, str) else None
        if model is None:
            raise InvalidRequest(f"type: {str(kind)[:40]!r} is unknown; use one of {', '.join(_TYPES)}")
        return [validated(model, fields, "message")]

    def render(self, reply: Reply, context: str = "", is_open: bool = False) -> str | bytes | None:
        """Return a reply's text or binary frame, or None not to send it. is_open: the context is open."""
        if reply["type"] != "audio":
            return compact_json(reply)
        data: bytes = reply["audio"]
        return compact_json({"type": "audio", "audio": base64.b64encode(data).decode()}) if self.is_base64 else data


def pause_s(query: Mapping[str, str], usual: float) -> float:
    """Return a client's longest silence in seconds. InvalidRequest: `inactivity_timeout` is malformed or too large."""
    given = query.get("inactivity_timeout")
    if given is None:
        return usual
    seconds = natural(given)
    if seconds is None or not 0 < seconds <= MAX_PAUSE_S:
        raise InvalidRequest(f"inactivity_timeout: {given[:20]!r} is not in 1 … {MAX_PAUSE_S:g} s; leave it out")
    return float(seconds)


def natural(digits: str) -> int | None:
    """Return the number that the digits write; None for other characters or more than nine digits."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None
