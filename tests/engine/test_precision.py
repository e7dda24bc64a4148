"""Eight bits run where they can, and are refused in one line where they cannot."""

from dataclasses import replace

import pytest
import torch

from vivavoce.doors.cli.model import EngineChoice
from vivavoce.engine import workshop
from vivavoce.engine.engine import Engine
from vivavoce.engine.flow_stage import FlowStage
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.lm_stage.choosing import repetition_aware
from vivavoce.engine.precision import FlowLinear, LMWeights, Precision, check_precision
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest

INT8, FP8 = Precision(lm_weights=LMWeights.INT8), Precision(flow_linear=FlowLinear.FP8)


@pytest.fixture
def on_a_gpu(models, monkeypatch):
    """Models that say that they are on a device of that capability."""

    def of(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        return replace(models, device=torch.device("cuda"), dtype=torch.float16)

    return of


def test_sixteen_bits_run_everywhere(models):
    check_precision(Precision(), models, kernels=False)


@pytest.mark.parametrize(("precision", "field"), [(INT8, "int8-lm"), (FP8, "fp8-flow")])
def test_without_kernels_they_are_refused(models, precision, field):
    with pytest.raises(InvalidRequest, match=f"^{field}: needs kernels of our own, .* cpu in float32; use"):
        Engine(models, EngineSettings(precision=precision))
    with pytest.raises(InvalidRequest, match="precision: eight bits need kernels"):
        EngineSettings(precision=precision, kernels=False)


def test_a_device_without_e4m3_is_refused(on_a_gpu):
    old = on_a_gpu((8, 0))
    with pytest.raises(InvalidRequest, match=r"fp8-flow: needs compute capability 8\.9 or higher, cuda has 8\.0"):
        check_precision(FP8, old, kernels=True)
    check_precision(INT8, old, kernels=True)
    check_precision(FP8, on_a_gpu((8, 9)), kernels=True)
    check_precision(FP8, on_a_gpu((10, 0)), kernels=True)


def test_stages_refuse_what_they_cannot(models):
    with pytest.raises(ValueError, match="int8: "):
        LMStage(models, slots=1, capacity=64, int8=True)
    with pytest.raises(ValueError, match="int8: "):
        LMStage(models, slots=1, capacity=64, int8=True, kernels=True, chooser=repetition_aware)
    with pytest.raises(ValueError, match="fp8: "):
        FlowStage(models, state_bytes=0, fp8=True)


@pytest.mark.parametrize("choice", [EngineChoice(), EngineChoice(int8_lm=True), EngineChoice(fp8_flow=True)])
def test_stages_are_made_as_chosen(models, monkeypatch, choice):
    made = {}
    for name in ("LMStage", "FlowStage", "VocoderStage"):
        monkeypatch.setattr(workshop, name, lambda *_, name=name, **asked: made.update({name: asked}))
    precision = choice.settings().precision
    memory = workshop.MemoryPlan(1, 64, 0, 1_024)
    workshop.Workshop(models, memory, kernels=True, deterministic=True, precision=precision, official=False,
                      chooser=None, source_noise=True)  # fmt: skip
    assert made["LMStage"]["int8"] is choice.int8_lm
    assert made["FlowStage"]["fp8"] is choice.fp8_flow
