"""Who asks, by the API key in a request's headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from vivavoce.doors.http.desk import Desk, desk_of
from vivavoce.errors import Forbidden
from vivavoce.service.operations.callers import Caller
from vivavoce.service.operations.keys import token_in
from vivavoce.service.operations.scope import note_caller


def caller_of(desk: Desk, headers: Headers) -> Caller:
    """The caller whose key the headers bring.

    Raises:
        Unauthorized: the server wants keys, and there is none, or one that nobody has.
    """
    caller = desk.keys.caller(token_in(headers))
    note_caller(caller.name)
    return caller


async def current_caller(connection: HTTPConnection) -> Caller:
    """`caller_of` as a dependency of routes."""
    return caller_of(desk_of(connection), connection.headers)


KnownCaller = Annotated[Caller, Depends(current_caller)]
"""A route's parameter: who asks, or the answer 401."""


def namespace(caller: Caller, public: bool) -> str:
    """Whose voices are to be changed: the caller's own, or those that everybody sees.

    Raises:
        Forbidden: the key may not change public voices.
    """
    if not public and caller.owner:
        return caller.owner
    if caller.may_publish:
        return ""
    raise Forbidden(f"public: the key {caller.name!r} may not change voices that everybody sees; leave public out")


def refuse_foreign_page(headers: Headers, allowed: Sequence[str]) -> None:
    """Refuse a form that a page from elsewhere sends: browsers send it anywhere, and do not ask the server before.

    allowed: origins that may, "*": any. Clients that are no browsers send no `Sec-Fetch-Site`, and may.

    Raises:
        Forbidden: names the origin.
    """
    origin = headers.get("origin", "")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not {"*", origin} & set(allowed):
        raise Forbidden(f"origin: pages of {origin[:100]!r} may not change voices; allow it in cors_origins")
