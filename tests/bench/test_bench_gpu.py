"""The GPU benchmark's counting, its report, and what it makes of a trace."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.counting import decode_bytes, estimator_flops, vocoder_flops
from benchmarks.gpu.report import GOALS, Goal, table
from benchmarks.gpu.trace import Span, busy_ns, summary
from vivavoce.checkpoint import babble, babble_weights
from vivavoce.checkpoint.babble_weights import RELEASE
from vivavoce.checkpoint.folder import read_config
from vivavoce.models.flow.unet import UNet
from vivavoce.models.vocoder.hift import HiFT


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of the release's sizes; the weights are not needed."""
    folder = tmp_path_factory.mktemp("release")
    (folder / "cosyvoice2.yaml").write_text(babble._settings(RELEASE), encoding="utf-8")
    babble._write_backbone(folder / "CosyVoice-BlankEN", RELEASE)
    return read_config(folder, [row.key for row in babble_weights._flow(RELEASE)])


def test_the_flow_s_arithmetic_is_counted(config):
    """282 GFLOP per second of audio: ten steps over 674 frames for 500 new ones, doubled by guidance."""
    with torch.device("meta"):
        estimator = UNet(config.flow.estimator)
    assert 10 * estimator_flops(estimator, 2, 674) / 10 == pytest.approx(282e9, rel=0.01)


def test_what_has_a_past_sees_more(config):
    with torch.device("meta"):
        estimator = UNet(config.flow.estimator)
    whole, first = estimator_flops(estimator, 1, 200), estimator_flops(estimator, 1, 100)
    assert first < estimator_flops(estimator, 1, 100, past=100) < whole - first


def test_a_decode_step_s_bytes_are_counted(config):
    """363.7 million weights and 12,288 bytes per position."""
    assert decode_bytes(config.lm, 1, 274, 2) == pytest.approx(731e6, rel=0.005)
    assert decode_bytes(config.lm, 256, 274, 2) == pytest.approx(1589e6, rel=0.005)


def test_the_vocoder_s_arithmetic_is_counted(config):
    with torch.device("meta"):
        vocoder = HiFT(config.vocoder)
    assert vocoder_flops(vocoder, 1.0) == pytest.approx(30.6e9, rel=0.02)


def test_the_table_says_what_was_reached():
    goal = Goal("speed", "speed", 600, 1000, lower=False)
    assert [goal.row({"speed": value})[-1] for value in (500.0, 600.0, 1000.0)] == ["missed", "target", "stretch"]
    assert Goal("time", "t", 50, 30).row({"t": 40.0})[-1] == "target"
    assert goal.row({})[-1] == "not measured"
    assert table({}).count("not measured") == len(GOALS)


def test_a_trace_is_summed_up():
    spans = [Span(0, 10, 1, "a"), Span(5, 20, 2, "b"), Span(30, 40, 1, "a")]
    assert busy_ns(spans) == 30
    found = summary(spans)
    assert found["idle_share"] == pytest.approx(0.25)
    assert found["busy_share_by_stream"] == {"1": pytest.approx(0.5), "2": pytest.approx(0.375)}
    assert [kernel["name"] for kernel in found["kernels"]] == ["a", "b"]
