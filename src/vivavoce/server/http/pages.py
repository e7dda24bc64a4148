"""The health routes and the web pages: a fixed set of files with a strict content security policy."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivavoce.errors import EngineStopped
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat, encode
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.speech_backend import engines_of
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app_state import AppState, KnownPrincipal

PAGES = {"/": "speak.html", "/voices": "voices.html", "/books": "books.html", "/status": "status.html"}
RETRY_AFTER_S = 5
"""Seconds in Retry-After while a server is not ready; an engine needs several times as long to start."""
_Rate = Annotated[int, Query(ge=8_000, le=48_000)]
_UNCACHED = {"cache-control": "no-store"}
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_HEADERS = {
    # Browsers ask each time and mostly get 304, so that they show a new version of a page at once.
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


def health_router(state: AppState) -> APIRouter:
    routes = APIRouter(tags=["operation"])

    @routes.get("/health/live", summary="Whether the server's process works; if not, restart it")
    async def live() -> Response:
        return JSONResponse({"status": "live"}, headers=_UNCACHED)

    @routes.get(
        "/health/ready",
        summary="Whether the server takes requests now; if not, ask another server",
        responses={503: {"description": "It takes no requests now.", "content": {"application/json": {}}}},
    )
    @routes.get("/health", include_in_schema=False)
    async def ready() -> Response:
        reason = _unready_reason(state.dispatcher)
        answer: dict[str, object] = {"status": "ready"}
        if reason is not None:
            answer = {"status": "unavailable", "reason": reason}
        if engines := engines_of(state.dispatcher.backend):
            answer["engines"] = {name: "ready" if one.ready else "unavailable" for name, one in engines.items()}
        if state.dispatcher.backend.voice_store != "ok":
            answer["voice_store"] = "unavailable"  # the log has the reason, which may name folders and machines
        wait = {} if reason is None else {"retry-after": str(RETRY_AFTER_S)}
        return JSONResponse(answer, status_code=503 if reason else 200, headers={**_UNCACHED, **wait})

    return routes


def _unready_reason(dispatcher: RequestDispatcher) -> str | None:
    if dispatcher.draining:
        return "draining"
    if dispatcher.backend.ready:
        return None
    if dispatcher.backend.stuck:
        return "engine_stuck"  # the engine may recover; otherwise its process is ended soon
    try:
        _ = dispatcher.backend.about
    except EngineStopped:
        return "engine_starting"  # the model was never ready
    return "engine_stopped"  # the engine's process has ended, and is started again


@dataclass(frozen=True)
class Asset:
    """One file of the pages; tag: a quoted strong ETag."""

    content: bytes
    content_type: str
    tag: str


def router(state: AppState) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    assets = load_assets()
    served = {f"/web/{name}": asset for name, asset in assets.items() if name not in PAGES.values()}
    served.update((path, assets[name]) for path, name in PAGES.items())

    async def answer(request: Request) -> Response:
        asset = served[request.scope["route"].path]
        headers = {**PAGE_HEADERS, "etag": asset.tag}
        known = request.headers.get("if-none-match", "").split(",")
        # Proxies that compress answers mark the ETag as weak.
        if any(tag.strip().removeprefix("W/") in (asset.tag, "*") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers={**headers, "content-type": asset.content_type})

    for path in served:
        routes.add_api_route(path, answer, methods=["GET"])

    @routes.post("/web/mp3")
    async def mp3(request: Request, principal: KnownPrincipal, rate: _Rate, first: bool = True) -> Response:
        """Encode samples (mono, int16, little endian) as MP3, so that a page can save audio that it has played.

        first: whether this is the file's first part; only this part gets the tag of synthetic speech.
        """
        output, encoded, rest = OutputFormat(AudioFormat.MP3), [], b""
        tag = state.dispatcher.tag() if first else None
        async with state.dispatcher.permitted(principal):
            with closing(output.open(rate, tag)) as encoder:
                async for part in request.stream():
                    whole = rest + part
                    even = len(whole) & ~1
                    samples = np.frombuffer(whole[:even], "<i2").astype(np.float32) / np.float32(32_768)
                    rest = whole[even:]
                    encoded.append(await encode(encoder, samples))
                encoded.append(await encode(encoder, None))
        return Response(b"".join(encoded), headers={**_UNCACHED, "content-type": output.content_type(rate)})

    @routes.get("/web/wav")
    async def wav(_: KnownPrincipal, rate: _Rate, samples: Annotated[int, Query(ge=0, le=1 << 31)]) -> Response:
        """Return a WAV file's header for this many samples; a page puts it before the samples that it has played."""
        header = wav_header(rate, samples, state.dispatcher.tag())
        return Response(header, headers={**_UNCACHED, "content-type": "audio/wav"})

    return routes


def load_assets() -> dict[str, Asset]:
    folder = files("vivavoce.server.http").joinpath("web")
    contents = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    frame, assets = contents.pop("frame.html").decode(), {}
    for path, page in PAGES.items():
        name, link = page.removesuffix(".html"), f'<a href="{path[1:] or "./"}"'
        whole = frame.format(title=name.capitalize(), name=name, content=contents[page].decode())
        contents[page] = whole.replace(f"{link}>", f'{link} aria-current="page">', 1).encode()
    for name, content in contents.items():
        if content_type := _CONTENT_TYPES.get(name[name.rfind(".") :]):
            assets[name] = Asset(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return assets
