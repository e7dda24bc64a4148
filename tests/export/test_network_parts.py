"""The parts that no backend runs: files that are compared with PyTorch when they are made."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from tests.conftest import CPU
from vivavoce.errors import CheckpointError, InvalidRequest, StageFailed
from vivavoce.models.build import build_models
from vivavoce_export import network_files
from vivavoce_export.network_files import ONNX_BYTES, PARTS, check_run, export_part, part_of

NEEDS_ONNX = pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="needs onnxscript: pip install 'vivavoce[onnx]'"
)


@NEEDS_ONNX
@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("generation", ["v2", "v3"])
def test_onnx(babble, babble_v3, tmp_path, generation, part, dtype):
    if (generation, part) == ("v3", "encoder"):
        pytest.skip("CosyVoice3 has no encoder of its own")
    models = build_models({"v2": babble, "v3": babble_v3}[generation], CPU, dtype)
    path, error = export_part(part_of(models, part), "onnx", tmp_path)
    assert [path] == list(tmp_path.iterdir())
    assert error < 3e-2


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_is_tried_with_tells_right_from_wrong(models, part):
    one = part_of(models, part)
    assert check_run(one, one.network, "it") == 0
    given = one.inputs(2, 37)

    def wrong(*inputs):
        outputs = one.network(*inputs)
        return outputs * 1.1 if isinstance(outputs, torch.Tensor) else (outputs[0] * 1.1, *outputs[1:])

    assert all(torch.equal(a, b) for a, b in zip(given, one.inputs(2, 37), strict=True)), "the same inputs each time"
    with pytest.raises(CheckpointError, match="it: differs from PyTorch by nan"):
        check_run(one, lambda *inputs: tuple(output * torch.nan for output in tuple_of(one.network(*inputs))), "it")
    with pytest.raises(CheckpointError, match=f"it: differs from PyTorch by .* at {one.shapes[0][0]} × "):
        check_run(one, wrong, "it")


def tuple_of(outputs):
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs


def test_cosyvoice3_has_no_encoder_and_cosyvoice_1_nothing(models_v3, models_v1):
    with pytest.raises(InvalidRequest, match="CosyVoice3 has no encoder"):
        part_of(models_v3, "encoder")
    with pytest.raises(InvalidRequest, match="CosyVoice 1's networks are not exported"):
        part_of(models_v1, "estimator")


def test_a_network_too_large_for_a_file_is_refused_at_once(models, tmp_path):
    with torch.device("meta"):
        large = torch.nn.Linear(ONNX_BYTES // 4, 1)
    with pytest.raises(InvalidRequest, match=r"bytes are more than the .* of an ONNX file; use fp16"):
        export_part(replace(part_of(models, "estimator"), network=large), "onnx", tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_torch_cannot_export_is_one_line_and_leaves_nothing(models, tmp_path, monkeypatch):
    def fails(part, path):
        path.write_bytes(b"half")
        raise RuntimeError("guard\n  not met")

    monkeypatch.setitem(network_files._WRITERS, "jit", fails)
    with pytest.raises(StageFailed, match=r"torch .* cannot write flow\.decoder\S+ \(guard not met\); try another"):
        export_part(part_of(models, "estimator"), "jit", tmp_path)
    assert list(tmp_path.iterdir()) == []
