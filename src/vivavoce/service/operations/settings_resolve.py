"""One set of settings out of all layers: defaults < file < environment < flags, with the origin of each value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.operations.settings_checks import contradictions
from vivavoce.service.operations.settings_fields import SETTINGS, masked
from vivavoce.service.operations.settings_forms import expand_user
from vivavoce.service.operations.settings_layers import (
    CONFIG_VARIABLE,
    Given,
    Layer,
    environment_layer,
    file_layer,
    flags_layer,
)

DEFAULT = "default"
"""The origin of a value that nobody gave."""
_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Resolved:
    """The settings of a server; origins: where each value comes from, by its name ("server.port")."""

    settings: ServerSettings
    origins: Mapping[str, str]

    def value(self, name: str) -> Any:
        """A setting's value by its name."""
        setting = SETTINGS[name]
        return getattr(getattr(self.settings, setting.section), setting.field)


def resolve_settings(
    config: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, object] = MappingProxyType({}),
) -> Resolved:
    """The settings of a server.

    Args:
        config: the TOML file; None: the one that VIVAVOCE_CONFIG names in the environment, if it does.
        environment: its variables (`os.environ`).
        flags: values by the settings' names ("server.port"); None: not given.

    Raises:
        InvalidRequest: the first thing that is wrong, in one line: the field, its value, where it comes from and what
            it may be.
    """
    resolved, problems = try_settings(config, environment, flags)
    if resolved is None:
        more = f" (and {len(problems) - 1} more: `vivavoce config check`)" if problems[1:] else ""
        raise InvalidRequest(f"{problems[0]}{more}")
    return resolved


def try_settings(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> tuple[Resolved | None, list[str]]:
    """The settings, or one line for each thing that is wrong."""
    try:
        layers = _layers(config, environment, flags)
    except VivavoceError as error:
        return None, [str(error)]
    problems = [problem for layer in layers for problem in layer.problems]
    chosen = {given.setting.name: given for layer in layers for given in layer.given}
    values: dict[str, Any] = {}
    for given in (one for layer in layers for one in layer.given):
        # One that is overruled is checked as well: it would come to light at a bad moment.
        value, problem = _checked(given)
        problems += [problem] if problem else []
        if chosen[given.setting.name] is given:
            values[given.setting.name] = value
    if problems:
        return None, problems
    origins = {name: chosen[name].origin if name in chosen else DEFAULT for name in SETTINGS}
    resolved = Resolved(_built(values), MappingProxyType(origins))
    problems = [_placed(problem, origins) for problem in contradictions(resolved.settings)]
    return (None, problems) if problems else (resolved, [])


def _layers(config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> list[Layer]:
    named = str(config) if config else environment.get(CONFIG_VARIABLE)
    from_file = [file_layer(Path(expand_user(named)))] if named else []
    return [*from_file, environment_layer(environment), flags_layer(flags)]


def _checked(given: Given) -> tuple[Any, str | None]:
    """The value in its own type, or what is wrong with it."""
    adapter = given.setting.adapter
    try:
        if given.strict:
            # In JSON a text may be a path or a choice, and a list a tuple; otherwise types are what they are.
            return adapter.validate_json(json.dumps(given.value, default=_as_table), strict=True), None
        return adapter.validate_python(given.value), None
    except ValidationError as error:
        return None, _problem(given, error)


def _as_table(_: object) -> dict[str, object]:
    """A date or a time, which no setting is, in a form that none takes."""
    return {}


def _problem(given: Given, error: ValidationError) -> str:
    wanted = next((str(part["ctx"]["error"]) for part in error.errors() if part["type"] == "value_error"), None)
    way_out = wanted or given.setting.wanted
    unset = ", or leave it out" if given.setting.default is None else ""
    return f"{given.setting.name}: {_shown(given.value)} cannot be ({given.origin}); give {way_out}{unset}"


def _shown(value: object) -> str:
    text = repr(masked(value)) if isinstance(value, str) else masked(repr(value))
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _built(values: Mapping[str, Any]) -> ServerSettings:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        setting = SETTINGS[name]
        sections.setdefault(setting.section, {})[setting.field] = value
    return ServerSettings.model_validate(sections)


def _placed(problem: str, origins: Mapping[str, str]) -> str:
    """The line with the origin of the setting that it begins with."""
    name, _, rest = problem.partition(":")
    origin = origins.get(name, DEFAULT)
    return problem if origin == DEFAULT else f"{name} ({origin}):{rest}"
