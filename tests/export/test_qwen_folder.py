"""What is read of a Qwen2 folder in Hugging Face's layout, and what is refused of it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from trtllm_goldens import DATA

from vivavoce.checkpoint.config import Generation
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce_export.hf_folder import check_features, open_hugging_face, read_vocabulary, rope_theta
from vivavoce_export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, open_merged_lm
from vivavoce_runtimes.merged_vocabulary import CONTROLS, MergedVocabulary

PLAIN = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
DEFAULT = {"rope_type": "default", "rope_theta": 1e6}
ADDED = {"<|s_0|>": 50, "<|eos1|>": 90, "<|eos2|>": 91, "<|eos3|>": 92, "<|sos|>": 93, "<|task_id|>": 94}


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "nothing"}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": None, "rope_parameters": None, "quantization_config": None, "head_dim": None},
        {"rope_parameters": DEFAULT, "rope_scaling": {"type": "default"}, "use_sliding_window": None, "head_dim": 16},
    ],
)
def test_plain_models_pass(changes: dict[str, Any]) -> None:
    check_features({**PLAIN, **changes})


UNSUPPORTED = [
    ({"rope_parameters": DEFAULT, "rope_scaling": {"type": "yarn"}}, r"rope_scaling\.rope_type is 'yarn'"),
    ({"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": {"type": "default"}}, "rope_parameters"),
    ({"rope_parameters": {"rope_type": "linear"}}, r"rope_parameters\.rope_type is 'linear'; only 'default'"),
    ({"model_type": "llama"}, "model_type is 'llama'; only 'qwen2'"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ({"use_sliding_window": True}, "use_sliding_window is True; only False"),
    ({"quantization_config": {}}, "quantization_config says that the weights are quantised"),
    ({"head_dim": 32}, "head_dim is 32; only hidden_size / num_attention_heads is read, which is 16"),
]
SENSELESS = [
    ({"rope_scaling": [1]}, r"rope_scaling: expected a group of settings, found \[1\]"),
    ({"rope_parameters": "default"}, "rope_parameters: expected a group of settings, found 'default'"),
    ({"num_attention_heads": 3}, "3 heads and 2 key-value heads do not divide hidden_size 64"),
    ({"num_attention_heads": 0}, "num_attention_heads: expected a whole number from 1"),
    ({"head_dim": "wide"}, "head_dim: expected a number, found 'wide'"),
]


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [*((*row, UnsupportedModel) for row in UNSUPPORTED), *((*row, CheckpointError) for row in SENSELESS)],
)
def test_what_computes_otherwise_is_refused(changes: dict[str, Any], message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=rf"^config\.json: {message}"):
        check_features({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("config", "base"),
    [
        ({}, 10_000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": None, "rope_parameters": DEFAULT}, 1e6),
        ({"rope_theta": 1e6, "rope_parameters": DEFAULT}, 1e6),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}, 5e5),
        ({"rope_theta": 5e5, "rope_parameters": DEFAULT}, r"is 500000 and rope_parameters\.rope_theta is 1e\+06"),
        ({"rope_parameters": {"rope_theta": "x"}}, r"rope_parameters\.rope_theta: expected a number, found 'x'"),
    ],
)
def test_the_rotary_base_has_two_names(config: dict[str, Any], base: float | str) -> None:
    if isinstance(base, float):
        assert rope_theta(config) == base
    else:
        with pytest.raises(CheckpointError, match=base):
            rope_theta(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "nothing"}, "hidden_size: expected a number, found nothing"),
        ({"num_hidden_layers": 257}, "num_hidden_layers: expected a whole number from 1 to 256"),
        ({"num_hidden_layers": math.inf}, "num_hidden_layers: expected a finite number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: expected true or false, found 'false'"),
        ({"vocab_size": 102}, r"embed_tokens.weight is \[101, 64\] instead of \[102, 64\]"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.\S+ is missing"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        open_hugging_face(folder)


ELSEWHERE = '{"weight_map": {"model.norm.weight": "../other/model.safetensors"}}'


def test_damaged_files_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is corrupt"):
        open_hugging_face(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing in hf"):
        open_hugging_face(folder)
    for index, message in (
        ("[]", "holds no settings"),
        ("{}", "names no files"),
        (ELSEWHERE, "or files outside of the folder"),
    ):
        (folder / "model.safetensors.index.json").write_text(index)
        with pytest.raises(CheckpointError, match=message):
            open_hugging_face(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_hugging_face(folder)


def test_a_model_in_several_files_is_the_same_with_an_index_or_without(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    for index in (None, json.dumps({"weight_map": files})):
        if index:
            (folder / "model.safetensors.index.json").write_text(index)
        split = open_hugging_face(folder)
        assert split.reader.shapes.keys() == tensors.keys()
        assert all(torch.equal(split.reader.read(name), tensor) for name, tensor in tensors.items())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: is missing in hf"):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**ADDED, "<|eos1|>": 10}, r"not in the merged model's order \(<\|s_0\|> 50, <\|eos1\|> 10,"),
        ({"<|s_0|>": 50, "<|eos1|>": 90}, r"no tokenizer file has <\|eos2\|>, <\|eos3\|>, <\|sos\|>, <\|task_id\|>"),
        ({**ADDED, "<|sos|>": "x"}, r"added_tokens\.json: its added tokens cannot be read"),
        ({name: at + 7 for name, at in ADDED.items()}, "vocab_size is 101, and the tokenizer has ids up to 101"),
    ],
)
def test_half_a_vocabulary_is_refused(folder: Path, content: dict[str, Any], message: str) -> None:
    (folder / "added_tokens.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    "content", [{}, {"added_tokens_decoder": None}, {"added_tokens_decoder": {"3": {"content": "a"}}}]
)
def test_a_tokenizer_without_speech_is_none(folder: Path, content: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    assert open_hugging_face(folder).vocabulary is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": at, "content": name} for name, at in ADDED.items()]}),
        ("added_tokens.json", {**ADDED, "<|s_1|>": 51}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(at): {"content": name} for name, at in ADDED.items()}}),
    ],
)
def test_where_speech_begins_is_read_from_the_tokenizer(folder: Path, file: str, content: dict[str, Any]) -> None:
    assert open_hugging_face(folder).vocabulary is None
    (folder / file).write_text(json.dumps(content))
    assert open_hugging_face(folder).vocabulary == MergedVocabulary(50, 40, Generation.V2)


@settings(max_examples=20, deadline=None)
@given(text=st.integers(1, 3000), speech=st.integers(1, 400), generation=st.sampled_from([*CONTROLS]))
def test_where_speech_begins_is_read_and_not_assumed(
    tmp_path_factory: pytest.TempPathFactory, text: int, speech: int, generation: Generation
) -> None:
    folder, vocabulary = tmp_path_factory.mktemp("ids"), MergedVocabulary(text, speech, generation)
    ids = {token: text + place for place, token in enumerate(vocabulary.added_tokens())}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    assert read_vocabulary(folder) == vocabulary


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=rf"{name} is stored as \w+, so it is quantised"):
        open_hugging_face(folder)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "b_h128_tied" / "hf", tmp_path / "hf", copy_function=shutil.copy))
    source = open_hugging_face(folder)
    assert source.sizes.tied
    assert torch.equal(source.reader.read(HEAD), source.reader.read(EMBEDDING))
    assert torch.equal(source.reader.read(HEAD, slice(3, 9)), source.reader.read(EMBEDDING)[3:9])
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensors[name] for name in tensors if name != EMBEDDING}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is missing"):
        open_hugging_face(folder)


def test_the_bias_is_found_among_the_weights_or_beside_them(folder: Path) -> None:
    assert open_hugging_face(folder).bias is None
    tensors = load_file(folder / "model.safetensors")
    bias = torch.linspace(-3, 3, 101).bfloat16()
    save_file({**tensors, HEAD_BIAS: bias}, folder / "model.safetensors")
    found = open_hugging_face(folder).bias
    save_file(tensors, folder / "model.safetensors")
    np.save(folder / "embedding_bias.npy", bias.float().numpy())
    for one in (found, open_hugging_face(folder).bias):
        assert one.dtype == torch.float32
        assert torch.equal(one, bias.float())


def test_a_bias_that_is_added_or_changed_makes_another_model(folder: Path) -> None:
    marks = [open_hugging_face(folder).fingerprint()]
    for dtype in (np.float32, np.float64):
        np.save(folder / "embedding_bias.npy", np.zeros(101, dtype))
        marks.append(open_hugging_face(folder).fingerprint())
    assert len(set(marks)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(7, np.float32), r"bias is \[7\] instead of \[101\]"),
        (np.zeros(101, np.int64), r"bias is \[101\] int64, expected a list of floating point numbers"),
        (np.array(["x"], object), "cannot be read"),
    ],
)
def test_a_bias_that_does_not_fit_is_refused(folder: Path, content: np.ndarray, message: str) -> None:
    np.save(folder / "embedding_bias.npy", content, allow_pickle=True)
    with pytest.raises(CheckpointError, match=message):
        open_hugging_face(folder)


@pytest.mark.parametrize("header", ["{'descr': (((", "(" * 9_000, "-" * 9_900 + "1"])
def test_a_bias_whose_header_is_broken(folder: Path, header: str) -> None:
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode()
    for broken in (content, b"PK\3\4"):
        (folder / "embedding_bias.npy").write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"embedding_bias\.npy: cannot be read"):
            open_hugging_face(folder)


def test_a_bias_that_says_more_than_it_has_takes_no_memory(folder: Path) -> None:
    with (folder / "embedding_bias.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 42,)})
    with pytest.raises(CheckpointError, match=r"embedding_bias\.npy: cannot be read"):
        open_hugging_face(folder)


def test_merging_refuses_what_does_not_fit(babble: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer has 300 entries, but llm\.pt has embeddings of 288 only"):
        open_merged_lm(babble, 300)
    copy = Path(shutil.copytree(babble, tmp_path / "copy"))
    state = torch.load(copy / "llm.pt", weights_only=True)
    del state["llm_decoder.bias"]
    state["llm_embedding.weight"] = torch.zeros(2, 7)
    torch.save(state, copy / "llm.pt")
    with pytest.raises(CheckpointError) as refused:
        open_merged_lm(copy, 276)
    for word in ("1 missing (llm_decoder.bias)", "llm_embedding.weight [2, 7] instead of [2, 64]"):
        assert word in str(refused.value)
