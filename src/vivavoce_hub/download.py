"""Downloads a known model: only the files for inference, all of one revision, resumable and verified.

Each hub has its own function that lists files; the rest is the same for both: all files are fetched by plain HTTP. The
library huggingface_hub is not used: it compares sizes only, reads listings of any length, and replaces the files of an
older revision one by one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote
from urllib.request import proxy_bypass

import httpx

from vivavoce.checkpoint.folder import sha256_of
from vivavoce.checkpoint.known_models import (
    RECORD,
    DownloadRecord,
    FileRecord,
    KnownModel,
    is_begun,
    is_needed,
    known_model,
    missing_files,
    model_folder,
    read_record,
    size_of,
)
from vivavoce.errors import DownloadError, InvalidRequest
from vivavoce.files import locked, replace_file
from vivavoce.loopback import is_local

LOCK = ".vivavoce-download.lock"
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
MAX_ATTEMPTS = 5
MAX_REDIRECTS = 20
MAX_LISTING_BYTES = 4_000_000
MAX_FILES = 100

_PROXY_VARIABLES = ("all_proxy", "https_proxy", "http_proxy")
_YES = frozenset({"1", "on", "yes", "true"})
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPACE = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger("vivavoce.download")  # a logger that the command line shows


@dataclass(frozen=True)
class DownloadProgress:
    """Progress in bytes. file, file_size: the current file. done, total: of all files to transfer, including bytes from
    an interrupted download."""

    file: str
    file_size: int
    done: int
    total: int


class RemoteFile(NamedTuple):
    """A file as the hub describes it. path: relative to the repository; `check_path` has checked it. size: bytes."""

    path: str
    size: int
    checksum: str | None
    """SHA-256, or git's SHA-1 (40 digits) for small files; None if the hub publishes no checksum."""
    url: str


Listing = tuple[str, list[RemoteFile]]
"""The revision and all of its files; the revision is the commit on Hugging Face, the given name on ModelScope."""


class Hub(NamedTuple):
    """A website that hosts models. list_files: (client, endpoint, repository, revision) → Listing."""

    title: str
    endpoint: str
    endpoint_variable: str
    default_revision: str
    list_files: Callable[[httpx.Client, str, str, str], Listing]
    token_variable: str = ""
    offline_variable: str = ""


def download(
    name: str,
    *,
    source: Literal["hf", "modelscope"] = "hf",
    revision: str | None = None,
    target: Path | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Callable[[DownloadProgress], None] = lambda _: None,
) -> Path:
    """Download a known model and return its folder.

    New files replace old files only when all have arrived, so an older revision stays usable until then. A complete
    folder is returned without asking the hub, unless `revision` names another commit, a branch or a tag. If several
    processes download to the same folder, one downloads, and the others wait for it.

    target: the folder, by default `model_folder`. endpoint: address of the hub, by default `HF_ENDPOINT` or
    `VIVAVOCE_MODELSCOPE_ENDPOINT`, else the public hub. token: sent to `endpoint` only; for Hugging Face, the default
    is `HF_TOKEN`. progress: called after every piece that arrives. Raises DownloadError if network or disk fail, or if
    the bytes differ from the hub's size or checksum."""
    model = known_model(name)
    if source not in HUBS:
        raise InvalidRequest(f"source: {source!r} is not a known hub; choose one of {', '.join(HUBS)}")
    hub, repository = HUBS[source], model.hf_id if source == "hf" else model.modelscope_id
    folder = target if target is not None else model_folder(model)
    if _is_done(folder, model, revision):
        return folder
    if os.environ.get(hub.offline_variable, "").strip().lower() in _YES:
        state = "complete in" if is_begun(folder) else "downloaded to"
        raise DownloadError(
            f"hub: {hub.offline_variable} is set and {model.name} is not {state} {folder}; unset it, "
            + _by_hand(folder)
        )
    base = (endpoint or os.environ.get(hub.endpoint_variable) or hub.endpoint).rstrip("/")
    token = token or os.environ.get(hub.token_variable)
    with _explained(hub, folder):
        folder.mkdir(parents=True, exist_ok=True)
        waiting = partial(_log.warning, "waiting: another process downloads to %(folder)s", {"folder": folder})
        with locked(folder / LOCK, on_wait=waiting):
            if _is_done(folder, model, revision):
                return folder
            with _client(base, token) as client:
                found, files = _list_needed(client, base, hub, model, repository, revision)
                written = _fetch_missing(client, found, files, folder, progress)
            _put_in_place(folder, DownloadRecord(model.name, source, repository, found, written))
    return folder


def _list_needed(
    client: httpx.Client, base: str, hub: Hub, model: KnownModel, repository: str, revision: str | None
) -> Listing:
    try:
        found, files = hub.list_files(client, base, repository, revision or hub.default_revision)
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, RecursionError):
        raise DownloadError(f"hub: {base} answers with something that is not a file list; check the endpoint") from None
    files = [file for file in files if is_needed(file.path)]
    missing = missing_files(model.generation, {file.path for file in files})
    if missing or len(files) > MAX_FILES:
        wrong = f"no {', '.join(missing)}" if missing else f"{len(files)} files, the limit is {MAX_FILES},"
        raise DownloadError(
            f"hub: {hub.title} lists {wrong} in {repository} at revision {found:.80}; check the revision, "
            "or use the other hub"
        )
    return found, files


def _is_done(folder: Path, model: KnownModel, revision: str | None) -> bool:
    record = read_record(folder)
    if record is None:
        return False
    if record.model != model.name:
        raise DownloadError(
            f"target: {folder} holds {record.model}, not {model.name}; choose another folder for each model"
        )
    pinned = revision is None or (revision == record.revision and _COMMIT.fullmatch(revision) is not None)
    return pinned and record.is_whole(folder)


def _client(base: str, token: str | None) -> httpx.Client:
    home = httpx.URL(base)
    if token and home.scheme != "https" and home.host not in ("localhost", "127.0.0.1", "::1"):
        raise DownloadError(
            f"endpoint: {base} is not https, so that others could read the token; use https, or no token"
        )

    def add_token(request: httpx.Request) -> None:
        # The hub redirects requests for large files to other hosts, which must not get the token.
        to, at_home = request.url, (home.scheme, home.host, home.port)
        if token and (to.scheme, to.host, to.port) == at_home:
            request.headers["Authorization"] = f"Bearer {token.strip()}"

    return open_client(
        base,
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        # Compressed bytes could neither be resumed nor compared with the published size.
        headers={"User-Agent": "vivavoce", "Accept-Encoding": "identity"},
        event_hooks={"request": [add_token]},
    )


def open_client(base: str, **options: Any) -> httpx.Client:
    """Open a client that connects to `base` directly if this is on this machine, otherwise by the environment's proxy.

    If a proxy or certificate is unusable, raises InvalidRequest with the name of its environment variable, but not with
    the value, which may contain a password."""
    try:
        return httpx.Client(trust_env=not is_local(base), **options)
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        missing = isinstance(error, ImportError)
        if isinstance(error, OSError):
            names = _variables("ssl_cert_file")
        else:
            proxies = _variables(*_PROXY_VARIABLES)
            names = [name for name in proxies if not _is_proxy(os.environ[name])] or _variables("no_proxy")
        if not names:
            raise
        advice = "needs the package socksio: pip install 'httpx[socks]'" if missing else "cannot be used: correct it"
        raise InvalidRequest(f"network: the variable {' or '.join(names)} {advice}, or unset it") from None


def proxy_note(url: str) -> str:
    """Return words for a network error that name the environment variable of the proxy to `url`; "" without a proxy."""
    to = httpx.URL(url)
    found = _variables(f"{to.scheme}_proxy") or _variables("all_proxy")
    return f" through the proxy of {found[0]}" if found and not is_local(url) and not proxy_bypass(to.host) else ""


def _variables(*kinds: str) -> list[str]:
    return [name for name, value in os.environ.items() if name.lower() in kinds and value]


def _is_proxy(value: str) -> bool:
    try:
        httpx.Client(trust_env=False, verify=False, proxy=value if "://" in value else f"http://{value}").close()
    except (ImportError, ValueError, httpx.InvalidURL):
        return False
    return True


@contextmanager
def _explained(hub: Hub, folder: Path) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        permission = (
            f"set {hub.token_variable} to a token that may read it" if hub.token_variable else "use the other hub"
        )
        advice = {
            401: permission,
            403: permission,
            404: "the hub has no such model, revision or file: check the revision, or use the other hub",
        }.get(status, "try again later, or use the other hub")
        raise DownloadError(
            f"hub: {hub.title} answered {status} to {error.response.request.url}; {advice}, {_by_hand(folder)}"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        way = proxy_note(str(error.request.url)) if isinstance(error, httpx.ConnectError | httpx.ProxyError) else ""
        raise DownloadError(
            f"hub: {hub.title} cannot be reached{way} ({reason}); check the network and try again (it goes on where it "
            f"stopped), or set {hub.endpoint_variable} to a mirror, {_by_hand(folder)}"
        ) from None
    except OSError as error:
        if error.errno in _SPACE:
            raise DownloadError(
                f"disk: {folder} is full; free some space and try again (it goes on where it stopped), or "
                "choose another place with VIVAVOCE_HOME"
            ) from None
        raise DownloadError(
            f"disk: {error.filename or folder}: {error.strerror or error}; check that {folder} can be written, "
            "or choose another place with VIVAVOCE_HOME"
        ) from None


def _by_hand(folder: Path) -> str:
    return f"or copy the model's files by hand, for example to {folder}, and give that path in place of the name"


@contextmanager
def _answer(client: httpx.Client, url: str, **options: Any) -> Iterator[httpx.Response]:
    """Send a request and yield the response after all redirects, with its body unread. Redirects are followed here,
    because httpx would read the whole body of each."""
    request = client.build_request("GET", url, **options)
    for _ in range(MAX_REDIRECTS):
        with closing(client.send(request, stream=True)) as response:
            if response.next_request is None:
                yield response.raise_for_status()
                return
            request = response.next_request
    raise httpx.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects", request=request)


def _get_json(client: httpx.Client, url: str, **params: str) -> Any:
    with _answer(client, url, params=params) as response:
        content = next(response.iter_raw(MAX_LISTING_BYTES + 1), b"")
    if len(content) > MAX_LISTING_BYTES:
        raise DownloadError(
            f"hub: {url} lists more than {MAX_LISTING_BYTES} bytes of files, which is the limit; check the endpoint, "
            "or use the other hub"
        )
    return json.loads(content)


def _list_huggingface(client: httpx.Client, endpoint: str, repository: str, revision: str) -> Listing:
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision, safe='')}"
    answer = _get_json(client, url, blobs="true")
    resolved = f"{endpoint}/{repository}/resolve/{answer['sha']}"
    return str(answer["sha"]), [
        _remote_file(
            one["rfilename"],
            one["size"],
            (one.get("lfs") or {}).get("sha256") or one.get("blobId"),
            f"{resolved}/{quote(str(one['rfilename']))}",
        )
        for one in answer["siblings"]
    ]


def _list_modelscope(client: httpx.Client, endpoint: str, repository: str, revision: str) -> Listing:
    base = f"{endpoint}/api/v1/models/{repository}/repo"
    answer = _get_json(client, f"{base}/files", Revision=revision, Recursive="true")
    listed = [one for one in answer["Data"]["Files"] if one["Type"] != "tree"]
    urls = [str(httpx.URL(base, params={"Revision": revision, "FilePath": str(one["Path"])})) for one in listed]
    return revision, [
        _remote_file(one["Path"], one["Size"], one.get("Sha256"), url) for one, url in zip(listed, urls, strict=True)
    ]


def check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise DownloadError(f"file: the hub lists {path!r}, which is not a safe file name; do not use this hub")


def _remote_file(path: Any, size: Any, checksum: Any, url: str) -> RemoteFile:
    check_path(str(path))
    return RemoteFile(str(path), int(size), str(checksum).lower() if checksum else None, url)


HUBS = {
    "hf": Hub(
        *("Hugging Face", "https://huggingface.co", "HF_ENDPOINT", "main", _list_huggingface),
        token_variable="HF_TOKEN",
        offline_variable="HF_HUB_OFFLINE",
    ),
    "modelscope": Hub(
        *("ModelScope", "https://www.modelscope.cn", "VIVAVOCE_MODELSCOPE_ENDPOINT", "master", _list_modelscope)
    ),
}


def _fetch_missing(
    client: httpx.Client,
    revision: str,
    files: list[RemoteFile],
    folder: Path,
    progress: Callable[[DownloadProgress], None],
) -> dict[str, FileRecord]:
    record = read_record(folder)
    digests = {file.path: found for file in files if (found := _present(folder, file, revision, record))}
    missing = [file for file in files if file.path not in digests]
    needed = sum(file.size - max(size_of(_part(folder, file.path)), 0) for file in missing)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"disk: {needed / 1e9:.2f} GB are needed in {folder} and {free / 1e9:.2f} GB are free; free some "
            "space, or choose another place with VIVAVOCE_HOME"
        )
    done, total = 0, sum(file.size for file in missing)
    for file in missing:

        def report(file_done: int, file: RemoteFile = file, before: int = done) -> None:
            progress(DownloadProgress(file.path, file.size, before + file_done, total))

        part = _part(folder, file.path)
        part.parent.mkdir(parents=True, exist_ok=True)
        digests[file.path] = _fetch(client, file, part, report)
        done += file.size
    return {file.path: FileRecord(file.size, digests[file.path]) for file in files}


def write_record(folder: Path, record: DownloadRecord) -> None:
    replace_file(folder / RECORD, json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")


def _put_in_place(folder: Path, record: DownloadRecord) -> None:
    """Move the new files to their places. The old record is removed first: after an interruption, the folder then
    counts as incomplete."""
    before = read_record(folder)
    (folder / RECORD).unlink(missing_ok=True)
    for path in record.files:
        if _part(folder, path).exists():
            os.replace(_part(folder, path), folder / path)
    for path in set(before.files if before else ()) - set(record.files):
        (folder / path).unlink(missing_ok=True)
    write_record(folder, record)


def _present(folder: Path, file: RemoteFile, revision: str, record: DownloadRecord | None) -> str | None:
    """Return the SHA-256 of `file` if the folder already has it, otherwise None."""
    path = folder / file.path
    if size_of(path) != file.size:
        return None
    known = record.files.get(file.path) if record else None
    if file.checksum is None:  # only an equal commit shows that the file has not changed
        unchanged = record and record.revision == revision and _COMMIT.fullmatch(revision)
        return known.sha256 if known and unchanged else None
    digest = known.sha256 if known else sha256_of(path)
    return digest if _checksum(path, file, digest) == file.checksum else None


def _checksum(path: Path, file: RemoteFile, sha256: str) -> str:
    if len(file.checksum or "") != 40:
        return sha256
    return sha256_of(path, hashlib.sha1(b"blob %d\0" % size_of(path), usedforsecurity=False))


def _part(folder: Path, path: str) -> Path:
    return folder / f"{path}.part"


def _fetch(client: httpx.Client, file: RemoteFile, part: Path, report: Callable[[int], None]) -> str:
    """Fetch a file to `part`, and return its SHA-256. An existing part is resumed only if the file has a checksum; if
    the result does not match it, the file is fetched again from the start."""
    if file.checksum is None:
        part.unlink(missing_ok=True)
    found = ""
    for _ in range(2 if size_of(part) > 0 else 1):
        _complete(client, file, part, report)
        digest = sha256_of(part)
        checksum = _checksum(part, file, digest)
        if size_of(part) == file.size and file.checksum in (None, checksum):
            return digest
        found = f"{size_of(part)} bytes with checksum {checksum}"
        part.unlink(missing_ok=True)
    raise DownloadError(
        f"file: {file.path}: expected {file.size} bytes with checksum {file.checksum or 'unpublished'}, "
        f"got {found}; the bytes are deleted, download again or use the other hub"
    )


def _complete(client: httpx.Client, file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        before = size_of(part)
        if before >= file.size > 0:
            return
        try:
            return _append(client, file, part, max(before, 0), report)
        except httpx.TransportError:
            if attempt == MAX_ATTEMPTS or size_of(part) <= before:
                raise


def _append(client: httpx.Client, file: RemoteFile, part: Path, start: int, report: Callable[[int], None]) -> None:
    with _answer(client, file.url, headers={"Range": f"bytes={start}-"} if start else {}) as response:
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            start = 0  # the server sends the whole file
        with part.open("ab" if start else "wb") as out:
            for piece in response.iter_bytes():
                out.write(piece)
                start += len(piece)
                if start > file.size:
                    return  # the hub sends more bytes than it announced; `_fetch` refuses the file
                report(start)
