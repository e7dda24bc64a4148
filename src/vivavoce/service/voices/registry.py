"""What a request calls a voice → Voice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.cache import DEFAULT_CAPACITY
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.lookup import first_of
from vivavoce.service.voices.model_voices import Extractor, ModelVoices, label
from vivavoce.service.voices.names import unknown_voice
from vivavoce.service.voices.stores.protocol import NamedVoices
from vivavoce.service.voices.voice import Voice

_AUDIO_SUFFIXES = frozenset(
    {".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".wav", ".webm", ".wma"}
)
_PATH_EXCERPT = 200


class VoiceRegistry:
    """All voices of one model: stored ones, those the model brings along, and recordings. Safe between threads."""

    def __init__(
        self,
        extractor: Extractor,
        store: NamedVoices,
        built_in: Mapping[str, Voice],
        fingerprint: str | Callable[[], str],
        *,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Nothing is read or computed yet.

        Args:
            extractor: the model's front end for recordings.
            store: voices that are kept by name.
            built_in: the model's own voices by name; the first is the default voice.
            fingerprint: the model's identity, or what computes it; called when a voice first has to be compared.
            capacity: recordings whose voices are kept in memory.
        """
        self._store = store
        self._model = ModelVoices(extractor, built_in, fingerprint, capacity=capacity)

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
            return self._ready(self._model.default(), prompt_text)
        if isinstance(voice, Voice):
            return self._ready(voice, prompt_text)
        if not isinstance(voice, str):
            return self._model.extract(voice, prompt_text)
        known = self._find(voice)
        if known is not None:
            return self._ready(known, prompt_text)
        path = os.path.expanduser(voice)
        if not os.path.isfile(path):
            raise self._unknown(voice)
        return self._model.extract(path, prompt_text)

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
        return self._model.check(known)

    def names(self) -> list[str]:
        """Built-in voices in the model's order, then the stored ones; a name that is both counts once."""
        return list(self._names())

    def _names(self) -> Iterator[str]:
        built_in = self._model.built_in
        return chain(built_in, (name for name in self._store if name not in built_in))

    def _find(self, name: str) -> Voice | None:
        return first_of(name, [self._store], lambda store, _: store.load(name), self._model.built_in.get(name))

    def _ready(self, voice: Voice, prompt_text: str) -> Voice:
        if prompt_text:
            raise InvalidRequest(
                f"prompt_text: belongs to a recording; the voice, {label(voice)}, is extracted already, leave "
                "prompt_text out"
            )
        return self._model.check(voice)

    def _unknown(self, voice: str) -> VoiceNotFound:
        if not _looks_like_path(voice):
            return unknown_voice(voice, self._names())
        problem = "is a folder" if os.path.isdir(voice) else "does not exist"
        return VoiceNotFound(f"voice: the file {excerpt(voice, _PATH_EXCERPT)} {problem}; check the path")


def _looks_like_path(name: str) -> bool:
    return "/" in name or os.sep in name or Path(name).suffix.lower() in _AUDIO_SUFFIXES
