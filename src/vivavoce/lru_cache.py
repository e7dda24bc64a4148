"""A bounded cache whose values are made once, however many threads ask for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheCounts:
    """Successful calls so far: made: the value had to be made; remembered: it was there, or another thread made it."""

    made: int
    remembered: int


class LruCache(Generic[Value]):
    """The least recently used value makes room for a new one. Safe between threads; the values are shared.

    Of several threads that ask for the same new value one makes it, the others wait for it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._in_work: dict[Hashable, Event] = {}
        self._made = self._remembered = 0

    @property
    def counts(self) -> CacheCounts:
        """How often a value had to be made, and how often not."""
        with self._lock:
            return CacheCounts(self._made, self._remembered)

    def find(self, key: Hashable) -> Value | None:
        """The value under `key`; None if it is not there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            self._remembered += 1
            return self._values[key]

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value under `key`, made if it is not there.

        What `make` raises reaches its caller and is not remembered: a thread that waited then makes the value itself.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    self._remembered += 1
                    return self._values[key]
                others = self._in_work.get(key)
                if others is None:
                    done = self._in_work[key] = Event()
                    break
            others.wait()
        try:
            value = make()
            with self._lock:
                self._made += 1
                self._values[key] = value
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            return value
        finally:
            with self._lock:
                del self._in_work[key]
            done.set()
