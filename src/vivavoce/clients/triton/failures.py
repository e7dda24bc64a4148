"""What goes wrong between a client and its server."""

from __future__ import annotations

from vivavoce.errors import VivavoceError


class ServerUnreachable(VivavoceError):
    """No server answers at the address, or not in time."""

    code = "server_unreachable"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class ServerRefused(VivavoceError):
    """The server answered with an error, or with what is no answer."""

    code = "server_refused"
    http_status = 502


def unreachable(address: str, why: str) -> ServerUnreachable:
    """Nobody answers, or somebody who has no room."""
    return ServerUnreachable(f"server: {address} is not available ({why}); check the address and that it is ready")


def too_late(address: str, timeout_s: float) -> ServerUnreachable:
    """The whole answer is not there in time."""
    return ServerUnreachable(
        f"timeout: no whole answer from {address} within {timeout_s:g} s; allow more, or see what keeps it busy"
    )


def silent(address: str, timeout_s: float) -> ServerUnreachable:
    """The next piece of an answer is not there in time."""
    return ServerUnreachable(
        f"timeout: nothing came from {address} for {timeout_s:g} s; allow more, or see what keeps it busy"
    )


def refused(words: str) -> ServerRefused:
    """The server says no, in its own words."""
    return ServerRefused(f"server: {words.strip() or 'it refused without a word; see its log'}")
