"""Remembers the voices of the last recordings, so that one that is sent with every request is extracted once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, Lock

from vivavoce.service.voices.voice import Voice

DEFAULT_CAPACITY = 32
"""Voices; one of 30 s takes about half a megabyte."""


@dataclass(frozen=True)
class CacheCounts:
    """Calls so far, without those that failed: made: a voice had to be made; remembered: it was there, or in work."""

    made: int
    remembered: int


class VoiceCache:
    """A bounded map in which the least recently used voice makes room for a new one. Safe between threads.

    Of several threads that ask for the same new voice one makes it, the others wait for it. The voices are shared:
    nobody may write to their tensors.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._voices: OrderedDict[Hashable, Voice] = OrderedDict()
        self._in_work: dict[Hashable, Event] = {}
        self._made = self._remembered = 0

    @property
    def counts(self) -> CacheCounts:
        """How often a voice had to be made, and how often not."""
        with self._lock:
            return CacheCounts(self._made, self._remembered)

    def get(self, key: Hashable, make: Callable[[], Voice]) -> Voice:
        """The voice under `key`, made if it is not there.

        What `make` raises reaches its caller and is not remembered: a thread that waited then makes the voice itself.
        """
        while True:
            with self._lock:
                if key in self._voices:
                    self._voices.move_to_end(key)
                    self._remembered += 1
                    return self._voices[key]
                others = self._in_work.get(key)
                if others is None:
                    done = self._in_work[key] = Event()
                    break
            others.wait()
        try:
            voice = make()
            self._keep(key, voice)
            return voice
        finally:
            with self._lock:
                del self._in_work[key]
            done.set()

    def _keep(self, key: Hashable, voice: Voice) -> None:
        with self._lock:
            self._made += 1
            self._voices[key] = voice
            if len(self._voices) > self._capacity:
                self._voices.popitem(last=False)
