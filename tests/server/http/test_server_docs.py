"""What docs/server.md shows runs, and `/openapi.json` tells the truth: all answers are as it documents them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import soundfile
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckContext, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.server.fake_backend import RATE, tone
from tests.server.fake_models import FakeEngines, routed
from tests.server.http.serving import Served, make_state, serving
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.openai import SPEECH_PATH
from vivavoce.server.http.speech_fields import SamplingFields, SpeechFields
from vivavoce.server.keys import KeyRing

ROOT = Path(__file__).parents[3]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("docs/server.md", "README.md")}
MANUAL = PAGES["docs/server.md"]
ADDRESS = "127.0.0.1:8880"


def blocks(language: str, page: str = MANUAL) -> list[str]:
    return [
        code for kind, code in re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if kind == language
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """With the voice that the small demo has, too, and the further model that the manual names."""
    models = FakeEngines(stored={("", "calm"): VoiceSummary("calm", "built_in", True)}), FakeEngines(name="mine")
    with serving(build_app, lambda: make_state(routed(*models))) as served:
        served.call(served.state.dispatcher.backend.start)  # type: ignore[attr-defined]
        yield served


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the examples run, with the recording that they name."""
    soundfile.write(tmp_path / "me.wav", tone(100, 1), RATE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "code", [code for page in PAGES.values() for code in blocks("python", page) if ADDRESS in code]
)
def test_python_runs(code: str, server: Served, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code.replace(ADDRESS, f"127.0.0.1:{server.port}"), "server.md", "exec"), {})
    said = capsys.readouterr().out
    for printed, wanted in (("first audio after", r"after \d+\.\d\d s"), ("finish_reason", r"s\nstop\n$")):
        assert printed not in code or re.search(wanted, said), said
    for name in re.findall(r'_file\("(.*?)"\)', code):
        assert soundfile.info(folder / name).duration > 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("code", [code for page in PAGES.values() for code in blocks("bash", page)])
def test_curl_runs(code: str, server: Served, folder: Path) -> None:
    assert ADDRESS in code
    script = code.replace(ADDRESS, f"127.0.0.1:{server.port}").replace("curl ", "curl --fail-with-body -sS ")
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in re.findall(r"-o (\S+)", code):
        assert soundfile.info(folder / name).duration > 0
    if "/requests/" in code:
        assert '"finish_reason":"stop"' in done.stdout
    if "DELETE" in code:
        assert re.findall(r'"id":"(\w+)"', done.stdout) == ["me", *(2 * ["anna", "calm", "me"]), "me"]


def test_every_field_is_in_the_table() -> None:
    table = MANUAL[MANUAL.index("| field | default") : MANUAL.index("The first four")]
    assert set(re.findall(r"^\| `(\w+)` ", table, re.MULTILINE)) == set(SpeechFields.model_fields)
    sampling = next(line for line in table.splitlines() if line.startswith("| `sampling`"))
    assert set(re.findall(r"`(\w+)`", sampling)) == {"sampling", *SamplingFields.model_fields}


def no_failure_of_the_server(context: CheckContext, answer: schemathesis.Response, case: schemathesis.Case) -> None:
    """A client that gives no time may be told that it is over."""
    if answer.status_code != 504 or "x-request-timeout" not in case.headers:
        not_a_server_error(context, answer, case)


CHECKS = [
    no_failure_of_the_server,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


def described(build: Callable[[AppState], FastAPI]) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(build(make_state()).openapi())


BOUNDED = settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
"""The same examples each time."""


@pytest.fixture(scope="module")
def legacy() -> Iterator[Served]:
    with serving(build_legacy_app) as served:
        yield served


@described(build_app).parametrize()
@BOUNDED
@pytest.mark.slow
def test_answers_are_as_documented(case: schemathesis.Case[Any], server: Served) -> None:
    case.call_and_validate(base_url=server.url, checks=CHECKS)


@described(build_legacy_app).parametrize()
@settings(BOUNDED, max_examples=4)
def test_answers_of_cosyvoices_routes_are_as_documented(case: schemathesis.Case[Any], legacy: Served) -> None:
    also_get = [check for check in CHECKS if check is not unsupported_method]  # its own client sends forms with GET
    case.call_and_validate(base_url=legacy.url, checks=also_get)


@pytest.mark.parametrize("which", ["server", "legacy"])
def test_the_reference_for_people_names_all_that_the_description_does(
    which: str, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(which)
    page = httpx.get(f"{served.url}/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert ('href="./"' in page.text) is (httpx.get(f"{served.url}/").status_code == 200), "a way back, if there is one"
    assert not re.search(r"<script|<style| style=| on\w+=|https?://(?!127\.0\.0\.1)", page.text)
    told = re.findall(r"<code>([^<]*)</code>", page.text)
    for path, operations in httpx.get(f"{served.url}/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}" in told
            bodies = operation.get("requestBody", {}).get("content", {}).values()
            fields = {name for body in bodies for name in body["schema"]["properties"]}
            assert fields | {given["name"] for given in operation.get("parameters", ())} <= set(told)


def test_the_description_says_how_a_key_is_sent(tmp_path: Path) -> None:
    assert "security" not in build_app(make_state()).openapi()
    (tmp_path / "keys.toml").touch(mode=0o600)
    description = build_app(make_state(keys=KeyRing(tmp_path / "keys.toml"))).openapi()
    assert description["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert set(description["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    paths = description["paths"]
    assert [path for path in paths if paths[path].get("get", {}).get("security") == []] == [
        "/health/live",
        "/health/ready",
        "/metrics",
    ]


@pytest.mark.parametrize("build", [build_app, build_legacy_app])
def test_what_the_description_refers_to_is_there(build: Callable[..., Any]) -> None:
    """Generators of clients stop at a reference that leads nowhere."""
    description = build(make_state()).openapi()
    for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(description)):
        found = description
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_no_answer_is_documented_that_never_comes(server: Served) -> None:
    description = httpx.get(f"{server.url}/openapi.json").json()
    assert "HTTPValidationError" not in description["components"]["schemas"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            statuses = set(operation["responses"])
            assert "422" not in statuses, path
            if method != "post":
                assert not statuses & {"408", "413"}, path
            assert ("429" in statuses) is (
                method == "post" or "/voices" in path or "/adapters" in path or path == SPEECH_PATH
            ), path
