"""A load on a gRPC server: what is sent, what comes of it, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("tritonclient.grpc", reason="needs the extra triton-client")

from fake_triton import CHUNKS, WAIT_S, FakeTriton, serving

from vivavoce.clients.triton.audio import read_reference
from vivavoce.clients.triton.failures import ServerUnreachable
from vivavoce.clients.triton.load import measure
from vivavoce.clients.triton.options import LoadOptions, Mode
from vivavoce.clients.triton.report import Report
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.errors import InvalidRequest, ModelNotFound

RECORDING = Path(__file__).parents[1] / "data" / "audio" / "speech_24k_float.wav"
WHOLE = np.concatenate(CHUNKS)


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    with serving(FakeTriton()) as fake:
        yield fake


def options(server: FakeTriton, *texts: str, **others: object) -> LoadOptions:
    utterances = [Utterance(f"u{number}", text) for number, text in enumerate(texts)]
    return LoadOptions(server.address, utterances, timeout_s=WAIT_S, **others)  # type: ignore[arg-type]


def problems(report: Report) -> list[str]:
    return [outcome.problem for outcome in report.outcomes]


def test_everything_that_is_asked_for_is_sent(server: FakeTriton) -> None:
    utterance = Utterance("a", "你好", RECORDING, "its words")
    asyncio.run(measure(LoadOptions(server.address, [utterance], manner=Manner(seed=-5, speed=1.5))))
    (seen,) = server.seen
    reference = read_reference(RECORDING)
    assert (seen["target_text"], seen["reference_text"]) == ("你好", "its words")
    np.testing.assert_array_equal(seen["reference_wav"], reference[None])
    assert (seen["reference_wav_len"].tolist(), seen["seed"].tolist()) == ([[len(reference)]], [[-5]])
    assert seen["speed"].tolist() == [[1.5]]


def test_with_the_servers_speaker_no_recording_is_sent(server: FakeTriton) -> None:
    utterance = Utterance("a", "hello", RECORDING, "its words")
    asyncio.run(measure(LoadOptions(server.address, [utterance], use_spk2info_cache=True)))
    assert server.seen == [{"id": "a-0", "target_text": "hello"}]


def test_chunks_are_joined_and_kept(server: FakeTriton, tmp_path: Path) -> None:
    report = asyncio.run(measure(options(server, "one", "two", folder=tmp_path / "new"), keep_samples=True))
    assert problems(report) == ["", ""]
    for outcome in report.outcomes:
        assert outcome.file == tmp_path / "new" / f"{outcome.name}.wav"
        samples, rate = soundfile.read(outcome.file, dtype="float32")
        assert rate == 24_000
        np.testing.assert_allclose(samples, WHOLE, atol=1e-4)
        np.testing.assert_array_equal(outcome.samples, WHOLE)
        assert [arrival.num_samples for arrival in outcome.arrivals] == [1200, 1200, 600]
        assert outcome.audio_s == pytest.approx(len(WHOLE) / 24_000)


def test_overlaps_are_counted_once(server: FakeTriton) -> None:
    report = asyncio.run(measure(options(server, "one", chunk_overlap_s=0.01), keep_samples=True))
    (outcome,) = report.outcomes
    assert [arrival.num_samples for arrival in outcome.arrivals] == [1200, 960, 360]
    assert outcome.samples is not None
    assert len(outcome.samples) == 2520


def test_an_offline_model_is_asked_once_and_may_have_no_batches(tmp_path: Path) -> None:
    with serving(FakeTriton(decoupled=False, batched=False, sample_rate="22050")) as server:
        report = asyncio.run(measure(options(server, "one", "bad", mode=Mode.OFFLINE, folder=tmp_path)))
    good, bad = report.outcomes
    assert (good.problem, len(good.arrivals), good.sample_rate) == ("", 1, 22_050)
    assert soundfile.info(tmp_path / "u0.wav").samplerate == 22_050
    assert bad.problem == "server: target_text: bad; say something else"
    assert report.keys()["second_chunk_ms_avg"] is None


def test_a_streaming_model_is_not_asked_offline(server: FakeTriton) -> None:
    with pytest.raises(InvalidRequest, match="answers in chunks; ask with --mode streaming"):
        asyncio.run(measure(options(server, "one", mode=Mode.OFFLINE)))
    assert server.seen == []


def test_tasks_ask_at_the_same_time(server: FakeTriton) -> None:
    report = asyncio.run(measure(options(server, "together", num_tasks=3)))
    assert problems(report) == ["", "", ""]


def test_one_failure_ends_no_other(server: FakeTriton, tmp_path: Path) -> None:
    texts = ("one", "late", "cut", "empty", "nan", "mute", "two")
    report = asyncio.run(measure(options(server, *texts, folder=tmp_path)))
    assert problems(report) == [
        "",
        "server: target_text: late; say something else",
        "server: the stream ended before its final response",
        "no audio came",
        "server: the model 'cosyvoice2' gave audio with numbers that are not finite; see its log",
        "server: the model 'cosyvoice2' answered without a waveform of floats; see its log",
        "",
    ]
    assert report.failed == 5
    assert [path.name for path in sorted(tmp_path.glob("*.wav"))] == ["u0.wav", "u6.wav"]
    late = report.outcomes[1]
    assert len(late.arrivals) == 1
    assert report.keys()["first_chunk_ms_n"] == 2, "what failed has no latency"


def test_a_recording_that_cannot_be_read_fails_its_request_alone(server: FakeTriton, tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no audio")
    utterances = [Utterance("a", "one", bad), Utterance("b", "two", RECORDING)]
    report = asyncio.run(measure(LoadOptions(server.address, utterances)))
    assert [outcome.ok for outcome in report.outcomes] == [False, True]
    assert "give a wav, flac, ogg or mp3" in report.outcomes[0].problem


def test_who_waits_too_long_leaves_and_says_so(server: FakeTriton) -> None:
    asked = replace(options(server, "slow"), timeout_s=2.0)
    report = asyncio.run(measure(asked))
    assert problems(report) == [
        f"timeout: no whole answer from {server.address} within 2 s; allow more, or see what keeps it busy"
    ]
    assert server.cancelled.wait(WAIT_S)


def test_cancelling_ends_the_request_on_the_server(server: FakeTriton) -> None:
    async def leave() -> None:
        task = asyncio.create_task(measure(options(server, "slow", num_tasks=2)))
        assert await asyncio.to_thread(server.started.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert server.cancelled.wait(WAIT_S)


def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ServerUnreachable, match=f"server: {address} is not available"):
        asyncio.run(measure(LoadOptions(address, [Utterance("a", "one")])))


def test_a_model_that_is_not_served(server: FakeTriton) -> None:
    with pytest.raises(ModelNotFound, match=r"does not serve 'other' \(Request for unknown model"):
        asyncio.run(measure(options(server, "one", model="other")))


def test_an_input_that_the_model_lacks_is_refused_before_the_load(server: FakeTriton) -> None:
    with pytest.raises(InvalidRequest, match="voice: the model 'cosyvoice2' takes reference_text, "):
        asyncio.run(measure(options(server, "one", manner=Manner(voice="anna"))))
    assert server.seen == []


def test_statistics_are_those_of_the_measured_requests(server: FakeTriton) -> None:
    report = asyncio.run(measure(options(server, "one", "two", warmup=3, num_tasks=2)))
    assert len(server.seen) == 5
    ((key, busy),) = report.statistics.items()
    assert (key, busy.inferences, busy.queue.mean_ms) == (("busy", "2"), 2, 2.0)
    assert {size: batch.compute_infer.count for size, batch in busy.batches.items()} == {1: 2}


def test_the_list_is_said_again_under_names_of_its_own(server: FakeTriton, tmp_path: Path) -> None:
    shown: list[str] = []
    asked = options(server, "one", "two", requests=3, folder=tmp_path)
    report = asyncio.run(measure(asked, show=lambda outcome: shown.append(outcome.name)))
    assert [outcome.name for outcome in report.outcomes] == ["u0-000", "u1-000", "u0-001"] == shown
    assert {path.stem for path in tmp_path.iterdir()} == set(shown)


def test_the_report_is_written(server: FakeTriton, tmp_path: Path) -> None:
    report = asyncio.run(measure(options(server, "one", "late", "late"), keep_samples=True))
    scored = report.scored(lambda outcomes: {"wer_free": len(outcomes) / 4})
    assert all(outcome.samples is None for outcome in scored.outcomes)
    files = {path.name: path.read_text(encoding="utf-8") for path in scored.write(tmp_path / "log", "test")}
    assert set(files) == {"rtf-test.txt", "stats_summary-test.txt", "report-test.json", "requests-test.jsonl"}
    assert files["rtf-test.txt"].startswith("RTF: ")
    assert "wer_free: 0.25" in files["rtf-test.txt"]
    assert "busy (version 2): 3 inferences in 3 executions" in files["stats_summary-test.txt"]
    whole = json.loads(files["report-test.json"])
    assert (whole["figures"]["failed"], whole["figures"]["wer_free"], whole["settings"]["mode"]) == (
        2,
        0.25,
        "streaming",
    )
    assert whole["problems"] == ["2 of 3 requests failed: server: target_text: late; say something else"]
    lines = [json.loads(line) for line in files["requests-test.jsonl"].splitlines()]
    assert [line["problem"] is None for line in lines] == [True, False, False]
    assert [count for _, count in lines[0]["chunks"]] == [1200, 1200, 600]
