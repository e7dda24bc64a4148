"""Sends an ended job to a client's URL. Private addresses are refused, because clients must not reach them."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Literal
from urllib.parse import urlsplit

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.tag import SOFTWARE

log = logging.getLogger(__name__)

Allowed = Literal["off", "public", "any"]
MAX_CHARS = 2_000
_NAT64 = ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 addresses (RFC 6052)."""
TIMEOUT_S, WHOLE_S, WAITS_S = 10.0, 30.0, (0.0, 5.0, 60.0)
"""In seconds: time limit of a socket operation, time limit of a whole attempt, and the wait before each attempt."""


def check_webhook(url: str, allowed: Allowed) -> None:
    """Check the form of a URL, but do not resolve its host. InvalidRequest: it is malformed, or webhooks are off."""
    if allowed == "off":
        raise InvalidRequest("webhook: this server calls no addresses (jobs.webhooks is off); ask for the job's state")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = len(url) <= MAX_CHARS and url.isascii() and url.isprintable() and " " not in url
    if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
        raise InvalidRequest(
            f"webhook: {url[:60]!r} is not an address of http:// or https:// with at most {MAX_CHARS} characters and "
            "without a password; give one"
        )


def is_public(address: str) -> bool:
    """Return whether an IP address is on the public internet, and not in a private network or for a special use."""
    found = ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if found in _NAT64:
        inner = IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and (inner is None or is_public(str(inner)))


def call(url: str, body: bytes, allowed: Callable[[str], bool] = is_public) -> int:
    """POST the body and return the status of the answer. Redirections are not followed.

    The host is resolved once, all its addresses are checked, and the connection goes to the first address: a second
    resolution could give another address. After `WHOLE_S` the connection is cut, so that a slow answer cannot hold a
    thread. Raises OSError or HTTPException if the connection or answer fails, or an address is not allowed.
    """
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    found = [one[4][0] for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in map(str, found):
        if not allowed(address):
            raise OSError(f"{host} is at {address}, which is not a public address")
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    plain = socket.create_connection((str(found[0]), port), TIMEOUT_S)
    other_end = plain.dup()  # a copy for the timer, because TLS detaches the socket
    cut = threading.Timer(WHOLE_S, _cut, (other_end,))
    cut.start()
    try:
        is_tls = parts.scheme == "https"
        connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_tls else plain
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"content-type": "application/json", "user-agent": SOFTWARE.replace(" ", "/"), "host": parts.netloc}
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    finally:
        cut.cancel()
        cut.join()
        connection.close()
        plain.close()
        other_end.close()


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection may have ended
        connection.shutdown(socket.SHUT_RDWR)


async def deliver(url: str, entry: Mapping[str, Any], allowed: Allowed) -> None:
    """Send the job to the URL, in up to three attempts; failures are logged."""
    body = json.dumps(entry, ensure_ascii=False).encode()
    may = is_public if allowed == "public" else lambda _: True
    for wait_s in WAITS_S:
        await asyncio.sleep(wait_s)
        try:
            status = await asyncio.to_thread(call, url, body, may)
            if status < 300:
                return
            problem = f"the answer was {status}"
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            problem = str(error) or type(error).__name__
        log.warning("webhook failed: of job %(job)s (%(problem)s)", {"job": entry["id"], "problem": problem})
