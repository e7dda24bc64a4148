"""`vivavoce serve` that gets SIGHUP and SIGUSR2: what holds at once, what needs a new engine, and what is refused."""

from __future__ import annotations

import os
import pty
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.certificates import certified, needs_openssl
from tests.server.http.serve_process import (
    LATE_S,
    Log,
    ServerProcess,
    command,
    environment,
    serving_process,
    told_in,
)
from vivavoce.server.keys import add_key, new_entry, new_key

pytestmark = pytest.mark.process

TEXT = "One two three four five six seven eight. " * 2
SAMPLING = {"max_ratio": 2.0, "min_ratio": 2.0}
"""Random weights do not end by themselves."""


class Configured:
    """A server with a file of settings, which may be changed."""

    def __init__(self, folder: Path, server: ServerProcess, settings: dict[str, str], key: str) -> None:
        self.folder, self.server, self.settings, self.key = folder, server, settings, key
        self.http = httpx.Client(base_url=server.url, timeout=LATE_S, headers={"x-api-key": key})

    def reload(self, number: signal.Signals = signal.SIGHUP, event: str = "reload (done|refused)") -> dict[str, Any]:
        """Write the settings, send the signal, and return the line of the log that the event begins."""
        before = len(self.server.log.lines)
        write(self.folder, self.settings)
        self.server.process.send_signal(number)
        return self.server.log.await_event(f"^({event}): ", before)

    def normalized(self, text: str) -> str:
        answer = self.http.post("/v1/audio/normalize", json={"input": text})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["text"])

    def speak(self, text: str = "Hello there.", **fields: object) -> httpx.Response:
        body = {"input": text, "response_format": "pcm", "sampling": SAMPLING, **fields}
        return self.http.post("/v1/audio/speech", json=body)


def write(folder: Path, settings: dict[str, str]) -> None:
    lines = {section: f"[{section}]\n{fields}\n" for section, fields in settings.items()}
    (folder / "settings.toml").write_text("".join(lines.values()), encoding="utf-8")


@pytest.fixture(scope="module")
def configured(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    folder = tmp_path_factory.mktemp("reload")
    (folder / "lexicons").mkdir()
    (folder / "lexicons" / "all.tsv").write_text("Ng\tEng\n", encoding="utf-8")
    key = new_key()
    add_key(folder / "keys.toml", new_entry(key, "me"))
    settings = {
        "model": f'model = "{babble}"\nwarm_up_s = 0\ntext_processes = 0\nlexicons = "{folder / "lexicons"}"',
        "auth": f'keys_file = "{folder / "keys.toml"}"',
        "engine": 'admission = "all"',
        "server": "drain_s = 600",
        "logging": "",
        "voices": "",
    }
    write(folder, settings)
    with serving_process(folder, "--config", folder / "settings.toml") as server:
        configured = Configured(folder, server, settings, key)
        with configured.http:
            yield configured


@pytest.fixture(autouse=True)
def as_before(configured: Configured) -> Iterator[None]:
    settings = dict(configured.settings)
    yield
    configured.settings.clear()
    configured.settings.update(settings)


def test_what_holds_at_once(configured: Configured) -> None:
    recording = (Path(__file__).parents[2] / "data" / "audio" / "speech_24k_float.wav").read_bytes()
    added = configured.http.post("/v1/audio/voices", data={"name": "anna"}, files={"file": recording})
    assert added.status_code == 201, added.text
    assert configured.normalized("Ng.") == "Eng."
    assert configured.speak(voice="bert").status_code == 404
    (configured.folder / "lexicons" / "all.tsv").write_text("Ng\tWing\n", encoding="utf-8")
    configured.settings["voices"] = 'aliases = {bert = "anna"}'
    configured.settings["logging"] = 'level = "debug"'
    configured.settings["requests"] = 'empty_text = "refuse"\nmodel_aliases = ["my-voice"]'
    done = configured.reload()
    changed = {"voices.aliases", "logging.level", "requests.empty_text", "requests.model_aliases"}
    assert set(done["names"].split(", ")) == changed
    assert configured.normalized("Ng.") == "Wing."
    assert configured.speak(voice="bert", model="my-voice").status_code == 200
    assert configured.speak("!!!").status_code == 400
    lines = len(configured.server.log.lines)
    assert configured.http.get("/health/ready").status_code == 200
    line = configured.server.log.await_event("^http: ", lines)
    while line["path"] != "/health/ready":  # those of requests before it may come late
        lines = configured.server.log.lines.index(line) + 1
        line = configured.server.log.await_event("^http: ", lines)
    assert line["level"] == "debug"
    figures = configured.http.get("/metrics").text
    assert 'vivavoce_reloads_total{outcome="done"} 1' in figures
    other = new_key()
    add_key(configured.folder / "keys.toml", new_entry(other, "other"))
    lines = len(configured.server.log.lines)
    configured.reload()
    assert configured.server.log.await_event("^keys changed: ", lines)["count"] == 2
    assert configured.http.get("/v1/audio/voices", headers={"x-api-key": other}).status_code == 200


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"logging": 'level = "loud"'}, "logging.level: 'loud' cannot be"),
        ({"engine": "slots = -1"}, "engine.slots: -1 cannot be"),
        ({"modles": ""}, "modles: is not a section"),
        ({"voices": "quota = ["}, "is not TOML"),
        ({"model": 'lexicons = "nowhere"'}, "model.lexicons: nowhere is not a folder"),
        ({"server": 'tls_certificate = "a.crt"'}, None),
    ],
)
def test_a_broken_file_changes_nothing_and_is_one_line(
    configured: Configured, broken: dict[str, str], named: str | None
) -> None:
    before = configured.normalized("Ng.")
    configured.settings.update(broken)
    line = configured.reload()
    assert (line["event"], line["level"]) == ("reload refused", "error")
    assert (named or "server.tls_certificate") in line["message"]
    assert line["message"].endswith("the settings before it stay in force")
    assert configured.normalized("Ng.") == before


def test_what_needs_a_restart_is_named_and_the_rest_holds(configured: Configured) -> None:
    configured.settings["server"] = "max_body_bytes = 70000000\ndrain_s = 500"
    lines = len(configured.server.log.lines)
    assert "server.drain_s" in configured.reload()["names"].split(", ")
    line = configured.server.log.await_event("^reload incomplete: ", lines)
    assert (line["names"], line["level"]) == ("server.max_body_bytes", "warning")


def test_engine_settings_bring_a_new_engine_and_nobody_notices(configured: Configured) -> None:
    alone = len(configured.speak(TEXT).content)
    former = configured.server.engine_process
    configured.settings["engine"] = 'admission = "all"\nslots = 5'
    with ThreadPoolExecutor(3) as listeners:
        done = threading.Event()

        def listen() -> list[httpx.Response]:
            heard = [configured.speak(TEXT)]
            while not done.is_set():
                heard.append(configured.speak(TEXT))
            return heard

        listening = [listeners.submit(listen) for _ in range(3)]
        try:
            line = configured.reload(event="engine (replaced|not replaced)")
        finally:
            done.set()
        heard = [answer for one in listening for answer in one.result(LATE_S)]
    assert line["event"] == "engine replaced"
    assert len(heard) > 3
    assert {(answer.status_code, len(answer.content)) for answer in heard} == {(200, alone)}
    assert configured.server.engine_process != former
    assert "vivavoce_slots 5" in configured.http.get("/metrics").text
    with pytest.raises(ProcessLookupError):
        os.kill(former, 0)


def test_a_signal_of_its_own_replaces_the_engine_with_the_same_settings(configured: Configured) -> None:
    former = configured.server.engine_process
    line = configured.reload(signal.SIGUSR2, "engine (replaced|not replaced)")
    assert line["event"] == "engine replaced"
    assert line["process"] == configured.server.engine_process != former
    assert configured.speak().status_code == 200


def test_an_engine_that_cannot_begin_is_not_taken(configured: Configured, babble_v1: Path) -> None:
    former = configured.server.engine_process
    model = configured.settings["model"]
    configured.settings["model"] = f'{model}\nflow_backend = "onnx"'  # whose file is not there
    line = configured.reload(event="engine not replaced|engine replaced|reload refused")
    assert line["event"] == "engine not replaced", line
    assert line["message"].endswith("the settings before it stay in force")
    assert configured.speak().status_code == 200
    assert configured.server.engine_process == former
    configured.settings["model"] = model.replace("babble", "nothing", 1)
    assert configured.reload()["event"] == "reload refused"
    configured.settings["model"] = model.replace(model.split('"')[1], str(babble_v1))
    line = configured.reload(event="engine not replaced|engine replaced|reload refused")
    assert "22050 Hz" in line["message"]
    assert configured.speak().status_code == 200
    configured.settings["model"] = model
    figures = configured.http.get("/metrics").text
    assert 'vivavoce_reloads_total{outcome="engine_kept"} 2' in figures


@needs_openssl
def test_a_new_certificate_holds_for_new_connections_and_a_terminal_that_closes_ends_the_server(
    tmp_path: Path, babble: Path
) -> None:
    paths = certified(tmp_path)
    ours, theirs = pty.openpty()
    log, given = Log(), ("--port", 0, "--device", "cpu", "--model", babble, "--log-format", "json")
    tls = ("--tls-cert", paths["tls_certificate"], "--tls-key", paths["tls_key"])
    with subprocess.Popen(
        command(*given, *tls),
        env=environment(tmp_path, VIVAVOCE_MODEL_WARM_UP_S=0),
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        following = threading.Thread(target=log.follow, args=(process.stderr,), daemon=True)
        following.start()
        try:
            address = "127.0.0.1", int(ServerProcess(process, log).url.rpartition(":")[2])
            first = ssl.get_server_certificate(address)
            certified(tmp_path)
            process.send_signal(signal.SIGHUP)
            log.await_event("^reload done: ")
            second = ssl.get_server_certificate(address)
            assert first != second
            assert second.strip() == paths["tls_certificate"].read_text().strip()
            os.close(ours)
            process.send_signal(signal.SIGHUP)
            log.await_event("stopping: ")
            assert process.wait(LATE_S) == 0
        finally:
            process.kill()
            following.join(LATE_S)
    assert [told_in(line) for line in log.lines if line["event"] == "reload refused"] == []
