"""Download a known model: only what inference needs, resumable, checked, pinned to what the hub reported."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx

from vivavoce.checkpoint.hub.fill import DownloadProgress, fetch_missing, is_commit, put_in_place
from vivavoce.checkpoint.hub.listing import HUBS, Hub, RemoteFile, Snapshot
from vivavoce.checkpoint.hub.locate import model_folder
from vivavoce.checkpoint.hub.problems import by_hand, explained
from vivavoce.checkpoint.hub.record import DownloadRecord, FileRecord, read_record
from vivavoce.checkpoint.hub.registry import KnownModel, known_model
from vivavoce.checkpoint.hub.selection import is_configuration, is_needed
from vivavoce.errors import DownloadError, InvalidRequest

LOCK = ".vivavoce-download.lock"
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0

_YES = frozenset({"1", "on", "yes", "true"})
_log = logging.getLogger(__name__)


def download(
    name: str,
    *,
    source: Literal["hf", "modelscope"] = "hf",
    revision: str | None = None,
    target: Path | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Callable[[DownloadProgress], None] | None = None,
) -> Path:
    """Bring a known model to this machine and return its folder.

    New files replace old ones only once all have arrived, so a folder that worked goes on working. A complete
    folder is returned without asking the hub, unless `revision` names another commit, a branch or a tag.
    Processes that ask for the same folder at once wait for the first.

    Args:
        name: a known model (`registry.py`), upper or lower case.
        source: which hub.
        revision: branch, tag or commit; None: the hub's default, and what is already there stays.
        target: folder to fill; None: `locate.model_folder`.
        endpoint: the hub's base URL; None: `HF_ENDPOINT` or `VIVAVOCE_MODELSCOPE_ENDPOINT`, else the public hub.
        token: permission for private models, sent to `endpoint` alone; None: `HF_TOKEN` for Hugging Face.
        progress: is called after every piece that arrives, in the calling thread.

    Raises:
        ModelNotFound: no such known model.
        InvalidRequest: no such source.
        DownloadError: hub, network or disk fail, or the bytes are not those that the hub announced.
    """
    model = known_model(name)
    if source not in HUBS:
        raise InvalidRequest(f"source: {source!r} is no hub; choose one of {', '.join(HUBS)}")
    hub = HUBS[source]
    folder = target if target is not None else model_folder(model)
    if _is_done(folder, model, revision):
        return folder
    if _says_yes(hub.offline_variable):
        raise DownloadError(
            f"hub: {hub.offline_variable} is set and {model.name} is not complete in {folder}; unset it, "
            + by_hand(folder)
        )
    base = (endpoint or os.environ.get(hub.endpoint_variable) or hub.endpoint).rstrip("/")
    token = token or (os.environ.get(hub.token_variable) if hub.token_variable else None)
    with explained(hub, folder), _locked(folder):
        if _is_done(folder, model, revision):
            return folder
        repository = hub.repository_of(model)
        with _client(base, token) as client:
            snapshot = hub.list_files(client, base, repository, revision or hub.default_revision)
            files = _needed_files(snapshot, hub, repository)
            digests = fetch_missing(client, snapshot, files, folder, progress)
        written = {file.path: FileRecord(file.size, digests[file.path]) for file in files}
        put_in_place(folder, DownloadRecord(model.name, source, repository, snapshot.revision, written))
    return folder


def _is_done(folder: Path, model: KnownModel, revision: str | None) -> bool:
    record = read_record(folder)
    if record is None:
        return False
    if record.model != model.name:
        raise DownloadError(
            f"target: {folder} holds {record.model}, not {model.name}; choose another folder for each model"
        )
    pinned = revision is None or (revision == record.revision and is_commit(revision))
    return pinned and record.is_whole(folder)


def _says_yes(variable: str | None) -> bool:
    return variable is not None and os.environ.get(variable, "").strip().lower() in _YES


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time write into `folder`. The lock file stays: a removed one could be locked twice."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("another process downloads into %s; waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _client(base: str, token: str | None) -> httpx.Client:
    home = httpx.URL(base)

    def add_token(request: httpx.Request) -> None:
        # Large files are redirected to other hosts, which must not see the token.
        to, at_home = request.url, (home.scheme, home.host, home.port)
        if token and (to.scheme, to.host, to.port) == at_home:
            request.headers["Authorization"] = f"Bearer {token.strip()}"

    return httpx.Client(
        follow_redirects=True,
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        # Compressed bytes could neither be resumed nor compared with the published size.
        headers={"User-Agent": "vivavoce", "Accept-Encoding": "identity"},
        event_hooks={"request": [add_token]},
    )


def _needed_files(snapshot: Snapshot, hub: Hub, repository: str) -> list[RemoteFile]:
    files = [file for file in snapshot.files if is_needed(file.path)]
    if not any(is_configuration(file.path) for file in files):
        raise DownloadError(
            f"hub: {hub.title} lists no cosyvoice yaml in {repository} at revision {snapshot.revision}; check the "
            "revision, or use the other hub"
        )
    return files
