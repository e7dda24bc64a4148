"""What a hub holds of one model: a revision and its files, from either hub's API in one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import httpx

from vivavoce.checkpoint.hub.registry import KnownModel
from vivavoce.checkpoint.hub.selection import check_path
from vivavoce.errors import DownloadError


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub describes it."""

    path: str
    """Relative to the repository, `/` between folders; safe to write."""
    size: int
    """Bytes."""
    sha256: str | None
    """Hexadecimal; None where the hub publishes no checksum (small files on Hugging Face)."""
    url: str


@dataclass(frozen=True)
class Snapshot:
    """All files of one revision."""

    revision: str
    """The commit where the hub reports one (Hugging Face), else the name that was asked for (ModelScope)."""
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Hub:
    """How one hub is reached."""

    title: str
    endpoint: str
    endpoint_variable: str
    """Environment variable that replaces `endpoint`, for mirrors."""
    token_variable: str | None
    offline_variable: str | None
    default_revision: str
    repository_of: Callable[[KnownModel], str]
    list_files: Callable[[httpx.Client, str, str, str], Snapshot]
    """(client, endpoint, repository, revision) → Snapshot."""


def list_huggingface(client: httpx.Client, endpoint: str, repository: str, revision: str) -> Snapshot:
    """List a revision of a Hugging Face repository; files are pinned to the commit that the answer names.

    Raises:
        httpx.HTTPError: the hub cannot be reached or refuses.
        DownloadError: its answer is no file list, or names an unsafe path.
    """
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision, safe='')}"
    answer = _get_json(client, url, {"blobs": "true"})
    try:
        commit = str(answer["sha"])
        files = tuple(
            _remote_file(
                path=sibling["rfilename"],
                size=sibling["size"],
                sha256=(sibling.get("lfs") or {}).get("sha256"),
                url=f"{endpoint}/{repository}/resolve/{commit}/{quote(str(sibling['rfilename']))}",
            )
            for sibling in answer["siblings"]
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_list(url) from None
    return Snapshot(commit, files)


def list_modelscope(client: httpx.Client, endpoint: str, repository: str, revision: str) -> Snapshot:
    """List a revision of a ModelScope repository.

    Raises:
        httpx.HTTPError: the hub cannot be reached or refuses.
        DownloadError: its answer is no file list, or names an unsafe path.
    """
    base = f"{endpoint}/api/v1/models/{repository}/repo"
    answer = _get_json(client, f"{base}/files", {"Revision": revision, "Recursive": "true"})
    try:
        files = tuple(
            _remote_file(
                path=entry["Path"],
                size=entry["Size"],
                sha256=entry.get("Sha256") or None,
                url=str(httpx.URL(base, params={"Revision": revision, "FilePath": str(entry["Path"])})),
            )
            for entry in answer["Data"]["Files"]
            if entry["Type"] != "tree"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_list(base) from None
    return Snapshot(revision, files)


def _remote_file(*, path: Any, size: Any, sha256: Any, url: str) -> RemoteFile:
    check_path(str(path))
    return RemoteFile(str(path), int(size), str(sha256).lower() if sha256 else None, url)


def _get_json(client: httpx.Client, url: str, params: Mapping[str, str]) -> Any:
    response = client.get(url, params=params)
    response.raise_for_status()
    try:
        return response.json()
    except ValueError:
        raise _no_list(url) from None


def _no_list(url: str) -> DownloadError:
    return DownloadError(f"hub: {url} answers with something that is no file list; check the endpoint")


HUBS: Mapping[str, Hub] = MappingProxyType(
    {
        "hf": Hub(
            title="Hugging Face",
            endpoint="https://huggingface.co",
            endpoint_variable="HF_ENDPOINT",
            token_variable="HF_TOKEN",
            offline_variable="HF_HUB_OFFLINE",
            default_revision="main",
            repository_of=lambda model: model.hf_id,
            list_files=list_huggingface,
        ),
        "modelscope": Hub(
            title="ModelScope",
            endpoint="https://www.modelscope.cn",
            endpoint_variable="VIVAVOCE_MODELSCOPE_ENDPOINT",
            token_variable=None,
            offline_variable=None,
            default_revision="master",
            repository_of=lambda model: model.modelscope_id,
            list_files=list_modelscope,
        ),
    }
)
"""Both hubs by the name that `source` takes."""
