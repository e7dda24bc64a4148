"""The routes of LoRA adapters: list, load, remove."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from vivavoce.engine.adapters import AdapterInfo
from vivavoce.errors import Forbidden, InvalidRequest
from vivavoce.frontend.speech_backend import AdapterBackend
from vivavoce.server.http.app_state import (
    MODEL_QUERY,
    AppState,
    KnownPrincipal,
    ListReader,
    backend_for,
    refuse_foreign_page,
)
from vivavoce.server.http.bodies import json_schema, read_json
from vivavoce.server.http.errors import BODY_FAILURES, failures
from vivavoce.server.rate_limiter import Principal

PATH = "/v1/adapters"


class AdapterFields(BaseModel):
    """An adapter to load."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=64, description="The adapter's name in requests: letters, digits, - _ .")
    folder: str = Field("", max_length=1_000, description="Its folder, below model.adapters_dir. Default: its name.")
    model: str = Field("", max_length=200, description="The model that loads it. Default: the default model.")


class AdapterEntry(BaseModel):
    """An adapter that requests may name."""

    id: str
    name: str
    object: Literal["adapter"] = "adapter"
    rank: int
    targets: list[str] = Field(description="The modules of the language model that it changes.")
    size_bytes: int = Field(description="Size of the adapter in memory.")


class AdapterList(BaseModel):
    """All loaded adapters."""

    object: Literal["list"] = "list"
    data: list[AdapterEntry]


class AdapterDeleted(BaseModel):
    """A removed adapter. Running requests with it are finished."""

    id: str
    object: Literal["adapter.deleted"] = "adapter.deleted"
    deleted: bool = True


def router(state: AppState) -> APIRouter:
    routes, dispatcher = APIRouter(), state.dispatcher
    body = {"required": True, "content": {"application/json": {"schema": json_schema(AdapterFields)}}}

    @routes.get(PATH, summary="All adapters that requests may name", responses=failures(400, 401, 404, 429, 503))
    async def adapters(principal: ListReader, model: str = MODEL_QUERY) -> AdapterList:
        async with dispatcher.permitted(principal):
            found = await (await _backend(state, model, principal)).adapters()
        return AdapterList(data=[_entry(one) for one in found])

    @routes.post(
        PATH,
        status_code=201,
        summary="Load an adapter",
        responses={**BODY_FAILURES, **failures(403, 404)},
        openapi_extra={"requestBody": body},
    )
    async def add(request: Request, principal: KnownPrincipal) -> AdapterEntry:
        origins = state.settings.server.cors_origins
        refuse_foreign_page(request.headers, request.scope["scheme"], origins, "change adapters")
        _check_allowed(principal)
        async with dispatcher.permitted(principal):
            asked = await read_json(request, AdapterFields)
            folder = folder_below(state.settings.model.adapters_dir, asked.folder or asked.name)
            backend = await _backend(state, asked.model, principal)
            return _entry(await backend.add_adapter(asked.name, str(folder)))

    @routes.delete(PATH + "/{name}", summary="Remove an adapter", responses=failures(400, 401, 403, 404, 429, 503))
    async def remove(name: str, principal: KnownPrincipal, model: str = MODEL_QUERY) -> AdapterDeleted:
        _check_allowed(principal)
        async with dispatcher.permitted(principal):
            await (await _backend(state, model, principal)).remove_adapter(name)
        return AdapterDeleted(id=name)

    return routes


def folder_below(root: Path | None, folder: str) -> Path:
    """Return a folder below `root`, the server's folder of adapters. InvalidRequest: elsewhere, or `root` is None."""
    if root is None:
        raise InvalidRequest("folder: the server loads adapters at its start only; set model.adapters_dir")
    if not folder.isprintable():
        raise InvalidRequest(f"folder: {folder[:80]!r} has characters that cannot be printed; name a folder")
    root = root.resolve()
    path = (root / folder).resolve()
    if root not in path.parents:
        raise InvalidRequest(f"folder: {folder[:80]!r} is not below the server's folder of adapters; name one that is")
    if not path.is_dir():
        raise InvalidRequest(f"folder: {folder[:80]!r} is not a folder on the server; put the adapter there first")
    return path


def _check_allowed(principal: Principal) -> None:
    if not principal.may_publish:
        raise Forbidden(f"adapters: the key {principal.name!r} may not change adapters, which all callers use")


async def _backend(state: AppState, model: str, principal: Principal) -> AdapterBackend:
    backend = await backend_for(state, model, principal)
    if not isinstance(backend, AdapterBackend):
        raise InvalidRequest("adapters: the engines of this server cannot load adapters while they run")
    return backend


def _entry(info: AdapterInfo) -> AdapterEntry:
    return AdapterEntry(id=info.name, **{**asdict(info), "targets": list(info.targets)})
