"""What web pages of other origins may do, and what they may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app
from vivavoce.service.operations.settings import ServerSection, ServerSettings

PAGE = "https://app.example"


@contextmanager
def serving_pages_of(*origins: str) -> Iterator[Served]:
    settings = ServerSettings(server=ServerSection(cors_origins=origins))
    with serving(build_app, lambda: make_desk(FakeSpeaker(), settings)) as server:
        yield server


def test_openais_package_for_browsers_may_send_its_headers() -> None:
    wanted = "authorization,content-type,x-api-key,x-request-id,x-stainless-lang,x-stainless-retry-count,traceparent"
    asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": wanted}
    with serving_pages_of(PAGE) as server:
        answer = httpx.options(f"{server.url}/v1/audio/speech", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert set(wanted.split(",")) <= set(answer.headers["access-control-allow-headers"].lower().split(","))
        stranger = httpx.options(f"{server.url}/v1/audio/speech", headers={**asked, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


def test_pages_that_were_not_named_get_no_answers() -> None:
    with serving_pages_of() as server:
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
    with serving_pages_of(*allowed) as server:
        answer = httpx.post(
            f"{server.url}/v1/audio/voices", headers=sent, data={"name": "me"}, files={"file": ("me.wav", b"RIFF")}
        )
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "forbidden"
            assert answer.json()["error"]["message"].startswith("origin: ")
        assert bool(server.desk.reception.speaker.stored) is (status == 201)  # type: ignore[attr-defined]
