"""Encodes a stream's audio without holding up the others: what takes time, a thread does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from vivavoce.service.audio.encode import Encoder, open_encoder
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.types import Samples

_INSTANT = (AudioFormat.PCM, AudioFormat.WAV)
"""A second of them takes less than 0.1 ms, of mp3 4 ms: 250 listeners of mp3 would fill the event loop."""
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="encoder")
"""Of all streams. FFmpeg works without Python's lock, so that they do encode at once."""


class Encoding:
    """One stream's encoder; see `service.audio.encode.Encoder`. Ask for one thing at a time.

    Who is cancelled while waiting may close it: what a thread still does then is for nobody.
    """

    def __init__(self, audio_format: AudioFormat, encoder: Encoder) -> None:
        self._encoder = encoder
        self._instant = audio_format in _INSTANT

    async def encode(self, samples: Samples) -> bytes:
        """The bytes that can be made now of mono samples [n]."""
        return await self._work(lambda: self._encoder.encode(samples))

    async def finish(self) -> bytes:
        """The rest of the file."""
        return await self._work(self._encoder.finish)

    async def _work(self, work: Callable[[], bytes]) -> bytes:
        return work() if self._instant else await asyncio.get_running_loop().run_in_executor(_THREADS, work)

    def close(self) -> None:
        """Free the codec, finished or not."""
        self._encoder.close()


def open_encoding(audio_format: AudioFormat, sample_rate: int) -> Encoding:
    """Open one; raises what `open_encoder` does."""
    return Encoding(audio_format, open_encoder(audio_format, sample_rate))
