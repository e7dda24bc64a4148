"""Several models behind one server: each entry point's own way to choose one, and what tells of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dialects import test_dashscope as dashscope
from tests.server.fake_backend import SAMPLES_PER_LETTER
from tests.server.fake_models import FakeEngines, routed
from tests.server.http.serving import Served, make_state, serving
from tests.server.http.websocket_serving import connected, next_reply, replies_until, send, start, text
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.logs import _FIELDS
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import AuthSection, ModelSection, ServerSettings

TEXT = "Hello there."
LENGTH = SAMPLES_PER_LETTER * len(TEXT)
NAMES = ("fake", "mine", "CosyVoice2-0.5B")


@dataclass
class Several:
    served: Served
    engines: dict[str, FakeEngines]

    @property
    def asked(self) -> dict[str, int]:
        """The number of requests that each model got."""
        return {name: len(one.orders) for name, one in self.engines.items() if one.orders}

    def speech(self, path: str = "/v1/audio/speech", **fields: Any) -> httpx.Response:
        body = {"input": TEXT, "response_format": "wav", **fields}
        return httpx.post(f"{self.served.url}{path}", json=body)


def three() -> list[FakeEngines]:
    rates = {"mine": 22_050}
    return [FakeEngines(name=name, rate=rates.get(name, 24_000), instructions=name != "mine") for name in NAMES]


@pytest.fixture
def several() -> Iterator[Several]:
    engines = three()
    engines[2].on_demand = True
    with serving(build_app, lambda: make_state(routed(*engines))) as served:
        served.call(served.state.dispatcher.backend.start)  # type: ignore[attr-defined]
        yield Several(served, {one.name: one for one in engines})


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("", "fake"),
        (None, "fake"),
        ("fake", "fake"),
        ("tts-1", "fake"),
        ("gpt-4o-mini-tts-2025-12-15", "fake"),
        ("mine", "mine"),
        ("MINE", "mine"),
        ("CosyVoice2-0.5B", "CosyVoice2-0.5B"),
        ("iic/CosyVoice2-0___5B", "CosyVoice2-0.5B"),
    ],
)
def test_a_request_chooses_its_model(several: Several, model: str | None, wanted: str) -> None:
    answer = several.speech(model=model)
    assert (answer.status_code, several.asked) == (200, {wanted: 1})
    assert wanted.encode() in answer.content, "the tag names the model"
    played = httpx.get(f"{several.served.url}/v1/audio/speech", params={"input": TEXT, "model": model or ""})
    assert (played.status_code, several.asked) == (200, {wanted: 2})


def test_a_name_that_means_no_model_is_refused_with_those_that_there_are(several: Several) -> None:
    for model in ("whisper-1", "mine-2", "CosyVoice-300M"):
        error = several.speech(model=model).json()["error"]
        assert error["code"] == "model_not_found"
        assert error["message"].endswith("use one of fake, mine, CosyVoice2-0.5B, tts-1, tts-1-hd, gpt-4o-mini-tts")
    assert several.asked == {}


def test_each_models_own_rate_and_instructions_count(several: Several) -> None:
    answer = several.speech(model="mine", instructions="Softly.")
    assert int.from_bytes(answer.content[24:28], "little") == 22_050
    assert "instructions" in answer.headers["x-warning"]
    assert several.engines["mine"].orders[0].instruct is None
    assert "x-warning" not in several.speech(instructions="Softly.").headers
    assert several.engines["fake"].orders[0].instruct == "Softly."
    silent = several.speech(model="mine", input=" ")
    assert int.from_bytes(silent.content[24:28], "little") == 22_050
    head = httpx.head(
        f"{several.served.url}/v1/audio/speech", params={"input": TEXT, "model": "mine", "response_format": "ulaw"}
    )
    assert head.status_code == 200
    raw = httpx.head(f"{several.served.url}/v1/audio/speech", params={"input": TEXT, "model": "mine"})
    assert raw.headers["content-type"] == "audio/mpeg"


def test_the_list_tells_what_each_can(several: Several) -> None:
    def listed() -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in httpx.get(f"{several.served.url}/v1/models").json()["data"]}

    found = listed()
    assert list(found) == list(NAMES)
    assert {name: one["default"] for name, one in found.items()} == {name: name == "fake" for name in NAMES}
    assert {name: one["loaded"] for name, one in found.items()} == {"fake": True, "mine": True, NAMES[2]: False}
    assert (found["mine"]["sample_rate"], found["mine"]["languages"], found["mine"]["streaming"]) == (
        22_050,
        ["en"],
        True,
    )
    assert found["mine"]["modes"] == ["zero_shot", "cross_lingual", "sft"]
    assert "instruct" in found["fake"]["modes"]
    several.speech(model=NAMES[2])
    assert listed()[NAMES[2]] == {**found[NAMES[2]], "loaded": True}
    found = listed()
    for name, wanted in {"mine": "mine", "tts-1": "fake", "iic/CosyVoice2-0___5B": "CosyVoice2-0.5B"}.items():
        one = httpx.get(f"{several.served.url}/v1/models/{name}").json()
        assert one == {**found[wanted], "id": name}
    assert httpx.get(f"{several.served.url}/v1/models/other").status_code == 404
    theirs = httpx.get(f"{several.served.url}/v1/models", headers={"xi-api-key": "any"}).json()
    assert [one["model_id"] for one in theirs] == list(NAMES)


def test_health_metrics_and_the_log_name_models(several: Several, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vivavoce.speech"):
        for model in ("mine", "tts-1"):
            several.speech(model=model)
        several.speech(model="mine", voice="nobody")
    told = [getattr(line, _FIELDS)["model"] for line in caplog.records if line.name == "vivavoce.speech"]
    assert told == ["mine", "fake", "mine"]
    health = httpx.get(f"{several.served.url}/health/ready").json()
    assert health == {"status": "ready", "engines": {"fake": "ready", "mine": "ready"}}
    several.speech(model="CosyVoice2-0.5B")
    figures = httpx.get(f"{several.served.url}/metrics").text
    for name in NAMES:
        assert f'vivavoce_engine_up{{engine="{name}",model="{name}"}} 1.0' in figures
    several.engines["mine"].is_ready = False
    health = httpx.get(f"{several.served.url}/health/ready")
    assert (health.status_code, health.json()["engines"]["mine"]) == (200, "unavailable")
    assert several.speech(model="mine").status_code == 503
    assert several.speech().status_code == 200


def test_a_model_on_demand_is_waited_for_or_refused_with_a_time() -> None:
    engines = three()
    engines[1].on_demand = True
    engines[1].loads.clear()
    with serving(build_app, lambda: make_state(routed(*engines, wait_s=0.2))) as served:
        served.call(served.state.dispatcher.backend.start)  # type: ignore[attr-defined]
        several = Several(served, {one.name: one for one in engines})
        refused = several.speech(model="mine")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "mine is still being loaded" in refused.json()["error"]["message"]
        late = httpx.post(
            f"{served.url}/v1/audio/speech",
            json={"input": TEXT, "model": "mine"},
            headers={"x-request-timeout": "0.05"},
        )
        assert late.status_code == 504
        served.loop.call_soon_threadsafe(engines[1].loads.set)
        assert several.speech(model="mine").status_code == 200
        assert engines[1].started == 1


def test_elevenlabs_clients_choose_by_model_id(several: Several) -> None:
    def asked(**fields: Any) -> httpx.Response:
        url = f"{several.served.url}/v1/text-to-speech/anna"
        return httpx.post(url, json={"text": TEXT, **fields}, params={"output_format": "pcm_24000"})

    for place, model in enumerate((None, "eleven_turbo_v2_5", "mine")):
        assert asked(model_id=model).status_code == 200
        assert several.asked == [{"fake": 1}, {"fake": 2}, {"fake": 2, "mine": 1}][place]
    assert asked(model_id="scribe_v1").status_code == 404


async def test_a_websocket_chooses_its_model() -> None:
    engines = three()
    router = routed(*engines)
    await router.start()
    async with connected(router) as (client, _):  # type: ignore[arg-type]
        await send(client, start(model="mine", response_format="pcm"), text(TEXT), {"type": "end"})
        replies = await replies_until(client, "done")
        assert replies[0]["sample_rate"] == 22_050
        assert len(engines[1].orders) == 1
        await send(client, start(model="other"))
        assert (await replies_until(client, "error"))[-1]["error"]["code"] == "model_not_found"
    await router.close()


async def test_the_websockets_of_others_choose_by_their_names_for_it() -> None:
    engines = three()
    router = routed(*engines)
    await router.start()
    async with connected(router, dashscope.PATH) as (client, _):  # type: ignore[arg-type]
        for model, place in (("cosyvoice-v2", 0), ("mine", 1)):
            assert await dashscope.spoken(client, TEXT, task=model, model=model)
            assert len(engines[place].orders) == 1
        failed = await dashscope.failure_of(client, dashscope.run_task(model="qwen-tts"))
        assert failed["error_code"] == "ModelNotFound"
    path = "/v1/text-to-speech/anna/stream-input?output_format=pcm_24000&model_id="
    for model, place in (("eleven_flash_v2_5", 0), ("mine", 1)):
        async with connected(router, path + model) as (client, _):  # type: ignore[arg-type]
            await send(client, {"text": TEXT}, {"text": ""})
            while not (await next_reply(client)).get("isFinal"):
                pass
        assert len(engines[place].orders) == 2
    await router.close()


def test_each_model_has_voices_of_its_own(several: Several) -> None:
    for name, engines in several.engines.items():
        engines.stored["", f"voice-of-{name}"] = VoiceSummary(f"voice-of-{name}", "built_in", True, "")

    def listed(**query: str) -> list[str]:
        answer = httpx.get(f"{several.served.url}/v1/audio/voices", params=query)
        return [one["id"] for one in answer.json()["data"]]

    for query, name in (({}, "fake"), ({"model": "tts-1"}, "fake"), ({"model": "MINE"}, "mine")):
        assert listed(**query) == ["anna", f"voice-of-{name}"]
    assert several.engines[NAMES[2]].started == 0
    assert listed(model=NAMES[2]) == ["anna", f"voice-of-{NAMES[2]}"], "it is loaded for it"
    unknown = httpx.get(f"{several.served.url}/v1/audio/voices", params={"model": "other"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_an_open_list_loads_no_model(tmp_path: Path) -> None:
    keys, key, engines = tmp_path / "keys.toml", new_key(), three()
    add_key(keys, new_entry(key, "anna"))
    engines[1].on_demand = True
    settings = ServerSettings(auth=AuthSection(keys_file=keys, open_lists=True))
    with serving(build_app, lambda: make_state(routed(*engines), settings, KeyRing(keys))) as served:
        served.call(served.state.dispatcher.backend.start)  # type: ignore[attr-defined]
        url, query = f"{served.url}/v1/audio/voices", {"model": "mine"}
        assert httpx.get(url).status_code == 200
        refused = httpx.get(url, params=query)
        assert (refused.status_code, engines[1].started) == (401, 0)
        assert "only a request with an API key may have it loaded" in refused.json()["error"]["message"]
        assert httpx.get(url, params=query, headers={"x-api-key": key}).status_code == 200
        assert httpx.get(url, params=query).status_code == 200


@dataclass
class AdaptingEngines(FakeEngines):
    """One of several models, with adapters of its own."""

    loaded: list[str] = field(default_factory=list)

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return tuple(AdapterInfo(name, 8, (), 0) for name in self.loaded)

    async def add_adapter(self, name: str, _: str) -> AdapterInfo:
        self.loaded.append(name)
        return AdapterInfo(name, 8, (), 0)

    async def remove_adapter(self, name: str) -> None:
        self.loaded.remove(name)


def test_each_model_has_adapters_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "news").mkdir()
    engines = [AdaptingEngines(), AdaptingEngines(name="mine", on_demand=True)]
    settings = ServerSettings(model=ModelSection(adapters_dir=tmp_path))
    with serving(build_app, lambda: make_state(routed(*engines), settings)) as served:
        served.call(served.state.dispatcher.backend.start)  # type: ignore[attr-defined]
        url = f"{served.url}/v1/adapters"
        assert httpx.post(url, json={"name": "news", "model": "mine"}).status_code == 201
        assert [one.loaded for one in engines] == [[], ["news"]]
        assert [httpx.get(url, params={"model": name}).json()["data"] for name in ("", "fake")] == [[], []]
        assert [one["id"] for one in httpx.get(url, params={"model": "mine"}).json()["data"]] == ["news"]
        for answer in (
            httpx.post(url, json={"name": "news", "model": "other"}),
            httpx.delete(f"{url}/news", params={"model": "other"}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert httpx.delete(f"{url}/news", params={"model": "mine"}).status_code == 200
        assert engines[1].loaded == []
