"""Whose voice a request is spoken in."""

from __future__ import annotations

from collections.abc import Callable

from vivavoce.doors.triton.models.speaking_parameters import SpeakingParameters
from vivavoce.doors.triton.models.spoken_request import SpokenRequest
from vivavoce.errors import InvalidRequest
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.model_voices import Extractor
from vivavoce.service.voices.registry import VoiceRegistry
from vivavoce.service.voices.store import VoiceStore, voices_home
from vivavoce.service.voices.voice import Voice

RELEASED_SPEAKER = "001"
"""The speaker of the release's spk2info.pt."""


class RequestVoices:
    """The voices of one model instance: built-in ones, stored ones, and those of the last recordings."""

    def __init__(self, registry: VoiceRegistry, default: str, *, cached_only: bool) -> None:
        """default: a name, "" for the registry's own; cached_only: recordings are refused."""
        self._registry, self._default, self._cached_only = registry, default, cached_only

    def of(self, wanted: SpokenRequest) -> Voice:
        """The voice that the request means; a recording is extracted once and the last ones remembered.

        Raises:
            VoiceNotFound: nobody has the name.
            InvalidRequest: a recording where none is taken, a voice of another model, or no default voice.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
            VoiceStoreError: the stored voice is damaged.
        """
        if wanted.reference is not None:
            if self._cached_only:
                raise InvalidRequest(
                    "reference_wav: this server speaks in cached voices only (use_spk2info_cache); leave the recording "
                    "out, or name a voice"
                )
            return self._registry.resolve(wanted.reference, wanted.reference_text)
        name = wanted.voice or self._default
        return self._registry.named(name) if name else self._registry.resolve(None)


def open_voices(
    parameters: SpeakingParameters, extractor: Extractor, fingerprint: str | Callable[[], str]
) -> RequestVoices:
    """The voices of a model folder and of the folder of stored ones.

    Args:
        parameters: where the model and stored voices lie, and who speaks by default.
        extractor, fingerprint: as for `VoiceRegistry`.

    Raises:
        VoiceNotFound: the default voice is unknown.
        VoiceStoreError, CheckpointError: voices cannot be read.
    """
    built_in = built_in_voices(parameters.folder)
    store = VoiceStore(parameters.voices_dir or voices_home())
    registry = VoiceRegistry(extractor, store, built_in, fingerprint)
    default = parameters.default_voice or (RELEASED_SPEAKER if RELEASED_SPEAKER in built_in else "")
    if default:
        registry.named(default)  # who starts the server learns of a wrong name, not every client
    return RequestVoices(registry, default, cached_only=parameters.cached_voices_only)
