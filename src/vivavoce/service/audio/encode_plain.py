"""16-bit integers as they are, alone or behind a WAV header."""

from __future__ import annotations

from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.audio.types import Samples
from vivavoce.service.audio.wav import wav_header


class PlainEncoder:
    """PCM or WAV; see `encode.Encoder`."""

    def __init__(self, sample_rate: int, *, with_header: bool) -> None:
        self._sample_rate = sample_rate
        self._with_header = with_header
        self._begun = self._ended = False
        self._num_samples = 0

    def encode(self, samples: Samples) -> bytes:
        """The samples as int16, at once."""
        if self._ended:
            raise ValueError("the encoder is finished or closed")
        if samples.ndim != 1:
            raise ValueError(f"samples have shape {samples.shape}, not [n]")
        data = to_int16(samples).astype("<i2").tobytes()
        self._num_samples += len(samples)
        return self._header() + data

    def finish(self) -> bytes:
        """Nothing, or the header if it was not asked for yet."""
        if self._ended:
            raise ValueError("the encoder is finished or closed")
        self._ended = True
        return self._header()

    def whole_header(self) -> bytes:
        """A WAV header that knows the length."""
        return wav_header(self._sample_rate, self._num_samples) if self._with_header else b""

    def close(self) -> None:
        """There is nothing to free."""
        self._ended = True

    def _header(self) -> bytes:
        if self._begun or not self._with_header:
            return b""
        self._begun = True
        return wav_header(self._sample_rate, None)
