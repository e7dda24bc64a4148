"""A load over HTTP, against a server that is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from tests.cli.cli_harness import Run
from tests.server.fake_backend import RATE, FakeBackend, tone
from tests.server.http.serving import Served, make_state, serving
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.server.http.app import build_app
from vivavoce_bench import ClosedLoop, Ending, Outcome, Utterance, figures, run_load
from vivavoce_bench.targets import HttpTarget, Recorded, open_client


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(scope="module")
def server(backend: FakeBackend) -> Iterator[Served]:
    with serving(build_app, lambda: make_state(backend)) as served:
        yield served


def load(server: Served, utterances: list[Utterance], recorded: dict[str, Recorded] | None = None) -> list[Outcome]:
    async def drive() -> list[Outcome]:
        async with open_client(server.url, None) as client:
            return await run_load(HttpTarget(client, recorded or {}, fresh=True), utterances, ClosedLoop(2))

    return asyncio.run(drive())


def recording() -> bytes:
    made = BytesIO()
    soundfile.write(made, tone(200, 1), RATE, format="WAV")
    return made.getvalue()


def test_requests_are_heard_and_counted(server: Served) -> None:
    outcomes = load(server, [Utterance(number, "Hello there.", seed=number) for number in range(4)])
    found = figures(outcomes)
    assert (found["ok"], found["continuous_share"], found["brief_gaps_share"]) == (4, 1.0, 1.0)
    assert found["ttfb_ms_p95"] <= found["sound_ms_p95"]
    assert all(one.audio_s > 0 for one in outcomes)


def test_each_request_brings_a_recording_of_its_own(server: Served, backend: FakeBackend) -> None:
    before = len(backend.orders)
    outcomes = load(
        server, [Utterance(number, "Hello.", voice="me") for number in range(3)], {"me": Recorded(recording())}
    )
    assert [one.ending for one in outcomes] == [Ending.OK] * 3
    assert len({order.voice for order in backend.orders[before:]}) == 3


def test_an_unknown_voice_is_a_failure_that_says_why(server: Served) -> None:
    (outcome,) = load(server, [Utterance(0, "Hello.", voice="nemo")])
    assert outcome.ending is Ending.FAILED
    assert "404" in outcome.problem
    assert "nemo" in outcome.problem


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_an_altered_recording_keeps_its_level(subtype: str) -> None:
    file = BytesIO()
    soundfile.write(file, np.sin(np.arange(24_000) / 10) / 2, 24_000, format="WAV", subtype=subtype)
    samples, _ = soundfile.read(BytesIO(Recorded(file.getvalue()).altered(1)))
    assert 0.39 < np.abs(samples).max() < 0.51


def test_an_altered_recording_sounds_alike() -> None:
    one, other = (soundfile.read(BytesIO(Recorded(recording()).altered(number)))[0] for number in (1, 2))
    whole = tone(200, 1)
    for made in (one, other):
        assert 0 <= len(whole) - len(made) <= 0.05 * RATE
        assert 0.75 < np.abs(made).max() / np.abs(whole).max() <= 1.01
    assert len(one) != len(other)
    assert Recorded(recording()).altered(1) == Recorded(recording()).altered(1)


def test_bad_recordings_and_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidAudio, match="cannot be decoded"):
        Recorded(b"abc").altered(0)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Recorded.read(str(tmp_path / "none.wav"), "")
    with pytest.raises(InvalidRequest, match="is not an address"):
        open_client("127.0.0.1:8880", None)


def test_the_command_measures_a_server(server: Served, tmp_path: Path, run: Run) -> None:
    (tmp_path / "me.wav").write_bytes(recording())
    options = ["--url", server.url, "-n", "3", "--rate", "50", "--voice", str(tmp_path / "me.wav"), "--fresh-voice"]
    result = run("bench", *options, "--json", "-")
    found = json.loads(result.text)
    assert (result.code, found["ok"], found["url"]) == (0, 3, server.url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "http://localhost:1", "--tokens", "50"], "url: the server decides this; leave --tokens out"),
        (["--key", "vv_1"], "key: it is for a server; add --url"),
        (["--fresh-voice"], "fresh-voice: it needs a recording to alter; add --voice RECORDING"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str, run: Run) -> None:
    result = run("bench", *options)
    assert (result.code, message in result.err) == (2, True)


def test_a_server_may_name_the_time_of_the_next_try() -> None:
    def busy(_: httpx.Request) -> httpx.Response:
        return httpx.Response(503, headers={"retry-after": "Fri, 31 Dec 2027 23:59:59 GMT"})

    async def drive() -> list[Outcome]:
        async with httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(busy)) as client:
            return await run_load(HttpTarget(client, {}, fresh=False), [Utterance(0, "Hello.")], ClosedLoop(1))

    (outcome,) = asyncio.run(drive())
    assert (outcome.ending, outcome.retry_after_s) == (Ending.REFUSED, 1.0)
