"""`vivavoce bench` around a model that is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.cli_harness import Run
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import AudioChunk, SamplingParams
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest, Overloaded, StageFailed

RATE = 24_000
DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text(encoding="utf-8")


@dataclass
class FakeVivavoce:
    """Speaks two chunks of 100 ms; `trouble` is raised instead, by the request's seed."""

    trouble: dict[int, Exception] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    loaded_with: dict[str, Any] = field(default_factory=dict)
    warmed_up: bool = False
    closed: bool = False
    card = ModelCard(name="fake")
    generation = Generation.V2
    sample_rate = RATE
    device = torch.device("cpu")
    dtype = torch.float32

    def voices(self) -> list[str]:
        return ["anna", "ben"]

    def voice(self, voice: str | None = None, prompt_text: str = "") -> Any:
        if voice is not None and voice not in self.voices():
            raise InvalidRequest(f"voice: {voice!r} is not there; name another")
        return SimpleNamespace(name=voice or "anna", embedding=np.eye(2, dtype=np.float32)[0])

    def normalize(self, text: str) -> str:
        return text

    def embed(self, source: Any) -> Any:
        return np.eye(2, dtype=np.float32)[0]

    async def astream(
        self, text: str, voice: Any, *, policy: Any, seed: int, sampling: SamplingParams
    ) -> AsyncIterator[AudioChunk]:
        self._note(text, voice, seed, sampling, policy)
        for index in range(2):
            await asyncio.sleep(0)
            yield AudioChunk(self._samples(), RATE, index, index == 1)

    async def aspeak(self, text: str, voice: Any, *, seed: int, sampling: SamplingParams) -> Any:
        self._note(text, voice, seed, sampling, "offline")
        return SimpleNamespace(samples=np.concatenate([self._samples(), self._samples()]))

    def warm_up(self) -> None:
        self.warmed_up = True

    def close(self) -> None:
        self.closed = True

    def _note(self, text: str, voice: Any, seed: int, sampling: SamplingParams, policy: Any) -> None:
        self.calls.append({"text": text, "voice": voice.name, "seed": seed, "sampling": sampling, "policy": policy})
        if seed in self.trouble:
            raise self.trouble[seed]

    def _samples(self) -> np.ndarray:
        return np.random.default_rng(0).normal(0, 0.1, RATE // 10).astype(np.float32)


@pytest.fixture
def tts(monkeypatch: pytest.MonkeyPatch) -> FakeVivavoce:
    fake = FakeVivavoce()

    def load(folder: Path, **settings: Any) -> FakeVivavoce:
        fake.loaded_with = settings
        return fake

    monkeypatch.setattr("vivavoce.api.load", load)
    monkeypatch.setattr("sys.argv", ["vivavoce", "bench", "--text-file", "two words.txt"])
    return fake


def test_a_load_leaves_a_table_a_report_and_a_picture(run: Run, tts: FakeVivavoce) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    options = "--requests 6 --concurrency 3 --warmup 2 --seed 5 --tokens 50"
    result = run(f"bench {options} --json bench.json --plot bench.png")
    assert (result.code, result.err) == (0, "")
    for label in ("first audio (ms)", "between chunks (ms)", "RTF", "throughput", "underruns", "process memory"):
        assert label in result.text
    assert Path("bench.png").read_bytes().startswith(b"\x89PNG")
    keys = json.loads(Path("bench.json").read_text(encoding="utf-8"))
    expected = {
        "schema": "vivavoce-bench-1",
        "command": "vivavoce bench --text-file 'two words.txt'",
        "model": "fake",
        "requests": 6,
        "ok": 6,
        "failed": 0,
        "chunks": 12,
        "audio_s": 1.2,
        "concurrency": 3,
        "rate": None,
        "warmup": 2,
        "seed": 5,
        "tokens": 50,
        "offline": False,
        "policy": "low_latency",
        "first_hop": 15,
        "lookahead": 3,
        "admission": "queue",
        "device": "cpu",
        "dtype": "float32",
        "gpu_memory_bytes": None,
        "torch": torch.__version__,
    }
    assert {name: keys[name] for name in expected} == expected
    for name in ("ttfb_ms_p50", "gap_ms_p99", "rtf", "wall_s", "throughput_audio_s_per_s", "rss_bytes", "hardware"):
        assert keys[name], name
    undocumented = [name for name in keys if f"`{name}`" not in DOCUMENTATION]
    assert not undocumented
    assert len(tts.calls) == 8
    assert [call["seed"] for call in tts.calls] == [5, 6, *range(5, 11)], "the warm-up, then the load"
    assert {call["sampling"].exact_tokens for call in tts.calls} == {50}
    assert {call["policy"] for call in tts.calls} == {ChunkPolicy.low_latency()}
    assert tts.closed


def test_streams_of_cosyvoice_1_are_cut_as_officially(run: Run, tts: FakeVivavoce) -> None:
    tts.generation = Generation.V1
    assert run("bench -n 1 --warmup 0 --json bench.json").code == 0
    assert json.loads(Path("bench.json").read_text(encoding="utf-8"))["first_hop"] == 100
    assert {call["policy"] for call in tts.calls} == {ChunkPolicy.overlapping()}
    refused = run("bench -n 1 --warmup 0 --policy equal")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "CosyVoice 1 has no equal; use official" in refused.err


def test_the_engine_is_loaded_as_asked(run: Run, tts: FakeVivavoce) -> None:
    run("bench -n 1 --device cpu --dtype float16 --admission refuse --memory 16 --kernels --deterministic")
    settings = EngineSettings(
        admission=AdmissionMode.REFUSE, memory_bytes=16_000_000_000, kernels=True, deterministic=True
    )
    wanted = {"device": "cpu", "dtype": "float16", "variant": None, "voices": None, "settings": settings}
    assert tts.loaded_with == wanted
    assert tts.warmed_up
    run("bench -n 1 --lm-backend vllm --flow-backend tensorrt --trt-concurrent 3 --tp 2 --pp 4 --trust-model-code")
    assert tts.loaded_with["settings"] == EngineSettings(
        admission=AdmissionMode.QUEUE,
        lm_backend="vllm",
        flow_backend="tensorrt",
        trt_concurrent=3,
        tp=2,
        pp=4,
        trust_model_code=True,
    )
    assert {call["voice"] for call in tts.calls} == {"anna"}, "the model's first"


def test_texts_and_voices_are_those_given(run: Run, tts: FakeVivavoce) -> None:
    Path("texts.txt").write_text("one\n\ntwo words\nthree words here\n", encoding="utf-8")
    assert run("bench -n 8 --warmup 0 -v ben -v anna --text-file texts.txt --words 2-3").code == 0
    assert {call["text"] for call in tts.calls} == {"two words", "three words here"}
    assert [call["voice"] for call in tts.calls] == ["ben", "anna"] * 4


def test_offline_asks_for_whole_utterances(run: Run, tts: FakeVivavoce) -> None:
    result = run("bench -n 3 --offline --json - -q")
    keys = json.loads(result.text)
    assert (result.code, result.err) == (0, "")
    assert {call["policy"] for call in tts.calls} == {"offline"}
    assert (keys["chunks"], keys["policy"], keys["margin_ms_min"], keys["audio_s"]) == (3, None, None, 0.6)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ("--policy official", ChunkPolicy.official()),
        ("--policy official --first-hop 30", ChunkPolicy.official(first_hop=30)),
        ("--policy equal --first-hop 30 --lookahead 1", ChunkPolicy.equal(hop=30, lookahead=1)),
        ("--policy time-based", ChunkPolicy.time_based()),
        ("--lookahead 0", ChunkPolicy.low_latency(lookahead=0)),
    ],
)
def test_a_policy_reaches_every_request(options: str, policy: ChunkPolicy, run: Run, tts: FakeVivavoce) -> None:
    assert run(f"bench -n 2 {options} --json bench.json").code == 0
    assert {call["policy"] for call in tts.calls} == {policy}
    keys = json.loads(Path("bench.json").read_text(encoding="utf-8"))
    wanted = (policy.schedule.value, policy.first_hop, policy.max_hop, policy.lookahead)
    assert (keys["policy"], keys["first_hop"], keys["max_hop"], keys["lookahead"]) == wanted


def test_refusals_are_figures_and_failures_are_told(run: Run, tts: FakeVivavoce) -> None:
    tts.trouble = {1: Overloaded("full", retry_after_s=0.001)}
    result = run("bench -n 3 --warmup 0")
    assert (result.code, result.err) == (0, "")
    assert "2 of 3 spoken, 1 refused" in result.text
    tts.trouble = {2: StageFailed("flow: out of luck; try again")}
    result = run("bench -n 3 --warmup 0")
    assert result.code == 1
    assert "2 of 3 spoken, 1 failed" in result.text
    assert result.err == "1 requests failed, the first one (number 2) with StageFailed: flow: out of luck; try again\n"


@pytest.mark.slow
def test_the_same_audio_is_listened_to(run: Run, tts: FakeVivavoce) -> None:
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    result = run("bench -n 2 --warmup 0 --words 3-4 --quality --json -")
    keys = json.loads(result.text)
    assert result.code == 0
    assert keys["wer_free"] >= 0.5, "noise is no speech"
    assert keys["speaker_similarity"] == 1.0


def test_an_unknown_voice_is_refused_before_the_load(run: Run, tts: FakeVivavoce) -> None:
    assert run("bench --voice clara").error == "error: voice: 'clara' is not there; name another\n"
    assert tts.calls == []
    assert tts.closed
