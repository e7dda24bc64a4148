"""Which settings a running server can take over, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from vivavoce.server.settings import ServerSettings
from vivavoce.server.settings_sources import SETTINGS

_AT_ONCE = {
    *("server.drain_s", "auth.open_lists", "provenance.tag", "provenance.notice", "model.lexicons"),
    *(f"voices.{field}" for field in ("default", "aliases", "unknown", "require_consent", "keep_recordings")),
    *(name for name in SETTINGS if name.startswith(("requests.", "logging."))),
}
_BY_A_NEW_ENGINE = {
    *("provenance.watermark", "voices.cache", "voices.quota", "voices.max_recording_bytes"),
    *(name for name in SETTINGS if name.startswith(("model.", "engine."))),
} - {"model.gpus", "model.engines", "model.lexicons"}
_OF_AN_ENGINE = ("model.", "engine.", "voices.", "provenance.watermark")
"""Without an engine of its own, a server reads them at its start or not at all."""


@dataclass(frozen=True)
class Changes:
    """The names of changed settings, by what they need: nothing, a new engine, or a restart of the server."""

    at_once: tuple[str, ...]
    by_a_new_engine: tuple[str, ...]
    by_a_restart: tuple[str, ...]


def changes_between(old: ServerSettings, new: ServerSettings) -> Changes:
    changed = [name for name in SETTINGS if attrgetter(name)(old) != attrgetter(name)(new)]
    fixed = {name for name in changed if old.server.upstream is not None and name.startswith(_OF_AN_ENGINE)}
    at_once = tuple(name for name in changed if name in _AT_ONCE - fixed)
    engine = tuple(name for name in changed if name in _BY_A_NEW_ENGINE - fixed)
    return Changes(at_once, engine, tuple(name for name in changed if name not in (*at_once, *engine)))


def with_values(old: ServerSettings, new: ServerSettings, names: Iterable[str]) -> ServerSettings:
    """The old settings with the new values of these names."""
    sections: dict[str, dict[str, object]] = {}
    for name in names:
        section, field = name.split(".")
        sections.setdefault(section, {})[field] = attrgetter(name)(new)
    changed = {section: getattr(old, section).model_copy(update=fields) for section, fields in sections.items()}
    return old.model_copy(update=changed)
