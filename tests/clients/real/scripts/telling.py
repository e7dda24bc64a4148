"""How a client's script says what it did: one line of JSON a call. It needs the standard library only."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEXT, VOICE, URL = os.environ["TEXT"], os.environ["VOICE"], os.environ["URL"]
"""What is to be said, by which voice, and the address of a server without keys and TLS."""
OUT = Path(os.environ["OUT"])
"""A folder of the script's own."""

_NUMBERS = itertools.count(1)


@contextmanager
def call(
    what: str, suffix: str = "", *, rate: int | None = None, speed: float = 1.0, words: bool = True
) -> Iterator[Path]:
    """One call of the client; an exception makes it red, and the script goes on with the next.

    suffix: of the file that is yielded, which takes the call's audio: .mp3 .opus .aac .flac .wav, or .pcm .ulaw .alaw
    without a header; "": the call gives no audio. rate: samples per second that the audio must have; speed: as it was
    asked for; words: whether TEXT must be heard in it.
    """
    file, began = OUT / f"{next(_NUMBERS)}{suffix}", time.perf_counter()
    told: dict[str, object] = {"call": what, "rate": rate, "speed": speed, "words": words}
    try:
        yield file
        told["file"] = str(file) if suffix else None
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps({**told, "seconds": time.perf_counter() - began}), flush=True)
