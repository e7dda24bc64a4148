"""How a stream ended, so that a cut one can be told from a finished one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FinishReason(str, Enum):
    """Why no more audio came."""

    STOP = "stop"
    """All of the text was spoken."""
    LENGTH = "length"
    """A segment was cut at the most speech tokens that it may have; the rest of the text was spoken."""
    CANCELLED = "cancelled"
    """Its caller ended it, or its listener left."""
    ERROR = "error"
    """It failed; what was made until then was sent."""


@dataclass(frozen=True)
class Verdict:
    """The end of one stream.

    audio_s: seconds of audio that were handed to the listener; segments_spoken: segments of the text that were handed
    over to their ends; segments_given: all there were; error: one line, and error_code its stable code, both only with
    reason ERROR; text_tokens, speech_tokens: what the language model read of the text and made, where that is known.
    """

    reason: FinishReason
    audio_s: float
    segments_spoken: int
    segments_given: int
    error: str | None = None
    error_code: str | None = None
    text_tokens: int | None = None
    speech_tokens: int | None = None
