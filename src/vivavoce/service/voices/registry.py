"""What a request calls a voice → Voice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.cache import DEFAULT_CAPACITY, VoiceCache
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.names import unknown_voice
from vivavoce.service.voices.recording import take_recording
from vivavoce.service.voices.store import VoiceStore
from vivavoce.service.voices.voice import Voice

_AUDIO_SUFFIXES = frozenset(
    {".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".wav", ".webm", ".wma"}
)
_PATH_EXCERPT = 200


class Extractor(Protocol):
    """A model's front end for recordings, wherever it runs."""

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        """The voice of a recording that says `transcript`, "" if unknown; see `VoiceExtractor`."""


class VoiceRegistry:
    """All voices of one model: stored ones, those the model brings along, and recordings. Safe between threads."""

    def __init__(
        self,
        extractor: Extractor,
        store: VoiceStore,
        built_in: Mapping[str, Voice],
        fingerprint: str | Callable[[], str],
        *,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Nothing is read or computed yet.

        Args:
            extractor: the model's front end for recordings.
            store: voices on disk.
            built_in: the model's own voices by name; the first is the default voice.
            fingerprint: the model's identity, or what computes it; called when a voice first has to be compared.
            capacity: recordings whose voices are kept in memory.
        """
        self._extractor, self._store, self._built_in = extractor, store, built_in
        self._given_fingerprint = fingerprint
        self._extracted = VoiceCache(capacity)

    def resolve(self, voice: Voice | AudioSource | None = None, prompt_text: str = "") -> Voice:
        """The voice that a request means.

        A name is looked up in the store, then among the built-in voices; a string that is neither may be the path
        of a recording. Requests of strangers must not name files: use `named` for those.

        Args:
            voice: a voice, a name, a recording (path, bytes, open file, samples), or None for the default voice.
            prompt_text: what the recording says; "" if unknown.

        Raises:
            VoiceNotFound: neither a known name nor a file.
            InvalidRequest: a voice of another model, a transcript without a recording, no default voice.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
            VoiceStoreError: the stored voice's file is damaged.
        """
        if voice is None:
            return self._ready(self._default(), prompt_text)
        if isinstance(voice, Voice):
            return self._ready(voice, prompt_text)
        if not isinstance(voice, str):
            return self._extract(voice, prompt_text)
        known = self._find(voice)
        if known is not None:
            return self._ready(known, prompt_text)
        path = os.path.expanduser(voice)
        if not os.path.isfile(path):
            raise self._unknown(voice)
        return self._extract(path, prompt_text)

    def named(self, name: str) -> Voice:
        """The stored or built-in voice of that name; never reads any other file.

        Raises:
            VoiceNotFound: no voice has the name.
            InvalidRequest: it belongs to another model.
            VoiceStoreError: its file is damaged.
        """
        known = self._find(name)
        if known is None:
            raise unknown_voice(name, self._names())
        return self._ready(known, "")

    def names(self) -> list[str]:
        """Built-in voices in the model's order, then the stored ones; a name that is both counts once."""
        return list(self._names())

    def _names(self) -> Iterator[str]:
        return chain(self._built_in, (name for name in self._store if name not in self._built_in))

    def _find(self, name: str) -> Voice | None:
        return self._store.load(name) if name in self._store else self._built_in.get(name)

    def _default(self) -> Voice:
        first = next(iter(self._built_in.values()), None)
        if first is None:
            raise InvalidRequest("voice: none is given and this model brings none along; give a recording or a name")
        return first

    def _ready(self, voice: Voice, prompt_text: str) -> Voice:
        label = excerpt(voice.name) if voice.name else "the given one"
        if prompt_text:
            raise InvalidRequest(
                f"prompt_text: belongs to a recording; the voice, {label}, is extracted already, leave prompt_text out"
            )
        if voice.fingerprint and voice.fingerprint != self._fingerprint:
            raise InvalidRequest(
                f"voice: {label} was extracted for another model ({excerpt(voice.fingerprint)}, this one is "
                f"{self._fingerprint!r}); extract it again from its recording"
            )
        return voice

    @cached_property
    def _fingerprint(self) -> str:
        return self._given_fingerprint() if callable(self._given_fingerprint) else self._given_fingerprint

    def _extract(self, source: AudioSource, transcript: str) -> Voice:
        recording = take_recording(source)
        return self._extracted.get(
            (recording.digest, transcript), lambda: self._extractor.extract(recording.source, transcript)
        )

    def _unknown(self, voice: str) -> VoiceNotFound:
        if not _looks_like_path(voice):
            return unknown_voice(voice, self._names())
        problem = "is a folder" if os.path.isdir(voice) else "does not exist"
        return VoiceNotFound(f"voice: the file {excerpt(voice, _PATH_EXCERPT)} {problem}; check the path")


def _looks_like_path(name: str) -> bool:
    return "/" in name or os.sep in name or Path(name).suffix.lower() in _AUDIO_SUFFIXES
