"""What web pages of other origins may do, and what they may not."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.keys_writer import add_key, new_entry, new_key
from vivavoce.service.operations.settings import ServerSection, ServerSettings

PAGE = "https://app.example"


def serving_with(keys: KeyRing | None = None, **server: Any) -> AbstractContextManager[Served]:
    settings = ServerSettings(server=ServerSection(**server))
    return serving(build_app, lambda: make_desk(FakeSpeaker(), settings, keys))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8880", 200),
        ("[::1]:8880", 200),
        ("localhost", 200),
        ("LOCALHOST.:8880", 200),
        ("speech.localhost:8880", 200),
        ("192.168.1.7", 200),
        ("evil.example", 403),
        ("evil.example:8880", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(host: str, status: int) -> None:
    with serving_with() as server:
        answer = httpx.get(f"{server.url}/v1/models", headers={"host": host})
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "forbidden"
            assert answer.json()["error"]["message"].startswith("host: ")
            assert answer.headers["x-request-id"]


def test_a_websocket_under_such_a_name_is_refused() -> None:
    with serving_with() as server:
        address = f"ws://127.0.0.1:{server.port}/v1/audio/stream"
        with connect(address):
            pass
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw,
            pytest.raises(InvalidStatus) as refused,
            connect("ws://evil.example/v1/audio/stream", sock=raw, origin=Origin("http://evil.example")),
        ):
            pass
        assert refused.value.response.status_code == 403
        assert b"host: 'evil.example'" in refused.value.response.body


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        ({"allowed_hosts": ("tts.example.org",)}, "TTS.example.org:443", 200),
        ({"allowed_hosts": ("tts.example.org",)}, "evil.example", 403),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"host": "0.0.0.0"}, "tts.example.org", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("tts.example.org",)}, "evil.example", 403),
    ],
)
def test_names_are_those_that_the_operator_gave(server: dict[str, Any], host: str, status: int) -> None:
    with serving_with(**server) as served:
        assert httpx.get(f"{served.url}/v1/models", headers={"host": host}).status_code == status


def test_where_keys_are_wanted_any_name_will_do(tmp_path: Path) -> None:
    file, key = tmp_path / "keys.toml", new_key()
    add_key(file, new_entry(key, "caller"))
    with serving_with(KeyRing.load(file)) as server:
        headers = {"host": "tts.example.org", "authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def test_openais_package_for_browsers_may_send_its_headers() -> None:
    wanted = "authorization,content-type,x-api-key,x-request-id,x-stainless-lang,x-stainless-retry-count,traceparent"
    asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": wanted}
    with serving_with(cors_origins=(PAGE,)) as server:
        answer = httpx.options(f"{server.url}/v1/audio/speech", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert set(wanted.split(",")) <= set(answer.headers["access-control-allow-headers"].lower().split(","))
        stranger = httpx.options(f"{server.url}/v1/audio/speech", headers={**asked, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


def test_pages_that_were_not_named_get_no_answers() -> None:
    with serving_with() as server:
        answer = httpx.get(f"{server.url}/v1/models", headers={"origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("site", "origin", "allowed", "status"),
    [
        (None, None, (), 201),
        ("same-origin", "http://127.0.0.1", (), 201),
        ("none", None, (), 201),
        ("cross-site", "https://evil.example", (), 403),
        ("same-site", "http://127.0.0.1:1", (), 403),
        ("cross-site", "null", (), 403),
        ("cross-site", None, (), 403),
        ("cross-site", "https://evil.example", (PAGE,), 403),
        ("cross-site", PAGE, (PAGE,), 201),
        ("cross-site", "null", ("*",), 201),
    ],
)
def test_a_page_from_elsewhere_adds_no_voice(
    site: str | None, origin: str | None, allowed: tuple[str, ...], status: int
) -> None:
    sent = {name: value for name, value in (("sec-fetch-site", site), ("origin", origin)) if value is not None}
    with serving_with(cors_origins=allowed) as server:
        answer = httpx.post(
            f"{server.url}/v1/audio/voices", headers=sent, data={"name": "me"}, files={"file": ("me.wav", b"RIFF")}
        )
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "forbidden"
            assert answer.json()["error"]["message"].startswith("origin: ")
        assert bool(server.desk.reception.speaker.stored) is (status == 201)  # type: ignore[attr-defined]
