"""Which web pages may open a WebSocket: browsers send it from any page, with the listener's own cookies and network."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def may_connect(headers: Headers, scheme: str, allowed: Sequence[str]) -> bool:
    """Whether a page may: one of this server's own host and port, or of an allowed origin ("*": any).

    scheme: of the WebSocket, "ws" or "wss". Clients that are no browsers send no `Origin`, and may.
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        page, own = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        if page.scheme not in _PORTS or page.hostname is None:
            return False  # "null": a sandboxed page, or a file
        # A proxy in front may have taken the encryption off, so that the scheme tells nothing but its usual port.
        usual = {_PORTS[page.scheme], _PORTS.get(scheme, 80)}
        return page.hostname == own.hostname and _port(page.port, usual) == _port(own.port, usual)
    except ValueError:
        return False  # a host or a port that is none


def _port(port: int | None, usual: set[int]) -> int | None:
    return None if port in usual else port
