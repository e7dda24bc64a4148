"""The whole server as a user has it: a process of its own, the mini model, real clients, words that are understood."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection, connect

from tests.grpc_service.calling import METHOD, audio, request
from tests.server.http.serve_process import LATE_S, ServerProcess, serving_process
from tests.server.http.websocket_serving import CANCEL, END, PING, answered, audio_of, of_type, start, text
from vivavoce.clients.grpc import SpeechClient
from vivavoce_bench.evaluate import PocketSphinx, Recogniser, word_errors
from vivavoce_bench.evaluate.error_rate import words
from vivavoce_bench.evaluate.recogniser import as_floats, prepare
from vivavoce_bench.evaluate.sound import abruptness, abruptness_everywhere, join_clicks

pytest.importorskip("pocketsphinx", reason="needs the extra eval")

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[2]
SENTENCES = (TESTS.parent / "benchmarks" / "sentences" / "held_out.txt").read_text(encoding="utf-8").splitlines()[:16]
"""What the recogniser knows; none of them was in the training's corpus."""
SHORT = SENTENCES[4]
LONG = " ".join(SENTENCES[place] for place in (0, 3, 8, 10))
ENDLESS = " ".join(SENTENCES)
"""Longer than any test listens to it."""
UNHEARD = (TESTS / "data" / "mini" / "unheard.flac").read_bytes()
UNHEARD_TEXT = "The harbor was quiet before dawn, and the old boats moved slowly."
RATE = 24_000
MOST_WRONG_WORDS = 0.15
LONGEST_SILENCE_S = 0.75
ROUNDING = 0.005
"""Larger batches sum in another order; other tokens are another length or another wave."""
QUIET = 0.05
"""Of the whole's root mean square: below it a window of 20 ms is silent."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests of this file, of which the last ends it."""
    words = tmp_path_factory.mktemp("lexicons")
    (words / "all.tsv").write_text("Nguyen\twin\n", encoding="utf-8")
    flags = (
        "--lexicons",
        words,
        "--model",
        "mini",
        "--legacy",
        "--legacy-port",
        0,
        "--grpc-port",
        0,
        "--admission",
        "all",
    )
    with serving_process(tmp_path_factory.mktemp("serve"), *flags, VIVAVOCE_MODEL_WARM_UP_S=0) as process:
        yield process


@pytest.fixture(scope="module")
def ears() -> Recogniser:
    return PocketSphinx().closed([words(sentence) for sentence in SENTENCES])


@pytest.fixture(scope="module")
def long(server: ServerProcess) -> list[dict[str, Any]]:
    """The events of the long text."""
    answer = speak(server, LONG, stream_format="sse")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


def speak(server: ServerProcess, text: str = SHORT, **fields: Any) -> httpx.Response:
    wanted = {"input": text, "voice": "calm", "response_format": "pcm", "seed": 3, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=wanted, timeout=LATE_S)


def floats(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


def test_it_pauses_and_refuses_pauses_that_are_too_long(server: ServerProcess) -> None:
    paused = np.frombuffer(speak(server, "[pause 0.5s]Hi.[pause 0.25s]", reading="natural").content, np.int16)
    assert not paused[:12_000].any()
    assert not paused[-6_000:].any()
    assert paused[12_000:-6_000].any()
    refused = speak(server, "Hi [pause 60s]", reading="natural")
    assert refused.status_code == 400
    assert "60 s, the limit is 10 s" in refused.text


def differ(one: bytes, other: bytes) -> float:
    """The greatest difference of two samples; infinite if there are more of one."""
    return float(np.abs(floats(one) - floats(other)).max()) if len(one) == len(other) else np.inf


def wrong_words(ears: Recogniser, said: Sequence[tuple[str, np.ndarray]]) -> float:
    """The share of words that are not heard as they were written."""
    return word_errors([(text, ears.transcribe(as_floats(prepare(samples, RATE)))) for text, samples in said]).rate


def silences_s(samples: np.ndarray) -> list[float]:
    """How long each silence within lasts."""
    window = RATE // 50
    windows = samples[: len(samples) // window * window].reshape(-1, window)
    loud = np.flatnonzero(np.sqrt((windows**2).mean(axis=1)) > QUIET * np.sqrt((samples**2).mean()))
    return [float(gap - 1) * window / RATE for gap in np.diff(loud)]


def pieces_of(events: Sequence[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(one["audio"]) for one in events if one["type"] == "speech.audio.delta"]


def figure(server: ServerProcess, name: str) -> float:
    match = re.search(rf"^{name} (\S+)$", httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def verdict(server: ServerProcess, identity: str) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}/v1/audio/requests/{identity}").json())


def test_how_a_text_is_read_is_told(server: ServerProcess) -> None:
    def asked(**fields: Any) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/audio/normalize", json=fields, timeout=LATE_S)

    told = asked(input="Dr. Nguyen paid **$3.50**.", voice="calm").json()
    assert told["text"] == "Doctor win paid three dollars and fifty cents."
    assert {"start": 4, "end": 10, "written": "Nguyen", "spoken": "win", "rule": "lexicon"} in told["changes"]
    assert [one["written"] for one in told["changes"]] == ["Dr.", "Nguyen", "**", "$3.50", "**"]
    official = asked(input="$3.50", reading="official").json()
    changes = [{"start": 0, "end": 5, "written": "$3.50", "spoken": official["text"], "rule": "official"}]
    assert official == {"text": "three point five dollars", "changes": changes}
    assert asked(input="$3.50", reading="off").json() == {"text": "$3.50", "changes": []}
    for fields, code, status in (
        ({"input": "Hi.", "voice": "nobody"}, "voice_not_found", 404),
        ({"input": "你好"}, "invalid_text", 400),
        ({"input": "Hi.", "language": "zh"}, "invalid_request", 400),
        ({"input": "x" * 20_001}, "invalid_text", 400),
        ({"input": "Hi.", "seed": 1}, "invalid_request", 400),
    ):
        refused = asked(**fields)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


def test_the_openai_package_hears_words_in_every_format(server: ServerProcess, ears: Recogniser) -> None:
    said = []
    with closing(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)) as client:
        assert [model.id for model in client.models.list()] == ["mini"]
        for text, kind in zip(SENTENCES[6:9], ("wav", "mp3", "pcm"), strict=True):
            with client.audio.speech.with_streaming_response.create(
                model="tts-1", voice="calm", input=text, response_format=kind
            ) as answer:
                content = b"".join(answer.iter_bytes())
            if kind == "pcm":
                samples, rate = floats(content), RATE
            else:
                samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
            assert rate == RATE
            said.append((text, samples))
    assert wrong_words(ears, said) <= MOST_WRONG_WORDS


def test_a_long_text_streams_across_segments(long: list[dict[str, Any]], ears: Recogniser) -> None:
    events, samples = long, floats(b"".join(pieces_of(long)))
    places = (np.cumsum([len(piece) for piece in pieces_of(long)])[:-1] // 2).tolist()
    assert len(places) >= 4
    clicks = join_clicks(abruptness(samples, RATE, places), abruptness_everywhere(samples, RATE))
    assert clicks.joins_over <= 1, "the start of a sound may fall on a join"
    assert clicks.join_median_ratio is not None
    assert clicks.join_median_ratio < 2

    # What was heard before a segment is where it begins.
    heard, said = 0.0, []
    segments = [one for one in events if one["type"] == "speech.segment.done"]
    for event in events:
        if event["type"] == "speech.audio.delta":
            heard += len(base64.b64decode(event["audio"])) / 2 / RATE
        elif event["type"] in ("speech.segment", "speech.segment.done"):
            assert event["start" if event["type"] == "speech.segment" else "end"] == pytest.approx(heard, abs=1e-6)
    for segment in segments:
        text = LONG[segment["start_character"] : segment["end_character"]]
        said.append((text, samples[round(segment["start"] * RATE) : round(segment["end"] * RATE)]))
    assert "".join(text for text, _ in said) == LONG
    assert all(one["end"] == other["start"] for one, other in pairwise(segments))
    assert wrong_words(ears, said) <= MOST_WRONG_WORDS
    assert max(silences_s(samples)) < LONGEST_SILENCE_S

    told = events[-1]["verdict"]
    assert told["finish_reason"] == "stop"
    assert told["segments_spoken"] == told["segments_given"] == len(segments) >= 2
    assert told["audio_seconds"] == pytest.approx(len(samples) / RATE, abs=1e-6)


def test_a_seed_is_the_same_audio_alone_and_in_company(server: ServerProcess) -> None:
    alone = speak(server).content
    assert len(alone) > RATE
    assert speak(server).content == alone
    with ThreadPoolExecutor(4) as crowd:
        others = [crowd.submit(speak, server, text, seed=5) for text in SENTENCES[12:14]]
        same = [crowd.submit(speak, server) for _ in range(2)]
    assert [differ(one.result().content, alone) <= ROUNDING for one in (*same, *others)] == [True, True, False, False]


def test_a_recording_of_many_requests_is_extracted_once(server: ServerProcess) -> None:
    before = figure(server, "vivavoce_voices_extracted_total")

    def ask(number: int) -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/audio/speech",
            data={"input": "Hello.", "response_format": "pcm", "prompt_text": UNHEARD_TEXT, "seed": number},
            files={"prompt_audio": ("me.flac", UNHEARD)},
            timeout=LATE_S,
        )

    with ThreadPoolExecutor(10) as crowd:
        answers = list(crowd.map(ask, range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10
    assert all(answer.content for answer in answers)
    assert figure(server, "vivavoce_voices_extracted_total") == before + 1


def test_a_voice_and_the_server_survive_the_end_of_the_engine(server: ServerProcess) -> None:
    added = httpx.post(
        f"{server.url}/v1/audio/voices",
        data={"name": "friend", "transcript": UNHEARD_TEXT},
        files={"file": ("me.flac", UNHEARD)},
        timeout=LATE_S,
    )
    assert added.status_code == 201, added.text
    listed = httpx.get(f"{server.url}/v1/audio/voices").json()["data"]
    assert ("friend", "stored") in [(voice["name"], voice["kind"]) for voice in listed]
    assert [listed[0][key] for key in ("name", "kind", "language", "sex")] == ["warm", "built_in", "en", "female"]
    (calm,) = (one for one in httpx.get(f"{server.url}/v1/voices").json()["voices"] if one["name"] == "calm")
    assert calm["labels"] == {"language": "en", "gender": "male"}
    before = speak(server, voice="friend")
    assert before.status_code == 200

    engine, lines = server.engine_process, len(server.log.lines)
    wanted = {"input": ENDLESS, "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=wanted, timeout=LATE_S) as answer:
        identity = answer.headers["x-request-id"]
        pieces = answer.iter_bytes()
        assert next(pieces)
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    told = verdict(server, identity)
    assert (told["finish_reason"], told["error"]["code"]) == ("error", "engine_stopped")
    assert told["audio_seconds"] > 0
    assert told["segments_spoken"] < told["segments_given"]

    server.log.await_event("engine ended: its process .signal SIGKILL. is started again", lines)
    ready = httpx.get(f"{server.url}/health/ready")
    assert (ready.status_code, ready.json()["reason"]) == (503, "engine_stopped")
    refused = speak(server)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
    assert int(refused.headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/health/live").status_code == 200

    server.log.await_event("engine ready", lines)
    assert server.engine_process != engine
    assert httpx.get(f"{server.url}/health/ready").status_code == 200
    assert speak(server, voice="friend").content == before.content


def test_a_language_models_words_are_spoken_while_it_writes(server: ServerProcess) -> None:
    async def converse() -> None:
        async with connect(f"{server.url.replace('http', 'ws')}/v1/audio/stream") as client:
            await _spoken_while_written(client)
            await _interrupted(client)

    asyncio.run(asyncio.wait_for(converse(), LATE_S))


async def _spoken_while_written(client: ClientConnection) -> None:
    deltas = [text(delta) for delta in re.findall(r"\w+\W*", f"{SENTENCES[6]} {SENTENCES[7]}")]
    early = len(SENTENCES[6].split()) + 3
    replies = await answered(client, start(voice="calm"), *deltas[:early], until="binary")  # before the rest is written
    replies += await answered(client, *deltas[early:], END)
    assert replies[-1]["verdict"]["finish_reason"] == "stop"
    assert len(audio_of(replies)) / 2 / RATE == pytest.approx(replies[-1]["verdict"]["audio_seconds"])
    assert [one["segment"] for one in of_type(replies, "segment_done")] == [0, 1]


async def _interrupted(client: ClientConnection) -> None:
    await answered(client, start(text=ENDLESS), END, until="binary")
    assert (await answered(client, CANCEL, until="cancelled"))[-1]["audio_seconds"] > 0
    assert await answered(client, PING, until="pong") == [{"type": "pong"}], "audio after the end"


def test_cosyvoices_own_services_speak_the_same(server: ServerProcess) -> None:
    wanted = {"tts_text": "Hello.", "spk_id": "calm"}
    over_http = httpx.post(f"{server.legacy_url}/inference_sft", data=wanted, timeout=LATE_S)
    assert over_http.status_code == 200
    with grpc.insecure_channel(server.grpc_address) as channel:
        answers = channel.unary_stream(METHOD)(request("sft_request", **wanted), timeout=LATE_S)
        over_grpc = b"".join(audio(answer) for answer in answers)
    assert over_grpc == over_http.content
    assert len(over_grpc) > RATE // 2


def test_our_own_grpc_service_speaks_as_http_does(server: ServerProcess) -> None:
    """A text as a whole, and one that comes in pieces as over the WebSocket, with its marks."""
    how: dict[str, Any] = {"voice": "calm", "seed": 3}
    with SpeechClient(server.grpc_address) as client:
        assert "calm" in [voice.name for voice in client.voices()]
        whole = b"".join(client.speak(SHORT, **how))
        pieces = [f"{word} " for word in f"{SHORT} {SENTENCES[2]}".split()]
        coming = client.speak(pieces, **how)
        came = b"".join(coming)

    async def over_websocket() -> list[dict[str, Any]]:
        async with connect(server.url.replace("http", "ws") + "/v1/audio/stream") as socket:
            return await answered(socket, start(**how), *map(text, pieces), END)

    told = asyncio.run(over_websocket())
    assert differ(whole, speak(server).content) < ROUNDING
    assert differ(came, audio_of(told)) < ROUNDING
    marks = [(one.start_character, one.end_character, one.start, one.end) for one in coming.segments]
    keys = ("start_character", "end_character", "start", "end")
    assert marks == [tuple(one[key] for key in keys) for one in of_type(told, "segment_done")]
    assert coming.done.audio_seconds == told[-1]["verdict"]["audio_seconds"] == len(came) / 2 / RATE


def test_a_signal_lets_streams_finish_and_leaves_nothing(server: ServerProcess, long: list[dict[str, Any]]) -> None:
    """The last test: it ends the server."""
    wanted = {"input": LONG, "voice": "calm", "response_format": "pcm", "seed": 3}
    lines = len(server.log.lines)
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=wanted, timeout=LATE_S) as answer:
        pieces = answer.iter_bytes()
        content = next(pieces)
        server.terminate()
        server.log.await_event("stopping: ", lines)
        ready = httpx.get(f"{server.url}/health/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        assert speak(server).status_code == 503
        content += b"".join(pieces)
    assert content == b"".join(pieces_of(long))
    assert server.await_end() == 0
    assert server.log.broken == [], "every line is JSON"
    assert [line for line in server.log.lines if "traceback" in line] == []
