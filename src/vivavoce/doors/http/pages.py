"""The pages for people: a fixed set of files that needs nothing from elsewhere, served under a strict policy."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.doors.http.desk import Desk

PAGES = {"/": "speak.html", "/voices": "voices.html", "/status": "status.html"}
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Always asked for again, and then mostly answered with 304: another version of the server is seen at once.
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob: data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Asset:
    """One file of the pages; tag: a quoted strong ETag."""

    content: bytes
    content_type: str
    tag: str


def router(desk: Desk) -> APIRouter:
    """`/`, `/voices`, `/status` and `/web/…`; they want no key, what the pages then ask for may."""
    del desk  # what people see is the same at every server
    routes = APIRouter(include_in_schema=False)
    assets = load_assets()

    for path, name in PAGES.items():
        routes.add_api_route(path, _page(assets[name]), methods=["GET", "HEAD"])

    @routes.api_route("/web/{name}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        found = assets.get(name)
        if found is None or name in PAGES.values():
            raise HTTPException(404)
        return _answer(request, found)

    return routes


def load_assets() -> dict[str, Asset]:
    """All files of the pages by name, read once: what is asked for is looked up among them and never on the disk."""
    return {
        entry.name: _asset(entry.name, entry.read_bytes())
        for entry in files("vivavoce.doors.http").joinpath("web").iterdir()
        if _suffix(entry.name) in _CONTENT_TYPES
    }


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _CONTENT_TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _page(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return _answer(request, asset)

    return page


def _answer(request: Request, asset: Asset) -> Response:
    headers = {**_HEADERS, "etag": asset.tag}
    if _is_known(request.headers.get("if-none-match", ""), asset.tag):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers={**headers, "content-type": asset.content_type})


def _is_known(tags: str, tag: str) -> bool:
    """Whether `If-None-Match` names the tag; a weak one, as proxies that compress make it, is as good here."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in tags.split(","))
