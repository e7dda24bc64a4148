"""Types of values in a server's settings, with their checks and the ends of their error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from vivavoce.checkpoint.known_models import parse_model, usual_name
from vivavoce.engine.adapters import NAME

_NAME_PARTS = r"[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*"


def is_address(place: str) -> bool:
    """Return whether `place` is an address such as redis://host; otherwise it is a folder."""
    return "://" in place


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _like(pattern: str, wanted: str, change: Callable[[str], str] = str) -> AfterValidator:
    """Accept text that matches `pattern`; an address needs a host and a valid port. wanted: end of the error."""

    def check(value: str) -> str:
        if value.isprintable() and re.fullmatch(pattern, value) and (not is_address(value) or _has_host(value)):
            return change(value)
        raise ValueError(wanted)

    return AfterValidator(check)


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.hostname is not None and (parts.port or 0) >= 0
    except ValueError:  # an invalid port
        return False


def _path(wanted: str) -> BeforeValidator:
    """Accept the path of a file or folder; ~ is the user's own folder. wanted: end of the error message."""

    def check(value: object) -> object:
        if value == "" or (isinstance(value, str) and "\x00" in value):
            raise ValueError(wanted)
        return os.path.expanduser(value) if isinstance(value, (str, Path)) else value

    return BeforeValidator(check)


def _redis(value: str) -> str:
    if is_address(value) and not value.startswith(("redis://", "rediss://")):
        raise ValueError("a folder, or an address of redis://, rediss://")
    return value


def _parted(value: object, info: ValidationInfo) -> object:
    """Make a tuple of names. Commas separate names in a variable; a file, which is validated as JSON, has a list."""
    if isinstance(value, str) and info.mode == "python":
        value = [part.strip() for part in value.split(",")]
    return tuple(value) if isinstance(value, list) else value


def parse_pairs(value: object) -> object:
    """Parse name=value pairs into a table. A variable separates pairs by commas; flags give a list of pairs."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list):
        pairs = [str(pair).partition("=") for pair in value]
        return {name.strip(): meant.strip() for name, _, meant in pairs}
    return value


def parse_further_models(value: object) -> object:
    """Parse further models, each [NAME=]MODEL[+FILE], into tables. A variable separates models by commas."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list):
        written = [parse_model(str(one).strip()) for one in value]
        names = [one.name or usual_name(one.model) for one in written]
        for name in (name for place, name in enumerate(names) if name in names[:place]):
            raise ValueError(f"each model its own name, as NAME=MODEL; {name} comes twice")
        value = {name: str(replace(one, name="")) for name, one in zip(names, written, strict=True)}
    if not isinstance(value, dict):
        return value
    return {name: _table(one) if isinstance(one, str) else one for name, one in value.items()}


def _table(text: str) -> dict[str, str]:
    written = parse_model(text)
    return {"base": written.model} if written.llm is None else {"base": written.model, "llm": str(written.llm)}


Port = Annotated[int, Field(ge=0, le=65_535)]
FilePath = Annotated[Path, _path("a path")]
Host = Annotated[str, _like(r"[^\s/]+", "an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0 for all")]
HostName = Annotated[
    str, _like(rf"[*]|{_NAME_PARTS}", "* or a host's name without a port, such as tts.example.org", str.lower)
]
Origin = Annotated[str, _like(r"[*]|https?://[^/?#\s]+", "* or a page's origin, such as https://example.org")]
CommaSeparated = BeforeValidator(_parted)
RootPath = Annotated[str, _like("(/[A-Za-z0-9._~-]+)*", "a path such as /tts, without a slash at its end")]
TritonAddress = Annotated[str, _like(r"triton://[^/?#@\s]+:\d+/*", "triton://HOST:PORT of its gRPC interface")]
WebAddress = Annotated[str, _like(r"(?i:https?)://\S*", "an address such as http://localhost:4318")]
ModelPlace = Annotated[str, _path("a downloaded model's name, or a model's folder")]
DeviceName = Annotated[str, _like(r"auto|cpu|(cuda|mps)(:\d{1,3})?", "auto, cpu, cuda, cuda:N or mps")]
GpuNumbers = Annotated[str, _like(r"all|\d{1,3}(,\d{1,3})*", "all, or numbers of GPUs such as 0,1")]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadTime = Literal["start", "on_demand"]
ModelName = Annotated[str, _like("[A-Za-z0-9_.-]{1,100}", "names of letters, digits, dots, dashes and underscores")]
VariantName = Annotated[str, _like(_NAME_PARTS, "the middle of a file's name, as llm.VARIANT.pt")]
AdapterName = Annotated[str, _like(NAME.pattern, "an adapter's name: letters, digits, - _ .")]
VoiceNameText = Annotated[str, Field(min_length=1, max_length=200)]
NoticeText = Annotated[str, _like(r"(?=.*\w).{1,300}", "tone, or a sentence of up to 300 characters")]
RedisAddress = Annotated[str, _like(r"rediss?://[^\s#]+", "an address such as redis://HOST:PORT/DATABASE")]
VoicePlace = Annotated[str, _path("a folder, or redis://HOST:PORT"), AfterValidator(_redis)]
