"""Prompts and ranges of activations: where they come from, and those that cannot be are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from trtllm_goldens import DATA

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.frontend.model_choice import MINI
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_export.hf_folder import Source, open_hugging_face, open_official
from vivavoce_export.trtllm.calibration import (
    Calibration,
    Prompt,
    measure,
    read_calibration,
    read_prompts,
    voices_prompts,
)
from vivavoce_export.trtllm.convert import convert
from vivavoce_export.trtllm.options import ConvertOptions
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

MODEL = DATA / "a_h64"
OUTPUTS = "model.layers.1.self_attn.q_proj.y"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_hugging_face(MODEL / "hf")


@pytest.fixture(scope="module")
def mini() -> Source:
    return open_official(MINI, len(TextTokenizer.from_folder(MINI / BACKBONE)))


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
        (OUTPUTS, torch.full((64,), math.nan), "not finite numbers from 0 on"),
        (OUTPUTS, torch.full((64,), -1.0), "not finite numbers from 0 on"),
        (OUTPUTS, torch.ones(63), r"q_proj\.y is \[63\] instead of \[64\]"),
        ("model.layers.0.mlp.up_proj.x", torch.ones(128), r"up_proj\.x is \[128\] instead of \[64\]"),
        ("calibration_ids", torch.ones(5, dtype=torch.int64), r"calibration_ids of .* are \[5\] int64, not"),
        ("calibration_ids", torch.ones(2, 5), r"are \[2, 5\] float32, not \[prompts, time\] of whole numbers"),
    ],
)
def test_damaged_ranges_are_refused(
    source: Source, recorded: dict[str, Tensor], tmp_path: Path, name: str, values: Tensor, message: str
) -> None:
    save_file({**recorded, name: values}, tmp_path / "ranges.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_calibration(tmp_path / "ranges.safetensors", source)
    if name == OUTPUTS:  # given by hand they are held to the same
        given = Calibration(recorded={**recorded, name: values})
        with pytest.raises(CheckpointError, match=message):
            convert(source, tmp_path / "out", ConvertOptions(int8_kv_cache=True), calibration=given)


@pytest.mark.parametrize("strange", [-1, 101])
def test_ids_that_the_model_lacks_are_refused(
    source: Source, recorded: dict[str, Tensor], tmp_path: Path, strange: int
) -> None:
    recorded["calibration_ids"][3, 5] = strange
    save_file(recorded, tmp_path / "ranges.safetensors")
    with pytest.raises(InvalidRequest, match=rf"calibration_ids of .* has the id {strange}, the model has 0 … 100"):
        read_calibration(tmp_path / "ranges.safetensors", source)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"])
def test_weights_beyond_float16_are_not_measured(folder: Path, name: str) -> None:
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


def test_prompts_of_the_models_own_voices(mini: Source) -> None:
    prompts = voices_prompts(MINI / "spk2info.pt", mini.vocabulary)
    assert len(prompts) == 8
    for prompt in prompts:
        assert prompt.ids[0] == mini.vocabulary.sos
        assert prompt.ids[prompt.spoken_from] == mini.vocabulary.task
        assert all(map(mini.vocabulary.is_speech, prompt.ids[prompt.spoken_from + 1 :]))
        assert max(prompt.ids[1 : prompt.spoken_from]) < mini.vocabulary.text_size


def test_recorded_prompts(mini: Source, tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"text_ids": [5, 6], "speech_ids": [0, 6560]}, {"ids": [1, 2, 3]}]))
    sos, task = 532 + 6564, 532 + 6565
    assert read_prompts(path, mini) == (Prompt((sos, 5, 6, task, 532, 532 + 6560), 3), Prompt((1, 2, 3), 0))
    assert read_prompts(MINI / "spk2info.pt", mini)[0].spoken_from == 43


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no prompts of speech"),
        ("{}", "is not a list of prompts"),
        ("[", "is not readable JSON"),
        ('[{"text_ids": [1]}]', "speech_ids of a prompt is not a list of ids"),
        ('[{"ids": [1.5]}]', "ids of a prompt is not a list of ids"),
        ('[{"ids": [7168]}]', r"ids of prompts.json has the id 7168, the model has 0 … 7167"),
        ('[{"ids": [-1]}]', r"ids of prompts.json has the id -1, the model has 0 … 7167"),
        ('[{"text_ids": [532], "speech_ids": [0]}]', r"text_ids of prompts.json has the id 532, the model has 0 … 531"),
        ('[{"text_ids": [1], "speech_ids": [6561]}]', r"speech_ids of .* has the id 6561, the model has 0 … 6560"),
    ],
)
def test_prompts_that_cannot_be_are_refused(mini: Source, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises((InvalidRequest, CheckpointError), match=message):
        read_calibration(path, mini)


def test_speech_tokens_need_the_vocabulary_of_their_model(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"text_ids of '\w+' in spk2info\.pt has the id \d+, the model has 0 … 19"):
        voices_prompts(MINI / "spk2info.pt", MergedVocabulary(20, 6561, Generation.V2))
    with pytest.raises(InvalidRequest, match="no tokenizer that says where they begin"):
        read_calibration(MINI / "spk2info.pt", open_hugging_face(folder))


def test_ranges_of_another_model_are_refused(mini: Source) -> None:
    with pytest.raises(InvalidRequest, match=r"has no model\.layers\.2\.self_attn\.q_proj\.x"):
        read_calibration(DATA / "a_h64" / "calibration.safetensors", mini)
    with pytest.raises(CheckpointError, match="of a model with other sizes"):
        read_calibration(DATA / "b_h128_tied" / "calibration.safetensors", open_hugging_face(DATA / "a_h64" / "hf"))
