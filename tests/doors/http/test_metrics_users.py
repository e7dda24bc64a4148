"""What is written about the figures, and who queries them, knows the same names as /metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doors.http.test_metrics import BusySpeaker, busy_engine, desk_for, parsed, refused, scrape, speak
from vivavoce.doors.http.health import Hindrance
from vivavoce.doors.http.metrics import PATIENCE_S
from vivavoce.service.operations.ledger import CAPACITY

ROOT = Path(__file__).parents[3]
MANUAL = ROOT / "docs/operating.md"
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
PROMETHEUS = ROOT / "deploy/prometheus"
SCRAPED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of buckets."""
NAME = re.compile(r"\b(?:vivavoce|process)_\w+")


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[str, set[str], str]]:
    """Family → type, labels, meaning."""

    async def work() -> dict[str, tuple[str, set[str], str]]:
        desk = desk_for(BusySpeaker(told=busy_engine()))
        await speak(desk, "One.")
        await refused(desk, "", "http")
        found = {}
        for family in parsed(await scrape(desk)).values():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = family.type, labels, family.documentation
        return found

    return asyncio.run(work())


def series(exported: dict[str, tuple[str, set[str], str]]) -> dict[str, set[str]]:
    """What a query may name → its labels."""
    names = {}
    for name, (kind, labels, _) in exported.items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names.update({f"{name}{suffix}": labels for suffix in suffixes})
    return names


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """Of the dashboard and the alerts."""
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_manual_has_each_figure_with_its_type_labels_and_meaning(
    exported: dict[str, tuple[str, set[str], str]],
) -> None:
    rows = re.findall(r"^\| `(vivavoce_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.*) \|$", MANUAL.read_text(), re.MULTILINE)
    written = {name: (kind, set(labels.split(", ")) - {""}, text) for name, kind, labels, text in rows}
    assert written == {name: entry for name, entry in exported.items() if name.startswith("vivavoce_")}
    assert len(rows) == len(written)


def test_what_the_manual_and_alerts_name_is_exported(exported: dict[str, tuple[str, set[str], str]]) -> None:
    known = {*exported, *series(exported), "process_"}
    assert set(NAME.findall(MANUAL.read_text())) <= known


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_names_what_is_exported(query: str, exported: dict[str, tuple[str, set[str], str]]) -> None:
    known = series(exported)
    used = NAME.findall(query)
    assert used or "up{" in query
    assert set(used) <= set(known)
    labels = set().union(*(known[name] for name in used)) | SCRAPED
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    matched = set(re.findall(r"[{,](\w+)=", query))
    assert grouped | matched <= labels
    assert [query.count(mark) for mark in "({["] == [query.count(mark) for mark in ")}]"]


def test_a_rate_is_of_what_only_grows(exported: dict[str, tuple[str, set[str], str]]) -> None:
    counted = {name for name in series(exported) if name.endswith(("_total", "_bucket", "_sum", "_count"))}
    for query in queries():
        assert set(re.findall(r"(?:rate|increase)\((\w+)", query)) <= counted


def test_a_dashboards_panels_have_room_and_a_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, f"{panel['title']} lies on another panel"
        taken |= cells
    assert all(panel["description"] and panel["datasource"]["uid"] == "${datasource}" for panel in panels())
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}
    assert dashboard["schemaVersion"] >= 38


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in rules())
    assert set(names) == set(re.findall(r"`(Vivavoce\w+)`", MANUAL.read_text()))


def test_prometheus_waits_longer_than_a_server_for_its_engine() -> None:
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert float(job["scrape_timeout"].rstrip("s")) > 2 * PATIENCE_S


def test_what_provisions_grafana_can_be_read() -> None:
    folder = DASHBOARD.parent / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/vivavoce.yml").read_text())["providers"]
    assert source["type"] == "prometheus"
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_the_manual_knows_the_limits() -> None:
    text = MANUAL.read_text()
    assert f"{CAPACITY:,} requests are remembered" in text.replace("\n", " ")
    assert f"within {PATIENCE_S:g} s" in text


def test_examples_of_log_lines_are_json() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    events = [json.loads(line)["event"] for line in block.splitlines()]
    assert events == ["speech ended", "http"]


def test_the_manual_names_the_reasons_of_not_being_ready() -> None:
    assert all(f"`{reason.value}`" in MANUAL.read_text() for reason in Hindrance)
