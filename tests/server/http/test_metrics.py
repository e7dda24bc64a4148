"""GET /metrics, as Prometheus' own parser reads it, and the manual, dashboard and alerts that name its metrics."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import yaml
from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.server.fake_backend import FakeBackend
from tests.server.http.serving import ask, make_state
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.statistics import RequestStatistics, SlotStatistics, Statistics
from vivavoce.errors import EngineStopped, InvalidRequest, ListenerStalled, Overloaded, VivavoceError
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.server.http import errors, metrics
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.metrics import PATIENCE_S
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.metrics import OTHERS
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.request_log import CAPACITY, new_request_id
from vivavoce.server.settings import ServerSection, ServerSettings

ROOT = Path(__file__).parents[3]
MANUAL = (ROOT / "docs/operating.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
QUERIES = {target["expr"] for panel in PANELS for target in panel["targets"]} | {rule["expr"] for rule in RULES}
SCRAPED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of buckets."""
Exported = dict[str, tuple[str, set[str], str]]
"""Family → type, labels, meaning."""
NAME = re.compile(r"\b(?:vivavoce|process)_\w+")


def busy_engine() -> BackendStatistics:
    statistics = Statistics()
    statistics.batch(Stage.DECODE, 3, 0.002)
    statistics.batch(Stage.DECODE, 5, 0.004)
    statistics.batch(Stage.FLOW, 2, 0.03, [0.001, 0.5])
    now = statistics.now
    now.requests = RequestStatistics(accepted=2, finished=1)
    now.streams.first_chunk_s.observe(0.2)
    now.streams.lateness_s.observe(0.1)
    now.slots, now.audio_s = SlotStatistics(4, 7, 16), 12.5
    now.prompt_cache_hits, now.prompt_cache_misses = 2, 1
    return BackendStatistics(statistics.snapshot(waiting=2), 3 << 30, 80 << 30, 5, 9, "ok", 2)


@dataclass
class BusySpeaker(FakeBackend):
    """Has these figures, or fails with this error, or never answers."""

    told: BackendStatistics | Exception | None = None
    dead: bool = False

    @property
    def about(self) -> ModelInfo:
        if isinstance(self.told, Exception):
            raise EngineStopped("engine: is starting")
        return super().about

    async def statistics(self) -> BackendStatistics | None:
        if self.dead:
            await asyncio.Event().wait()
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


async def scrape(state: AppState, accept: str = "", patience_s: float = 60.0, key: str = "") -> httpx.Response:
    app = FastAPI()
    app.state.vivavoce = state
    errors.install(app)
    app.include_router(metrics.router(state, patience_s))
    return await ask(app, "/metrics", accept=accept, authorization=f"Bearer {key}")


async def speak(state: AppState, text: str, door: str = "http", name: str = "") -> None:
    caller = Principal(name, name)
    visit = await state.dispatcher.speak(caller, SpeechRequest(text), protocol=door, request_id=new_request_id())
    async with visit:
        async for _ in visit:
            pass


async def refused(state: AppState, text: str) -> None:
    with pytest.raises(VivavoceError):
        await speak(state, text)


def parsed(answer: httpx.Response) -> dict[str, Metric]:
    assert answer.status_code == 200
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is exported twice"
    return {family.name: family for family in families}


async def scraped(state: AppState, patience_s: float = 60.0) -> dict[str, Metric]:
    return parsed(await scrape(state, patience_s=patience_s))


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    every = [sample for family in families.values() for sample in family.samples]
    (found,) = [sample.value for sample in every if sample.name == name and sample.labels == labels]
    return found


MONITORED = ServerSettings(server=ServerSection(health_port=0))


def page_of(settings: ServerSettings | None = None, *callers: str) -> httpx.Response:
    """The page of a server that has spoken, and refused a request."""

    async def work() -> httpx.Response:
        speaker = BusySpeaker(told=busy_engine())
        state = make_state(speaker)
        state = state if settings is None else replace(state, settings=settings)
        for name in callers or ("",):
            await speak(state, "A secret. Two. Three.", name=name)
        speaker.refuses_with = Overloaded("server: it is busy", 3.0)
        await refused(state, "Hello.")
        return await scrape(state)

    return asyncio.run(work())


@pytest.fixture(scope="module")
def busy() -> httpx.Response:
    return page_of(None, "anna")


@pytest.fixture(scope="module")
def monitored() -> httpx.Response:
    """The same at a port for monitoring alone."""
    return page_of(MONITORED, "anna")


def test_the_speakers_figures(busy: httpx.Response) -> None:
    families = parsed(busy)
    expected = {
        "vivavoce_engine_up": 1,
        "vivavoce_requests_waiting": 2,
        "vivavoce_speech_tokens_total": 8,
        "vivavoce_slots_used": 4,
        "vivavoce_slots_peak": 7,
        "vivavoce_slots": 16,
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


@dataclass
class Fleet(FakeBackend):
    """Two engines that told, and one that has gone."""

    @property
    def engines(self) -> dict[str, BusySpeaker]:
        told = [busy_engine(), replace(busy_engine(), streams=3, capacity=40), EngineStopped("gone")]
        return {f"cuda:{place}": BusySpeaker(told=one) for place, one in enumerate(told)}


async def test_each_of_several_engines_has_its_figures() -> None:
    families = await scraped(make_state(Fleet()))
    for place, up in enumerate((1, 1, 0)):
        assert value(families, "vivavoce_engine_up", engine=f"cuda:{place}") == up
    assert value(families, "vivavoce_engine_streams", engine="cuda:1") == 3
    assert value(families, "vivavoce_engine_capacity", engine="cuda:1") == 40
    sizes = families["vivavoce_stage_batch_size"].samples
    assert {sample.labels["engine"] for sample in sizes} == {"cuda:0", "cuda:1"}
    assert value(families, "vivavoce_stage_batch_size_count", engine="cuda:0", stage="decode") == 2
    assert value(families, "vivavoce_streams_active") == 0, "of the server"


async def test_requests_are_counted_by_door_and_outcome() -> None:
    speaker = FakeBackend()
    state = make_state(speaker)
    await speak(state, "One. Two.")
    await speak(state, "Three.", door="websocket")
    async with await state.dispatcher.speak(ANONYMOUS, SpeechRequest("Four."), protocol="http", request_id="a"):
        assert value(await scraped(state), "vivavoce_streams_active") == 1
    speaker.fails_after = 0
    await refused(state, "Five.")  # it was taken, and breaks
    speaker.refuses_with = Overloaded("streams: too many", 3.0)
    await refused(state, "Six.")
    await refused(state, "Seven.")
    families = await scraped(state)
    outcomes = [("http", "stop", 1), ("http", "error", 1), ("http", "refused", 2), ("http", "cancelled", 1)]
    for door, outcome, count in [*outcomes, ("websocket", "stop", 1), ("websocket", "length", 0)]:
        assert value(families, "vivavoce_requests_total", door=door, outcome=outcome) == count
    assert value(families, "vivavoce_refused_total", door="http", code="overloaded") == 2
    assert value(families, "vivavoce_first_audio_seconds_count", door="http") == 1
    assert value(families, "vivavoce_request_seconds_count", door="http") == 3
    assert value(families, "vivavoce_audio_seconds_total") == pytest.approx(0.15)
    assert value(families, "vivavoce_streams_active") == 0
    assert value(families, "vivavoce_gap_seconds_count") >= 0
    assert value(families, "vivavoce_underruns_total") == value(families, "vivavoce_late_seconds_count")


def test_buckets_add_up_to_their_count(busy: httpx.Response) -> None:
    for family in parsed(busy).values():
        buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = defaultdict(list)
        for sample in family.samples:
            labels = frozenset(sample.labels.items() - {("le", sample.labels.get("le", ""))})
            if sample.name.endswith("_bucket"):
                buckets[labels].append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count") and family.type == "histogram":
                assert buckets[labels] == sorted(buckets[labels]), f"{family.name}: bounds and counts grow"
                assert len(dict(buckets[labels])) == len(buckets[labels]), f"{family.name}: two buckets of one bound"
                assert buckets[labels][-1] == (math.inf, sample.value)


@pytest.mark.parametrize(
    ("speaker", "model", "up", "store"),
    [
        pytest.param(BusySpeaker(dead=True), "fake", 0, None, id="never answers"),
        pytest.param(BusySpeaker(is_ready=False, told=EngineStopped("engine: starts")), "", 0, None, id="starts"),
        pytest.param(BusySpeaker(is_ready=False, told=OSError("broken pipe")), "", 0, None, id="fails"),
        pytest.param(BusySpeaker(told=None), "fake", 1, None, id="tells no figures, and is up without them"),
        pytest.param(FakeBackend(is_ready=False), "fake", 0, 1, id="stopped"),
        pytest.param(BusySpeaker(told=replace(busy_engine(), voice_store="voices.db: full")), "fake", 1, 0, id="store"),
    ],
)
async def test_states_of_the_engine(speaker: FakeBackend, model: str, up: int, store: int | None) -> None:
    families = await scraped(make_state(speaker), patience_s=0.01)
    labels = families["vivavoce_build_info"].samples[0].labels
    assert labels["model"] == model
    assert labels["version"]
    assert value(families, "vivavoce_engine_up") == up
    if store is None:
        assert "vivavoce_slots_used" not in families
    else:
        assert value(families, "vivavoce_voice_store_ok") == store
    assert value(families, "vivavoce_streams_active") == 0, "the server's own figures are there in any case"


async def test_a_server_that_drains_says_so() -> None:
    state = make_state(FakeBackend())
    await state.dispatcher.drain(0.0)
    assert value(await scraped(state), "vivavoce_draining") == 1


async def test_a_key_is_wanted_if_the_operator_says_so(tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "keys.toml"
    add_key(file, new_entry(key, "prometheus"))
    state = replace(make_state(FakeBackend()), keys=KeyRing(file))
    closed = replace(state, settings=ServerSettings(server=ServerSection(metrics_key_required=True)))
    answers = [await scrape(state), await scrape(closed), await scrape(closed, key=key)]
    assert [answer.status_code for answer in answers] == [200, 401, 200]


def test_what_each_key_has_had_is_told_at_a_port_for_monitoring_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.server.metrics.MOST_CALLERS", 2)
    families = parsed(page_of(MONITORED, "anna", "anna", "", "bert", "carl", "dora"))
    told = {
        caller: tuple(
            value(families, f"vivavoce_caller_{what}_total", caller=caller)
            for what in ("requests", "characters", "audio_seconds")
        )
        for caller in ("anna", "bert", OTHERS)
    }
    one = told["bert"]
    assert one[:2] == (1, len("A secret. Two. Three."))
    assert told["anna"] == told[OTHERS] == pytest.approx(tuple(2 * part for part in one))
    assert "carl" not in page_of(None, "carl").text


def test_names_and_types_are_as_prometheus_wants_them(monitored: httpx.Response) -> None:
    """The rules of `promtool check metrics`, which is run where it is installed."""
    for family in parsed(monitored).values():
        assert family.documentation, family.name
        assert not re.search("[A-Z]|_(gauge|counter|histogram|milliseconds|minutes|bits)(_|$)", family.name)
        assert family.name.endswith("_total") is False or family.type == "counter"
        if family.type != "histogram":
            assert not family.name.endswith(("_count", "_sum", "_bucket"))
    if promtool := shutil.which("promtool"):
        checked = subprocess.run([promtool, "check", "metrics"], input=monitored.text, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_no_label_comes_from_a_caller(busy: httpx.Response) -> None:
    allowed = {"door", "outcome", "code", "event", "stage", "le", "version", "model", "fault"}
    assert {
        label for family in parsed(busy).values() for sample in family.samples for label in sample.labels
    } <= allowed
    assert "secret" not in busy.text


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=newest", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ],
)
async def test_the_page_has_the_wanted_type_and_nobody_keeps_it(accept: str, content_type: str) -> None:
    answer = await scrape(make_state(FakeBackend()), accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    assert answer.headers["cache-control"] == "no-store"
    read = text_string_to_metric_families if "text/plain" in content_type else read_openmetrics
    assert "vivavoce_underruns" in [family.name for family in read(answer.text)]


@pytest.fixture(scope="module")
def exported(monitored: httpx.Response) -> Exported:
    found = {}
    for family in parsed(monitored).values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = family.type, labels, family.documentation
    return found


def series(exported: Exported) -> dict[str, set[str]]:
    """What a query may name → its labels."""
    names = {}
    for name, (kind, labels, _) in exported.items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names.update({f"{name}{suffix}": labels for suffix in suffixes})
    return names


def test_the_manual_has_each_figure_with_its_type_labels_and_meaning(exported: Exported) -> None:
    rows = re.findall(r"^\| `(vivavoce_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.*) \|$", MANUAL, re.MULTILINE)
    written = {name: (kind, set(labels.split(", ")) - {""}, text) for name, kind, labels, text in rows}
    assert written == {name: entry for name, entry in exported.items() if name.startswith("vivavoce_")}
    assert len(rows) == len(written)
    assert set(NAME.findall(MANUAL)) <= {*exported, *series(exported), "process_"}


@pytest.mark.parametrize("query", sorted(QUERIES))
def test_a_query_names_what_is_exported(query: str, exported: Exported) -> None:
    known = series(exported)
    used = NAME.findall(query)
    assert used or "up{" in query
    assert set(used) <= set(known)
    labels = set().union(*(known[name] for name in used)) | SCRAPED
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    matched = set(re.findall(r"[{,](\w+)=", query))
    assert grouped | matched <= labels
    assert [query.count(mark) for mark in "({["] == [query.count(mark) for mark in ")}]"]
    counted = {name for name in known if name.endswith(("_total", "_bucket", "_sum", "_count"))}
    assert set(re.findall(r"(?:rate|increase)\((\w+)", query)) <= counted, "a rate is of what only grows"


def test_a_dashboards_panels_have_room_and_a_source() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, f"{panel['title']} lies on another panel"
        taken |= cells
    assert all(panel["description"] and panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}
    assert DASHBOARD["schemaVersion"] >= 38


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in RULES)
    assert names == re.findall(r"^### (Vivavoce\w+)$", MANUAL, re.MULTILINE), "each has its part of the manual"
    parts = dict(re.findall(r"^### (Vivavoce\w+)\n\n(.*?)\n\n(?=#)", MANUAL, re.MULTILINE | re.DOTALL))
    assert all(len(parts[name]) > 150 for name in names), "what it means, where to look, what to do"
    links = [rule["annotations"]["runbook_url"] for rule in RULES]
    assert links == [f"docs/operating.md#{name.lower()}" for name in names]


def test_the_dashboard_tells_clients_mistakes_from_the_servers() -> None:
    every = [query.split('"')[3] for query in QUERIES if "code!~" in query]
    (theirs,) = set(every)
    assert {query.split('"')[3] for query in QUERIES if "code=~" in query} == {theirs}
    kinds = [VivavoceError.__subclasses__(), InvalidRequest.__subclasses__()]
    for kind in (kind for some in kinds for kind in some):
        ours = kind.http_status >= 500 or kind in (Overloaded, ListenerStalled)
        assert (re.fullmatch(theirs, kind.code) is None) is ours, kind.code


def test_prometheus_waits_longer_than_a_server_for_its_engine() -> None:
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert float(job["scrape_timeout"].rstrip("s")) > 2 * PATIENCE_S


def test_the_manual_knows_limits_log_lines_and_reasons() -> None:
    assert f"{CAPACITY:,} requests are remembered" in MANUAL.replace("\n", " ")
    assert f"within {PATIENCE_S:g} s" in MANUAL
    (block,) = re.findall(r"```json\n(.*?)```", MANUAL, re.DOTALL)
    assert [json.loads(line)["event"] for line in block.splitlines()] == ["speech ended", "http"]
    assert all(f"`{reason}`" in MANUAL for reason in ("draining", "engine_starting", "engine_stopped"))
