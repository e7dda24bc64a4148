"""What every route of a server works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import HTTPConnection

from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSettings


@dataclass(frozen=True, eq=False)
class Desk:
    """One for all routes and ports of a server."""

    reception: Reception
    keys: KeyRing
    settings: ServerSettings


def desk_of(connection: HTTPConnection) -> Desk:
    """The desk of the app that a request or a WebSocket came to."""
    return cast(Desk, connection.app.state.desk)
