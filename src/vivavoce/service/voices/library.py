"""Whose voices a server's caller may ask for, and keep."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace as changed
from itertools import chain
from threading import Lock

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.service.host.order import Recording
from vivavoce.service.host.speaker import VoiceSummary
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.cache import CacheCounts, VoiceCache
from vivavoce.service.voices.lookup import first_of
from vivavoce.service.voices.model_voices import ModelVoices
from vivavoce.service.voices.names import check_voice_name, taken_name, unknown_voice
from vivavoce.service.voices.stores.owners import PUBLIC
from vivavoce.service.voices.stores.protocol import NamedVoices, VoicePlace
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.summary import StoredSummary, summary_of
from vivavoce.service.voices.voice import Voice

log = logging.getLogger(__name__)

_WELL = "ok"

DEFAULT_CAPACITY = 64
"""Stored voices in memory; one of 30 s takes about one MiB."""


class VoiceLibrary:
    """The voices of one model, of all callers of a server. Safe between threads.

    An owner sees its own voices, then the public ones, then the model's; the first of a name is meant. The owner ""
    stands for the public voices. A voice is asked for by its name or by a recording's bytes: nothing here reads a file
    that a caller names.
    """

    def __init__(
        self,
        place: VoicePlace,
        model: ModelVoices,
        *,
        owner_quota: Quota = Quota(),
        public_quota: Quota = Quota(),
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Nothing is read yet.

        Args:
            place: where voices are kept.
            model: its own voices, and its front end for recordings.
            owner_quota: how much each owner may keep.
            public_quota: how much is kept for everybody.
            capacity: stored voices that stay in memory.
        """
        self._place, self._model = place, model
        self._owner_quota, self._public_quota = owner_quota, public_quota
        self._loaded = VoiceCache(capacity)
        self._lock = Lock()
        self._state = _WELL
        """What was told last."""

    @property
    def recordings(self) -> CacheCounts:
        """Recordings whose voices were extracted, and remembered."""
        return self._model.counts

    def state(self) -> str:
        """Tell "ok", or what is wrong with the place; see `VoicePlace.state`. A change is logged."""
        state = self._place.state()
        with self._lock:
            before, self._state = self._state, state
        if state != before and state == _WELL:
            log.info("voice store: is in order again")
        elif state != before:
            log.warning("%s", state)
        return state

    def close(self) -> None:
        """Let go of connections."""
        self._place.close()

    def resolve(self, owner: str, voice: str | Recording | None) -> Voice:
        """The voice that a request means: a name, a recording, or None for the model's first voice.

        Raises:
            VoiceNotFound: no voice that the owner sees has the name.
            InvalidRequest: a voice of another model, or no default voice.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
            VoiceStoreError: the stored voice is damaged, or its store cannot be read or reached.
        """
        if voice is None:
            return self._model.check(self._model.default())
        if isinstance(voice, Recording):
            return self._model.extract(voice.content, voice.transcript)
        return self.find(owner, voice)

    def find(self, owner: str, name: str) -> Voice:
        """The owner's own voice of that name, else the public one, else the model's; errors as in `resolve`.

        A voice that has not changed is the same object as before, while it stays in memory.
        """

        def read(store: NamedVoices, version: str) -> Voice:
            # A voice that is replaced between the two calls is merely kept under a version that never comes back.
            namespace = owner if store is own else PUBLIC
            return self._loaded.get((namespace, name, version), lambda: store.load(name))

        own = self._place.of(owner)
        found = first_of(name, self._seen_by(owner, own), read, self._model.built_in.get(name))
        if found is None:
            raise unknown_voice(name, self._names(owner))
        return self._model.check(found)

    def summaries(self, owner: str) -> list[VoiceSummary]:
        """The voices that `find` finds: the model's in its order, then public ones, then the owner's own.

        Of several of one name there is the one that is meant. Voices of other models in the same place are among them.
        """
        own = {} if owner == PUBLIC else self._stored(owner)
        public = {name: told for name, told in self._stored(PUBLIC).items() if name not in own}
        built_in = (_built_in(voice) for name, voice in self._model.built_in.items() if name not in own | public)
        return [*built_in, *public.values(), *own.values()]

    def add(self, owner: str, voice: Voice, *, replace: bool = False) -> VoiceSummary:
        """Keep a voice under its name; for everybody if the owner is "".

        Raises:
            InvalidRequest: no possible name, a voice of another model, or a quota that is full.
            VoiceExists: the owner has a voice of that name, or of one that differs in case only.
            VoiceStoreError: the place refuses, or cannot be reached: the voice is not known to be kept.
        """
        voice = self._model.check(voice).named(check_voice_name(voice.name))
        quota = self._public_quota if owner == PUBLIC else self._owner_quota
        self._place.of(owner).save(voice, replace=replace, quota=quota)
        return _told(summary_of(voice), owner)

    def add_recording(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """Keep the voice of a recording; one that was spoken with before is not extracted again.

        Raises:
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
            VivavoceError: as in `add`.
        """
        name = check_voice_name(name)
        if not replace and self._place.of(owner).version(name) is not None:
            raise taken_name(name)  # before the work, and once more when it is kept
        voice = self._model.extract(recording.content, recording.transcript)
        return self.add(owner, changed(voice, name=name, description=description), replace=replace)

    def remove(self, owner: str, name: str) -> None:
        """Forget a voice of the owner's own, or, with owner "", a public one.

        Raises:
            VoiceNotFound: the owner has none of that name.
            InvalidRequest: it is the model's, and stays.
            VoiceStoreError: the place refuses, or cannot be reached.
        """
        own = self._place.of(owner)
        if own.version(name) is not None:
            own.remove(name)
        elif owner != PUBLIC and self._place.of(PUBLIC).version(name) is not None:
            raise VoiceNotFound(f"voice: {excerpt(name)} is a public voice, none of your own; it stays for the others")
        elif name in self._model.built_in:
            raise InvalidRequest(f"voice: {excerpt(name)} is built into the model and cannot be removed")
        else:
            raise unknown_voice(name, own)

    def _seen_by(self, owner: str, own: NamedVoices) -> list[NamedVoices]:
        return [own] if owner == PUBLIC else [own, self._place.of(PUBLIC)]

    def _names(self, owner: str) -> Iterator[str]:
        """What the owner sees, each name once; no more of the stores is read than is taken."""
        told: set[str] = set()
        for name in chain(self._model.built_in, *self._seen_by(owner, self._place.of(owner))):
            if name not in told:
                told.add(name)
                yield name

    def _stored(self, owner: str) -> dict[str, VoiceSummary]:
        return {summary.name: _told(summary, owner) for summary in self._place.of(owner).summaries()}


def _told(summary: StoredSummary, owner: str) -> VoiceSummary:
    return VoiceSummary(
        summary.name, "stored", owner == PUBLIC, summary.description, summary.transcript, summary.has_prompt
    )


def _built_in(voice: Voice) -> VoiceSummary:
    return VoiceSummary(voice.name, "built_in", True, voice.description, voice.transcript, voice.has_prompt)
