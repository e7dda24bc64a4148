"""Speech at an address: what plays, and for whom; and addresses and methods that there are not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.server.fake_backend import FakeBackend, Gate
from tests.server.http.serving import Served, make_state, serving
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry
from vivavoce.server.settings import ServerSection, ServerSettings

TEXT, SPEECH = "Grüß Gott, all of you.", "/v1/audio/speech"
FOREIGN = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image", "referer": "https://app.example/page?a=b"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving(build_app) as served:
        yield served


def orders(served: Served) -> list[Any]:
    return served.state.dispatcher.backend.orders


def message_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def test_an_address_plays_what_the_post_answers(shared: Served) -> None:
    fields = {"input": TEXT, "voice": "anna", "speed": 1.5, "seed": 7, "response_format": "pcm"}
    posted = httpx.post(f"{shared.url}/audio/speech", json=fields)  # the address of another project, without /v1
    played = httpx.get(f"{shared.url}{SPEECH}", params=fields)
    assert (played.status_code, played.content) == (200, posted.content)
    assert played.headers["content-type"] == posted.headers["content-type"]
    assert (played.headers["cache-control"], played.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert orders(shared)[-1] == orders(shared)[-2]
    assert "speech.audio.done" in httpx.get(f"{shared.url}{SPEECH}?input=Hello.&stream_format=sse").text


def test_a_head_tells_what_a_get_would_and_speaks_nothing(shared: Served) -> None:
    before = len(orders(shared))
    looked_at = httpx.head(f"{shared.url}{SPEECH}?input=Hello.&response_format=wav")
    assert (looked_at.status_code, looked_at.headers["content-type"]) == (200, "audio/wav")
    assert "content-length" not in looked_at.headers
    assert httpx.head(f"{shared.url}{SPEECH}").status_code == 400
    assert len(orders(shared)) == before
    models = httpx.get(f"{shared.url}/v1/models")
    assert httpx.head(f"{shared.url}/v1/models").headers["content-length"] == str(len(models.content))
    assert httpx.head(f"{shared.url}/v1/nothing").status_code == 404


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "input: field required"),
        ("input=Hello.&tone=happy", "tone: extra inputs"),
        ("input=Hello.&input=Bye.", "input: comes twice; send it once"),
        ("input=Hello.&sample_rate=0", "sample_rate: 0 Hz is not supported"),
        ("input=%ff", "input: is not UTF-8"),
        ("input=Hello.&prompt_text=Hi.", "prompt_text: cannot be sent in a URL"),
        ("input=Hello.&response_format=midi", "response_format: "),
    ],
)
def test_what_cannot_be_played_is_said(shared: Served, query: str, message: str) -> None:
    told = message_of(httpx.get(f"{shared.url}{SPEECH}?{query}"), 400)
    assert told[: len(message)] == message


@pytest.mark.parametrize(
    ("headers", "allowed", "status"),
    [
        ({}, (), 200),
        ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, (), 200),  # typed into the address bar
        ({"sec-fetch-site": "same-origin", "sec-fetch-dest": "audio"}, (), 200),
        ({"referer": "http://{host}/page"}, (), 200),
        (FOREIGN, (), 403),
        ({**FOREIGN, "sec-fetch-dest": "document"}, (), 403),
        ({**FOREIGN, "sec-fetch-site": "same-site", "referer": "http://127.0.0.1:1/"}, (), 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "audio"}, (), 403),  # a page that tells no referrer
        ({"referer": "https://app.example/page"}, (), 403),
        (FOREIGN, ("https://app.example",), 200),
        (FOREIGN, ("https://app.example:8443",), 403),
        ({"sec-fetch-site": "cross-site"}, ("*",), 200),
    ],
)
def test_a_foreign_page_makes_nothing_speak(headers: dict[str, str], allowed: tuple[str, ...], status: int) -> None:
    settings = ServerSettings(server=ServerSection(cors_origins=allowed))
    with serving(build_app, lambda: make_state(settings=settings)) as served:
        sent = {name: value.format(host=f"127.0.0.1:{served.port}") for name, value in headers.items()}
        answer = httpx.get(f"{served.url}{SPEECH}?input=Hello.", headers=sent)
        assert answer.status_code == status
        assert len(orders(served)) == (status == 200)
        if status == 403:
            assert message_of(answer, 403).endswith("may not play speech; allow it in cors_origins")


def test_with_keys_an_address_plays_for_them_alone(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.toml", new_entry("vv_1", "a", owner="house"))
    with serving(build_app, lambda: make_state(keys=KeyRing(tmp_path / "keys.toml"))) as served:
        address = f"{served.url}{SPEECH}?input=Hello."
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers={"authorization": "Bearer vv_1"}).status_code == 200
        assert orders(served)[-1].owner == "house"


def test_a_listener_who_leaves_frees_the_place() -> None:
    speaker = FakeBackend(gate=Gate(pieces=1))
    with serving(build_app, lambda: make_state(speaker)) as served:
        with httpx.stream("GET", f"{served.url}{SPEECH}?input={TEXT}&response_format=pcm", timeout=60) as answer:
            next(answer.iter_raw())
        served.call(speaker.streams[0].cancelled.wait)
        assert served.call(lambda: served.state.dispatcher.active) == 0


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (SPEECH, {"GET", "HEAD", "POST"}),
        ("/v1/audio/voices", {"GET", "HEAD", "POST"}),
        ("/v1/audio/voices/anna", {"DELETE"}),
        ("/health/live", {"GET", "HEAD"}),
        ("/health", {"GET", "HEAD"}),
        ("/", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(shared: Served, path: str, allow: set[str]) -> None:
    refused = httpx.put(f"{shared.url}{path}")
    assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, allow)
    assert refused.json()["error"]["code"] == "method_not_allowed"


def test_an_unknown_websocket_is_not_found_and_a_refused_one_is_no_error(
    shared: Served, caplog: pytest.LogCaptureFixture
) -> None:
    url = shared.url.replace("http", "ws")
    with caplog.at_level(logging.WARNING):
        for path, origin, status, code in (
            ("/v1/realtime", None, 404, "not_found"),
            (SPEECH, None, 404, "not_found"),
            ("/v1/audio/stream", Origin("https://evil.example"), 403, "forbidden"),
        ):
            with pytest.raises(InvalidStatus) as refused, connect(f"{url}{path}", origin=origin):
                pass
            assert refused.value.response.status_code == status
            assert code in (refused.value.response.body or b"").decode()
    assert caplog.records == []
