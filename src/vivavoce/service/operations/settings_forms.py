"""The forms of settings that are more than a number in a range: paths, addresses, places.

Each check takes what pydantic has read and raises ValueError with what is wanted, which ends the error's line.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator

STORES = ("redis", "rediss")
"""What the address of a store of voices may begin with, beside folders."""
_DEVICE = re.compile(r"auto|cpu|(cuda|mps)(:\d{1,3})?")
_VARIANT = re.compile(r"[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*")


def expand_user(path: str) -> str:
    """Read a leading ~ as a shell would."""
    return os.path.expanduser(path)


def is_address(place: str) -> bool:
    """Whether a place is an address such as redis://host, and no folder."""
    return "://" in place


def is_loopback(host: str) -> bool:
    """Whether this machine alone reaches the address, as far as it tells that by itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(value: object) -> object:
    if value == "" or (isinstance(value, str) and "\x00" in value):
        raise ValueError("a path")
    return value


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError("auto, cpu, cuda, cuda:N or mps")
    return value


def _variant(value: str) -> str:
    if not _VARIANT.fullmatch(value):
        raise ValueError("the middle of a file's name, as llm.VARIANT.pt")
    return value


def _host(value: str) -> str:
    if not value or not value.isprintable() or re.search(r"[\s/]", value):
        raise ValueError("an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0 for all")
    return value


def _root(value: str) -> str:
    if value and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
        raise ValueError("a path such as /tts, without a slash at its end")
    return value


def _origin(value: str) -> str:
    parts = _split(value)
    if value != "*" and (
        parts is None or parts.scheme not in ("http", "https") or value != f"{parts.scheme}://{parts.netloc}"
    ):
        raise ValueError("* or a page's origin, such as https://example.org")
    return value


def _host_name(value: str) -> str:
    if value != "*" and not _HOST_NAME.fullmatch(value):
        raise ValueError("* or a host's name without a port, such as tts.example.org")
    return value.lower()


def _triton(value: str) -> str:
    parts = _split(value)
    if parts is None or parts.port is None or "@" in parts.netloc or value.rstrip("/") != f"triton://{parts.netloc}":
        raise ValueError("triton://HOST:PORT of its gRPC interface")
    return value


def _web(value: str) -> str:
    parts = _split(value)
    if parts is None or parts.scheme not in ("http", "https"):
        raise ValueError("an address such as http://localhost:4318")
    return value


def _place(value: str) -> str:
    if not value or "\x00" in value:
        raise ValueError("a folder, or redis://HOST:PORT")
    if is_address(value):
        if value.partition("://")[0] not in STORES:
            raise ValueError(f"a folder, or an address of {', '.join(f'{store}://' for store in STORES)}")
        return value
    return expand_user(value)


def _model(value: str) -> str:
    if not value:
        raise ValueError("a downloaded model's name, or a model's folder")
    return expand_user(value)


def _split(address: str) -> SplitResult | None:
    """The address's parts; None: it has no host, or a port that is none."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  (it is parsed when it is asked for)
    except ValueError:
        return None
    return parts if parts.hostname and address.isprintable() and " " not in address else None


FilePath = Annotated[Path, BeforeValidator(_path), AfterValidator(lambda path: Path(expand_user(str(path))))]
Device = Annotated[str, AfterValidator(_device)]
Variant = Annotated[str, AfterValidator(_variant)]
Host = Annotated[str, AfterValidator(_host)]
RootPath = Annotated[str, AfterValidator(_root)]
Origin = Annotated[str, AfterValidator(_origin)]
HostName = Annotated[str, AfterValidator(_host_name)]
TritonAddress = Annotated[str, AfterValidator(_triton)]
WebAddress = Annotated[str, AfterValidator(_web)]
VoicePlace = Annotated[str, AfterValidator(_place)]
Model = Annotated[str, AfterValidator(_model)]
