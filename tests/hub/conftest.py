"""A hub on the loopback interface: both APIs, large files on a second host, and every fault on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

LARGE_BYTES = 1000
"""From this size on a file is kept on the second host, with a checksum, as hubs do."""


@dataclass(frozen=True)
class Seen:
    """A request as a server got it."""

    server: str
    """hub, storage, or redirect: the hub sent it on to the storage."""
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """What the hub holds and how it misbehaves."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    listed_extra: tuple[str, ...] = ()
    honours_range: bool = True
    publishes_checksums: bool = True
    corrupt: frozenset[str] = frozenset()
    status: int | None = None
    """Answer to every request for a list."""
    listing: bytes | None = None
    """Sent in place of a list."""
    drops: dict[str, list[int]] = field(default_factory=dict)
    """By file: after how many bytes each of the next answers breaks off."""
    redirect_mb: int = 0
    """Bytes after each redirect, which nobody needs."""
    redirected_mb: int = 0
    seen: list[Seen] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes of each file that went out."""
    endpoint: str = ""
    storage: str = ""

    def transfers(self) -> list[str]:
        """Paths of the files that were asked for, in order; redirects are not counted."""
        return [seen.path for seen in self.seen if seen.server != "redirect" and seen.path in self.files]


def _handler(hub: FakeHub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            path = self._file_path(unquote(url.path), query)
            redirects = server == "hub" and path is not None and len(hub.files[path]) >= LARGE_BYTES
            hub.seen.append(
                Seen(
                    server="redirect" if redirects else server,
                    path=path if path is not None else self.requestline.split()[1].split("?")[0],
                    range=self.headers.get("Range"),
                    authorization=self.headers.get("Authorization"),
                )
            )
            if path is None:
                self._list(url.path)
            elif redirects:
                self._answer(302, b"", {"Location": f"{hub.storage}/{path}"})
                with suppress(ConnectionError):
                    for _ in range(hub.redirect_mb):
                        self.wfile.write(bytes(1_000_000))
                        hub.redirected_mb += 1
            else:
                self._file(path)

        def _file_path(self, path: str, query: dict[str, str]) -> str | None:
            if server == "storage":
                return path.lstrip("/")
            if "/resolve/" in path:
                return path.split(f"/resolve/{hub.commit}/")[1]
            return query.get("FilePath")

        def _list(self, path: str) -> None:
            if hub.status is not None:
                self._answer(hub.status, b"no")
            elif hub.listing is not None:
                self._answer(200, hub.listing)
            elif path.startswith("/api/models/"):
                self._answer(200, json.dumps(_huggingface(hub)).encode())
            else:
                self._answer(200, json.dumps(_modelscope(hub)).encode())

        def _file(self, path: str) -> None:
            content = hub.files[path]
            if path in hub.corrupt:
                content = bytes(len(content))
            status, headers, start = 200, {"Content-Length": str(len(content))}, 0
            wanted = self.headers.get("Range")
            if wanted and hub.honours_range:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                status = 206
                headers = {
                    "Content-Length": str(len(content) - start),
                    "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}",
                }
            drops = hub.drops.get(path)
            end = start + drops.pop(0) if drops else len(content)
            hub.sent[path] = hub.sent.get(path, 0) + len(content[start:end])
            self._answer(status, content[start:end], headers)

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    return Handler


def _huggingface(hub: FakeHub) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for path, content in hub.files.items():
        git_id = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": git_id}
        if len(content) >= LARGE_BYTES:
            entry["blobId"] = "0" * 40  # of the pointer that git has in place of the file
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        siblings.append(entry)
    siblings += [{"rfilename": path, "size": 1} for path in hub.listed_extra]
    return {"sha": hub.commit, "siblings": siblings}


def _modelscope(hub: FakeHub) -> dict[str, object]:
    files: list[dict[str, object]] = [{"Path": "CosyVoice-BlankEN", "Type": "tree"}]
    for path, content in hub.files.items():
        checksum = hashlib.sha256(content).hexdigest() if hub.publishes_checksums else ""
        files.append({"Path": path, "Type": "blob", "Size": len(content), "Sha256": checksum})
    files += [{"Path": path, "Type": "blob", "Size": 1, "Sha256": ""} for path in hub.listed_extra]
    return {"Code": 200, "Data": {"Files": files}}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A small CosyVoice2 repository, served until the test ends."""
    fake = FakeHub(
        files={
            "cosyvoice2.yaml": b"sample_rate: 24000\n",
            "llm.pt": b"language model " * 9000,
            "flow.pt": b"flow " * 700,
            "hift.pt": b"vocoder " * 500,
            "spk2info.pt": b"",
            "campplus.onnx": b"speaker encoder",
            "speech_tokenizer_v2.onnx": b"speech tokenizer " * 80,
            "CosyVoice-BlankEN/config.json": b"{}",
            "CosyVoice-BlankEN/vocab.json": b'{"a": 0}',
            "CosyVoice-BlankEN/model.safetensors": b"unused " * 900,
            "llm.fp16.zip": b"unused",
            "asset/demo wave.wav": b"unused",
        }
    )
    servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake, name)) for name in ("hub", "storage")}
    fake.endpoint, fake.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers.values())
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in servers.values()
    ]
    for thread in threads:
        thread.start()
    yield fake
    for server, thread in zip(servers.values(), threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE", "VIVAVOCE_MODELSCOPE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "home"))
