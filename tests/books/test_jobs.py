"""Jobs over HTTP: a book is spoken in the background, heard while it is made, and goes on after a restart."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.books.make_book import make_book
from tests.server.fake_backend import FakeBackend, Gate
from tests.server.http.serving import Served, make_state, serving
from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import JobsSection, ServerSettings
from vivavoce_books.jobs.service import Jobs, open_jobs

pytestmark = pytest.mark.process

TEXT = "Chapter 1\n\nIt rained.\n\nAnna: All day long?\n\nChapter 2\n\nThey slept.\n\nThen they left.\n"
JOBS = "/v1/audio/jobs"


def with_jobs(folder: Path, speaker: FakeBackend, keys: KeyRing | None = None, **settings: Any) -> AppState:
    """The state of a server that keeps jobs; made in its event loop."""
    section = JobsSection(folder=folder, **settings)
    state = make_state(speaker, ServerSettings(jobs=section), keys)
    folder.mkdir(exist_ok=True)
    return replace(state, jobs=Jobs(state.dispatcher, state.keys, section, folder))


@dataclass
class World:
    client: httpx.Client
    speaker: FakeBackend
    server: Served

    def post(self, status: int = 201, **fields: Any) -> dict[str, Any]:
        answer = self.client.post(JOBS, json={"input": TEXT, **fields})
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, identity: str, status: str = "", **query: Any) -> dict[str, Any]:
        """The job, once it has this status."""
        until = time.monotonic() + 60
        while (job := self.client.get(f"{JOBS}/{identity}", params=query).json())["status"] != (
            status or job["status"]
        ):
            assert job["status"] != "failed", job
            assert time.monotonic() < until, job
        return job


@contextmanager
def working(
    folder: Path, speaker: FakeBackend | None = None, keys: KeyRing | None = None, key: str = "", **settings: Any
) -> Iterator[World]:
    """A server with jobs in this folder."""
    speaker = speaker or FakeBackend()
    with serving(build_app, partial(with_jobs, folder, speaker, keys, **settings)) as server:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            yield World(client, speaker, server)
        server.call(server.state.jobs.close)


def test_a_text_is_spoken_in_the_background(tmp_path: Path) -> None:
    with working(tmp_path) as world:
        made = world.post(voice="anna", cast={"Anna": "anna"}, response_format="mp3", title="Rain", seed=7)
        assert (made["status"], made["title"], made["characters_spoken"]) == ("queued", "Rain", 0)
        job = world.get(made["id"], "done", times=True)
        assert job["characters"] == job["characters_spoken"]
        assert [(one["number"], one["title"]) for one in job["chapters"]] == [(1, "Chapter 1"), (2, "Chapter 2")]
        first, second = job["chapters"]
        assert (first["start_s"], second["end_s"]) == (0.0, pytest.approx(job["audio_seconds"]))
        assert first["end_s"] == second["start_s"] > 0
        assert {one["chapter"] for one in job["segments"]} == {1, 2}
        assert "none was lost" in job["notes"][0]
        assert {order.priority for order in world.speaker.orders} == {"batch"}
        assert "Anna" not in "".join(order.text or "" for order in world.speaker.orders)
        answer = world.client.get(f"{JOBS}/{made['id']}/audio")
        assert answer.headers["content-type"] == "audio/mpeg"
        assert soundfile.info(io.BytesIO(answer.content)).duration == pytest.approx(job["audio_seconds"], abs=0.2)
        ranged = world.client.get(f"{JOBS}/{made['id']}/audio", headers={"range": "bytes=10-99"})
        assert (ranged.status_code, ranged.content) == (206, answer.content[10:100])
        for ignored in ({"range": "pages=1-2"}, {"range": "bytes=99999999-", "if-range": '"other"'}):
            assert world.client.get(f"{JOBS}/{made['id']}/audio", headers=ignored).content == answer.content
        for given, status, code in (("bytes=x", 400, "invalid_request"), ("bytes=99999999-", 416, "invalid_range")):
            refused = world.client.get(f"{JOBS}/{made['id']}/audio", headers={"range": given})
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert [one["id"] for one in world.client.get(JOBS).json()["data"]] == [made["id"]]
        assert world.client.delete(f"{JOBS}/{made['id']}").json()["deleted"]
        assert world.client.get(f"{JOBS}/{made['id']}").status_code == 404
    assert list(tmp_path.iterdir()) == []


def test_the_beginning_is_heard_while_the_rest_is_made(tmp_path: Path) -> None:
    speaker = FakeBackend(gate=Gate(pieces=4))
    with working(tmp_path, speaker, segments=1) as world:
        identity = world.post()["id"]
        until = time.monotonic() + 60
        while len(world.get(identity, times=True)["segments"]) < 3:  # their pieces are four
            assert time.monotonic() < until
        early = world.client.get(f"{JOBS}/{identity}/audio")
        assert (early.status_code, early.headers["content-type"]) == (200, "audio/wav")
        assert early.headers["x-job-status"] == "running"
        at = len(early.content)
        beyond = world.client.get(f"{JOBS}/{identity}/audio", headers={"range": f"bytes={at}-"})
        assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "invalid_range")
        world.server.call(speaker.gate.set)
        job = world.get(identity, "done")
        rest = world.client.get(
            f"{JOBS}/{identity}/audio", params={"format": "wav"}, headers={"range": f"bytes={at - 7}-"}
        )
        assert rest.status_code == 206
        whole = world.client.get(f"{JOBS}/{identity}/audio", params={"format": "wav"}).content
        assert early.content + rest.content[7:] == whole
        samples = np.frombuffer(whole[whole.index(b"data") + 8 :], "<i2")
        assert len(samples) == round(job["audio_seconds"] * 24_000)
        odd = world.client.get(
            f"{JOBS}/{identity}/audio", params={"format": "wav"}, headers={"range": "bytes=100001-200000"}
        )
        assert odd.content == whole[100_001:200_001]


def test_a_job_goes_on_after_a_restart_and_nothing_is_spoken_twice(tmp_path: Path) -> None:
    held = FakeBackend(gate=Gate(pieces=4))
    with working(tmp_path / "jobs", held, segments=1) as world:
        identity = world.post(seed=3)["id"]
        until = time.monotonic() + 60
        while len(world.get(identity, times=True)["segments"]) < 3:  # their pieces are four
            assert time.monotonic() < until
        begun = [order.text for order in held.orders if order.text != "1"]  # that asks whether a language is known
    with working(tmp_path / "jobs", segments=1) as world:
        world.get(identity, "done")
        after = [order.text for order in world.speaker.orders if order.text != "1"]
        resumed = world.client.get(f"{JOBS}/{identity}/audio", params={"format": "wav"}).content
        assert begun[:-1]
        assert not set(begun[:-1]) & set(after)
    with working(tmp_path / "whole") as world:
        other = world.post(seed=3)["id"]
        world.get(other, "done")
        whole = world.client.get(f"{JOBS}/{other}/audio", params={"format": "wav"}).content
    assert resumed[resumed.index(b"data") :] == whole[whole.index(b"data") :]


def test_a_book_shows_its_chapters_before_some_are_chosen(tmp_path: Path) -> None:
    make_book(tmp_path / "book.epub", chars=3_000, chapters=3)
    content = (tmp_path / "book.epub").read_bytes()
    with working(tmp_path / "jobs") as world:
        files = {"file": ("book.epub", content, "application/epub+zip")}
        listed = world.client.post(JOBS, files=files, data={"list": "true"})
        assert (listed.status_code, listed.json()["title"]) == (200, "The Long Way")
        assert [one["number"] for one in listed.json()["chapters"]] == [1, 2, 3]
        assert world.client.get(JOBS).json()["data"] == []
        cast = json.dumps({"Ada": "anna"})
        made = world.client.post(JOBS, files=files, data={"chapters": "2", "cast": cast, "pause_heading": "0"})
        assert made.status_code == 201, made.text
        job = world.get(made.json()["id"], "done")
        assert [one["number"] for one in job["chapters"]] == [2]
        assert world.client.get(f"{JOBS}/{job['id']}/audio").headers["content-type"] == "audio/mp4"


def test_a_text_may_come_in_a_form_without_parts(tmp_path: Path) -> None:
    with working(tmp_path / "jobs") as world:
        listed = world.client.post(JOBS, data={"list": "yes", "input": TEXT})
        assert (listed.status_code, len(listed.json()["chapters"])) == (200, 2), listed.text
        fields = {"input": TEXT, "cast": json.dumps({"Anna": "anna"}), "chapters": "2", "response_format": "mp3"}
        made = world.client.post(JOBS, data=fields)
        assert made.status_code == 201, made.text
        assert [one["number"] for one in world.get(made.json()["id"], "done")["chapters"]] == [2]
        refused = world.client.post(JOBS, data={"list": "yes"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"chapters": "7"}, 400, "chapters: '7' is outside of 1 … 2"),
        ({"voice": "tom"}, 404, r"voice: 'tom' is not registered \(known: anna\)"),
        ({"cast": {"tom": "tom"}}, 404, "cast.tom: 'tom' is not registered"),
        ({"cast": {"a=b": "anna"}}, 400, "cast: 'a=b' is not a name"),
        ({"input": "[voice:tom] Hello."}, 400, "cast: .* is not in the cast .*; name a voice for 'tom'"),
        ({"input": "…"}, 400, "book: input has no text to speak"),
        ({"input": "\U0001f389"}, 400, "book: input has no text to speak; write at least one word"),
        ({"pause_scene": 61}, 400, "pause_scene: input should be less than or equal to 60"),
        ({"response_format": "wav"}, 400, "response_format: "),
        ({"input": "Some words. " * 100}, 400, "characters: the job has 1196, the limit is 1000"),
        ({"webhook": "https://example.org/"}, 400, r"webhook: this server calls no addresses \(jobs.webhooks is off\)"),
    ],
)
def test_errors_name_the_field_the_value_and_the_limit(
    tmp_path: Path, fields: dict[str, Any], status: int, words: str
) -> None:
    with working(tmp_path, max_characters=1_000) as world:
        message = world.post(status, **fields)["error"]["message"]
        assert re.search(words, message), message
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_book_is_called_by_the_client_s_name(tmp_path: Path) -> None:
    with working(tmp_path) as world:
        for name, content in (("my scan.pdf", b"%PDF-1.7 x"), ("empty.md", b" ")):
            answer = world.client.post(JOBS, files={"file": (name, content, "application/octet-stream")})
            assert answer.status_code == 400
            assert f"book: '{name}' " in answer.json()["error"]["message"]


def test_a_file_without_a_name_is_a_text(tmp_path: Path) -> None:
    with working(tmp_path) as world:
        made = world.client.post(JOBS, files={"file": (None, TEXT)})
        assert (made.status_code, len(made.json()["chapters"])) == (201, 2), made.text
        for part, fields, words in (
            ("\0", {}, "book: file is not text but a binary file"),
            (b"RIFF\xff", {}, "file: is not UTF-8 from byte 4 on; send UTF-8; a file needs a name"),
            (TEXT, {"input": TEXT}, "input: a file was sent as well"),
        ):
            refused = world.client.post(JOBS, files={"file": (None, part)}, data=fields)
            assert (refused.status_code, words in refused.text) == (400, True), refused.text


def test_a_missing_package_has_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bs4.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with working(tmp_path / "jobs") as world:
        answer = world.client.post(JOBS, files={"file": ("a.html", b"<p>Hello.</p>")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "missing_dependency")


def test_each_key_sees_its_own_jobs_and_has_its_own_limits(tmp_path: Path) -> None:
    file, one, other = tmp_path / "keys.toml", new_key(), new_key()
    add_key(file, new_entry(one, "one", jobs=1))
    add_key(file, new_entry(other, "other", job_characters=10))
    with working(tmp_path / "jobs", FakeBackend(gate=Gate(pieces=0)), KeyRing(file), one) as world:
        identity = world.post()["id"]
        refused = world.client.post(JOBS, json={"input": TEXT})
        assert refused.status_code == 429
        assert "jobs: 1 jobs of your key are kept, the limit is 1" in refused.json()["error"]["message"]
        world.client.headers["authorization"] = f"Bearer {other}"
        assert world.client.get(JOBS).json()["data"] == []
        for method, path in (("GET", ""), ("GET", "/audio"), ("DELETE", "")):
            assert world.client.request(method, f"{JOBS}/{identity}{path}").status_code == 404
        assert "characters: the job has" in world.post(400)["error"]["message"]
        world.client.headers["authorization"] = "Bearer wrong"
        assert world.client.get(JOBS).status_code == 401


def test_a_disk_has_a_limit(tmp_path: Path) -> None:
    with working(tmp_path, max_disk_gb=1e-6) as world:
        assert "disk: jobs may need 0.00 GB" in world.post(429)["error"]["message"]


def test_a_voice_that_is_gone_fails_the_job_and_says_where(tmp_path: Path) -> None:
    with working(tmp_path, FakeBackend(refuses_with=VoiceNotFound("voice: 'anna' is not registered"))) as world:
        identity = world.post(voice="anna")["id"]
        until = time.monotonic() + 60
        while (job := world.client.get(f"{JOBS}/{identity}").json())["status"] != "failed":
            assert time.monotonic() < until
        assert re.match(r"segment \d \(chapter \d, character \d+\) failed: voice: 'anna'", job["error"]["message"])


def test_without_the_setting_there_are_no_jobs() -> None:
    with serving(build_app, make_state) as server:
        assert httpx.get(f"{server.url}{JOBS}").status_code == 404


async def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    state, section = make_state(FakeBackend()), JobsSection(folder=tmp_path / "new" / "jobs")
    async with open_jobs(state.dispatcher, state.keys, section):
        with pytest.raises(InvalidRequest, match=r"jobs\.folder: .* is used by another server"):
            async with open_jobs(state.dispatcher, state.keys, section):
                pass
    async with open_jobs(state.dispatcher, state.keys, section):
        pass


def test_the_process_of_a_job_ends_without_a_word_while_the_server_is_there() -> None:
    code = (
        "import sys, threading, time; from vivavoce_books.jobs import worker\n"
        "def work(folder, server):\n"
        "    threading.Thread(target=server.listen, daemon=True).start()\n"
        "    time.sleep(0.2)\n"
        "worker.WORK['work'] = work; sys.argv = ['worker', 'work', '.']; sys.exit(worker.main())"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
