"""Reference recordings that the requests of a load bring along."""

from __future__ import annotations

import random
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import soundfile

from vivavoce.errors import InvalidAudio, InvalidRequest

_CUT_S = 0.05
_SOFTEST = 0.8


@dataclass(frozen=True)
class Recorded:
    """content: bytes of an audio file; transcript: its words, "" if unknown."""

    content: bytes
    transcript: str = ""

    @classmethod
    def read(cls, path: str, transcript: str) -> Recorded:
        """`InvalidRequest`: the file cannot be read."""
        try:
            return cls(Path(path).read_bytes(), transcript)
        except OSError as error:
            raise InvalidRequest(f"voice: {path!r} cannot be read ({error.strerror}); check the path") from None


def altered(content: bytes, number: int) -> bytes:
    """The recording as a WAV file, a little softer and shorter at its start, differently for each number.

    A listener hears no difference, but no cache knows these bytes. `InvalidAudio`: it cannot be decoded.
    """
    try:
        samples, rate = soundfile.read(BytesIO(content), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise InvalidAudio(f"voice: the recording cannot be decoded ({error}); give a WAV or FLAC file") from None
    drawn = random.Random(number)
    start, gain = drawn.randrange(int(_CUT_S * rate)), drawn.uniform(_SOFTEST, 1.0)
    made = BytesIO()
    soundfile.write(made, gain * samples[start:], rate, subtype="PCM_16", format="WAV")
    return made.getvalue()
