"""Ranges of activations: those that cannot be are refused, whoever hands them over."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from trtllm_goldens import DATA

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.trtllm.calibration import Calibration, measure, read_calibration
from vivavoce.export.trtllm.convert import convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.prompts import Prompt
from vivavoce.export.trtllm.source import Source, open_hugging_face

MODEL = DATA / "a_h64"
OUTPUTS = "model.layers.1.self_attn.q_proj.y"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_hugging_face(MODEL / "hf")


@pytest.fixture
def recorded() -> dict[str, Tensor]:
    return load_file(MODEL / "calibration.safetensors")


def test_ranges_in_16_bit_are_told_apart(source: Source, recorded: dict[str, Tensor], tmp_path: Path) -> None:
    ranges = {name: tensor.bfloat16() for name, tensor in recorded.items() if tensor.is_floating_point()}
    save_file(ranges, tmp_path / "a.safetensors")
    save_file({**ranges, OUTPUTS: ranges[OUTPUTS] * 2}, tmp_path / "b.safetensors")
    one, other = (read_calibration(tmp_path / name, source).digest() for name in ("a.safetensors", "b.safetensors"))
    assert one != other


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (OUTPUTS, torch.full((64,), math.nan), "no finite numbers from 0 on"),
        (OUTPUTS, torch.full((64,), -1.0), "no finite numbers from 0 on"),
        (OUTPUTS, torch.ones(63), r"q_proj\.y is \[63\] instead of \[64\]"),
        ("model.layers.0.mlp.up_proj.x", torch.ones(128), r"up_proj\.x is \[128\] instead of \[64\]"),
        ("calibration_ids", torch.ones(5, dtype=torch.int64), r"calibration_ids of .* are \[5\] int64 and not"),
        ("calibration_ids", torch.ones(2, 5), r"are \[2, 5\] float32 and not \[prompts, time\] of whole numbers"),
    ],
)
def test_damaged_ranges_are_refused(
    source: Source, recorded: dict[str, Tensor], tmp_path: Path, name: str, values: Tensor, message: str
) -> None:
    save_file({**recorded, name: values}, tmp_path / "ranges.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_calibration(tmp_path / "ranges.safetensors", source)


@pytest.mark.parametrize("strange", [-1, 101])
def test_ids_that_the_model_lacks_are_refused(
    source: Source, recorded: dict[str, Tensor], tmp_path: Path, strange: int
) -> None:
    recorded["calibration_ids"][3, 5] = strange
    save_file(recorded, tmp_path / "ranges.safetensors")
    with pytest.raises(InvalidRequest, match=rf"calibration_ids of .* has the id {strange}, the model has 0 … 100"):
        read_calibration(tmp_path / "ranges.safetensors", source)


def test_ranges_that_are_given_by_hand_are_held_to_the_same(
    source: Source, recorded: dict[str, Tensor], tmp_path: Path
) -> None:
    given = Calibration(recorded={**recorded, OUTPUTS: torch.full((64,), math.inf)})
    with pytest.raises(CheckpointError, match="no finite numbers from 0 on"):
        convert(source, tmp_path / "out", ConvertOptions(int8_kv_cache=True), calibration=given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"])
def test_weights_beyond_float16_are_not_measured(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(MODEL / "hf", tmp_path / "hf", copy_function=shutil.copy))
    weights = load_file(folder / "model.safetensors")
    weights[name][7] = 1e5
    save_file(weights, folder / "model.safetensors")
    source = open_hugging_face(folder)
    with pytest.raises(
        CheckpointError, match=rf"{name} has values that float16 cannot hold; calibration computes in it"
    ):
        measure(source, (Prompt((3, 7)),), lambda: None)
    if "embed" in name:  # rows that no prompt has are no matter
        assert measure(source, (Prompt((3, 8)),), lambda: None)
