"""Texts in batches by the clock, and what is made of it: everything behind the protocols is fake."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from vivavoce.bench import json_file
from vivavoce.bench.offline import Figures, Job, Prompt, Rig, Samples, Sampling, measure
from vivavoce.bench.offline_report import HEADER, OfflineReport, draw
from vivavoce.errors import InvalidRequest, StageFailed


class Clock:
    """Stands still but for what the fakes take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeModel:
    """Ten tokens for each prompt, a second for each batch; the first batch takes a hundred."""

    clock: Clock
    sampling: str = "as it likes"
    batches: list[list[int]] = field(default_factory=list)

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        self.clock.now += 1.0 if self.batches else 100.0
        self.batches.append([prompt.seed for prompt in prompts])
        return [[0] * prompt.most for prompt in prompts]

    def close(self) -> None:
        raise AssertionError("whoever opened it closes it")


@dataclass
class FakeToken2Wav:
    """100 samples a token, half a second a batch."""

    clock: Clock
    sample_rate: int = 1000
    batches: list[list[str]] = field(default_factory=list)

    def waves(self, jobs: Sequence[Job], tokens: Sequence[Sequence[int]]) -> list[Samples]:
        self.clock.now += 0.5
        self.batches.append([job.id for job in jobs])
        return [np.full(100 * len(one), 0.5, np.float32) for one in tokens]


def jobs(number: int, most: int = 10) -> list[Job]:
    return [Job(f"text{place}", Prompt((1, 2), seed=place, most=most), None) for place in range(number)]


def figures(**changed: float | str) -> Figures:
    values = {
        "backend": "torch",
        "sampling": "as it likes",
        "batch_size": 4,
        "token2wav_batch_size": 2,
        "texts": 5,
        "tokens": 50,
        "audio_s": 5.0,
        "llm_time_seconds": 2.0,
        "token2wav_time_seconds": 1.5,
    }
    return Figures(**{**values, **changed})  # type: ignore[arg-type]


def test_batches_are_timed_after_one_that_warms_up() -> None:
    clock = Clock()
    model, token2wav = FakeModel(clock), FakeToken2Wav(clock)
    kept: list[tuple[int, str, int]] = []
    rig = Rig("torch", model, token2wav, lambda size, job, samples: kept.append((size, job.id, len(samples))), clock)
    assert measure(rig, jobs(5), 4, 2) == figures()
    assert model.batches == [[0, 1, 2, 3], [0, 1, 2, 3], [4]], "the first batch twice"
    assert [len(batch) for batch in token2wav.batches] == [2, 2, 2, 2, 1]
    assert kept == [(4, f"text{place}", 1000) for place in range(5)], "the warm-up leaves nothing"


def test_the_second_half_starts_when_the_first_has_ended() -> None:
    clock = Clock()
    found = measure(Rig("torch", FakeModel(clock), FakeToken2Wav(clock), clock=clock), jobs(3), 1, 1)
    assert (found.llm_time_seconds, found.token2wav_time_seconds, found.total_time_seconds) == (3.0, 1.5, 4.5)
    assert found.rtf == 1.5
    assert found.tokens_per_s == 10.0


def test_a_text_without_speech_is_told() -> None:
    clock = Clock()
    with pytest.raises(StageFailed, match="backend: torch gave no speech for text text0"):
        measure(Rig("torch", FakeModel(clock), FakeToken2Wav(clock), clock=clock), jobs(1, most=0), 1, 1)


def test_sampling_says_what_it_is() -> None:
    assert Sampling().describe() == "top_p 0.95, top_k 50, temperature 0.8, repetition_penalty 1.1"


def test_a_report_has_a_row_and_keys_for_each_run() -> None:
    report = OfflineReport({"model": "fake", "ratio": 1 / 3}, [figures(), figures(batch_size=1)])
    rows = report.rows()
    assert dict(zip(HEADER, rows[0], strict=True)) == {
        "backend": "torch",
        "batch": "4",
        "texts": "5",
        "tokens": "50",
        "audio s": "5.0",
        "LLM s": "2.00",
        "token2wav s": "1.50",
        "total s": "3.50",
        "RTF": "0.700",
        "tokens/s": "25",
    }
    keys = report.to_json()
    assert (keys["schema"], keys["model"], keys["ratio"]) == ("vivavoce-bench-offline-1", "fake", 0.333333)
    assert [run["batch_size"] for run in keys["runs"]] == [4, 1]
    assert keys["runs"][0]["total_time_seconds"] == 3.5


def test_json_is_written_or_the_place_is_named(tmp_path: Path) -> None:
    json_file.save({"a": 1}, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": 1}
    with pytest.raises(InvalidRequest, match="json: "):
        json_file.save({"a": 1}, tmp_path / "missing" / "a.json")


def test_a_picture_shows_all_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    sizes = count(1)
    draw([figures(batch_size=next(sizes), backend=name) for name in ("torch", "torch", "hf")], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
