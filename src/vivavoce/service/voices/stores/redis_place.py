"""Namespaces in one redis, which several servers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from vivavoce.service.voices.stores.breaker import REST_S
from vivavoce.service.voices.stores.local_copy import LocalCopy
from vivavoce.service.voices.stores.owners import PUBLIC, namespace_id
from vivavoce.service.voices.stores.redis_server import RedisServer
from vivavoce.service.voices.stores.redis_voices import RedisVoices

KEY = "vivavoce:voices:"
"""Followed by "public", or by "owner:" and the SHA-256 of the owner."""


class RedisPlace:
    """One hash for each namespace, and one folder of copies for each. Safe between threads; connects when asked."""

    def __init__(
        self,
        url: str,
        cache: Path | None,
        *,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """url, rest_s, clock: see `RedisServer`; cache: where copies lie, a folder for each server; None: no copies.

        Raises:
            MissingDependency: the package redis is not installed.
            InvalidRequest: the URL cannot be read.
        """
        self._server = RedisServer(url, rest_s=rest_s, clock=clock)
        self._cache = cache
        self._lock = Lock()
        self._namespaces: dict[str, RedisVoices] = {}

    def of(self, owner: str) -> RedisVoices:
        """The owner's voices; "": the public ones."""
        with self._lock:
            if owner not in self._namespaces:
                self._namespaces[owner] = self._open(owner)
            return self._namespaces[owner]

    def state(self) -> str:
        """Tell "ok", or that redis is away, or that copies cannot be written. Redis is asked."""
        state = self._server.state()
        if state != "ok":
            served = (
                "voices are not served" if self._cache is None else "voices seen before are served from local copies"
            )
            return f"{state}; {served}"
        with self._lock:
            problems = [voices.copy.problem for voices in self._namespaces.values()]
        return next((f"voice store: {problem}" for problem in problems if problem), "ok")

    def close(self) -> None:
        """Let go of connections."""
        self._server.close()

    def _open(self, owner: str) -> RedisVoices:
        place = "public" if owner == PUBLIC else f"owner:{namespace_id(owner)}"
        folder = None
        if self._cache is not None:
            folder = self._cache / namespace_id(self._server.label) / place.replace(":", "-")
        return RedisVoices(self._server, KEY + place, LocalCopy(folder, self._cache))
