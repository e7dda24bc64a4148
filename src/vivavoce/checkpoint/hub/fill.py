"""Bring a folder to a hub's snapshot: fetch what is missing, then put all of it in place."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from vivavoce.checkpoint.fingerprint import sha256_of
from vivavoce.checkpoint.hub.listing import RemoteFile, Snapshot
from vivavoce.checkpoint.hub.record import RECORD, DownloadRecord, read_record, size_of, write_record
from vivavoce.checkpoint.hub.transfer import fetch
from vivavoce.errors import DownloadError

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class DownloadProgress:
    """How far a download is; all sizes in bytes."""

    file: str
    file_done: int
    file_size: int
    done: int
    """Of all files that have to be transferred, including what an earlier try brought."""
    total: int


def is_commit(revision: str) -> bool:
    """Whether `revision` names fixed contents; a branch or a tag may move."""
    return _COMMIT.fullmatch(revision) is not None


def fetch_missing(
    client: httpx.Client,
    snapshot: Snapshot,
    files: Sequence[RemoteFile],
    folder: Path,
    progress: Callable[[DownloadProgress], None] | None,
) -> dict[str, str]:
    """Bring each of `files` that is not in `folder` yet into its `.part` there.

    Returns:
        The SHA-256 of every file, present or fetched, by path.

    Raises:
        httpx.HTTPError, OSError: as `transfer.fetch`.
        DownloadError: too little space, or wrong bytes.
    """
    record = read_record(folder)
    digests = {file.path: found for file in files if (found := _present(folder, file, snapshot, record))}
    missing = [file for file in files if file.path not in digests]
    _check_space(folder, sum(file.size - max(size_of(_part(folder, file.path)), 0) for file in missing))
    done, total = 0, sum(file.size for file in missing)
    for file in missing:

        def report(file_done: int, file: RemoteFile = file, before: int = done) -> None:
            if progress is not None:
                progress(DownloadProgress(file.path, file_done, file.size, before + file_done, total))

        part = _part(folder, file.path)
        part.parent.mkdir(parents=True, exist_ok=True)
        digests[file.path] = fetch(client, file, part, report)
        done += file.size
    return digests


def put_in_place(folder: Path, record: DownloadRecord) -> None:
    """Give every fetched file its name, remove what the revision before had more, and leave the record.

    The old record goes first: a folder that this was interrupted in counts as incomplete.
    """
    before = read_record(folder)
    (folder / RECORD).unlink(missing_ok=True)
    for path in record.files:
        part = _part(folder, path)
        if part.exists():
            os.replace(part, folder / path)
    for path in set(before.files if before else ()) - set(record.files):
        (folder / path).unlink(missing_ok=True)
    write_record(folder, record)


def _present(folder: Path, file: RemoteFile, snapshot: Snapshot, record: DownloadRecord | None) -> str | None:
    """The SHA-256 of `file` if the folder holds it already, else None."""
    path = folder / file.path
    if size_of(path) != file.size:
        return None
    known = record.files.get(file.path) if record else None
    if file.sha256 is None:  # only the commit can tell that nothing changed
        unchanged = record and record.revision == snapshot.revision and is_commit(snapshot.revision)
        return known.sha256 if known and unchanged else None
    digest = known.sha256 if known else sha256_of(path)
    return digest if digest == file.sha256 else None


def _part(folder: Path, path: str) -> Path:
    return folder / f"{path}.part"


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"disk: {needed / 1e9:.2f} GB are needed in {folder} and {free / 1e9:.2f} GB are free; free some "
            "space, or choose another place with VIVAVOCE_HOME"
        )
