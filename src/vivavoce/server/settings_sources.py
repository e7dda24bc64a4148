"""Merge the settings of all sources, default < file < environment < flag, and keep the origin of each value.

Each source is validated alone, so that values that another source overrides are checked, too.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.server.settings import FurtherModel, ServerSettings
from vivavoce.server.settings_checks import contradictions
from vivavoce.server.toml_file import closest, read_toml

DEFAULT = "default"
_ALIASES = {"VIVAVOCE_MODEL": "VIVAVOCE_MODEL_MODEL", "VIVAVOCE_VOICES": "VIVAVOCE_VOICES_PLACE"}
"""Variables that every command reads → the variables of the settings that they set."""
_OTHERS = {
    "VIVAVOCE_CONFIG",
    "VIVAVOCE_HOME",
    "VIVAVOCE_DEBUG",
    "VIVAVOCE_MODELSCOPE_ENDPOINT",
    "VIVAVOCE_API_KEY",
    *_ALIASES,
}
"""Known variables that are not settings."""
_CLUSTER = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")
_LOGIN = re.compile(r"://.*@", re.DOTALL)
_SECRET = re.compile(r"([?&][a-z_]*(?:password|token|secret|key)=)[^&]*", re.IGNORECASE)
_SHOWN_CHARS = 80
_EXAMPLE_HEAD = """\
# Settings of `vivavoce serve`. Every line that is commented out shows the default, or an example where there is none.
# A variable of the environment overrides this file, and a flag overrides both.
"""
_KINDS = {
    "string": "a text",
    "boolean": "true or false",
    "array": "a list of texts",
    "object": "a table of texts",
    "integer": "a whole number",
    "number": "a number",
}


@dataclass(frozen=True)
class Setting:
    """One field of one section.

    name: such as "server.port". flag_spec: the flag's declaration in `settings.py`. flag: such as "--port", or "" if
    none. default: a TOML or JSON value; None: unset. example: a value for a file. kind: the JSON schema of a set value.
    wanted: the allowed values in words.
    """

    section: str
    field: str
    name: str
    variable: str
    flag_spec: str
    flag: str
    meaning: str
    default: Any
    example: Any
    kind: Mapping[str, Any]
    wanted: str


def _settings() -> Iterator[Setting]:
    schema = ServerSettings.model_json_schema()

    def resolved(part: dict[str, Any]) -> dict[str, Any]:
        return {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part} if "$ref" in part else part

    for section, fields in schema["properties"].items():
        for field, part in resolved(fields)["properties"].items():
            found = resolved(part)
            kind, flag = found.get("anyOf", [found])[0], found.get("x-flag", "")
            yield Setting(
                section,
                field,
                name=f"{section}.{field}",
                variable=f"VIVAVOCE_{section}_{field}".upper(),
                flag_spec=flag,
                flag=re.split(r"[ :]", flag)[0],
                meaning=found.get("description", ""),
                default=found["default"],
                example=found.get("x-example", found["default"]),
                kind=kind,
                wanted=_wanted(kind),
            )


def _wanted_of_model(field: str) -> str:
    """Return the allowed values of a further model's field, in words; for an unknown field, the known fields' names."""
    known = FurtherModel.model_json_schema()["properties"]
    if field not in known:
        return f"its fields, which are {', '.join(known)}"
    return _wanted(known[field].get("anyOf", [known[field]])[0])


def _wanted(kind: Mapping[str, Any]) -> str:
    """Return the values that a schema allows, in words such as "a whole number in 0 … 65535"."""
    if "enum" in kind:
        return f"one of {', '.join(kind['enum'])}"
    if kind.get("format") == "path":
        return "a path"
    if "$ref" in kind.get("additionalProperties", ()):
        return "a table of models"
    text, least, most = _KINDS[kind["type"]], kind.get("minimum"), kind.get("maximum")
    if least is not None and most is not None:
        return f"{text} in {least} … {most}"
    if "minLength" in kind:
        text += " that is not empty"
    if "exclusiveMinimum" in kind:
        text += f" above {kind['exclusiveMinimum']}"
    return text if most is None else f"{text}, {most} at most"


@dataclass(frozen=True)
class Resolved:
    """Merged settings, and the origin of each value, by the setting's name ("server.port")."""

    settings: ServerSettings
    origins: Mapping[str, str]

    def value(self, name: str) -> Any:
        return attrgetter(name)(self.settings)


def resolve_settings(
    config: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, object] = MappingProxyType({}),
) -> Resolved:
    """Return the settings of a server. InvalidRequest names the first problem.

    config: the TOML file; None: the file in VIVAVOCE_CONFIG, if any. flags: values by settings' names; None: not given.
    """
    resolved, problems = try_settings(config, environment, flags)
    if resolved is None:
        more = f" (and {len(problems) - 1} more: `vivavoce config check`)" if problems[1:] else ""
        raise InvalidRequest(f"{problems[0]}{more}")
    return resolved


def try_settings(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> tuple[Resolved | None, list[str]]:
    named = str(config) if config else environment.get("VIVAVOCE_CONFIG")
    try:
        sources = [_file(Path(os.path.expanduser(named)))] if named else []
    except VivavoceError as error:
        return None, [str(error)]
    problems: list[str] = []
    values: dict[str, dict[str, Any]] = {}
    origins = dict.fromkeys(SETTINGS, DEFAULT)
    for source in (*sources, _environment(environment), _flags(flags)):
        try:
            found = source.validated()
        except ValidationError as error:
            problems += source.problems(error)
            continue
        for section, fields in found.model_dump(exclude_unset=True).items():
            values.setdefault(section, {}).update(fields)
            origins |= {name: source.origin(name) for name in (f"{section}.{field}" for field in fields)}
    if problems:
        return None, problems
    resolved = Resolved(ServerSettings.model_validate(values), MappingProxyType(origins))
    for problem in contradictions(resolved.settings):
        name, _, rest = problem.partition(":")
        origin = origins.get(name, DEFAULT)
        problems.append(problem if origin == DEFAULT else f"{name} ({origin}):{rest}")
    return (None, problems) if problems else (resolved, [])


@dataclass(frozen=True)
class _Source:
    """One source of settings. values: sections with their fields. origin: returns the origin of a setting's value.
    unknown: returns the message about an unknown section or field. is_file: a file, in which "1" is not a number.
    """

    values: Mapping[str, Any]
    origin: Callable[[str], str]
    unknown: Callable[[str, str], str] = "{}.{}: is not a setting".format
    is_file: bool = False

    def validated(self) -> ServerSettings:
        if self.is_file:
            # Strict JSON still accepts a string for a path or an enum, and a list for a tuple. No setting is a date:
            # a TOML date becomes a list with null, which every field refuses.
            return ServerSettings.model_validate_json(json.dumps(self.values, default=lambda _: [None]), strict=True)
        return ServerSettings.model_validate(self.values)

    def problems(self, error: ValidationError) -> list[str]:
        unknown: list[str] = []
        wrong: dict[str, str] = {}
        for detail in error.errors():
            section, field, *inner = *map(str, detail["loc"]), ""
            setting = SETTINGS.get(f"{section}.{field}")
            if setting is None:
                unknown.append(self.unknown(section, field))
            elif setting.name not in wrong:
                way_out = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else setting.wanted
                unset = ", or leave it out" if setting.default is None else ""
                name, value, origin = setting.name, self.values[section][field], self.origin(setting.name)
                if field == "more" and len(inner) > 2 and "[key]" not in inner:  # a field of a further model
                    name, value = f"{name}.{inner[0]}.{inner[1]}", detail["input"]
                    way_out = way_out if detail["type"] == "value_error" else _wanted_of_model(inner[1])
                wrong[setting.name] = f"{name}: {_shown(value)} cannot be ({origin}); give {way_out}{unset}"
        return [*unknown, *wrong.values()]


def _file(path: Path) -> _Source:

    def unknown(section: str, field: str) -> str:
        if section not in SECTIONS:
            return f"{section}: is not a section ({path}); {closest(section, SECTIONS)}"
        if not field:
            return f"{section}: is a section ({path}); write [{section}] above its fields"
        elsewhere = [setting.section for setting in SETTINGS.values() if setting.field == field]
        known = (setting.field for setting in _of(section))
        meant = f"it belongs to [{elsewhere[0]}]" if elsewhere else closest(field, known)
        return f"{section}.{field}: is not a setting ({path}); {meant}"

    return _Source(read_toml(path, "config"), lambda _: str(path), unknown, is_file=True)


def _environment(environment: Mapping[str, str]) -> _Source:
    known, given = {setting.variable: setting for setting in SETTINGS.values()}, _given(environment)
    variables = {own: alias for alias, own in _ALIASES.items() if alias in given} | {name: name for name in given}
    values: dict[str, dict[str, str]] = {}
    for own, name in variables.items():
        section, _, field = own.removeprefix("VIVAVOCE_").lower().partition("_")
        if own.startswith("VIVAVOCE_") and section in SECTIONS and field:
            values.setdefault(section, {})[field] = given[name]

    def unknown(section: str, field: str) -> str:
        variable = f"VIVAVOCE_{section}_{field}".upper()
        return f"{variable}: is not a setting (environment); {closest(variable, known)}"

    return _Source(values, lambda name: variables[SETTINGS[name].variable], unknown)


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    # For a service named vivavoce-server, Kubernetes sets variables such as VIVAVOCE_SERVER_PORT=tcp://10.0.0.1:8880.
    return {
        name: value
        for name, value in environment.items()
        if value and name.isupper() and not value.startswith(("tcp://", "udp://")) and not _CLUSTER.search(name)
    }


def unread_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each VIVAVOCE_ variable that is not read; unknown fields of a known section are errors."""
    sections = tuple(f"VIVAVOCE_{section}_".upper() for section in SECTIONS)
    known = {f"{one.section}_{one.field}".upper(): one.field.upper() for one in SETTINGS.values()}
    for name in _given(environment):
        if name.startswith("VIVAVOCE_") and not name.startswith(sections) and name not in _OTHERS:
            own = name.removeprefix("VIVAVOCE_")
            meant = [setting for setting, field in known.items() if field == own]
            meant += difflib.get_close_matches(own, known, n=1)
            end = f"did you mean VIVAVOCE_{meant[0]}?" if meant else "see `vivavoce config example`"
            yield f"{name} is not read; {end}"


def _flags(flags: Mapping[str, object]) -> _Source:
    values: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        if value not in (None, [], ()):
            values.setdefault(SETTINGS[name].section, {})[SETTINGS[name].field] = value
    return _Source(values, lambda name: f"flag {SETTINGS[name].flag or name}")


def example_file() -> str:
    blocks = [_EXAMPLE_HEAD]
    for section, about in SECTIONS.items():
        blocks.append(f"\n[{section}]  # {about}\n")
        for setting in _of(section):
            facts = f"Default: {written(setting.default)}; {setting.wanted}. Variable: {setting.variable}"
            blocks.append(f"\n# {setting.meaning}\n# {facts}\n#{setting.field} = {written(setting.example)}\n")
    return "".join(blocks)


def reference() -> str:
    lines = []
    for section, about in SECTIONS.items():
        lines += [f"### `[{section}]`", "", about, "", "| setting | default | what it may be | flag | meaning |"]
        lines.append("|---|---|---|---|---|")
        for setting in _of(section):
            flag = f"`{setting.flag}`" if setting.flag else ""
            cells = (f"`{setting.field}`", f"`{written(setting.default)}`", setting.wanted, flag, setting.meaning)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """Return a setting's value for TOML or JSON, with secrets masked."""
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, FurtherModel):
        return plain(value.model_dump(exclude_none=True))
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, Enum):
        return value.value
    return masked(str(value)) if isinstance(value, (str, Path)) else value


def written(value: Any) -> str:
    """Return a value as TOML, which for these types (tables excepted) equals JSON; "unset" for None."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{written(name)} = {written(one)}' for name, one in value.items())}}}"
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def masked(text: str) -> str:
    """Return the text with the secrets of addresses replaced: redis://***@host."""
    return _LOGIN.sub("://***@", _SECRET.sub(r"\1***", text))


def _of(section: str) -> Iterator[Setting]:
    return (setting for setting in SETTINGS.values() if setting.section == section)


def _shown(value: object) -> str:
    text = repr(masked(value)) if isinstance(value, str) else masked(repr(value))
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _settings()})
SECTIONS: Mapping[str, str] = MappingProxyType(
    {name: str(part.annotation and part.annotation.__doc__) for name, part in ServerSettings.model_fields.items()}
)
