"""The stages without an engine give what the engine gives, whole and in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_harness import AUDIO, Run

from vivavoce.bench.chunking import Cut, Strategy, cuts
from vivavoce.bench.offline import Job, Prompt
from vivavoce.bench.streaming import Speech, Streamed, stream
from vivavoce.doors.cli import bench_streaming_run
from vivavoce.doors.cli.bench_token2wav import StageToken2Wav, _Overlapped
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import Conditioning, SpeechRequest, SynthesisRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models

SETTINGS = EngineSettings(state_bytes=64 << 20)
TOKENS = tuple(range(100, 6500, 100))
"""64 of them."""


@pytest.fixture(scope="module")
def chunked(models: Models) -> StageToken2Wav:
    return StageToken2Wav(models, SETTINGS, streams=True)


def speech(conditioning: Conditioning, tokens: tuple[int, ...] = TOKENS) -> Speech:
    return Speech("0001", tokens, conditioning, seed=5)


def engine_audio(models: Models, conditioning: Conditioning, policy: ChunkPolicy | None) -> list[np.ndarray]:
    request = SynthesisRequest(conditioning, speech_tokens=TOKENS, seed=5)
    with Engine(models, SETTINGS) as engine:
        return [chunk.samples for chunk in engine.submit(SpeechRequest((request,), policy))]


def test_whole_speech_is_the_engines(models: Models, conditioning: Conditioning, chunked: StageToken2Wav) -> None:
    (expected,) = engine_audio(models, conditioning, None)
    np.testing.assert_allclose(chunked.whole(speech(conditioning)), expected, atol=1e-5)


def test_a_batch_is_as_each_alone(models: Models, conditioning: Conditioning) -> None:
    token2wav = StageToken2Wav(models, SETTINGS)
    said = [TOKENS, TOKENS[:20]]
    jobs = [Job(str(place), Prompt((), seed=5, most=1), conditioning) for place in range(2)]
    together = token2wav.waves(jobs, said)
    for samples, tokens in zip(together, said, strict=True):
        assert samples.dtype == np.float32
        assert len(samples) == 960 * len(tokens)
        np.testing.assert_allclose(samples, token2wav.whole(speech(conditioning, tokens)), atol=2e-2)


def test_chunks_are_those_of_the_engines_streams(
    models: Models, conditioning: Conditioning, chunked: StageToken2Wav
) -> None:
    expected = engine_audio(models, conditioning, ChunkPolicy.equal(hop=25))
    found = list(chunked.chunks(speech(conditioning), cuts(len(TOKENS), 25, Strategy.EQUAL, 3)))
    assert [len(piece) for piece in found] == [len(piece) for piece in expected]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-5)


def test_chunks_that_overlap_are_as_long_as_the_whole(models: Models, conditioning: Conditioning) -> None:
    token2wav = StageToken2Wav(models, SETTINGS, streams=True, overlap=3)
    found = list(token2wav.chunks(speech(conditioning), cuts(len(TOKENS), 20, Strategy.EXPONENTIAL, 3)))
    assert [len(piece) // 960 for piece in found] == [17, 40, 7], "each but the last keeps three tokens back"


def test_no_voice_is_heard_for_the_first_time_while_it_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def watched(token2wav: StageToken2Wav, *others: Any) -> Streamed:
        before = token2wav._flow.statistics().prompt_misses
        spoken = stream(token2wav, *others)
        computed.append(token2wav._flow.statistics().prompt_misses - before)
        return spoken

    monkeypatch.setattr(bench_streaming_run, "stream", watched)
    voices = (AUDIO / name for name in ("speech_24k_float.wav", "speech_22k_int16.wav"))
    lines = "".join(f"{place}|Hello.|{voice}|Yes.\n" for place, voice in enumerate(voices))
    Path("meta.lst").write_text(lines, encoding="utf-8")
    assert run("bench", "streaming", "--manifest", "meta.lst", "--tokens", 30, "--json", "-", "--quiet").code == 0
    assert computed == [1, 0, 0], "the warm-up, then each speech"


def test_places_are_given_back(models: Models, conditioning: Conditioning, chunked: StageToken2Wav) -> None:
    stream = chunked.chunks(speech(conditioning), [Cut(25, 28, False), Cut(39, 64, True)])
    next(stream)
    stream.close()
    assert chunked._flow.balanced()
    assert not chunked._flow._streams


def test_a_fade_between_equal_sounds_changes_nothing() -> None:
    sound = np.sin(np.arange(400) / 20).astype(np.float32)
    joiner = _Overlapped(frames=2, samples_per_frame=10)
    mel = torch.arange(40, dtype=torch.float32)[:, None]
    assert joiner.extended(mel[:20])[:, 0].tolist() == list(range(20))
    first = joiner.faded(sound[:200], final=False)
    assert joiner.extended(mel[20:])[:, 0].tolist() == list(range(18, 40)), "from what they share on"
    second = joiner.faded(sound[180:], final=True)
    assert len(first) == 180
    np.testing.assert_allclose(np.concatenate((first, second)), sound, atol=1e-6)
