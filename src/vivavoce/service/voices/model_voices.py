"""What one model brings to voices: its own speakers, its front end for recordings, and its identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from vivavoce.errors import InvalidRequest
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.cache import DEFAULT_CAPACITY, CacheCounts, VoiceCache
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.recording import take_recording
from vivavoce.service.voices.voice import Voice


class Extractor(Protocol):
    """A model's front end for recordings, wherever it runs."""

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        """The voice of a recording that says `transcript`, "" if unknown; see `VoiceExtractor`."""


class ModelVoices:
    """The voices of one model that are in no store. Safe between threads.

    The voices of the last recordings are remembered, and shared: nobody may write to their tensors.
    """

    def __init__(
        self,
        extractor: Extractor,
        built_in: Mapping[str, Voice],
        fingerprint: str | Callable[[], str],
        *,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Nothing is computed yet.

        Args:
            extractor: the model's front end for recordings.
            built_in: the model's own voices by name; the first is the default voice.
            fingerprint: the model's identity, or what computes it; called when a voice first has to be compared.
            capacity: recordings whose voices are kept in memory.
        """
        self.built_in = built_in
        self._extractor, self._given_fingerprint = extractor, fingerprint
        self._extracted = VoiceCache(capacity)

    @property
    def counts(self) -> CacheCounts:
        """Recordings whose voices were made, and found in memory."""
        return self._extracted.counts

    def default(self) -> Voice:
        """The first built-in voice; InvalidRequest if there is none."""
        first = next(iter(self.built_in.values()), None)
        if first is None:
            raise InvalidRequest("voice: none is given and this model brings none along; give a recording or a name")
        return first

    def extract(self, source: AudioSource, transcript: str) -> Voice:
        """The voice of a recording, which is extracted once, however many threads ask for it.

        Raises:
            InvalidRequest, InvalidAudio, InvalidText: the recording or its transcript cannot be used.
        """
        recording = take_recording(source)
        return self._extracted.get(
            (recording.digest, transcript), lambda: self._extractor.extract(recording.source, transcript)
        )

    def check(self, voice: Voice) -> Voice:
        """The voice itself, unless it is known to be of another model, which is an InvalidRequest."""
        if voice.fingerprint and voice.fingerprint != self._fingerprint:
            raise InvalidRequest(
                f"voice: {label(voice)} was extracted for another model ({excerpt(voice.fingerprint)}, this one is "
                f"{self._fingerprint!r}); extract it again from its recording"
            )
        return voice

    @cached_property
    def _fingerprint(self) -> str:
        return self._given_fingerprint() if callable(self._given_fingerprint) else self._given_fingerprint


def label(voice: Voice) -> str:
    """What messages call the voice."""
    return excerpt(voice.name) if voice.name else "the given one"
