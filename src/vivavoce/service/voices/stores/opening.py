"""Which store of voices a user means."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vivavoce.checkpoint.hub.locate import HOME_VARIABLE
from vivavoce.errors import InvalidRequest
from vivavoce.service.voices.store import voices_home
from vivavoce.service.voices.stores.folder_place import FolderPlace
from vivavoce.service.voices.stores.protocol import VoicePlace

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REDIS = ("redis", "rediss")


def open_voice_store(place: str | Path | None, cache: Path | None) -> VoicePlace:
    """Where voices are kept; nothing is read or connected yet.

    Args:
        place: a folder, or `redis://[user:password@]host[:port][/number]` (`rediss://` with TLS); None: the user's own
            folder.
        cache: where copies of a redis' voices lie, for the time when it is away; None: no copies. A folder needs none.

    Raises:
        InvalidRequest: another kind of URL, or one that cannot be read.
        MissingDependency: a redis, and the package redis is not installed.
    """
    scheme = _SCHEME.match(place) if isinstance(place, str) else None
    if scheme is None:
        return FolderPlace(Path(os.path.expanduser(place)) if place else voices_home())
    if scheme[1].lower() not in _REDIS:
        raise InvalidRequest(
            f"voices: {scheme[0]} is no place for voices; give a folder's path, or a URL with redis:// or rediss://"
        )
    from vivavoce.service.voices.stores.redis_place import RedisPlace

    return RedisPlace(scheme[1].lower() + scheme.string[scheme.end(1) :], cache)


def copies_home() -> Path:
    """The folder of copies of a redis' voices: `$VIVAVOCE_HOME/voice-copies`, else one in the user's cache."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / "voice-copies"
    from platformdirs import user_cache_path

    return user_cache_path("vivavoce", appauthor=False) / "voice-copies"
