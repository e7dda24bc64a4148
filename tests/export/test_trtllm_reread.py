"""A checkpoint of every option, put together again, gives the logits of the model that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import InvalidRequest
from vivavoce.export.hf.write import export_hf
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS
from vivavoce.export.trtllm import backbone
from vivavoce.export.trtllm.calibration import Calibration
from vivavoce.export.trtllm.check import LogitsCheck, compare_logits
from vivavoce.export.trtllm.convert import convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.prompts import random_prompts
from vivavoce.export.trtllm.reread import Reread
from vivavoce.export.trtllm.source import Source, open_hugging_face, open_official
from vivavoce.export.trtllm.speech_state import speech_tensors, write_back
from vivavoce.models.build import Models, build_models
from vivavoce.models.lm.prompting import LMPrompt, prompt_rows
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.service.text.tokenizer import TextTokenizer

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


@pytest.fixture(scope="module")
def source(babble: Path) -> Source:
    return open_official(babble, len(TextTokenizer.from_folder(babble / BACKBONE)))


def reread(source: Source, folder: Path, wishes: dict[str, Any]) -> Reread:
    convert(source, folder, ConvertOptions(**wishes), calibration=Calibration(random_prompts(source)))
    return Reread(folder)


def speech_logits(lm: SpeechLM) -> Tensor:
    return lm.log_probabilities(lm(prompt_rows(lm, PROMPT)[None]))


def own_lm(source: Source, checkpoint: Reread, models: Models) -> SpeechLM:
    assert source.vocabulary is not None
    lm = SpeechLM(models.config.lm)
    state = {name: torch.zeros_like(tensor) for name, tensor in lm.state_dict().items()}
    for name, row, tensor in speech_tensors(checkpoint, models.config.lm, source.vocabulary):
        state[name][row : row + len(tensor)] = tensor
    lm.load_state_dict(state)
    return lm.eval().requires_grad_(False)


@pytest.mark.parametrize("split", [{}, *SPLITS], ids=str)
def test_float32_comes_back_bit_for_bit(source: Source, models: Models, split: dict[str, Any], tmp_path: Path) -> None:
    lm = own_lm(source, reread(source, tmp_path / "made", {"dtype": "float32", **split}), models)
    for name, tensor in models.lm.state_dict().items():
        mine = lm.state_dict()[name]
        if name == "text_embedding.weight":  # rows that no text has are not kept
            assert source.vocabulary is not None
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


def test_a_folder_that_speaks_as_an_engine_would(source: Source, babble: Path, models: Models, tmp_path: Path) -> None:
    assert source.vocabulary is not None
    checkpoint = reread(source, tmp_path / "made", {"weight_only": "int8"})
    write_back(checkpoint, babble, tmp_path / "back", source.vocabulary)
    back = build_models(tmp_path / "back", models.device)
    assert back.config == models.config
    for name, tensor in own_lm(source, checkpoint, models).state_dict().items():
        assert torch.equal(back.lm.state_dict()[name], tensor), name
    assert torch.equal(
        back.flow.state_dict()["token_embedding.weight"], models.flow.state_dict()["token_embedding.weight"]
    )
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        write_back(checkpoint, babble, tmp_path / "back", source.vocabulary)
    write_back(source.reader, babble, tmp_path / "back", source.vocabulary, force=True)
    assert torch.equal(speech_logits(build_models(tmp_path / "back", models.device).lm), speech_logits(models.lm))


def test_force_spares_a_model_that_was_not_written_back(source: Source, babble: Path, tmp_path: Path) -> None:
    assert source.vocabulary is not None
    theirs = tmp_path / "theirs" / "llm.safetensors"
    theirs.parent.mkdir()
    theirs.write_text("weights")
    with pytest.raises(
        InvalidRequest, match=r"^write-back: .* holds no written_back\.json, so it is no earlier export"
    ):
        write_back(source.reader, babble, theirs.parent, source.vocabulary, force=True)
    assert theirs.read_text() == "weights"


def test_the_text_table_is_written_back_in_blocks(
    source: Source, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.vocabulary is not None
    width = models.config.lm.hidden_size
    monkeypatch.setattr(backbone, "TABLE_BLOCK", 100 * width)
    parts = speech_tensors(source.reader, models.config.lm, source.vocabulary)
    rows = [(row, len(tensor)) for name, row, tensor in parts if name == "text_embedding.weight"]
    assert rows == [(0, 100), (100, 100), (200, source.vocabulary.text_size - 200)]


def test_the_merged_folder_gives_the_same_checkpoint(source: Source, babble: Path, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.from_folder(babble / BACKBONE)
    export_hf(babble, tmp_path / "hf", tokenizer.to_json(), dtype="float32")
    merged = open_hugging_face(tmp_path / "hf")
    assert merged.sizes == source.sizes
    assert merged.vocabulary == source.vocabulary
    assert merged.bias is not None
    assert source.bias is not None
    assert torch.equal(merged.bias, source.bias)
    for name, given in (("a", source), ("b", merged)):
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
