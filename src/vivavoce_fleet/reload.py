"""Applies changed settings, and replaces engines, while a server runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter

from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.logs import configure
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener
from vivavoce.server.served_models import further_sections
from vivavoce.server.settings import LoggingSection, ServerSettings
from vivavoce.server.settings_checks import contradictions, missing
from vivavoce.server.settings_sources import SETTINGS
from vivavoce_fleet.engine_fleet import EngineFleet
from vivavoce_fleet.model_router import ModelRouter, settings_of_models
from vivavoce_fleet.replacement import Replacement
from vivavoce_textnorm import Lexicons, read_lexicons

log = logging.getLogger(__name__)

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
"""A server without an engine of its own reads these settings only at its start, or never."""


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
    """Return the old settings with the new values of these names."""
    sections: dict[str, dict[str, object]] = {}
    for name in names:
        section, field = name.split(".")
        sections.setdefault(section, {})[field] = attrgetter(name)(new)
    changed = {section: getattr(old, section).model_copy(update=fields) for section, fields in sections.items()}
    return old.model_copy(update=changed)


def configure_logs(section: LoggingSection) -> None:
    configure(section.format, section.level, log_text=section.log_text)
    # Our own request log replaces uvicorn's access log.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def engine_sections(settings: ServerSettings, lexicons: Lexicons | None) -> EngineProcessSettings:
    return EngineProcessSettings(
        settings.model, settings.engine, settings.voices, settings.logging, settings.provenance, lexicons
    )


def _of_models(settings: ServerSettings, lexicons: Lexicons | None) -> list[EngineProcessSettings]:
    return settings_of_models(engine_sections(settings, lexicons), further_sections(settings).values())


class Reloader:
    """Reads the settings again at each signal. One reload runs at a time; signals during a reload cause one more."""

    def __init__(
        self, read: Callable[[], ServerSettings], state: AppState, listeners: Collection[Listener] = ()
    ) -> None:
        """read: returns the settings from the file, variables and flags with which the server was started."""
        self._read, self._state, self._listeners = read, state, listeners
        self._dispatcher = state.dispatcher
        self._wanted, self._new_engines = asyncio.Event(), False

    def ask(self, new_engines: bool = False) -> None:
        """Ask for a reload. new_engines: replace the engines even with unchanged settings, with a gap if necessary."""
        self._new_engines = self._new_engines or new_engines
        self._wanted.set()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            new_engines, self._new_engines = self._new_engines, False
            problem, outcome = "reload refused", "refused"
            try:
                new, changes, lexicons = await asyncio.to_thread(self._checked)
                await self._take_over(new, changes, lexicons)
                problem, outcome = "engine not replaced", "engine_kept"
                if changes.by_a_new_engine or new_engines:
                    await self._replace(new, changes.by_a_new_engine, lexicons, new_engines)
                outcome = "done"
            except VivavoceError as error:
                log.error(f"{problem}: %(error)s; the settings before it stay in force", {"error": error})
            except Exception:  # a defect of the program; the server continues with the settings that it has
                log.exception("reload failed: unexpected error")
            self._dispatcher.metrics.reloads.labels(outcome).inc()

    def _checked(self) -> tuple[ServerSettings, Changes, Lexicons | None]:
        """Read and check the new settings. InvalidRequest: the first problem of the settings or of their files."""
        old, new = self._state.settings, self._read()
        changes = changes_between(old, new)
        result = with_values(old, new, (*changes.at_once, *changes.by_a_new_engine))
        for problem in (*contradictions(result), *missing(result)):
            raise InvalidRequest(problem)
        return new, changes, read_lexicons(result.model.lexicons)

    async def _take_over(self, new: ServerSettings, changes: Changes, lexicons: Lexicons | None) -> None:
        state = self._state
        state.settings = settings = with_values(state.settings, new, changes.at_once)
        configure_logs(settings.logging)
        state.keys.refresh()
        for listener in self._listeners:
            listener.read_certificate()
        self._dispatcher.rules, self._dispatcher.provenance = settings.requests, settings.provenance
        backend = self._dispatcher.backend
        if isinstance(backend, ModelRouter):
            backend.settle(_of_models(settings, lexicons))
        for name, engine in backend.engines.items() if isinstance(backend, (EngineFleet, ModelRouter)) else ():
            try:
                await engine.reload(settings.voices, settings.logging, lexicons)
            except VivavoceError as error:  # an engine that ended or hangs gets the settings at its restart
                log.warning("reload late: engine %(name)s: %(error)s", {"name": name, "error": error})
        if changes.by_a_restart:
            names = ", ".join(changes.by_a_restart)
            log.warning("reload incomplete: %(names)s changed, which needs a restart", {"names": names})
        names = ", ".join(changes.at_once) or "no setting changed, files were read again"
        log.info("reload done: %(names)s", {"names": names})

    async def _replace(self, new: ServerSettings, names: tuple[str, ...], lexicons: Lexicons | None, gap: bool) -> None:
        state = self._state
        wanted, backend = with_values(state.settings, new, names), self._dispatcher.backend
        if not isinstance(backend, (EngineFleet, ModelRouter)):
            raise InvalidRequest("engine: this server has no engine of its own; restart the server behind it")
        log.info("engine changing: a new one starts with %(names)s", {"names": ", ".join(names) or "the same settings"})
        now, then = _of_models(state.settings, lexicons), _of_models(wanted, lexicons)
        if isinstance(backend, ModelRouter):
            await backend.replace(now, then, wanted.server.drain_s, gap)
        else:
            await Replacement(backend.engines, wanted.server.drain_s, gap).replace(now[0], then[0])
        state.settings = with_values(state.settings, new, names)


def has_terminal() -> bool:
    """Whether this process has an open terminal. A terminal that closes sends SIGHUP."""
    return any(os.isatty(number) for number in range(3))
