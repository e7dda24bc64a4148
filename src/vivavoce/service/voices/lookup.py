"""Which of several stores has a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vivavoce.errors import VoiceStoreAway
from vivavoce.service.voices.stores.protocol import NamedVoices
from vivavoce.service.voices.voice import Voice


def first_of(
    name: str, stores: Iterable[NamedVoices], read: Callable[[NamedVoices, str], Voice], otherwise: Voice | None
) -> Voice | None:
    """The voice `name` of the first store that has it, else `otherwise`.

    A store that is away and cannot tell is passed over: those after it may have the name. One that is known to have
    it is not: another voice than the one that is meant must not speak.

    Args:
        name: any string; what is no possible name is nowhere.
        stores: in the order in which they go.
        read: takes a store and the version that it has, and gives the voice.
        otherwise: a built-in voice of that name.

    Raises:
        VoiceStoreAway: only a store that is away has the voice, or may have it.
        VoiceStoreError: the voice is damaged, or a store cannot be read.
    """
    away: VoiceStoreAway | None = None
    for store in stores:
        try:
            version = store.version(name)
        except VoiceStoreAway as error:
            away = error
            continue
        if version is not None:
            return read(store, version)
    if otherwise is None and away is not None:
        raise away
    return otherwise
