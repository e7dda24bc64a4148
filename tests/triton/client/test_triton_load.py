"""A load on a gRPC server: what is sent, what comes of it, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("tritonclient.grpc", reason="needs the extra triton-client")

from fake_triton import CHUNKS, WAIT_S, FakeTriton, serving

from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce_bench.measure import write_wav
from vivavoce_triton.client.load import join, measure
from vivavoce_triton.client.utterance import LoadMode, LoadOptions, Manner, Utterance
from vivavoce_triton.client.wire import ServerUnreachable, read_reference

RECORDING = Path(__file__).parents[2] / "data" / "audio" / "speech_24k_float.wav"
WHOLE = np.concatenate(CHUNKS)


@pytest.fixture
def server():
    with serving(FakeTriton()) as fake:
        yield fake


def options(server, *texts, **others):
    utterances = [
        text if isinstance(text, Utterance) else Utterance(f"u{number}", text) for number, text in enumerate(texts)
    ]
    return LoadOptions(server.address, utterances, **{"timeout_s": WAIT_S, **others})


def load(server, *texts, keep_samples=False, **others):
    """The report of a load of these texts or utterances."""
    return asyncio.run(measure(options(server, *texts, **others), keep_samples=keep_samples))


def problems(report):
    return [outcome.problem for outcome in report.outcomes]


def test_everything_that_is_asked_for_is_sent(server):
    load(server, Utterance("a", "你好", RECORDING, "its words"), manner=Manner(seed=-5, speed=1.5))
    (seen,) = server.seen
    reference = read_reference(RECORDING)
    assert (seen["target_text"], seen["reference_text"]) == ("你好", "its words")
    np.testing.assert_array_equal(seen["reference_wav"], reference[None])
    assert (seen["reference_wav_len"].tolist(), seen["seed"].tolist()) == ([[len(reference)]], [[-5]])
    assert seen["speed"].tolist() == [[1.5]]


def test_with_the_servers_speaker_no_recording_is_sent(server):
    load(server, Utterance("a", "hello", RECORDING, "its words"), use_spk2info_cache=True)
    assert server.seen == [{"id": "a-0", "target_text": "hello"}]


def test_chunks_are_joined_and_kept(server, tmp_path):
    report = load(server, "one", "two", folder=tmp_path / "new", keep_samples=True)
    assert problems(report) == ["", ""]
    for outcome in report.outcomes:
        assert outcome.file == tmp_path / "new" / f"{outcome.utterance.name}.wav"
        samples, rate = soundfile.read(outcome.file, dtype="float32")
        assert rate == 24_000
        np.testing.assert_allclose(samples, WHOLE, atol=1e-4)
        np.testing.assert_array_equal(outcome.samples, WHOLE)
        assert [arrival.num_samples for arrival in outcome.arrivals] == [1200, 1200, 600]
        assert outcome.audio_s == pytest.approx(len(WHOLE) / 24_000)


def test_overlaps_are_counted_once(server):
    (outcome,) = load(server, "one", chunk_overlap_s=0.01).outcomes
    assert [arrival.num_samples for arrival in outcome.arrivals] == [1200, 960, 360]


def test_an_offline_model_is_asked_once_and_may_have_no_batches(tmp_path):
    with serving(FakeTriton(decoupled=False, batched=False, sample_rate="22050")) as server:
        report = load(server, "one", "bad", mode=LoadMode.OFFLINE, folder=tmp_path)
    good, bad = report.outcomes
    assert (good.problem, len(good.arrivals), good.sample_rate) == ("", 1, 22_050)
    assert soundfile.info(tmp_path / "u0.wav").samplerate == 22_050
    assert bad.problem == "server: target_text: bad; say something else"
    assert report.keys()["second_chunk_ms_avg"] is None


def test_a_streaming_model_is_not_asked_offline(server):
    with pytest.raises(InvalidRequest, match="answers in chunks; ask with --mode streaming"):
        load(server, "one", mode=LoadMode.OFFLINE)
    assert server.seen == []


def test_tasks_ask_at_the_same_time(server):
    assert problems(load(server, "together", num_tasks=3)) == [""] * 3


def test_one_failure_ends_no_other(server, tmp_path):
    texts = ("one", "late", "cut", "empty", "nan", "mute", "two")
    report = load(server, *texts, folder=tmp_path)
    words = ("", "target_text: late", "before its final response", "no audio", "not finite", "without a waveform", "")
    assert all(word in problem for word, problem in zip(words, problems(report), strict=True))
    assert [outcome.ok for outcome in report.outcomes] == [True, *[False] * 5, True]
    assert [path.name for path in sorted(tmp_path.glob("*.wav"))] == ["u0.wav", "u6.wav"]
    late = report.outcomes[1]
    assert len(late.arrivals) == 1
    assert report.keys()["first_chunk_ms_n"] == 2, "what failed has no latency"


def test_a_recording_that_cannot_be_read_fails_its_request_alone(server, tmp_path):
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no audio")
    report = load(server, Utterance("a", "one", bad), Utterance("b", "two", RECORDING))
    assert [outcome.ok for outcome in report.outcomes] == [False, True]
    assert "give a whole wav, flac, mp3" in report.outcomes[0].problem


def test_who_waits_too_long_leaves_and_says_so(server):
    (problem,) = problems(load(server, "slow", timeout_s=2.0))
    assert problem.startswith(f"timeout: no whole answer from {server.address} within 2 s")
    assert server.cancelled.wait(WAIT_S)


def test_cancelling_ends_the_request_on_the_server(server):
    async def leave():
        task = asyncio.create_task(measure(options(server, "slow", num_tasks=2)))
        assert await asyncio.to_thread(server.started.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert server.cancelled.wait(WAIT_S)


def test_nobody_there():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ServerUnreachable, match=f"server: {address} is not available"):
        asyncio.run(measure(LoadOptions(address, [Utterance("a", "one")])))


def test_statistics_are_those_of_the_measured_requests(server):
    report = load(server, "one", "two", warmup=3, num_tasks=2)
    assert len(server.seen) == 5
    ((key, busy),) = report.statistics.items()
    assert (key, busy["inferences"], busy["all queue ns"]) == (("busy", "2"), 2, 4_000_000)
    assert (busy["1 compute_infer count"], busy["2 compute_infer count"]) == (2, 0)


def test_the_report_is_written(server, tmp_path):
    report = load(server, "one", "late", "late", keep_samples=True)
    scored = report.scored(lambda outcomes: {"wer_free": len(outcomes) / 4})
    assert all(one.samples is None for outcome in scored.outcomes for one in outcome.arrivals)
    files = {path.name: path.read_text(encoding="utf-8") for path in scored.write(tmp_path / "log", "test")}
    assert set(files) == {"rtf-test.txt", "stats_summary-test.txt", "report-test.json", "requests-test.jsonl"}
    assert files["rtf-test.txt"].startswith("RTF: ")
    assert "wer_free: 0.25" in files["rtf-test.txt"]
    assert "busy (version 2): 3 inferences in 3 executions" in files["stats_summary-test.txt"]
    whole = json.loads(files["report-test.json"])
    assert (whole["figures"]["failed"], whole["figures"]["wer_free"]) == (2, 0.25)
    assert whole["settings"]["mode"] == "streaming"
    assert whole["problems"][0].startswith("2 of 3 requests failed: server: target_text: late")
    lines = [json.loads(line) for line in files["requests-test.jsonl"].splitlines()]
    assert [line["problem"] is None for line in lines] == [True, False, False]
    assert [count for _, count in lines[0]["chunks"]] == [1200, 1200, 600]


chunk_lists = st.lists(
    arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 1, width=32, allow_subnormal=False)),
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(chunk_lists, st.integers(0, 50))
def test_what_is_added_sums_up(chunks, overlap):
    joined, added = join(chunks, overlap)
    assert len(joined) == sum(added)
    assert joined.dtype == np.float32
    assert not chunks or abs(joined).max() <= max(abs(chunk).max() for chunk in chunks) * (1 + 1e-6)


def test_repeated_samples_come_out_once():
    whole = np.sin(np.arange(200) / 7).astype(np.float32)
    joined, added = join([whole[:80], whole[60:140], whole[120:]], 20)
    np.testing.assert_allclose(joined, whole, atol=1e-6)
    assert added == (80, 60, 60)


def test_a_reference_is_mono_at_16_khz(tmp_path):
    stereo = np.stack([np.full(4800, 0.5), np.full(4800, -0.1)], axis=1)
    soundfile.write(tmp_path / "a.wav", stereo, 48_000, subtype="FLOAT")
    samples = read_reference(tmp_path / "a.wav")
    assert (samples.dtype, samples.shape) == (np.float32, (1600,))
    np.testing.assert_allclose(samples[400:1200], 0.2, atol=1e-3)
    np.testing.assert_array_equal(read_reference((tmp_path / "a.wav").read_bytes()), samples)


def test_recordings_that_are_none(tmp_path):
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.array([np.nan]), 16_000, subtype="FLOAT")
    for source in (tmp_path / "none.wav", tmp_path, b"no audio", tmp_path / "empty.wav", tmp_path / "nan.wav"):
        with pytest.raises(InvalidAudio):
            read_reference(source)


def test_what_is_too_loud_is_clipped(tmp_path):
    write_wav(tmp_path / "out.audio", np.array([0, 2, -2], np.float32), 22_050)
    samples, rate = soundfile.read(tmp_path / "out.audio", dtype="int16")
    assert (samples.tolist(), rate) == ([0, 32767, -32768], 22_050)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write_wav(tmp_path / "none" / "a.wav", np.zeros(1, np.float32), 24_000)
