"""TensorRT, as far as a fake of its documented interface tells."""

import shutil
import sys

import fake_tensorrt
import pytest
import torch

from tests.conftest import CPU
from tests.engine.flow_stage.flow_oracle import run, speech, voice
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.errors import CheckpointError, MissingDependency, StageFailed
from vivavoce.models.build import build_models
from vivavoce.models.flow.external import ExternalFlow
from vivavoce_export.network_files import export_part, part_of
from vivavoce_runtimes.estimators import OPTIONAL_ENDS, EstimatorInputs, ExportedEstimator
from vivavoce_runtimes.tensorrt import TensorRTEngine, find_engine, tensorrt_estimator

ONNX = "flow.decoder.estimator.fp32.onnx"


@pytest.fixture
def trt(monkeypatch):
    return fake_tensorrt.install(monkeypatch)


@pytest.fixture
def folder(exported, tmp_path):
    """With the ONNX file alone."""
    made = tmp_path / "model"
    shutil.copytree(exported("onnx", "v2"), made)
    return made


@pytest.fixture
def models(folder):
    return build_models(folder, CPU)


def estimator(folder, contexts=1, dtype=torch.float32):
    return tensorrt_estimator(find_engine(folder, CPU, dtype, trusted=False), CPU, contexts)


def engine_of(made):
    return made.run.__self__


@pytest.mark.slow
def test_an_engine_is_made_once_and_again_when_it_is_stale(folder, trt, records):
    path = find_engine(folder, CPU, torch.float16, trusted=False)
    assert path.name.startswith("flow.decoder.estimator.fp16.NVIDIA-H100-80GB-HBM3.trt10.9.0.34.b8.")
    assert find_engine(folder, CPU, torch.float16, trusted=False) == path
    assert trt.Builder.built == 1
    with (folder / ONNX).open("ab") as file:
        file.write(OPTIONAL_ENDS)
    assert find_engine(folder, CPU, torch.float16, trusted=False) != path
    assert find_engine(folder, CPU, torch.float32, trusted=False) != path
    assert trt.Builder.built == 3


def test_an_engine_of_someone_else_is_not_run(folder, trt, monkeypatch, tmp_path):
    path = find_engine(folder, CPU, torch.float32, trusted=False)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(CheckpointError, match=r"\.plan in .* holds code"):
        find_engine(folder, CPU, torch.float32, trusted=False)
    assert find_engine(folder, CPU, torch.float32, trusted=True) == path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_it_computes_what_pytorch_does(folder, models, trt, dtype):
    made = estimator(folder, contexts=2, dtype=dtype)
    for rows, frames in ((1, 4), (1, 40), (3, 25), (19, 12)):
        given = EstimatorInputs(*part_of(models, "estimator").inputs(rows, frames))
        atol = 1e-3 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(made(given) * given.mask, velocity(models, given), atol=atol, rtol=0)
    assert [context.runs for context in engine_of(made)._engine.contexts] == [2, 0, 1 + 2, 1], (
        "of one row, and of eight"
    )


def test_every_context_waits_for_the_batch_and_the_batch_for_it(folder, models, trt):
    made = estimator(folder, contexts=2)
    made(EstimatorInputs(*part_of(models, "estimator").inputs(16, 9)))
    current = torch.cuda.current_stream(CPU)
    streams = [stream for _, stream in engine_of(made)._lanes[8]]
    assert current.waited == streams
    assert all(stream.waited == [current] for stream in streams)


@pytest.mark.parametrize("frames", [3, 3_001])
def test_rows_of_other_lengths_than_the_engine_s_are_refused(folder, models, trt, frames):
    given = EstimatorInputs(*part_of(models, "estimator").inputs(1, frames))
    with pytest.raises(StageFailed, match=f"voice and text have {frames} mel frames, the engine takes 4 … 3000"):
        estimator(folder)(given)


def test_the_flow_is_the_same(folder, models, trt):
    stages = [
        FlowStage(models, state_bytes=0, external=one)
        for one in (ExternalFlow(ExportedEstimator(models.flow.estimator.out, estimator(folder, 2)), None), None)
    ]
    for attention in AttentionMode:
        made, wanted = (
            run(one, [FlowRow(one.open(voice(prompt)), speech(9), 9, attention) for prompt in (20, 0, 7)])
            for one in stages
        )
        for mel, own in zip(made, wanted, strict=True):
            torch.testing.assert_close(mel, own, atol=2e-3, rtol=0)


def test_an_official_engine_is_run_on_the_users_word(folder, models, trt):
    """It lacks our input, as TensorRT takes one with a value for a constant."""
    content = trt.Builder.build_serialized_network
    network, config = trt.Network(), trt.Config()
    assert trt.OnnxParser(network, trt.Logger(2)).parse((folder / ONNX).read_bytes())
    profile = trt.Profile()
    for name, (dims, fixed) in {"x": (80, 1), "mu": (80, 1), "cond": (80, 1), "mask": (1, 1)}.items():
        profile.set_shape(name, *((2, dims, frames) for frames in (4, 500, 3_000)[::fixed]))
    profile.set_shape("t", *[(2,)] * 3)
    profile.set_shape("spks", *[(2, 80)] * 3)
    config.add_optimization_profile(profile)
    official = folder / "flow.decoder.estimator.fp32.mygpu.plan"
    official.write_bytes(content(trt.Builder(None), network, config))
    (folder / ONNX).unlink()
    with pytest.raises(CheckpointError, match="holds code"):
        find_engine(folder, CPU, torch.float32, trusted=False)
    made = tensorrt_estimator(find_engine(folder, CPU, torch.float32, trusted=True), CPU, 1)
    given = EstimatorInputs(*part_of(models, "estimator").inputs(3, 20))
    whole = given._replace(attention_ends=given.attention_ends[:, -1:].expand(-1, 20))
    torch.testing.assert_close(made(given) * given.mask, velocity(models, whole), atol=1e-3, rtol=0)


def velocity(models, given):
    with torch.inference_mode():
        return part_of(models, "estimator").network(*given)


def test_the_command_s_engine_is_compared_with_pytorch(folder, models, trt, monkeypatch):
    path, error = export_part(part_of(models, "estimator"), "tensorrt", folder)
    assert path.is_file()
    assert error < 1e-4
    run_engine = TensorRTEngine.run
    monkeypatch.setattr(TensorRTEngine, "run", lambda made, given: run_engine(made, given) + 1)
    with pytest.raises(CheckpointError, match=r"\.plan: differs from PyTorch by .* nothing was written"):
        export_part(part_of(models, "estimator"), "tensorrt", folder)
    assert not path.exists()


def test_what_cannot_be_used_is_told(folder, trt, monkeypatch):
    path = find_engine(folder, CPU, torch.float32, trusted=False)
    path.write_bytes(b"of another GPU")
    with pytest.raises(CheckpointError, match=r"is not an engine of TensorRT 10\.9\.0\.34 for this GPU; remove it"):
        tensorrt_estimator(path, CPU, 1)
    monkeypatch.setattr(trt.Builder, "build_serialized_network", lambda *_: None)
    with pytest.raises(CheckpointError, match="could not build an engine"):
        find_engine(folder, CPU, torch.float32, trusted=False, anew=True)
    monkeypatch.setattr(trt.OnnxParser, "parse", lambda *_: False)
    with pytest.raises(CheckpointError, match="does not take the ONNX file"):
        find_engine(folder, CPU, torch.float32, trusted=False, anew=True)
    (folder / ONNX).write_bytes(b"\x3a\xff")
    with pytest.raises(CheckpointError, match="is not a usable ONNX model"):
        find_engine(folder, CPU, torch.float32, trusted=False)
    (folder / ONNX).unlink()
    with pytest.raises(CheckpointError, match=r"is missing in .* `vivavoce export onnx"):
        find_engine(folder, CPU, torch.float32, trusted=False)
    monkeypatch.setattr(trt, "__version__", "11.0.0")
    with pytest.raises(MissingDependency, match=r"tensorrt 11\.0\.0 is not supported; pip install 'tensorrt>=10,<11'"):
        find_engine(folder, CPU, torch.float32, trusted=False)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependency, match="needs the package tensorrt"):
        find_engine(folder, CPU, torch.float32, trusted=False)
