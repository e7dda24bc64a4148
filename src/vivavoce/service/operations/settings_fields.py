"""Every setting as one row: its name, variable, flag, meaning, limits and default, for messages and documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from vivavoce.service.operations.settings import EXAMPLE, FLAG, ServerSettings

ALIASES: Mapping[str, str] = MappingProxyType({"VIVAVOCE_MODEL": "model.model", "VIVAVOCE_VOICES": "voices.place"})
"""Variables that every command reads, and their settings."""
_NUMBERS = {int: "a whole number", float: "a number"}
_LOGIN = re.compile(r"://.*@", re.DOTALL)
_SECRET = re.compile(r"([?&][a-z_]*(?:password|token|secret|key)=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    """One field of one section."""

    section: str
    field: str
    info: FieldInfo

    @property
    def name(self) -> str:
        """As in messages: "server.port"."""
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        """As in the environment: VIVAVOCE_SERVER_PORT."""
        return f"VIVAVOCE_{self.section}_{self.field}".upper()

    @property
    def flag(self) -> str | None:
        """As on the command line of `vivavoce serve`: "--port"; None: it has none."""
        return self._extra.get(FLAG)

    @property
    def meaning(self) -> str:
        """A sentence or two."""
        return self.info.description or ""

    @property
    def default(self) -> Any:
        """What it is if nobody says; None: unset."""
        return self.info.default

    @property
    def example(self) -> Any:
        """A value as a file could have it: the default, or another one where that is none or empty."""
        return self._extra.get(EXAMPLE, plain(self.default))

    @property
    def is_list(self) -> bool:
        """Whether it is several values."""
        return any(get_origin(part) is tuple for part in self._types)

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Reads and checks one value."""
        checked: Any = Annotated[self.info.annotation, self.info]
        return TypeAdapter(checked)

    @cached_property
    def wanted(self) -> str:
        """What it may be: "a whole number in 0 … 65535"."""
        (kind, *_) = self._types
        if get_origin(kind) is Literal:
            return f"one of {', '.join(get_args(kind))}"
        if isinstance(kind, type) and issubclass(kind, Enum):
            return f"one of {', '.join(member.value for member in kind)}"
        if kind is bool:
            return "true or false"
        if kind in _NUMBERS:
            return f"{_NUMBERS[kind]}{self._range()}"
        if self.is_list:
            return "a list of texts"
        return "a path" if kind is Path else self._text()

    @property
    def _extra(self) -> dict[str, Any]:
        extra = self.info.json_schema_extra
        return extra if isinstance(extra, dict) else {}

    @property
    def _types(self) -> list[Any]:
        """The kinds of value that it may be beside None, without their checks."""
        annotation = self.info.annotation
        members = get_args(annotation) if NoneType in get_args(annotation) else (annotation,)
        kinds = [kind for kind in members if kind is not NoneType]
        return [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]

    def _range(self) -> str:
        limits = {type(limit): limit for limit in self._limits()}
        least, above, most = limits.get(Ge), limits.get(Gt), limits.get(Le)
        if least and most:
            return f" in {least.ge} … {most.le}"
        return (f" above {above.gt}" if above else "") + (f", {most.le} at most" if most else "")

    def _text(self) -> str:
        return "a text that is not empty" if any(isinstance(limit, MinLen) for limit in self._limits()) else "a text"

    def _limits(self) -> list[Any]:
        """Limits of the field; pydantic keeps those of a field that may be None beside them, too."""
        return [limit for limit in self.info.metadata if isinstance(limit, (Ge, Gt, Le, MinLen))]


def _settings() -> Mapping[str, Setting]:
    found = {}
    for section, part in ServerSettings.model_fields.items():
        kind = part.annotation
        assert kind is not None
        for field, info in kind.model_fields.items():
            setting = Setting(section, field, info)
            found[setting.name] = setting
    return MappingProxyType(found)


SETTINGS = _settings()
"""All settings by name, in the order of the models."""
SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        section: (part.annotation.__doc__ or "")
        for section, part in ServerSettings.model_fields.items()
        if part.annotation
    }
)
"""The sections and what they are about."""


def plain(value: Any) -> Any:
    """A setting's value as TOML and JSON have it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def written(value: Any) -> str:
    """A value as TOML writes it, which for these types is JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def masked(text: str) -> str:
    """The text with what is secret in an address's place: redis://***@host."""
    return _LOGIN.sub("://***@", _SECRET.sub(r"\1***", text))


def hidden(value: Any) -> Any:
    """A setting's value as it may be shown: what is secret in an address is masked."""
    return masked(value) if isinstance(value, str) and not isinstance(value, Enum) else value
