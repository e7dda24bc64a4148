"""`vivavoce bench` around a model that is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vivavoce.checkpoint.folder import ModelCard
from vivavoce.doors.cli.main import main
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.precision import FlowLinear, LMWeights, Precision
from vivavoce.engine.request import AudioChunk, SamplingParams
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest, Overloaded, StageFailed

RATE = 24_000
DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")


@dataclass
class FakeVivavoce:
    """Speaks two chunks of 100 ms; `trouble` is raised instead, by the request's seed."""

    trouble: dict[int, Exception] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    loaded_with: dict[str, Any] = field(default_factory=dict)
    warmed_up: bool = False
    closed: bool = False
    card = ModelCard(name="fake")
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

    def speak(self, text: str, voice: Any, *, seed: int, sampling: SamplingParams) -> Any:
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
def tts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeVivavoce:
    fake = FakeVivavoce()

    def load(folder: Path, **settings: Any) -> FakeVivavoce:
        fake.loaded_with = settings
        return fake

    monkeypatch.setattr("vivavoce.doors.python.load", load)
    monkeypatch.setattr("sys.argv", ["vivavoce", "bench", "--text-file", "two words.txt"])
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    monkeypatch.delenv("VIVAVOCE_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def bench(tts: FakeVivavoce, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


Bench = Callable[..., tuple[int, str, str]]


def test_a_load_leaves_a_table_a_report_and_a_picture(tts: FakeVivavoce, bench: Bench) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    options = ("--requests", 6, "--concurrency", 3, "--warmup", 2, "--seed", 5, "--tokens", 50)
    code, out, err = bench(*options, "--json", "bench.json", "--plot", "bench.png")
    assert (code, err) == (0, "")
    for label in ("first audio (ms)", "between chunks (ms)", "RTF", "throughput", "underruns", "process memory"):
        assert label in out
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


def test_the_engine_is_loaded_as_asked(tts: FakeVivavoce, bench: Bench) -> None:
    bench(
        *("-n", 1, "--device", "cpu", "--dtype", "float16", "--admission", "refuse"),
        *("--memory", 16, "--kernels", "--deterministic", "--int8-lm", "--fp8-flow"),
    )
    settings = EngineSettings(
        admission=AdmissionMode.REFUSE,
        memory_bytes=16_000_000_000,
        kernels=True,
        deterministic=True,
        precision=Precision(LMWeights.INT8, FlowLinear.FP8),
    )
    wanted = {"device": "cpu", "dtype": "float16", "variant": None, "voices": None, "settings": settings}
    assert tts.loaded_with == wanted
    assert tts.warmed_up
    assert {call["voice"] for call in tts.calls} == {"anna"}, "the model's first"


def test_json_goes_to_stdout_alone(bench: Bench) -> None:
    code, out, err = bench("-n", 2, "--json", "-", "-q")
    assert (code, err) == (0, "")
    assert json.loads(out)["requests"] == 2


def test_texts_and_voices_are_those_given(tts: FakeVivavoce, bench: Bench) -> None:
    Path("texts.txt").write_text("one\n\ntwo words\nthree words here\n", encoding="utf-8")
    options = ("-n", 8, "--warmup", 0, "-v", "ben", "-v", "anna")
    assert bench(*options, "--text-file", "texts.txt", "--words", "2-3")[0] == 0
    assert {call["text"] for call in tts.calls} == {"two words", "three words here"}
    assert [call["voice"] for call in tts.calls] == ["ben", "anna"] * 4


def test_offline_asks_for_whole_utterances(tts: FakeVivavoce, bench: Bench) -> None:
    code, out, _ = bench("-n", 3, "--offline", "--json", "-")
    keys = json.loads(out)
    assert code == 0
    assert {call["policy"] for call in tts.calls} == {"offline"}
    assert (keys["chunks"], keys["policy"], keys["margin_ms_min"], keys["audio_s"]) == (3, None, None, 0.6)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (("--policy", "official"), ChunkPolicy.official()),
        (("--policy", "official", "--first-hop", 30), ChunkPolicy.official(first_hop=30)),
        (("--policy", "equal", "--first-hop", 30, "--lookahead", 1), ChunkPolicy.equal(hop=30, lookahead=1)),
        (("--policy", "time-based"), ChunkPolicy.time_based()),
        (("--lookahead", 0), ChunkPolicy.low_latency(lookahead=0)),
    ],
)
def test_a_policy_reaches_every_request(
    options: tuple[object, ...], policy: ChunkPolicy, tts: FakeVivavoce, bench: Bench
) -> None:
    assert bench("-n", 2, *options, "--json", "bench.json")[0] == 0
    assert {call["policy"] for call in tts.calls} == {policy}
    keys = json.loads(Path("bench.json").read_text(encoding="utf-8"))
    wanted = (policy.schedule.value, policy.first_hop, policy.max_hop, policy.lookahead)
    assert (keys["policy"], keys["first_hop"], keys["max_hop"], keys["lookahead"]) == wanted


def test_refusals_are_figures_and_failures_are_told(tts: FakeVivavoce, bench: Bench) -> None:
    tts.trouble = {1: Overloaded("full", retry_after_s=0.001)}
    code, out, err = bench("-n", 3, "--warmup", 0)
    assert (code, err) == (0, "")
    assert "2 of 3 spoken, 1 refused" in out
    tts.trouble = {2: StageFailed("flow: out of luck; try again")}
    code, out, err = bench("-n", 3, "--warmup", 0)
    assert code == 1
    assert "2 of 3 spoken, 1 failed" in out
    assert err == "1 requests failed, the first one (number 2) by StageFailed: flow: out of luck; try again\n"


def test_arrivals_come_at_a_rate(tts: FakeVivavoce, bench: Bench) -> None:
    code, out, _ = bench("-n", 5, "--rate", 1000, "--json", "-")
    assert code == 0
    assert (json.loads(out)["rate"], json.loads(out)["concurrency"], json.loads(out)["warmup"]) == (1000.0, None, 4)


def test_the_same_audio_is_listened_to(tts: FakeVivavoce, bench: Bench) -> None:
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    code, out, _ = bench("-n", 2, "--warmup", 0, "--words", "3-4", "--quality", "--json", "-")
    keys = json.loads(out)
    assert code == 0
    assert keys["wer_free"] >= 0.5, "noise is no speech"
    assert keys["speaker_similarity"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", 2, "--concurrency", 2), "rate: "),
        (("--rate", 0), "rate: 0.0 is outside of 0"),
        (("--concurrency", 0), "concurrency: 0 is outside of 1"),
        (("--words", "9-5"), "words: '9-5' is no range"),
        (("--words", "90-99"), "words: no text has 90 to 99 words"),
        (("--text-file", "nothing.txt"), "text_file: 'nothing.txt' cannot be read"),
        (("--tokens", 0), "exact_tokens: 0 is outside of 1"),
        (("--offline", "--policy", "official"), "offline: "),
        (("--quality", "--tokens", 5), "quality: "),
        (("--admission", "maybe"), "admission: 'maybe' is unknown"),
        (("--memory", "0"), "memory: 0 GB cannot be"),
        (("--no-kernels", "--deterministic"), "deterministic: needs kernels"),
        (("--no-kernels", "--fp8-flow"), "precision: eight bits need kernels"),
        (("--policy", "none"), "chunk policy: 'none' is unknown"),
        (("--json", "missing/bench.json"), "json: folder"),
        (("--plot", "missing/bench.png"), "plot: folder"),
        (("--seed", -1), "seed: -1"),
    ],
)
def test_mistakes_are_one_line_before_a_model_loads(
    arguments: tuple[object, ...], message: str, tts: FakeVivavoce, bench: Bench
) -> None:
    code, out, err = bench(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert tts.loaded_with == {}


def test_an_unknown_voice_is_refused_before_the_load(tts: FakeVivavoce, bench: Bench) -> None:
    code, _, err = bench("--voice", "clara")
    assert (code, err) == (2, "error: voice: 'clara' is not there; name another\n")
    assert tts.calls == []
    assert tts.closed


def test_help_has_examples(bench: Bench) -> None:
    code, out, _ = bench("--help")
    assert code == 0
    assert "vivavoce bench" in out.split("Examples:")[1]
    assert all(len(line) < 100 for line in out.splitlines())
