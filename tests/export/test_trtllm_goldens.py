"""Every recorded TensorRT-LLM checkpoint is made again, bit for bit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trtllm_goldens import DATA, Golden, describe, goldens, read_rank

from vivavoce.export.trtllm.calibration import Calibration, measure, read_calibration
from vivavoce.export.trtllm.config_json import checkpoint_config
from vivavoce.export.trtllm.convert import convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.reread import Reread
from vivavoce.export.trtllm.source import Source, open_hugging_face

MODELS = ("a_h64", "b_h128_tied")
GOLDENS = goldens()
WEIGHT_ONLY = {"W8A16": "int8", "W4A16": "int4"}


@cache
def source_of(model: str) -> Source:
    return open_hugging_face(DATA / model / "hf")


@cache
def calibration_of(model: str) -> Calibration:
    return read_calibration(DATA / model / "calibration.safetensors", source_of(model))


def options_of(golden: Golden, prequantize: str | None) -> ConvertOptions:
    mapping, quantization = golden.config["mapping"], golden.config["quantization"]
    algorithm = quantization["quant_algo"] or ""
    return ConvertOptions(
        dtype=golden.config["dtype"],
        tp=mapping["tp_size"],
        pp=mapping["pp_size"],
        weight_only=WEIGHT_ONLY.get(algorithm),
        prequantize=prequantize,
        int8_kv_cache=quantization["kv_cache_quant_algo"] == "INT8",
        parallel_embedding=golden.config["use_parallel_embedding"],
        smoothquant=quantization["smoothquant_val"] if "SQ" in algorithm else None,
        per_token="PER_TOKEN" in algorithm,
        per_channel="PER_CHANNEL" in algorithm,
    )


def make(golden: Golden, folder: Path, prequantize: str | None) -> Path:
    options = options_of(golden, prequantize)
    convert(source_of(golden.model), folder, options, calibration=calibration_of(golden.model))
    return folder


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{golden.model}-{golden.name}")
def test_every_tensor_is_the_recorded_one(golden: Golden, tmp_path: Path) -> None:
    made = make(golden, tmp_path / "made", golden.layout)
    assert len(list(made.glob("rank*.safetensors"))) == len(golden.ranks)
    for rank, wanted in enumerate(golden.ranks):
        tensors = read_rank(made / f"rank{rank}.safetensors")
        if golden.recorded is not None:  # values are told, where they are at hand
            recorded = read_rank(golden.recorded / f"rank{rank}.safetensors")
            assert recorded.keys() == tensors.keys()
            for name, tensor in recorded.items():
                torch.testing.assert_close(
                    tensors[name], tensor, rtol=0, atol=0, msg=lambda text, n=name: f"{n}: {text}"
                )
        assert {name: describe(tensor) for name, tensor in tensors.items()} == wanted


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{golden.model}-{golden.name}")
def test_every_setting_is_the_recorded_one(golden: Golden, tmp_path: Path) -> None:
    made = json.loads((make(golden, tmp_path / "made", golden.layout) / "config.json").read_text())
    assert _common(made, golden.config) == made


def test_the_settings_that_a_loader_needs_are_all_there() -> None:
    """What is left out is what the loader of that release fills in, or what is of other families."""
    golden = GOLDENS[0]
    source = source_of(golden.model)
    made = checkpoint_config(source.sizes, options_of(golden, None), torch.float16)
    left_out = {"num_labels", "use_logn_attn", "moe", "runtime_defaults", "qk_layernorm", "moe_intermediate_size"}
    assert set(golden.config) - set(made) == left_out | {"moe_shared_expert_intermediate_size"}
    assert set(golden.config["mapping"]) == set(made["mapping"])
    assert set(golden.config["quantization"]) - set(made["quantization"]) == {"use_meta_recipe"}


@pytest.mark.parametrize(
    "golden", [golden for golden in GOLDENS if golden.layout], ids=lambda golden: f"{golden.model}-{golden.name}"
)
def test_what_a_builder_quantises_is_what_was_quantised(golden: Golden, tmp_path: Path) -> None:
    """The deferred form, quantised as a loader does, and the recorded bytes mean the same matrices."""
    done, deferred = make(golden, tmp_path / "done", golden.layout), make(golden, tmp_path / "deferred", None)
    assert all(tensor.is_floating_point() for tensor in read_rank(deferred / "rank0.safetensors").values())
    first, second = Reread(done), Reread(deferred)
    assert first.shapes == second.shapes
    for name in first.shapes:
        assert torch.equal(first.read(name).float(), second.read(name).float()), name


@pytest.mark.parametrize("model", MODELS)
def test_measured_ranges_are_the_recorded_ones(model: str) -> None:
    """Recorded in float16 throughout; measured with its weights and float32 products."""
    calibration = calibration_of(model)
    assert len(calibration.prompts) == 8
    assert calibration.recorded is not None
    measured = measure(source_of(model), calibration.prompts, lambda: None)
    assert measured.keys() == {name for name in calibration.recorded if not name.startswith("lm_head")}
    for name, largest in measured.items():
        torch.testing.assert_close(largest, calibration.recorded[name], rtol=5e-3, atol=2e-3, msg=name)


def _common(made: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What the recorded settings say of everything that is written."""
    return {key: _common(value, wanted[key]) if isinstance(value, dict) else wanted[key] for key, value in made.items()}
