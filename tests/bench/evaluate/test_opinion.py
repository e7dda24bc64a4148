"""Opinion scores come from the packages' own networks, at 16 kHz; without the packages a command says so."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.evaluate import Instruments, assess
from vivavoce_bench.evaluate import opinion as opinions_module
from vivavoce_bench.evaluate.cases import Case
from vivavoce_bench.evaluate.opinion import opinions
from vivavoce_bench.evaluate.report import report_rows
from vivavoce_bench.evaluate.speaking import Clip

TONE = np.sin(np.arange(24_000) / 20).astype(np.float32)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins that answer from the sound: its length in seconds, and its level."""
    distill, speech = ModuleType("distillmos"), ModuleType("speechmos")

    class Network(torch.nn.Module):
        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[samples.shape[1] / 16_000 + 2]])

    def run(samples: np.ndarray, sr: int) -> dict[str, Any]:
        assert sr == 16_000
        assert np.abs(samples).max() <= 1
        return {"ovrl_mos": 3.0, "p808_mos": 3.0 + float(np.abs(samples).max())}

    distill.ConvTransformerSQAModel = Network  # type: ignore[attr-defined]
    speech.dnsmos = ModuleType("dnsmos")  # type: ignore[attr-defined]
    speech.dnsmos.run = run  # type: ignore[attr-defined]
    for module in (distill, speech):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def clip(samples: np.ndarray) -> Clip:
    return Clip(Case("0001", "The cat."), "low", samples, 24_000)


def test_scores_are_of_sound_at_16_khz(packages: None) -> None:
    found = opinions(["distillmos", "dnsmos"])(3 * TONE, 24_000)
    assert found["mos_distill"] == pytest.approx(3.0, abs=1e-3)
    assert found == {"mos_distill": found["mos_distill"], "mos_dnsmos": 3.0, "mos_p808": 4.0}
    assert opinions(["dnsmos"])(TONE[:2_000], 24_000) == {}


def test_a_report_has_means_with_intervals(packages: None) -> None:
    judged = Instruments(judge=opinions(["distillmos"]))
    report = assess([clip(TONE), clip(np.tile(TONE, 2))], {}, judged)
    assert report.summary["mos_distill"] == pytest.approx(3.5, abs=1e-2)
    assert report.summary["mos_distill_low"] < 3.5 < report.summary["mos_distill_high"]
    assert [row["mos_distill"] for row in report.utterances] == pytest.approx([3.0, 4.0], abs=1e-2)
    assert "Distill-MOS" in [row[0] for row in report_rows(report)[1]]
    assert "mos_p808" not in report.summary


def test_an_unknown_judge_is_refused(packages: None) -> None:
    with pytest.raises(InvalidRequest, match="judges: 'ears' is unknown; choose from distillmos, dnsmos, or none"):
        opinions(["ears"])


def test_a_judge_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distillmos", None)
    with pytest.raises(MissingDependency, match="pip install distillmos, or leave it out"):
        opinions(["distillmos"])
    monkeypatch.setattr(opinions_module, "find_spec", lambda name: None if name == "distillmos" else object())
    assert opinions_module.installed() == ("dnsmos",)
