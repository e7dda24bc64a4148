"""What a client of the WebSocket sends: JSON texts, each one message."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from vivavoce.doors.http.errors import invalid
from vivavoce.doors.http.json_input import check_values
from vivavoce.doors.http.schemas import SamplingFields, VoiceId, VoiceName
from vivavoce.errors import InvalidRequest
from vivavoce.service.text.checks import MAX_TEXT_CHARS, excerpt

_Model = TypeVar("_Model", bound=BaseModel)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Start(_Message):
    """An utterance begins; everything has a default, and a text without a start begins one of defaults."""

    type: Literal["start"] = "start"
    voice: VoiceName | VoiceId | None = Field(None, description="A voice's name, or {id}. Default: the model's first.")
    model: str = Field("", max_length=200, description="The served model's name.")
    response_format: Literal["pcm", "opus", "mp3", "wav", "flac", "aac"] = Field(
        "pcm", description="pcm: 16-bit little-endian mono samples."
    )
    audio: Literal["binary", "base64"] = Field("binary", description="base64: audio comes in JSON, for plain clients.")
    text: str = Field("", max_length=MAX_TEXT_CHARS, description="A first piece of the text.")
    instructions: str | None = Field(None, max_length=1000, description="How to say it, in words.")
    speed: float = Field(1.0, ge=0.5, le=2.0)
    seed: int = Field(0, ge=0, le=2**53)
    mode: Literal["zero_shot", "cross_lingual", "instruct", "sft"] | None = None
    language: Literal["en", "zh"] | None = None
    chunk_policy: Literal["low_latency", "official", "equal", "exponential", "time_based"] | None = None
    prompt_audio: str | None = Field(None, description="A reference recording in place of a voice, in base64.")
    prompt_text: str = Field("", max_length=MAX_TEXT_CHARS, description="What the reference recording says.")
    sampling: SamplingFields = SamplingFields()
    api_key: str | None = Field(None, max_length=200, description="For browsers, which cannot send headers.")


class Text(_Message):
    """More of the text, in pieces of any length; characters count as they come, white space too."""

    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_TEXT_CHARS)


class Flush(_Message):
    """Speak what has come without waiting for more."""

    type: Literal["flush"] = "flush"


class End(_Message):
    """All of the text has come."""

    type: Literal["end"] = "end"


class Cancel(_Message):
    """Stop speaking; what has not been sent is dropped."""

    type: Literal["cancel"] = "cancel"


class Ping(_Message):
    """Are you there?"""

    type: Literal["ping"] = "ping"


ClientMessage = Start | Text | Flush | End | Cancel | Ping

_KINDS: dict[str, type[ClientMessage]] = {
    "start": Start,
    "text": Text,
    "flush": Flush,
    "end": End,
    "cancel": Cancel,
    "ping": Ping,
}


def json_object(text: str) -> dict[str, Any]:
    """The object that a text frame holds.

    Raises:
        InvalidRequest: no JSON, something else than an object, or one of too many values.
    """
    check_values(text, "message")
    try:
        found = from_json(text)
    except ValueError as error:
        raise InvalidRequest(f"message: no JSON ({error}); send one object to a frame") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f'message: {excerpt(text)} is no JSON object; send {{"type": …}}')
    return found


def message_of(fields: dict[str, Any]) -> ClientMessage:
    """The message that an object is.

    Raises:
        InvalidRequest: of no known type, or a field is missing, unknown or out of its limits; names it.
    """
    kind = fields.get("type")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidRequest(f"type: {str(kind)[:40]!r} is unknown; use one of {', '.join(_KINDS)}")
    return checked(model, fields)


def checked(model: type[_Model], fields: dict[str, Any]) -> _Model:
    """The model with these fields; errors as in `message_of`."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(list(error.errors(include_url=False, include_context=False)), "message") from None
