"""The pages' files and headers, the health routes, and what pages of other origins may do."""

from __future__ import annotations

import io
import re
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.server.fake_backend import FakeBackend
from tests.server.http.serving import Served, make_state, serving
from tests.server.http.serving import ask as asked_of
from vivavoce.errors import EngineStopped
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.http import pages
from vivavoce.server.http.app import build_app
from vivavoce.server.http.listener import current_connection
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import ServerSection, ServerSettings

ASSETS = pages.load_assets()
MODULES = sorted(name for name in ASSETS if name.endswith(".js"))


async def ask(
    path: str, method: str = "GET", speaker: FakeBackend | None = None, draining: bool = False, **headers: str
) -> httpx.Response:
    state = make_state(speaker, ServerSettings(server=ServerSection(allowed_hosts=("*",))))
    if draining:
        await state.dispatcher.drain(0.0)
    current_connection.set(Mock(is_crowded=False))
    return await asked_of(build_app(state), path, method, **headers)


class Page(HTMLParser):
    """What a page refers to, and what of it the policy would forbid."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.fields: set[str] = set()
        self.forbidden: list[str] = []
        self.feed(ASSETS[name].content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        self.forbidden += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.forbidden.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "label" and given.get("for"):
            self.labelled.add(str(given["for"]))
        if tag in ("select", "textarea") or (
            tag == "input" and given.get("type") not in ("checkbox", "file") and "aria-label" not in given
        ):
            self.fields.add(str(given["id"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "name", "content_type"),
    [
        ("/", "speak.html", "text/html; charset=utf-8"),
        ("/voices", "voices.html", "text/html; charset=utf-8"),
        ("/books", "books.html", "text/html; charset=utf-8"),
        ("/status", "status.html", "text/html; charset=utf-8"),
        ("/web/speak.js", "speak.js", "text/javascript; charset=utf-8"),
        ("/web/style.css", "style.css", "text/css; charset=utf-8"),
        ("/web/icon.svg", "icon.svg", "image/svg+xml"),
    ],
)
async def test_files_are_served_under_a_strict_policy_and_once(path: str, name: str, content_type: str) -> None:
    answer = await ask(path)
    assert (answer.status_code, answer.content) == (200, ASSETS[name].content)
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "script-src" not in policy, "scripts come from the server alone"
    assert (await ask(path, "HEAD")).headers["content-length"] == str(len(answer.content))
    tag = answer.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await ask(path, if_none_match=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await ask(path, if_none_match='"other"')).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/web/..%2fpages.py",
        "/web/../pages.py",
        "/web/%2e%2e/pages.py",
        "/web/..%5cpages.py",
        "/web//etc/passwd",
        "/web/",
        "/web/missing.js",
        "/web/speak.html",
        "/web/style.css%00",
        "/web/style.css/",
    ],
)
async def test_nothing_but_the_listed_files_is_served(path: str) -> None:
    assert (await ask(path)).status_code == 404


@pytest.mark.parametrize("name", sorted(pages.PAGES.values()))
def test_pages_refer_to_what_is_there(name: str) -> None:
    page = Page(name)
    assert page.forbidden == []
    assert len(page.ids) == len(set(page.ids))
    assert page.fields <= page.labelled, "every field has a label"
    known = {f"web/{name}" for name in ASSETS} | {"./", "voices", "books", "status", "metrics", "docs", "#main"}
    assert set(page.addresses) <= known


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short_and_import_their_neighbours(name: str) -> None:
    text = ASSETS[name].content.decode()
    assert len(text.splitlines()) < 300
    imported = re.findall(r'(?:from|import\() ?"\./([^"]+)"', text)
    assert set(imported) <= set(MODULES)
    assert "innerHTML" not in text


def test_all_of_it_is_small_and_nothing_comes_from_elsewhere() -> None:
    assert sum(len(asset.content) for asset in ASSETS.values()) < 190_000
    assert len({asset.tag for asset in ASSETS.values()}) == len(ASSETS)
    for name, asset in ASSETS.items():
        addresses = re.findall(rb"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"']*", asset.content)
        assert set(addresses) <= {b"http://www.w3.org/2000/svg"}, name


def test_everything_has_a_chinese_form() -> None:
    """English stands in the pages and in calls of `t`, Chinese beside it in one dictionary."""
    modules = {name: ASSETS[name].content.decode() for name in MODULES}
    dictionary = re.findall(r'^  "((?:[^"\\]|\\.)*)": "', modules.pop("zh.js"), re.MULTILINE)
    assert len(dictionary) == len(set(dictionary))
    code = "\n".join(modules.values())
    called = {
        text for call in re.findall(r"\bt\(([^;]*?)\)", code) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', call)
    }
    written = {text for name in pages.PAGES.values() for text in Words(name).texts}
    written = {text for text in written if "JavaScript" not in text}
    assert {text for text in written if re.search("[a-zA-Z]{2}", text)} - set(dictionary) <= NAMES
    assert {text for text in called if re.search("[a-zA-Z]{2}", text)} - set(dictionary) <= {
        "built_in",
        "playing",
    }  # states
    whole = code.replace('" +\n  "', "")
    assert [text for text in dictionary if text not in written and f'"{text}"' not in whole] == []


NAMES = {
    "vivavoce",
    "WAV",
    "MP3",
    "Ctrl",
    "Enter",
    "Esc",
    "English",
    "vivavoce download Fun-CosyVoice3-0.5B vivavoce serve --model Fun-CosyVoice3-0.5B",
}


class Words(HTMLParser):
    """What a page has to read: texts, and attributes that are read out."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(re.split("<body[^>]*>", ASSETS[name].content.decode())[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if name in ("placeholder", "aria-label", "title") and value]

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.texts.append(text)


def test_samples_of_a_page_come_back_as_mp3(tmp_path: Path) -> None:
    samples = (8_000 * np.sin(np.arange(48_001) / 20)).astype("<i2").tobytes()
    file, key = tmp_path / "keys.toml", new_key()
    add_key(file, new_entry(key, "caller"))
    with serving_with(KeyRing(file)) as server:
        known, address = {"authorization": f"Bearer {key}"}, f"{server.url}/web/mp3"
        assert httpx.post(f"{address}?rate=24000", content=samples).status_code == 401
        parts = (samples[start : start + 9_999] for start in range(0, len(samples), 9_999))  # samples are cut in two
        answer = httpx.post(f"{address}?rate=24000", content=parts, headers=known)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg")
        for wrong in ("", "?rate=1", "?rate=x"):
            assert httpx.post(address + wrong, content=b"", headers=known).status_code == 400
    heard, rate = soundfile.read(io.BytesIO(answer.content))
    assert rate == 24_000
    assert 48_001 <= len(heard) < 52_000
    assert np.abs(heard).max() == pytest.approx(8_000 / 32_768, abs=0.02)


def test_a_page_puts_a_tagged_header_before_its_samples() -> None:
    with serving_with(KeyRing()) as server:
        samples = bytes(range(256)) * 10
        answer = httpx.get(f"{server.url}/web/wav?rate=24000&samples={len(samples) // 2}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
        heard, rate = soundfile.read(io.BytesIO(answer.content + samples), dtype="int16")
        assert (heard.tobytes(), rate, b"AI-generated" in answer.content) == (samples, 24_000, True)
        parts = [
            httpx.post(f"{server.url}/web/mp3?rate=24000&first={first}", content=samples) for first in (True, False)
        ]
        assert [part.content.startswith(b"ID3") for part in parts] == [True, False]
        assert httpx.get(f"{server.url}/web/wav?rate=24000&samples=-1").status_code == 400


@dataclass
class StartingSpeaker(FakeBackend):
    is_ready: bool = False

    @property
    def about(self) -> ModelInfo:
        raise EngineStopped("engine: is starting; try again in some seconds")


@pytest.mark.parametrize(
    ("speaker", "draining", "reason"),
    [
        (FakeBackend(), False, None),
        (StartingSpeaker(), False, "engine_starting"),
        (FakeBackend(is_ready=False), False, "engine_stopped"),
        (FakeBackend(is_ready=False, stuck=True), False, "engine_stuck"),
        (FakeBackend(), True, "draining"),
        (FakeBackend(is_ready=False), True, "draining"),
    ],
)
async def test_a_server_is_ready_or_says_why_not_and_lives(
    speaker: FakeBackend, draining: bool, reason: str | None
) -> None:
    for method in ("GET", "HEAD"):
        live = await ask("/health/live", method, speaker, draining)
        ready = await ask("/health/ready", method, speaker, draining)
        assert (live.status_code, ready.status_code) == (200, 503 if reason else 200)
        assert live.headers["cache-control"] == ready.headers["cache-control"] == "no-store"
        assert int(ready.headers.get("retry-after", 0)) == (pages.RETRY_AFTER_S if reason else 0)
        if method == "GET":
            assert ready.json() == ({"status": "unavailable", "reason": reason} if reason else {"status": "ready"})


async def test_a_voice_store_that_fails_is_told_and_not_where_it_is() -> None:
    ready = await ask("/health/ready", "GET", FakeBackend(voice_store="voice store: '/srv/voices' is read-only"), False)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "voice_store": "unavailable"})


@dataclass
class TwoEngines(FakeBackend):
    """One of them is away."""

    @property
    def engines(self) -> dict[str, FakeBackend]:
        return {"cuda:0": FakeBackend(), "cuda:1": FakeBackend(is_ready=False)}


async def test_each_of_several_engines_is_told() -> None:
    ready = await ask("/health/ready", "GET", TwoEngines(), False)
    told = {"status": "ready", "engines": {"cuda:0": "ready", "cuda:1": "unavailable"}}
    assert (ready.status_code, ready.json()) == (200, told)


PAGE = "https://app.example"


def serving_with(keys: KeyRing | None = None, **server: Any) -> AbstractContextManager[Served]:
    settings = ServerSettings(server=ServerSection(**server))
    return serving(build_app, lambda: make_state(FakeBackend(), settings, keys))


OWN = {"allowed_hosts": ("tts.example.org",)}


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        ({}, "127.0.0.1:8880", 200),
        ({}, "[::1]:8880", 200),
        ({}, "localhost", 200),
        ({}, "LOCALHOST.:8880", 200),
        ({}, "speech.localhost:8880", 200),
        ({}, "192.168.1.7", 200),
        ({}, "evil.example", 403),
        ({}, "evil.example:8880", 403),
        ({}, "localhost.evil.example", 403),
        ({}, "127.0.0.1.evil.example", 403),
        ({}, "localhost@evil.example", 403),
        ({}, "[::1", 403),
        ({}, "", 403),
        (OWN, "TTS.example.org:443", 200),
        (OWN, "evil.example", 403),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"host": "0.0.0.0"}, "tts.example.org", 200),
        ({"host": "0.0.0.0", **OWN}, "evil.example", 403),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(server: dict[str, Any], host: str, status: int) -> None:
    with serving_with(**server) as served:
        answer = httpx.get(f"{served.url}/v1/models", headers={"host": host})
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


def test_where_keys_are_wanted_any_name_will_do(tmp_path: Path) -> None:
    file, key = tmp_path / "keys.toml", new_key()
    add_key(file, new_entry(key, "caller"))
    with serving_with(KeyRing(file)) as server:
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
        assert "access-control-allow-origin" not in answer.headers


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
        (None, "http://evil.example", (), 403),
        (None, "http://127.0.0.1:1", (), 403),
        (None, "null", (), 403),
        (None, "http://127.0.0.1:{port}", (), 201),
        (None, PAGE, (PAGE,), 201),
    ],
)
def test_a_page_from_elsewhere_adds_no_voice(
    site: str | None, origin: str | None, allowed: tuple[str, ...], status: int
) -> None:
    with serving_with(cors_origins=allowed) as server:
        own = None if origin is None else origin.format(port=server.port)
        sent = {name: value for name, value in (("sec-fetch-site", site), ("origin", own)) if value is not None}
        answer = httpx.post(
            f"{server.url}/v1/audio/voices", headers=sent, data={"name": "me"}, files={"file": ("me.wav", b"RIFF")}
        )
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "forbidden"
            assert answer.json()["error"]["message"].startswith("origin: ")
        assert bool(server.state.dispatcher.backend.stored) is (status == 201)  # type: ignore[attr-defined]
