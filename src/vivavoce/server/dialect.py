"""How the server sees an interface of another product, which a package beside it speaks."""

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
"""Serves a listening socket in the running event loop until its context ends; the context gives the port."""


def _no_services() -> Mapping[str, Mapping[str, Answer]]:
    return {}


@dataclass(frozen=True, eq=False)
class Dialect:
    """An interface of another product beside the server's own. Each has some of the parts below.

    name: for the operator; routers: its routes on a port for HTTP, by the name of the port's setting; grpc_services:
    gives the methods of its services on the gRPC port, by the service's full name; listeners: its ports of its own, by
    the name of the port's setting.

    Some clients use addresses of the server's own interface. models: the answer to `GET /v1/models` for headers of such
    a client, None for others; first_message: the form of messages for the first message and the query of such a client
    on the server's own WebSocket, None for others; socket_query: names in that query that the form reads or ignores.
    """

    name: str
    routers: Mapping[str, Callable[[AppState], APIRouter]] = field(default_factory=dict)
    grpc_services: Callable[[], Mapping[str, Mapping[str, Answer]]] = _no_services
    listeners: Mapping[str, Listening] = field(default_factory=dict)
    models: Callable[[Headers, ModelInfo], list[dict[str, Any]] | None] = lambda *_: None
    first_message: Callable[[Mapping[str, Any], Mapping[str, str]], MessageForm | None] = lambda *_: None
    socket_query: frozenset[str] = frozenset()
