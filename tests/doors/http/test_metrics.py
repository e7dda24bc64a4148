"""GET /metrics, as Prometheus' own parser reads it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.doors.fake_speaker import FakeSpeaker
from vivavoce.doors.http import errors, metrics
from vivavoce.doors.http.desk import Desk
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.statistics import RequestEvent, Statistics
from vivavoce.errors import EngineStopped, Overloaded, VivavoceError
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.speaker import ModelAbout
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.callers import ANYBODY
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.keys_writer import add_key, new_entry, new_key
from vivavoce.service.operations.ledger import Ledger, new_request_id
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSection, ServerSettings

Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    return asyncio.run(work)


def busy_engine() -> SpeakerStatistics:
    statistics = Statistics()
    statistics.batch(Stage.DECODE, 3, 0.002)
    statistics.batch(Stage.DECODE, 5, 0.004)
    statistics.batch(Stage.FLOW, 2, 0.03, [0.001, 0.5])
    for event in (RequestEvent.ACCEPTED, RequestEvent.ACCEPTED, RequestEvent.FINISHED):
        statistics.request(event)
    statistics.first_chunk(0.2)
    statistics.chunk(0.1)
    statistics.slots(7, 16)
    statistics.slots(4, 16)
    statistics.prompt_cache(hit=True)
    statistics.prompt_cache(hit=True)
    statistics.prompt_cache(hit=False)
    statistics.audio(12.5)
    return SpeakerStatistics(statistics.snapshot(waiting=2), "cuda:0", 3 << 30, 80 << 30, 5, 9, "ok", 2)


@dataclass
class BusySpeaker(FakeSpeaker):
    told: SpeakerStatistics | None = None

    async def statistics(self) -> SpeakerStatistics | None:
        return self.told


class DeadSpeaker(FakeSpeaker):
    async def statistics(self) -> SpeakerStatistics | None:
        await asyncio.Event().wait()
        return None


@dataclass
class FailingSpeaker(FakeSpeaker):
    error: Exception | None = None

    @property
    def about(self) -> ModelAbout:
        raise EngineStopped("engine: is starting")

    async def statistics(self) -> SpeakerStatistics | None:
        assert self.error is not None
        raise self.error


def desk_for(speaker: FakeSpeaker) -> Desk:
    reception = Reception(speaker, ledger=Ledger(), meters=Meters(), allowances=Allowances())
    return Desk(reception, KeyRing.none(), ServerSettings())


async def scrape(desk: Desk, accept: str = "", patience_s: float = 60.0, key: str = "") -> httpx.Response:
    app = FastAPI()
    errors.install(app)
    app.include_router(metrics.router(desk, patience_s))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get("/metrics", headers={"accept": accept, "authorization": f"Bearer {key}"})


async def speak(desk: Desk, text: str, door: str = "http") -> None:
    visit = await desk.reception.speak(ANYBODY, SpeechOrder(text), door=door, request_id=new_request_id())
    async with visit:
        async for _ in visit:
            pass


async def refused(desk: Desk, text: str, door: str) -> None:
    with pytest.raises(VivavoceError):
        await speak(desk, text, door)


def parsed(answer: httpx.Response) -> dict[str, Metric]:
    assert answer.status_code == 200
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is exported twice"
    return {family.name: family for family in families}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, f"{name}{labels}: {len(found)} samples"
    return found[0]


def test_everything_has_a_type_and_says_what_it_is() -> None:
    families = parsed(run(scrape(desk_for(BusySpeaker(told=busy_engine())))))
    ours = {name: family for name, family in families.items() if name.startswith("vivavoce_")}
    assert len(ours) > 30
    assert all(family.documentation.endswith(".") for family in ours.values())
    assert all(family.type in ("gauge", "counter", "histogram") for family in families.values())
    assert {family.type for name, family in ours.items() if name.endswith("_seconds") and "audio_s" not in name} == {
        "histogram"
    }


def test_the_speakers_figures() -> None:
    families = parsed(run(scrape(desk_for(BusySpeaker(told=busy_engine())))))
    expected = {
        "vivavoce_engine_up": 1,
        "vivavoce_requests_waiting": 2,
        "vivavoce_speech_tokens_total": 8,
        "vivavoce_slots_used": 4,
        "vivavoce_slots_peak": 7,
        "vivavoce_slots_total": 16,
        "vivavoce_prompt_cache_hits_total": 2,
        "vivavoce_prompt_cache_misses_total": 1,
        "vivavoce_voices_extracted_total": 5,
        "vivavoce_voices_remembered_total": 9,
        "vivavoce_voice_store_ok": 1,
        "vivavoce_device_memory_bytes": 3 << 30,
        "vivavoce_device_memory_total_bytes": 80 << 30,
        "vivavoce_engine_starts_total": 2,
        "vivavoce_engine_audio_seconds_total": 12.5,
        "vivavoce_engine_first_chunk_seconds_count": 1,
        "vivavoce_engine_late_seconds_sum": 0.1,
    }
    assert {name: value(families, name) for name in expected} == expected
    assert value(families, "vivavoce_engine_requests_total", event="accepted") == 2
    assert value(families, "vivavoce_stage_batch_size_count", stage="decode") == 2
    assert value(families, "vivavoce_stage_batch_size_bucket", stage="decode", le="4") == 1
    assert value(families, "vivavoce_stage_busy_seconds_sum", stage="flow") == pytest.approx(0.03)
    assert value(families, "vivavoce_stage_queued_seconds_count", stage="flow") == 2


def test_requests_are_counted_by_door_and_outcome() -> None:
    async def work() -> httpx.Response:
        speaker = FakeSpeaker()
        desk = desk_for(speaker)
        await speak(desk, "One. Two.")
        await speak(desk, "Three.", door="websocket")
        speaker.fails_after = 0
        await refused(desk, "Four.", "http")  # it was taken, and breaks
        speaker.refuses_with = Overloaded("streams: too many", 3.0)
        await refused(desk, "Five.", "http")
        await refused(desk, "Six.", "http")
        return await scrape(desk)

    families = parsed(run(work()))
    assert value(families, "vivavoce_requests_total", door="http", outcome="stop") == 1
    assert value(families, "vivavoce_requests_total", door="http", outcome="error") == 1
    assert value(families, "vivavoce_requests_total", door="http", outcome="refused") == 2
    assert value(families, "vivavoce_requests_total", door="websocket", outcome="stop") == 1
    assert value(families, "vivavoce_requests_total", door="websocket", outcome="length") == 0
    assert value(families, "vivavoce_refused_total", door="http", code="overloaded") == 2
    assert value(families, "vivavoce_first_audio_seconds_count", door="http") == 1
    assert value(families, "vivavoce_request_seconds_count", door="http") == 2
    assert value(families, "vivavoce_audio_seconds_total") == pytest.approx(0.15)
    assert value(families, "vivavoce_streams_active") == 0
    assert value(families, "vivavoce_gap_seconds_count") >= 0
    assert value(families, "vivavoce_underruns_total") == value(families, "vivavoce_late_seconds_count")


def test_a_stream_is_active_while_it_goes_on() -> None:
    async def work() -> list[httpx.Response]:
        desk = desk_for(FakeSpeaker())
        visit = await desk.reception.speak(ANYBODY, SpeechOrder("One."), door="http", request_id="a")
        async with visit:
            during = await scrape(desk)
        return [during, await scrape(desk)]

    during, after = run(work())
    assert value(parsed(during), "vivavoce_streams_active") == 1
    assert value(parsed(after), "vivavoce_streams_active") == 0
    assert value(parsed(after), "vivavoce_requests_total", door="http", outcome="cancelled") == 1


def test_buckets_add_up_to_their_count() -> None:
    async def work() -> httpx.Response:
        desk = desk_for(BusySpeaker(told=busy_engine()))
        await speak(desk, "One. Two. Three.")
        return await scrape(desk)

    for family in parsed(run(work())).values():
        if family.type != "histogram":
            continue
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        counts = {}
        for sample in family.samples:
            labels = tuple(sorted((key, text) for key, text in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                series.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        for labels, buckets in series.items():
            assert buckets == sorted(buckets), f"{family.name}: bounds and counts grow"
            assert len({bound for bound, _ in buckets}) == len(buckets), f"{family.name}: two buckets of one bound"
            assert buckets[-1] == (math.inf, counts[labels])


def test_a_dead_engine_does_not_hang_the_page() -> None:
    async def work() -> httpx.Response:
        desk = desk_for(DeadSpeaker())
        await speak(desk, "One.")
        return await scrape(desk, patience_s=0.01)

    families = parsed(run(work()))
    assert value(families, "vivavoce_engine_up") == 0
    assert value(families, "vivavoce_requests_total", door="http", outcome="stop") == 1
    assert "vivavoce_slots_used" not in families


@pytest.mark.parametrize("error", [EngineStopped("engine: is starting"), OSError("broken pipe")])
def test_an_engine_that_cannot_tell_is_down(error: Exception) -> None:
    families = parsed(run(scrape(desk_for(FailingSpeaker(is_ready=False, error=error)))))
    assert value(families, "vivavoce_engine_up") == 0
    assert families["vivavoce_build_info"].samples[0].labels["model"] == ""


def test_a_speaker_that_tells_no_figures_is_up_without_them() -> None:
    families = parsed(run(scrape(desk_for(BusySpeaker(told=None)))))
    assert value(families, "vivavoce_engine_up") == 1
    assert "vivavoce_slots_used" not in families


def test_an_engine_that_is_not_ready_is_down() -> None:
    families = parsed(run(scrape(desk_for(FakeSpeaker(is_ready=False)))))
    assert value(families, "vivavoce_engine_up") == 0


def test_a_draining_server_says_so() -> None:
    async def work() -> httpx.Response:
        desk = desk_for(FakeSpeaker())
        await desk.reception.drain(0.0)
        return await scrape(desk)

    assert value(parsed(run(work())), "vivavoce_draining") == 1


def test_a_voice_store_that_fails_shows() -> None:
    told = replace(busy_engine(), voice_store="voices.db: no space left")
    families = parsed(run(scrape(desk_for(BusySpeaker(told=told)))))
    assert value(families, "vivavoce_voice_store_ok") == 0


def test_what_runs_here() -> None:
    families = parsed(run(scrape(desk_for(FakeSpeaker()))))
    labels = families["vivavoce_build_info"].samples[0].labels
    assert labels["model"] == "fake"
    assert labels["version"]


def test_a_key_is_wanted_if_the_operator_says_so(tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "keys.toml"
    add_key(file, new_entry(key, "prometheus"))
    desk = replace(desk_for(FakeSpeaker()), keys=KeyRing.load(file))
    closed = replace(desk, settings=ServerSettings(server=ServerSection(metrics_key_required=True)))
    assert run(scrape(desk)).status_code == 200
    assert run(scrape(closed)).status_code == 401
    assert run(scrape(closed, key=key)).status_code == 200


def test_no_label_comes_from_a_caller() -> None:
    async def work() -> httpx.Response:
        desk = desk_for(BusySpeaker(told=busy_engine()))
        await speak(desk, "A secret text.")
        await refused(desk, "", "http")
        return await scrape(desk)

    answer = run(work())
    allowed = {"door", "outcome", "code", "event", "stage", "le", "version", "model"}
    labels = {label for family in parsed(answer).values() for sample in family.samples for label in sample.labels}
    assert labels <= allowed
    assert "secret" not in answer.text


def test_openmetrics_is_spoken_where_it_is_asked_for() -> None:
    answer = run(scrape(desk_for(BusySpeaker(told=busy_engine())), "application/openmetrics-text; version=1.0.0"))
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = [family.name for family in read_openmetrics(answer.text)]
    assert "vivavoce_underruns" in names


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=newest"])
def test_the_page_is_plain_text_that_nobody_keeps(accept: str) -> None:
    answer = run(scrape(desk_for(FakeSpeaker()), accept))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.headers["cache-control"] == "no-store"
