"""Recorded checkpoints are made again bit for bit; any checkpoint, put together again, gives its model's logits."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trtllm_goldens import DATA, Golden, describe, goldens, read_rank

from benchmarks.plain.lm import LMPrompt, prompt_rows
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.weights import LM_NAMES
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.build import Models, build_models
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_bench.random_checkpoint import make_babble_checkpoint
from vivavoce_export import files
from vivavoce_export.hf_folder import Source, export_hf, open_hugging_face, open_official
from vivavoce_export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, official_tensors
from vivavoce_export.trtllm.calibration import Calibration, measure, random_prompts, read_calibration
from vivavoce_export.trtllm.convert import convert
from vivavoce_export.trtllm.options import ConvertOptions, checkpoint_config, read_checkpoint_config
from vivavoce_export.trtllm.reread import LogitsCheck, Reread, compare_logits, write_back

MODELS = ("a_h64", "b_h128_tied")
GOLDENS = goldens()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def babble(own_babble: Path) -> Path:
    """Of three layers, one for each of three ranks."""
    return own_babble


@pytest.fixture(scope="module")
def babble_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_babble_checkpoint(tmp_path_factory.mktemp("models") / "babble-v3", Generation.V3)


@pytest.fixture(scope="module")
def models(babble: Path) -> Models:
    return build_models(babble, CPU)


@pytest.fixture(scope="module")
def models_v3(babble_v3: Path) -> Models:
    return build_models(babble_v3, CPU)


@pytest.fixture(scope="module")
def merged(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "merged"
    export_hf(babble, folder, TextTokenizer.from_folder(babble / BACKBONE).to_json())
    return folder


@cache
def source_of(model: str) -> Source:
    return open_hugging_face(DATA / model / "hf")


@cache
def calibration_of(model: str) -> Calibration:
    return read_calibration(DATA / model / "calibration.safetensors", source_of(model))


def options_of(golden: Golden, prequantize: str | None) -> ConvertOptions:
    return read_checkpoint_config(golden.config, {"options": {"prequantize": prequantize}})[1]


def make(golden: Golden, folder: Path, prequantize: str | None) -> Path:
    options = options_of(golden, prequantize)
    convert(source_of(golden.model), folder, options, calibration=calibration_of(golden.model))
    return folder


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{golden.model}-{golden.name}")
def test_every_tensor_and_setting_is_the_recorded_one(golden: Golden, tmp_path: Path) -> None:
    made = make(golden, tmp_path / "made", golden.layout)
    config = json.loads((made / "config.json").read_text())
    assert _common(config, golden.config) == config
    assert len(list(made.glob("rank*.safetensors"))) == len(golden.ranks)
    for rank, wanted in enumerate(golden.ranks):
        tensors = read_rank(made / f"rank{rank}.safetensors")
        assert {name: describe(tensor) for name, tensor in tensors.items()} == wanted


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
    measured = measure(source_of(model), calibration.prompts, lambda: None)
    assert measured.keys() == {name for name in calibration.recorded if not name.startswith("lm_head")}
    for name, largest in measured.items():
        torch.testing.assert_close(largest, calibration.recorded[name], rtol=5e-3, atol=2e-3, msg=name)


def _common(made: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What the recorded settings say of everything that is written."""
    return {key: _common(value, wanted[key]) if isinstance(value, dict) else wanted[key] for key, value in made.items()}


PROMPT = LMPrompt(text=(70, 71, 32, 90), prompt_text=(65, 66, 67), prompt_speech=(5, 6560, 81, 3000))

SPLITS = [
    {"tp": 2},
    {"tp": 4},
    {"pp": 3},
    {"tp": 2, "pp": 3},
    {"tp": 2, "parallel_embedding": True},
    {"tp": 4, "pp": 3, "parallel_embedding": True},
]
SMOOTH = [
    {"smoothquant": 0.5, "per_token": per_token, "per_channel": per_channel}
    for per_token in (False, True)
    for per_channel in (False, True)
]


def reread(source: Source, folder: Path, wishes: dict[str, Any]) -> Reread:
    convert(source, folder, ConvertOptions(**wishes), calibration=Calibration(random_prompts(source)))
    return Reread(folder)


def speech_logits(lm: SpeechLM) -> Tensor:
    return lm.log_probabilities(lm(prompt_rows(lm, PROMPT)[None]))


def own_lm(source: Source, checkpoint: Reread, models: Models) -> SpeechLM:
    lm = SpeechLM(models.config.lm)
    state = {name: torch.zeros_like(tensor) for name, tensor in lm.state_dict().items()}
    for name, row, tensor in official_tensors(checkpoint, source.vocabulary):
        state[LM_NAMES.to_ours(name)][row : row + len(tensor)] = tensor.float()
    lm.load_state_dict(state)
    return lm.eval().requires_grad_(False)


@pytest.mark.parametrize("split", [{}, *SPLITS], ids=str)
def test_float32_comes_back_bit_for_bit(source: Source, models: Models, split: dict[str, Any], tmp_path: Path) -> None:
    lm = own_lm(source, reread(source, tmp_path / "made", {"dtype": "float32", **split}), models)
    for name, tensor in models.lm.state_dict().items():
        mine = lm.state_dict()[name]
        if name == "text_embedding.weight":  # rows that no text has are not kept
            mine, tensor = (rows[: source.vocabulary.text_size] for rows in (mine, tensor))
        assert torch.equal(mine, tensor), name
    assert torch.equal(speech_logits(lm), speech_logits(models.lm))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_weights_are_the_rounded_ones(source: Source, models: Models, dtype: str, tmp_path: Path) -> None:
    checkpoint = reread(source, tmp_path / "made", {"dtype": dtype, "tp": 2, "pp": 3})
    for name in checkpoint.shapes:
        rounded = source.reader.read(name).to(torch.float32 if name == HEAD_BIAS else getattr(torch, dtype))
        assert torch.equal(checkpoint.read(name), rounded), name
    error = speech_logits(own_lm(source, checkpoint, models)) - speech_logits(models.lm)
    assert 0 < error.abs().max() < (0.02 if dtype == "float16" else 0.2)


@pytest.mark.parametrize(
    ("wishes", "least", "most"),
    [
        ({"dtype": "float32"}, 0, 0),
        ({"dtype": "float16"}, 1e-5, 1e-3),
        ({"dtype": "bfloat16"}, 1e-4, 8e-3),
        ({"weight_only": "int8"}, 1e-3, 0.03),
        ({"weight_only": "int8", "prequantize": "sm80"}, 1e-3, 0.03),
        ({"weight_only": "int8", "prequantize": "sm90"}, 1e-3, 0.03),
        ({"weight_only": "int4"}, 0.03, 0.4),
        ({"weight_only": "int4", "prequantize": "sm80", "pp": 3}, 0.03, 0.4),
        ({"int8_kv_cache": True}, 1e-3, 0.03),
        ({"int8_kv_cache": True, "weight_only": "int8"}, 1e-3, 0.04),
        *((wishes, 1e-3, 0.1) for wishes in SMOOTH),
        *(({**wishes, "tp": 4, "pp": 3, "dtype": "bfloat16"}, 1e-3, 0.1) for wishes in SMOOTH),
        ({**SMOOTH[3], "int8_kv_cache": True}, 1e-3, 0.1),
    ],
    ids=str,
)
def test_how_far_each_options_logits_are(
    source: Source, wishes: dict[str, Any], least: float, most: float, tmp_path: Path
) -> None:
    found = compare_logits(source, reread(source, tmp_path / "made", wishes), random_prompts(source))
    assert least <= found.relative_error <= most
    assert found.num_positions == 4 * 65
    if most == 0:
        assert found == LogitsCheck(0.0, 0.0, 1.0, 4 * 65)
    elif most < 0.1:
        assert found.top1_agreement > 0.9


@pytest.mark.parametrize("wishes", [{"weight_only": "int4"}, *SMOOTH], ids=str)
def test_weights_of_whole_numbers_are_near_the_models(
    source: Source, models: Models, wishes: dict[str, Any], tmp_path: Path
) -> None:
    """Without what an engine rounds beside the weights: through our own network, smoothing undone."""
    checkpoint = reread(source, tmp_path / "made", wishes)
    wanted, found = speech_logits(models.lm), speech_logits(own_lm(source, checkpoint, models))
    error = (found - wanted).norm() / wanted.norm()
    assert 0 < error < (0.4 if "weight_only" in wishes else 0.05)


def test_a_damaged_matrix_is_seen(source: Source, tmp_path: Path) -> None:
    reread(source, tmp_path / "made", {"dtype": "float32"})

    class Damaged(Reread):
        def read(self, name: str, rows: slice = slice(None)) -> Tensor:
            tensor = super().read(name, rows)
            return -tensor if name == "model.layers.1.mlp.up_proj.weight" else tensor

    found = compare_logits(source, Damaged(tmp_path / "made"), random_prompts(source))
    assert found.relative_error > 0.1
    assert found.top1_agreement < 0.9


def test_a_folder_that_speaks_as_an_engine_would(
    source: Source, babble: Path, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = reread(source, tmp_path / "made", {"weight_only": "int8"})
    write_back(checkpoint, babble, tmp_path / "back", source.vocabulary)
    back = build_models(tmp_path / "back", models.device)
    assert back.config == models.config
    for name, tensor in own_lm(source, checkpoint, models).state_dict().items():
        assert torch.equal(back.lm.state_dict()[name], tensor), name
    assert torch.equal(
        back.flow.state_dict()["token_embedding.weight"], models.flow.state_dict()["token_embedding.weight"]
    )
    with pytest.raises(InvalidRequest, match=r"^write-back: .* is not empty; add --force"):
        write_back(checkpoint, babble, tmp_path / "back", source.vocabulary)
    monkeypatch.setattr(files, "BLOCK_VALUES", 100 * models.config.lm.hidden_size)  # tables of several blocks
    write_back(source.reader, babble, tmp_path / "back", source.vocabulary, force=True)
    assert torch.equal(speech_logits(build_models(tmp_path / "back", models.device).lm), speech_logits(models.lm))


def test_cosyvoice3_comes_back_bit_for_bit_and_speaks(babble_v3: Path, models_v3: Models, tmp_path: Path) -> None:
    source = open_official(babble_v3, len(TextTokenizer.from_folder(babble_v3 / BACKBONE)))
    checkpoint = reread(source, tmp_path / "made", {"dtype": "float32", **SPLITS[-1]})
    assert compare_logits(source, checkpoint, random_prompts(source)) == LogitsCheck(0.0, 0.0, 1.0, 4 * 65)
    write_back(checkpoint, babble_v3, tmp_path / "back", source.vocabulary)
    back = build_models(tmp_path / "back", models_v3.device)
    assert back.config == models_v3.config
    found, wanted = back.lm.state_dict(), models_v3.lm.state_dict()
    for state in (found, wanted):  # rows that no text has are not kept
        state["text_embedding.weight"] = state["text_embedding.weight"][: source.vocabulary.text_size]
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert torch.equal(speech_logits(back.lm), speech_logits(models_v3.lm))


def test_the_merged_folder_gives_the_same_checkpoint(source: Source, merged: Path, tmp_path: Path) -> None:
    reopened = open_hugging_face(merged)
    assert (reopened.sizes, reopened.vocabulary) == (source.sizes, source.vocabulary)
    assert torch.equal(reopened.bias, source.bias)
    for name, given in (("a", source), ("b", reopened)):
        convert(given, tmp_path / name, ConvertOptions(tp=2))
    for rank in range(2):
        file = f"rank{rank}.safetensors"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_some_rows_are_the_rows_of_the_whole(source: Source, tmp_path: Path) -> None:
    checkpoint = reread(source, tmp_path / "made", {"tp": 4, "parallel_embedding": True, "dtype": "float32"})
    for name in (EMBEDDING, HEAD, HEAD_BIAS, "model.layers.2.self_attn.k_proj.weight"):
        whole, stored = checkpoint.read(name), source.reader.read(name)
        assert torch.equal(whole, stored)
        for rows in (slice(0, 1), slice(3, 20), slice(len(whole) // 4 - 2, len(whole) // 2 + 2)):
            assert torch.equal(checkpoint.read(name, rows), stored[rows])
            assert torch.equal(source.reader.read(name, rows), stored[rows])
