"""What is read for a conversion: Qwen2 folders and prompts, and what is refused of them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from trtllm_goldens import DATA

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.errors import CheckpointError, InvalidRequest, UnsupportedModel
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, open_merged_lm
from vivavoce.export.trtllm.calibration import read_calibration
from vivavoce.export.trtllm.prompts import Prompt, read_prompts, voices_prompts
from vivavoce.export.trtllm.source import Source, open_hugging_face, open_official
from vivavoce.service.default_model import MINI
from vivavoce.service.text.tokenizer import TextTokenizer

ADDED = {"<|s_0|>": 50, "<|eos1|>": 90, "<|eos2|>": 91, "<|eos3|>": 92, "<|sos|>": 93, "<|task_id|>": 94}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "a_h64" / "hf", tmp_path / "hf", copy_function=shutil.copy))


@pytest.fixture(scope="module")
def mini() -> Source:
    return open_official(MINI, len(TextTokenizer.from_folder(MINI / BACKBONE)))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "nothing"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; only 'qwen2' is read"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'; only 'default' is read"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type is 'linear'; only 'default'"),
        ({"use_sliding_window": True}, "use_sliding_window is True; only False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ],
)
def test_other_models_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "nothing"}, "hidden_size: expected a number, found nothing"),
        ({"hidden_size": "wide"}, "hidden_size: expected a number, found 'wide'"),
        ({"num_attention_heads": 3}, "3 heads and 2 key-value heads do not divide hidden_size 64"),
        ({"head_dim": 32}, "head_dim is 32; only hidden_size / num_attention_heads is read, which is 16"),
        ({"num_hidden_layers": 257}, "num_hidden_layers: expected a whole number from 1 to 256"),
        ({"num_hidden_layers": math.inf}, "num_hidden_layers: expected a finite number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: expected true or false, found 'false'"),
        ({"vocab_size": 102}, r"embed_tokens.weight is \[101, 64\] instead of \[102, 64\]"),
        ({"num_hidden_layers": 3}, r"layers.2.self_attn.q_proj.weight is missing"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        open_hugging_face(folder)


def test_damaged_files_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is corrupt"):
        open_hugging_face(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing in hf"):
        open_hugging_face(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="names no files"):
        open_hugging_face(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_hugging_face(folder)


def test_both_spellings_of_the_rotary_base_are_read(folder: Path) -> None:
    assert open_hugging_face(folder).sizes.rope_theta == 1e6
    change_config(folder, rope_theta="nothing", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert open_hugging_face(folder).sizes.rope_theta == 5e5


def test_a_model_in_several_files_is_the_same(folder: Path) -> None:
    whole = open_hugging_face(folder)
    names = sorted(whole.reader.shapes)
    tensors = {name: whole.reader.read(name) for name in names}
    files = {name: f"model-0000{1 + (number % 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    split = open_hugging_face(folder)
    assert split.reader.shapes.keys() == set(names)
    assert all(torch.equal(split.reader.read(name), tensors[name]) for name in names)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: is missing in hf"):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**ADDED, "<|eos1|>": 10}, r"not in the merged model's order \(<\|s_0\|> 50, <\|eos1\|> 10,"),
        ({"<|s_0|>": 50, "<|eos1|>": 90}, r"no tokenizer file has <\|eos2\|>, <\|eos3\|>, <\|sos\|>, <\|task_id\|>"),
        ({**ADDED, "<|sos|>": "x"}, r"added_tokens\.json: its added tokens cannot be read"),
        (
            {name: number + 7 for name, number in ADDED.items()},
            "vocab_size is 101, and the tokenizer has ids up to 101",
        ),
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


def test_the_tokenizers_own_file_has_the_last_word(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [{"id": i, "content": t} for t, i in ADDED.items()]})
    )
    (folder / "added_tokens.json").write_text(json.dumps({token: number + 3 for token, number in ADDED.items()}))
    assert open_hugging_face(folder).vocabulary == MergedVocabulary(50, 40)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=rf"{name} is stored as \w+, so it is quantised"):
        open_hugging_face(folder)


def test_a_tied_model_without_its_table_is_named(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if name not in (EMBEDDING, HEAD)},
        folder / "model.safetensors",
    )
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is missing"):
        open_hugging_face(folder)


def test_a_tensor_that_no_file_has_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no\.such\.tensor is in none of model\.safetensors"):
        open_hugging_face(folder).reader.read("no.such.tensor")


def test_a_bias_that_is_added_or_changed_makes_another_model(folder: Path) -> None:
    marks = [open_hugging_face(folder).fingerprint()]
    for dtype in (np.float32, np.float64):
        np.save(folder / "embedding_bias.npy", np.zeros(101, dtype))
        marks.append(open_hugging_face(folder).fingerprint())
    assert len(set(marks)) == 3


def test_the_file_beside_the_weights_has_the_first_word(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, HEAD_BIAS: torch.zeros(101)}, folder / "model.safetensors")
    np.save(folder / "embedding_bias.npy", np.ones(101, np.float32))
    bias = open_hugging_face(folder).bias
    assert bias is not None
    assert bias.all()


def test_a_tied_head_is_the_embedding() -> None:
    source = open_hugging_face(DATA / "b_h128_tied" / "hf")
    assert source.sizes.tied
    assert torch.equal(source.reader.read(HEAD), source.reader.read(EMBEDDING))
    assert torch.equal(source.reader.read(HEAD, slice(3, 9)), source.reader.read(EMBEDDING)[3:9])


def test_the_bias_is_found_among_the_weights_or_beside_them(folder: Path) -> None:
    assert open_hugging_face(folder).bias is None
    tensors = load_file(folder / "model.safetensors")
    bias = torch.linspace(-3, 3, 101).bfloat16()
    save_file({**tensors, HEAD_BIAS: bias}, folder / "model.safetensors")
    found = open_hugging_face(folder).bias
    assert found is not None
    assert found.dtype == torch.float32
    assert torch.equal(found, bias.float())

    save_file(tensors, folder / "model.safetensors")
    np.save(folder / "embedding_bias.npy", bias.float().numpy())
    beside = open_hugging_face(folder).bias
    assert beside is not None
    assert torch.equal(beside, bias.float())
    np.save(folder / "embedding_bias.npy", np.zeros(7, np.float32))
    with pytest.raises(CheckpointError, match=r"bias is \[7\] instead of \[101\]"):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": number, "content": name} for name, number in ADDED.items()]}),
        ("added_tokens.json", {**ADDED, "<|s_1|>": 51}),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {str(number): {"content": name} for name, number in ADDED.items()}},
        ),
    ],
)
def test_where_speech_begins_is_read_from_the_tokenizer(folder: Path, file: str, content: dict[str, Any]) -> None:
    assert open_hugging_face(folder).vocabulary is None
    (folder / file).write_text(json.dumps(content))
    assert open_hugging_face(folder).vocabulary == MergedVocabulary(50, 40)


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
    assert str(refused.value) == (
        "model: llm.pt does not fit its configuration: llm_decoder.bias is missing, llm_embedding.weight [2, 7] "
        "instead of [2, 64]; download it again"
    )


def test_prompts_of_the_models_own_voices(mini: Source) -> None:
    assert mini.vocabulary is not None
    prompts = voices_prompts(MINI / "spk2info.pt", mini.vocabulary)
    assert len(prompts) == 4
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
    assert read_prompts(MINI / "spk2info.pt", mini)[0].spoken_from == 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no prompts of speech"),
        ("{}", "is no list of prompts"),
        ("[", "is no JSON that can be read"),
        ('[{"text_ids": [1]}]', "speech_ids of a prompt is no list of ids"),
        ('[{"ids": [1.5]}]', "ids of a prompt is no list of ids"),
        ('[{"ids": [7168]}]', r"ids of prompts.json has the id 7168, the model has 0 … 7167"),
        ('[{"ids": [-1]}]', r"ids of prompts.json has the id -1, the model has 0 … 7167"),
        ('[{"text_ids": [532], "speech_ids": [0]}]', r"text_ids of prompts.json has the id 532, the model has 0 … 531"),
        ('[{"text_ids": [-1], "speech_ids": [0]}]', r"text_ids of prompts.json has the id -1, the model has 0 … 531"),
        ('[{"text_ids": [1], "speech_ids": [6561]}]', r"speech_ids of .* has the id 6561, the model has 0 … 6560"),
        ('[{"text_ids": [1], "speech_ids": [-1]}]', r"speech_ids of .* has the id -1, the model has 0 … 6560"),
    ],
)
def test_prompts_that_cannot_be_are_refused(mini: Source, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises((InvalidRequest, CheckpointError), match=message):
        read_calibration(path, mini)


def test_voices_of_another_model_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"text_ids of '\w+' in spk2info\.pt has the id \d+, the model has 0 … 19"):
        voices_prompts(MINI / "spk2info.pt", MergedVocabulary(20, 6561))


def test_speech_tokens_need_a_known_vocabulary(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer that says where they begin"):
        read_calibration(MINI / "spk2info.pt", open_hugging_face(folder))


def test_ranges_of_another_model_are_refused(mini: Source) -> None:
    with pytest.raises(InvalidRequest, match=r"has no model\.layers\.2\.self_attn\.q_proj\.x"):
        read_calibration(DATA / "a_h64" / "calibration.safetensors", mini)
    with pytest.raises(CheckpointError, match="of a model of other sizes"):
        read_calibration(DATA / "b_h128_tied" / "calibration.safetensors", open_hugging_face(DATA / "a_h64" / "hf"))
