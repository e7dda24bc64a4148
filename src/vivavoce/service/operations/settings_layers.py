"""Where settings come from: each layer gives values as they were written, and the place of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.service.operations.settings_fields import ALIASES, SECTIONS, SETTINGS, Setting
from vivavoce.service.operations.toml_file import TomlFile, closest, read_toml

CONFIG_VARIABLE = "VIVAVOCE_CONFIG"
"""Names the file of settings where no flag does."""
CONFIG = "config"
"""What errors of the file as a whole name."""
_PREFIX = "VIVAVOCE_"
_CLUSTER = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")


@dataclass(frozen=True)
class Given:
    """One value of one layer.

    value: as it was written; origin: where, as messages say it; strict: it has types of its own, so that a text is no
    number.
    """

    setting: Setting
    value: Any
    origin: str
    strict: bool = False


@dataclass(frozen=True)
class Layer:
    """What one source says; problems: one line each for what it says of nothing that is known."""

    given: tuple[Given, ...] = ()
    problems: tuple[str, ...] = ()


def file_layer(path: Path) -> Layer:
    """What a TOML file says.

    Raises:
        InvalidRequest: it is missing, cannot be read or is no TOML.
    """
    file = read_toml(path, CONFIG)
    given: list[Given] = []
    problems: list[str] = []
    for section, table in file.values.items():
        if section not in SECTIONS:
            problems.append(f"{section}: is no section ({file.place(section)}); {closest(section, SECTIONS)}")
        elif not isinstance(table, dict):
            problems.append(f"{section}: is a section ({file.place(section)}); write [{section}] above its fields")
        else:
            _read_section(file, section, table, given, problems)
    return Layer(tuple(given), tuple(problems))


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """What the environment says; an empty variable says nothing."""
    variables = {setting.variable: setting for setting in SETTINGS.values()}
    given = [_from_variable(name, SETTINGS[alias], environment) for name, alias in ALIASES.items()]
    given += [_from_variable(name, setting, environment) for name, setting in variables.items()]
    problems = [
        f"{name}: is no setting (environment); {closest(name, variables)}"
        for name in sorted(environment)
        if name.startswith(_prefixes()) and name not in variables and not _CLUSTER.search(name)
    ]
    return Layer(tuple(one for one in given if one is not None), tuple(problems))


def flags_layer(flags: Mapping[str, object]) -> Layer:
    """What flags say, by the settings' names; None and empty lists say nothing.

    Raises:
        KeyError: a name that is no setting's: a defect of the command.
    """
    given = (
        Given(SETTINGS[name], value, f"flag {SETTINGS[name].flag or name}")
        for name, value in flags.items()
        if value is not None and value != [] and value != ()
    )
    return Layer(tuple(given))


def _read_section(
    file: TomlFile, section: str, table: Mapping[str, Any], given: list[Given], problems: list[str]
) -> None:
    for field, value in table.items():
        name = f"{section}.{field}"
        if name in SETTINGS:
            given.append(Given(SETTINGS[name], value, file.place(name), strict=True))
        else:
            problems.append(f"{name}: is no setting ({file.place(name)}); {_meant(section, field)}")


def _meant(section: str, field: str) -> str:
    """The field that was meant: of that section, or of another."""
    elsewhere = [name for name, setting in SETTINGS.items() if setting.field == field]
    return f"it belongs to [{SETTINGS[elsewhere[0]].section}]" if elsewhere else closest(field, _fields_of(section))


def _fields_of(section: str) -> Iterator[str]:
    return (setting.field for setting in SETTINGS.values() if setting.section == section)


def _prefixes() -> tuple[str, ...]:
    return tuple(f"{_PREFIX}{section}_".upper() for section in SECTIONS)


def _from_variable(name: str, setting: Setting, environment: Mapping[str, str]) -> Given | None:
    value = environment.get(name, "")
    if not value or value.startswith(("tcp://", "udp://")):
        return None  # Kubernetes sets VIVAVOCE_SERVER_PORT to such an address where a service is called so
    parts = [part.strip() for part in value.split(",")] if setting.is_list else value
    return Given(setting, parts, name)
