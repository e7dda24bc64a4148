"""Halves of a model, run one by one, give what the engine gives, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.cli_harness import AUDIO, Run
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import Conditioning, EngineRequest, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models
from vivavoce_bench import chunked as bench_chunked
from vivavoce_bench.batches import Job
from vivavoce_bench.chunked import ChunkedSpeech, Strategy, TokenSpeech, cuts, speak_chunked
from vivavoce_bench.halves import BenchToken2Wav

SETTINGS = EngineSettings(state_bytes=64 << 20)
TOKENS = tuple(range(100, 6500, 100))
"""64 of them."""


@pytest.fixture(scope="module")
def token2wav(models: Models) -> Iterator[BenchToken2Wav]:
    with closing(BenchToken2Wav(models, SETTINGS, streams=True)) as made:
        yield made


def speech(conditioning: Conditioning, tokens: tuple[int, ...] = TOKENS) -> TokenSpeech:
    return TokenSpeech("0001", tokens, conditioning, seed=5)


@pytest.mark.slow
def test_a_batch_is_as_each_alone(models: Models, conditioning: Conditioning, token2wav: BenchToken2Wav) -> None:
    said = [TOKENS, TOKENS[:20]]
    jobs = [Job(str(place), None, conditioning, 5) for place in range(2)]
    with closing(BenchToken2Wav(models, SETTINGS)) as without_state:
        together = without_state.waves(jobs, said)
    for samples, tokens in zip(together, said, strict=True):
        assert samples.dtype == np.float32
        assert len(samples) == 960 * len(tokens)
        np.testing.assert_allclose(samples, token2wav.whole(speech(conditioning, tokens)), atol=2e-2)


def test_chunks_are_those_of_the_engines_streams(conditioning: Conditioning, token2wav: BenchToken2Wav) -> None:
    segment = SegmentRequest(conditioning, speech_tokens=TOKENS, seed=5)
    expected = list(token2wav.engine.submit(EngineRequest((segment,), ChunkPolicy.equal(hop=25))))
    found = list(token2wav.chunks(speech(conditioning), cuts(len(TOKENS), 25, Strategy.EQUAL, 3)))
    assert [len(piece) for piece in found] == [len(piece.samples) for piece in expected]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate([one.samples for one in expected]), atol=1e-5)


@pytest.mark.slow
def test_no_voice_is_heard_for_the_first_time_while_it_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def watched(token2wav: BenchToken2Wav, *others: Any) -> ChunkedSpeech:
        before = token2wav.engine.statistics.prompt_cache_misses
        spoken = speak_chunked(token2wav, *others)
        computed.append(token2wav.engine.statistics.prompt_cache_misses - before)
        return spoken

    monkeypatch.setattr(bench_chunked, "speak_chunked", watched)
    voices = (AUDIO / name for name in ("speech_24k_float.wav", "speech_22k_int16.wav"))
    lines = "".join(f"{place}|Hello.|{voice}|Yes.\n" for place, voice in enumerate(voices))
    Path("meta.lst").write_text(lines, encoding="utf-8")
    assert run("bench streaming --manifest meta.lst --tokens 30 --json - --quiet").code == 0
    assert computed == [1, 0, 0], "the warm-up, then each speech"
