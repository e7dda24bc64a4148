"""A bounded cache that computes each value once, even if several threads ask for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheCounts:
    """Successful calls so far. computed: calls that computed a value; hits: calls that found it or waited for it."""

    computed: int
    hits: int


class LruCache(Generic[Value]):
    """Drops the least recently used value when full. Thread-safe; values are shared.

    If several threads ask for the same new value, one computes it and the others wait.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._pending: dict[Hashable, Event] = {}
        self._computed = self._hits = 0

    @property
    def counts(self) -> CacheCounts:
        with self._lock:
            return CacheCounts(self._computed, self._hits)

    def find(self, key: Hashable) -> Value | None:
        """Return the value under `key`, or None if the cache does not hold it."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            self._hits += 1
            return self._values[key]

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value under `key`; call `make` to compute it if the cache does not hold it.

        An exception from `make` is raised here and is not cached: a thread that waited then computes the value itself.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    self._hits += 1
                    return self._values[key]
                pending = self._pending.get(key)
                if pending is None:
                    done = self._pending[key] = Event()
                    break
            pending.wait()
        try:
            value = make()
            with self._lock:
                self._computed += 1
                self._values[key] = value
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            return value
        finally:
            with self._lock:
                del self._pending[key]
            done.set()
