"""`Dialect`: the description by which another package adds another product's interface to the server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing
from vivavoce.server.settings import ServerSection

if TYPE_CHECKING:
    from fastapi import APIRouter

    from vivavoce.server.http.app_state import AppState
    from vivavoce.server.http.ws_messages import MessageForm
    from vivavoce_grpc.calls import Answer

Listening = Callable[[RequestDispatcher, KeyRing, ServerSection, socket.socket], AbstractAsyncContextManager[int]]
"""Returns a context that gives the port; until the context ends, the running event loop serves the listening socket."""


def _no_services() -> Mapping[str, Mapping[str, Answer]]:
    return {}


@dataclass(frozen=True, eq=False)
class Dialect:
    """An interface of another product, beside the server's own. Each dialect has some of the parts below.

    name: shown to the operator. routers: HTTP routes, by the name of the port's setting. grpc_services: returns the
    methods of each gRPC service, by the service's full name. listeners: functions that serve a separate port of the
    dialect, by the name of the port's setting.

    Some clients of the other product use routes of the server's own interface. models: returns the answer to `GET
    /v1/models` if the headers show such a client, else None. first_message: returns the client's message form if the
    first message and the query on the server's WebSocket show one, else None. socket_query: known query names.
    """

    name: str
    routers: Mapping[str, Callable[[AppState], APIRouter]] = field(default_factory=dict)
    grpc_services: Callable[[], Mapping[str, Mapping[str, Answer]]] = _no_services
    listeners: Mapping[str, Listening] = field(default_factory=dict)
    models: Callable[[Headers, ModelInfo], list[dict[str, Any]] | None] = lambda *_: None
    first_message: Callable[[Mapping[str, Any], Mapping[str, str]], MessageForm | None] = lambda *_: None
    socket_query: frozenset[str] = frozenset()
