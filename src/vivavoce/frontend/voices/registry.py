"""Finds the voice for a request: a stored voice, a voice of the model, or a voice extracted from a recording."""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as changed
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

from vivavoce.errors import InvalidRequest, VivavoceError, VoiceNotFound, VoiceStoreError, check_kind
from vivavoce.frontend.speech import Recording
from vivavoce.frontend.voices.extract import AudioSource, take_recording
from vivavoce.frontend.voices.names import (
    ALIASES_IN_A_ROW,
    PUBLIC,
    NameRules,
    VoiceSummary,
    check_voice_name,
    meant_by,
    unknown_voice,
)
from vivavoce.frontend.voices.stores import Quota, VoiceStore, taken_name
from vivavoce.frontend.voices.voice import Voice, optional_fields
from vivavoce.lru_cache import CacheCounts, LruCache
from vivavoce_textnorm import excerpt

_AUDIO_SUFFIXES = frozenset(
    {".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".wav", ".webm", ".wma"}
)
_PATH_EXCERPT = 200
log = logging.getLogger(__name__)


class Extractor(Protocol):
    """Extracts voices from recordings for one model, in this process or in another one."""

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        """See `VoiceExtractor.extract`."""


class ToBeExtractedError(Exception):
    """A stored voice has features for other models only; extracting them for this model takes long."""


class VoiceRegistry:
    """All voices of one model, for all callers. Thread-safe.

    A name is looked up among the owner's voices, then the public voices, then the model's voices, then the aliases. The
    owner "" means the public voices. If a stored voice has features for other models only, the features for this model
    are extracted once from the recording in the voice, and added to the stored voice. Recent voices are cached and
    shared: their tensors must not be changed.
    """

    def __init__(
        self,
        extractor: Extractor,
        store: VoiceStore,
        built_in: Mapping[str, Voice],
        fingerprint: str | Callable[[], str],
        *,
        rules: NameRules = NameRules(),
        recordings: int = 32,
        stored: int = 64,
        quota: Quota = Quota(),
        keep_recordings: bool = True,
        require_consent: bool = False,
    ) -> None:
        """Create a registry, without reading or computing anything yet.

        built_in: the model's own voices by name; the first is the default voice, unless the rules name another one.
        fingerprint: the model's fingerprint, or a function that computes it at its first use. recordings, stored:
        maximum number of cached voices from recordings, and from the store; a voice takes 0.5 MB for 30 s. quota: of
        each owner. keep_recordings, require_consent: whether stored voices keep their recording, and need a consent."""
        self.built_in, self.keep_recordings, self.require_consent = built_in, keep_recordings, require_consent
        self._extractor, self._store, self._quota, self._given_fingerprint = extractor, store, quota, fingerprint
        self.follow(rules)
        self._extracted: LruCache[Voice] = LruCache(recordings)
        self._loaded: LruCache[Voice] = LruCache(stored)
        self._covering: set[tuple[str, str]] = set()  # (owner, name) of stored voices that hide a voice or alias

    def follow(self, rules: NameRules) -> None:
        """Use these rules for names from now on."""
        self.rules, self._aliases = rules, rules.table(self.built_in)

    @property
    def recordings(self) -> CacheCounts:
        return self._extracted.counts

    def resolve(self, voice: Voice | AudioSource | None = None, prompt_text: str = "") -> Voice:
        """Find the voice for a trusted caller, who may also give a path, unlike a client in `requested`.

        voice: a voice, a name (but no owner's), a recording, the path of a recording, or None for the default voice.
        prompt_text: the recording's transcript, or "" if unknown.

        Raises:
            VoiceNotFound: `voice` is neither a known name nor a file.
            InvalidRequest: the voice is of another model, a transcript lacks its recording, or no default voice exists.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
            VoiceStoreError: the stored voice is damaged, or its store cannot be read or reached.
        """
        check_kind("transcript", prompt_text, str, "give the words of the recording")
        if isinstance(voice, str):
            voice = self._find(voice, PUBLIC) or self._path(voice)
        if voice is not None and not isinstance(voice, Voice):
            return self._extract(voice, prompt_text)
        if prompt_text:
            called = "the default one" if voice is None else voice.label
            raise InvalidRequest(
                f"transcript: belongs to a recording; the voice, {called}, is already extracted; leave transcript out"
            )
        return self._check(voice or self._default())

    def requested(self, voice: str | Recording | None, owner: str, *, extract: bool = True) -> Voice:
        """Find the voice for a client's request: a name, a recording, or None for the default voice.

        Raises the errors of `resolve`. If a stored voice lacks features for this model, they are extracted; with
        `extract` False, ToBeExtractedError is raised instead."""
        if voice is None:
            return self._check(self._default(), PUBLIC, extract)
        if isinstance(voice, Recording):
            return self._extract(voice.content, voice.transcript)
        return self.find(voice, owner, extract=extract)

    def remembered(self, recording: Recording) -> Voice | None:
        """Return the cached voice of a recording, or None if the cache does not have it."""
        return self._extracted.find((take_recording(recording.content)[1], recording.transcript))

    def find(self, name: str, owner: str = PUBLIC, *, extract: bool = True) -> Voice:
        """Find a voice by its name, in the order that `VoiceRegistry` describes. Raises as `requested`."""
        found = self._find(name, owner)
        if found is None and self.rules.unknown == "default":
            found = self._default()
        if found is None:
            raise unknown_voice(name, self._names(owner))
        return self._check(found, owner, extract)

    def built_in_of(self, name: str | None) -> Voice | None:
        name = name or self.rules.default or next(iter(self.built_in), "")
        return self.built_in.get(meant_by(name, self.built_in, self._aliases))

    def warn_of_missing(self) -> None:
        """Log a warning for each voice in the rules that does not exist; not an error: it may be stored later."""
        names = {f"voices.aliases: {name!r} stands for": voice for name, voice in self.rules.aliases.items()}
        if self.rules.default is not None:
            names["voices.default: is"] = self.rules.default
        for setting, voice in names.items():
            try:
                self.find(voice)
            except VivavoceError as error:
                fields = {"setting": setting, "voice": voice, "error": error}
                log.warning("voice missing: %(setting)s %(voice)r, which cannot be used: %(error)s", fields)

    def names(self) -> list[str]:
        """List the names of the built-in voices in the model's order, then of the public voices, without duplicates."""
        return list(self._names(PUBLIC))

    def summaries(self, owner: str) -> list[VoiceSummary]:
        """List the voices that the owner can use: built-in ones in the model's order, public ones, own ones, aliases.

        Each name appears once, for the voice that `find` returns. Stored voices of other models are included."""
        own = {} if owner == PUBLIC else {one.name: one for one in self._store.summaries(owner)}
        public = {one.name: one for one in self._store.summaries() if one.name not in own}
        built_in = (
            _summary(voice, "built_in", public=True)
            for name, voice in self.built_in.items()
            if name not in own and name not in public
        )
        voices = {one.name: one for one in (*built_in, *public.values(), *own.values())}
        return [*voices.values(), *self.rules.alias_summaries(voices, self.built_in)]

    def add(self, owner: str, voice: Voice, *, replace: bool = False) -> VoiceSummary:
        """Store a voice under its name; owner "" makes it public. Raises the errors of `VoiceStore.save`."""
        voice = self._check(voice).named(check_voice_name(voice.name))
        self._store.save(voice, owner, replace=replace, quota=self._quota)
        return _summary(voice, "stored", public=owner == PUBLIC)

    def check_free(self, owner: str, name: str, *, replace: bool = False) -> None:
        """Check, before a slow extraction, that a voice can be added under this name. Raises the errors of `add`."""
        name = check_voice_name(name)
        if not replace and self._store.version(name, owner) is not None:
            raise taken_name(name)

    def remove(self, owner: str, name: str) -> None:
        """Delete a voice of the owner, or with owner "" a public voice.

        Raises VoiceNotFound if the owner has no voice of this name, InvalidRequest if it is built in or an alias."""
        if self._store.version(name, owner) is not None:
            self._store.remove(name, owner)
        elif owner != PUBLIC and self._store.version(name) is not None:
            raise VoiceNotFound(
                f"voice: {excerpt(name)} is a public voice, not your own; you can remove only your own voices"
            )
        elif name in self.built_in:
            raise InvalidRequest(f"voice: {excerpt(name)} is built into the model and cannot be removed")
        elif name in self._aliases:
            meant = self._aliases[name]
            raise InvalidRequest(f"voice: {excerpt(name)} stands for {meant!r} and cannot be removed; it is a setting")
        else:
            raise unknown_voice(name, (summary.name for summary in self._store.summaries(owner)))

    def state(self) -> str:
        return self._store.state()

    def close(self) -> None:
        self._store.close()

    @cached_property
    def _fingerprint(self) -> str:
        return self._given_fingerprint() if callable(self._given_fingerprint) else self._given_fingerprint

    def _extract(self, source: AudioSource, transcript: str) -> Voice:
        source, digest = take_recording(source)
        return self._extracted.get((digest, transcript), lambda: self._extractor.extract(source, transcript))

    def _default(self) -> Voice:
        if (name := self.rules.default) is not None:
            voice = self._find(name, PUBLIC)
            if voice is None:
                raise unknown_voice(name, self._names(PUBLIC))
            return voice
        for voice in self.built_in.values():
            return voice
        raise InvalidRequest("voice: none is given, and this model has no voice of its own; give a recording or a name")

    def _check(self, voice: Voice, owner: str = PUBLIC, extract: bool = True) -> Voice:
        """Return the voice with features for this model; missing features are extracted from the voice's recording."""
        if not voice.fingerprint or voice.fingerprint == self._fingerprint:
            return voice
        if (own := voice.of(self._fingerprint)) is not None:
            return own
        if not voice.recording:
            raise InvalidRequest(
                f"voice: {voice.label} was extracted for another model ({excerpt(voice.fingerprint)}, this one is "
                f"{self._fingerprint!r}); extract it again from its recording"
            )
        key = owner, voice.name, voice.transcript, hashlib.sha256(voice.recording).digest()
        found = self._extracted.find(key)
        if found is None and not extract:
            raise ToBeExtractedError
        return found or self._extracted.get(key, partial(self._extract_again, voice, owner))

    def _extract_again(self, voice: Voice, owner: str) -> Voice:
        """Extract features for this model, and add them to the stored voice of this owner, else to the public voice."""
        features = self._extractor.extract(io.BytesIO(voice.recording), voice.transcript)
        features = changed(features, fingerprint=self._fingerprint, name=voice.name)
        try:
            for place in dict.fromkeys((owner, PUBLIC)):
                self._store.add_features(voice, features, place, self._quota)
        except VivavoceError as error:
            fields = {"name": voice.name, "error": error}
            log.warning(
                "voice of another model: %(name)r was extracted again, but could not be stored: %(error)s", fields
            )
        kept = {name: getattr(voice, name) for name in ("description", "licence", "consent", "adapter")}
        return changed(features, **kept)

    def _stored(self, name: str, namespace: str) -> Voice:
        voice = self._store.load(name, namespace)
        return (voice.of(self._fingerprint) or voice) if voice.fingerprint else voice

    def _find(self, name: str, owner: str, aliases: int = ALIASES_IN_A_ROW) -> Voice | None:
        """Search `name` among the owner's voices, the public voices, the model's voices, then the aliases.

        If the store fails, the search goes on with the model's voices and the aliases. But if the store had this name
        before, the error is raised, so that they do not replace the stored voice."""
        refusal: VoiceStoreError | None = None
        for namespace in dict.fromkeys((owner, PUBLIC)):
            try:
                version = self._store.version(name, namespace)
            except VoiceStoreError as error:
                if (namespace, name) in self._covering:
                    raise
                refusal = error
                continue
            if version is None:
                self._covering.discard((namespace, name))
            else:
                if name in self.built_in or name in self._aliases:
                    self._covering.add((namespace, name))
                # If the voice is replaced between the two calls, it is cached under an old version, which is never
                # used.
                return self._loaded.get((namespace, name, version), partial(self._stored, name, namespace))
        found = self.built_in.get(name)
        if found is None and aliases and name in self._aliases:
            found = self._find(self._aliases[name], owner, aliases - 1)
        if found is None and refusal is not None:
            raise refusal
        return found

    def _names(self, owner: str) -> Iterator[str]:
        """Yield all names that the owner can use, each once. The store is read only as the caller iterates."""
        stored = (summary.name for one in dict.fromkeys((owner, PUBLIC)) for summary in self._store.summaries(one))
        seen: set[str] = set()
        for name in chain(self.built_in, stored):
            if name not in seen:
                seen.add(name)
                yield name

    def _path(self, voice: str) -> Path:
        path = os.path.expanduser(voice)
        if os.path.isfile(path):
            return Path(path)
        if "/" not in voice and os.sep not in voice and Path(voice).suffix.lower() not in _AUDIO_SUFFIXES:
            raise unknown_voice(voice, self._names(PUBLIC))
        problem = "is a folder" if os.path.isdir(voice) else "does not exist"
        raise VoiceNotFound(f"voice: the file {excerpt(voice, _PATH_EXCERPT)} {problem}; check the path")


def _summary(voice: Voice, kind: Literal["built_in", "stored"], *, public: bool) -> VoiceSummary:
    about = {
        key: getattr(voice, key) for key in ("description", "transcript", "has_prompt", "language", "sex", "warnings")
    }
    return VoiceSummary(voice.name, kind, public, **{**about, **optional_fields(voice)})
