"""One file from a hub to the disk: resumed where it stopped, and checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from vivavoce.checkpoint.fingerprint import sha256_of
from vivavoce.checkpoint.hub.listing import RemoteFile
from vivavoce.checkpoint.hub.record import size_of
from vivavoce.errors import DownloadError

MAX_ATTEMPTS = 5
"""Tries at a file whose connection breaks; each must bring new bytes."""


def fetch(client: httpx.Client, file: RemoteFile, part: Path, report: Callable[[int], None]) -> str:
    """Fill `part` with all of `file` and return its SHA-256.

    What `part` holds already is kept where a published checksum can tell that it belongs to this file.

    Args:
        client: sends the requests.
        file: what to transfer.
        part: where to; its folder exists.
        report: is told after each piece how many bytes of the file are there.

    Raises:
        httpx.HTTPError: the hub refuses, or the connection breaks again and again.
        DownloadError: size or checksum differ from what the hub published; `part` is removed.
        OSError: the disk refuses.
    """
    if file.sha256 is None:
        part.unlink(missing_ok=True)
    resumed = size_of(part) > 0
    digest = _complete(client, file, part, report)
    if resumed and not _fits(file, part, digest):
        # The beginning may stem from another revision: once more, from the first byte.
        part.unlink(missing_ok=True)
        digest = _complete(client, file, part, report)
    if not _fits(file, part, digest):
        found = f"{size_of(part)} bytes with SHA-256 {digest}"
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"file: {file.path}: expected {file.size} bytes with SHA-256 {file.sha256 or 'unpublished'}, got "
            f"{found}; the bytes are deleted, download again or use the other hub"
        )
    return digest


def _fits(file: RemoteFile, part: Path, digest: str) -> bool:
    return size_of(part) == file.size and file.sha256 in (None, digest)


def _complete(client: httpx.Client, file: RemoteFile, part: Path, report: Callable[[int], None]) -> str:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        before = size_of(part)
        try:
            _append(client, file, part, report)
            break
        except httpx.TransportError:
            if attempt == MAX_ATTEMPTS or size_of(part) <= before:
                raise
    return sha256_of(part)


def _append(client: httpx.Client, file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
    start = max(size_of(part), 0)
    if start >= file.size > 0:
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    with client.stream("GET", file.url, headers=headers) as response:
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            start = 0  # the server sends the whole file
        with part.open("ab" if start else "wb") as out:
            for piece in response.iter_bytes():
                out.write(piece)
                start += len(piece)
                if start > file.size:
                    return  # more than was announced: the caller finds the sizes differ
                report(start)
