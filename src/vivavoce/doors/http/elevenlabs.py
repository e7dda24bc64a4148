"""The messages of ElevenLabs' `stream-input`, as far as they have a meaning here; docs/websocket.md lists the rest."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vivavoce.doors.http.ws_messages import ClientMessage, End, Flush, Start, Text, checked
from vivavoce.doors.http.ws_outbox import Frame, Reply, compact
from vivavoce.errors import InvalidRequest
from vivavoce.service.text.checks import MAX_TEXT_CHARS

DEFAULT_FORMAT = "mp3_44100_128"
"""What their service sends if nothing else is asked for."""
MAX_PAUSE_S = 180.0
"""The longest `inactivity_timeout`, as there."""
_MP3, _OPUS, _PCM = "mp3", "opus", "pcm"
_BITRATES = {_MP3: range(16, 321), _OPUS: range(16, 321)}


class VoiceSettings(BaseModel):
    """Of these `speed` alone means something here."""

    model_config = ConfigDict(extra="ignore")
    speed: float = Field(1.0, ge=0.5, le=2.0)


class Spoken(BaseModel):
    """Any message: the first brings settings, an empty text ends."""

    model_config = ConfigDict(extra="ignore")
    text: str = Field(max_length=MAX_TEXT_CHARS)
    flush: bool = False
    voice_settings: VoiceSettings | None = None
    xi_api_key: str | None = Field(None, max_length=200)
    authorization: str | None = Field(None, max_length=200)


class ElevenLabsDialect:
    """Of one connection.

    voice: from its path, None for the model's first; query: of its address; sample_rate: asks for the model's, which
    raises EngineStopped while nobody knows it.
    """

    def __init__(self, voice: str | None, query: Mapping[str, str], sample_rate: Callable[[], int]) -> None:
        self._voice, self._query, self._sample_rate = voice, query, sample_rate
        self._is_first = True

    @property
    def one_utterance(self) -> bool:
        """Their connections end with the text."""
        return True

    def messages(self, fields: dict[str, Any]) -> Sequence[ClientMessage]:
        """The first frame starts the utterance, whatever else it says."""
        if "context_id" in fields or "close_context" in fields:
            raise InvalidRequest("context_id: several contexts on one connection are not known here; open one for each")
        spoken = checked(Spoken, fields)
        found: list[ClientMessage] = []
        if self._is_first:
            found.append(self._start(spoken))
            self._is_first = False
        if spoken.text:
            found.append(Text(text=spoken.text))
        if spoken.flush:
            found.append(Flush())
        if not spoken.text and not (spoken.flush or (found and isinstance(found[0], Start))):
            found.append(End())
        return found

    def started(self, start: Start) -> None:
        """There is one utterance only."""

    def render(self, reply: Reply) -> Frame:
        """Audio, the end of it, and failures."""
        if reply["type"] == "audio":
            return _audio(base64.b64encode(reply["audio"]).decode(), None)
        if reply["type"] == "done" and reply["verdict"]["error"] is None:
            return _audio(None, True)
        if reply["type"] == "error":
            error = reply["error"]
            return compact({"message": error["message"], "error": error["code"], "code": 1008})
        return None

    def _start(self, spoken: Spoken) -> Start:
        key = spoken.xi_api_key or (spoken.authorization or "").removeprefix("Bearer ") or None
        audio_format = response_format(self._query.get("output_format", DEFAULT_FORMAT), self._sample_rate())
        fields: dict[str, Any] = {"response_format": audio_format, "voice": self._voice, "api_key": key}
        if spoken.voice_settings is not None:
            fields["speed"] = spoken.voice_settings.speed
        if "seed" in self._query:
            fields["seed"] = self._query["seed"]
        language = self._query.get("language_code", "")[:2]
        if language in ("en", "zh"):
            fields["language"] = language
        return checked(Start, fields)


def response_format(output_format: str, sample_rate: int) -> str:
    """Our format for one of theirs: codec_rate or codec_rate_kbit.

    MP3 and Opus tell their rate themselves, so that any will do; bare samples must have the model's.

    Raises:
        InvalidRequest: nothing here is like it.
    """
    codec, _, numbers = output_format.partition("_")
    parts = [_whole(part) for part in numbers.split("_")]
    if codec == _PCM and parts == [sample_rate]:
        return _PCM
    if codec in _BITRATES and len(parts) == 2 and None not in parts and parts[1] in _BITRATES[codec]:
        return codec
    raise InvalidRequest(
        f"output_format: {output_format[:40]!r} is not made here; use pcm_{sample_rate}, {DEFAULT_FORMAT} or "
        "opus_48000_64"
    )


def pause_s(query: Mapping[str, str], usual: float) -> float:
    """How long a client may send nothing, by its `inactivity_timeout` in seconds.

    Raises:
        InvalidRequest: that is no number of seconds above 0, or too large.
    """
    given = query.get("inactivity_timeout")
    if given is None:
        return usual
    seconds = _whole(given)
    if seconds is None or not 0 < seconds <= MAX_PAUSE_S:
        raise InvalidRequest(f"inactivity_timeout: {given[:20]!r} is not in 1 … {MAX_PAUSE_S:g} s; leave it out")
    return float(seconds)


def _whole(digits: str) -> int | None:
    """The number; None: it is none, or one that nothing here can be."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None


def _audio(encoded: str | None, is_final: bool | None) -> str:
    return compact({"audio": encoded, "isFinal": is_final, "normalizedAlignment": None, "alignment": None})
