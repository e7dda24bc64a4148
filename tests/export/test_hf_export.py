"""A model's folder → one Hugging Face Qwen2 folder: every id, row and file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.weights import read_tensors
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.hf.tensor_file import write_tensors
from vivavoce.export.hf.tokenizer import add_speech, tokenizer_config
from vivavoce.export.hf.write import export_hf
from vivavoce.service.default_model import MINI
from vivavoce.service.text.tokenizer import TextTokenizer

FILES = {
    "config.json",
    "generation_config.json",
    "speech_lm.json",
    "model.safetensors",
    "embedding_bias.npy",
    "tokenizer.json",
    "tokenizer_config.json",
}


def text_tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder / "CosyVoice-BlankEN")


@pytest.fixture(scope="module")
def merged(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The babble model, exported in its own float32."""
    folder = tmp_path_factory.mktemp("hf") / "merged"
    export_hf(babble, folder, text_tokenizer(babble).to_json())
    return folder


@pytest.fixture(scope="module")
def vocabulary(babble: Path) -> MergedVocabulary:
    return MergedVocabulary(len(text_tokenizer(babble)), 6561)


@settings(max_examples=50, deadline=None)
@given(text=st.integers(1, 200_000), speech=st.integers(1, 10_000))
def test_ids_follow_one_another_without_gaps(text: int, speech: int) -> None:
    vocabulary = MergedVocabulary(text, speech)
    order = [*(vocabulary.speech(token) for token in (0, speech - 1)), *vocabulary.eos_ids, vocabulary.sos]
    assert order == [text, text + speech - 1, *range(text + speech, text + speech + 4)]
    assert vocabulary.task == text + speech + 4 == vocabulary.size - 1
    assert vocabulary.padded_size % 128 == 0
    assert 0 <= vocabulary.padded_size - vocabulary.size < 128
    assert len(vocabulary.added_tokens()) == vocabulary.size - text


def test_the_folder_holds_what_a_plain_reader_expects(merged: Path) -> None:
    assert {path.name for path in merged.iterdir()} == FILES
    with safe_open(merged / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert not [name for name in file.keys() if "bias" in name and "self_attn" not in name]  # noqa: SIM118


def test_rows_of_both_tables(merged: Path, babble: Path, vocabulary: MergedVocabulary) -> None:
    official, written = read_tensors(babble / "llm.pt"), load_file(merged / "model.safetensors")
    table, head = written["model.embed_tokens.weight"], written["lm_head.weight"]
    text, speech = vocabulary.text_size, slice(vocabulary.text_size, vocabulary.sos)
    assert len(table) == len(head) == vocabulary.padded_size
    assert torch.equal(table[:text], official["llm.model.model.embed_tokens.weight"][:text])
    assert torch.equal(table[speech], official["speech_embedding.weight"])
    assert torch.equal(table[vocabulary.sos : vocabulary.size], official["llm_embedding.weight"])
    assert torch.equal(head[speech], official["llm_decoder.weight"])
    assert not table[vocabulary.size :].any()
    assert not head[:text].any()
    assert not head[vocabulary.sos :].any()


def test_the_backbone_is_untouched(merged: Path, babble: Path) -> None:
    official, written = read_tensors(babble / "llm.pt"), load_file(merged / "model.safetensors")
    backbone = set(written) - {"model.embed_tokens.weight", "lm_head.weight"}
    assert backbone == {
        key.removeprefix("llm.model.")
        for key in official
        if key.startswith(("llm.model.model.layers", "llm.model.model.norm"))
    }
    assert all(torch.equal(written[name], official[f"llm.model.{name}"]) for name in backbone)


def test_the_bias_forbids_every_id_but_the_heads_own(merged: Path, babble: Path, vocabulary: MergedVocabulary) -> None:
    bias = np.load(merged / "embedding_bias.npy", allow_pickle=False)
    assert (bias.shape, bias.dtype) == ((vocabulary.padded_size,), np.float32)
    allowed = np.isfinite(bias)
    assert np.flatnonzero(allowed).tolist() == list(range(vocabulary.text_size, vocabulary.sos))
    assert (bias[~allowed] == -math.inf).all()
    assert np.array_equal(bias[allowed], read_tensors(babble / "llm.pt")["llm_decoder.bias"].numpy())


def test_settings_by_old_and_new_names(merged: Path, babble: Path, vocabulary: MergedVocabulary) -> None:
    config = json.loads((merged / "config.json").read_text())
    official = json.loads((babble / "CosyVoice-BlankEN" / "config.json").read_text())
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps", "rope_theta"):
        assert config[key] == official[key]
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": official["rope_theta"]}
    assert config["torch_dtype"] == config["dtype"] == "float32"
    assert config["tie_word_embeddings"] is False
    assert config["vocab_size"] == vocabulary.padded_size
    generation = json.loads((merged / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_p"], generation["top_k"]) == (1.0, 0.8, 25)
    assert generation["eos_token_id"] == config["eos_token_id"] == list(vocabulary.eos_ids)


@pytest.mark.parametrize("model", ["babble", "mini"])
def test_text_gets_the_ids_of_our_own_tokenizer(merged: Path, babble: Path, tmp_path: Path, model: str) -> None:
    folder, out = (babble, merged) if model == "babble" else (MINI, tmp_path / "mini")
    ours = text_tokenizer(folder)
    if model == "mini":
        export_hf(folder, out, ours.to_json())
    theirs = Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in ("Hello there, it's 12 o'clock.", "  two  spaces\n", "a<|im_end|>b", "[laughter] ha", "Mr. O'Neil"):
        assert theirs.encode(text, add_special_tokens=False).ids == list(ours.encode(text))
    base = len(ours)
    assert theirs.encode("<|s_12|>").ids == [base + 12]
    assert theirs.encode("<|sos|>Hi<|task_id|><|s_0|><|s_6560|><|eos2|>", add_special_tokens=False).ids == [
        base + 6564,
        *ours.encode("Hi"),
        base + 6565,
        base,
        base + 6560,
        base + 6562,
    ]
    assert theirs.decode([base + 7, base + 6561], skip_special_tokens=True) == "<|s_7|>"


def test_the_prompt_is_framed(merged: Path) -> None:
    config = json.loads((merged / "tokenizer_config.json").read_text())
    jinja2 = pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "<|s_3|>"}]
    assert jinja2.Template(config["chat_template"]).render(messages=messages) == "<|sos|>Hi.<|task_id|><|s_3|>"
    assert (config["eos_token"], config["pad_token"]) == ("<|eos1|>", "<|endoftext|>")


def test_a_tokenizer_without_a_padding_token_pads_with_the_end(babble: Path) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer(babble).to_json().replace("<|endoftext|>", "<|otherwise|>"))
    assert tokenizer_config(tokenizer, 10)["pad_token"] == "<|eos1|>"


def test_a_tokenizer_that_has_the_ids_already_is_refused(babble: Path) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer(babble).to_json())
    vocabulary = MergedVocabulary(tokenizer.get_vocab_size(), 10)
    tokenizer.add_tokens(["<|s_0|>", "<|s_9|>"])
    with pytest.raises(CheckpointError, match=r"^tokenizer: <\|s_1\|> gets the id .*copy the model's"):
        add_speech(tokenizer, vocabulary)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_weights_are_cast_and_the_bias_is_not(babble: Path, tmp_path: Path, dtype: str) -> None:
    export = export_hf(babble, tmp_path / "out", text_tokenizer(babble).to_json(), dtype=dtype)
    official, written = read_tensors(babble / "llm.pt"), load_file(tmp_path / "out" / "model.safetensors")
    assert export.dtype == getattr(torch, dtype)
    assert export.num_bytes == (tmp_path / "out" / "model.safetensors").stat().st_size
    for name in ("model.norm.weight", "model.layers.1.self_attn.q_proj.bias"):
        assert torch.equal(written[name], official[f"llm.model.{name}"].to(export.dtype))
    assert {tensor.dtype for tensor in written.values()} == {export.dtype}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    assert np.load(tmp_path / "out" / "embedding_bias.npy").dtype == np.float32


def test_auto_is_the_models_own_dtype(tmp_path: Path) -> None:
    export = export_hf(MINI, tmp_path / "out", text_tokenizer(MINI).to_json())
    assert export.dtype == read_tensors(MINI / "llm.pt")["llm.model.model.norm.weight"].dtype


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(1, 40), min_size=1, max_size=4), width=st.integers(1, 9))
def test_tensors_are_written_in_blocks_of_any_number(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], width: int
) -> None:
    tensors = {f"t{index}": torch.randn(count, width) for index, count in enumerate(rows)} | {"v": torch.randn(7)}
    path = tmp_path_factory.mktemp("file") / "t.safetensors"
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vivavoce.export.hf.tensor_file._BLOCK_ELEMENTS", 16)
        size = write_tensors(path, shapes, torch.bfloat16, lambda name, part: tensors[name][part])
    assert size == path.stat().st_size
    written = load_file(path)
    assert all(torch.equal(written[name], tensor.bfloat16()) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("value", "message"),
    [(1e6, "x has values that float16 cannot hold; choose bfloat16"), (math.nan, "x has values that are no finite")],
)
def test_values_that_the_dtype_cannot_hold_are_refused(tmp_path: Path, value: float, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        write_tensors(tmp_path / "f", {"x": (1,)}, torch.float16, lambda *_: torch.tensor([value]))


def test_an_unknown_dtype_is_refused(babble: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^dtype: 'int8' is unknown; use auto or one of float32, float16"):
        export_hf(babble, tmp_path / "out", "{}", dtype="int8")


def test_a_missing_file_is_named_and_nothing_is_left(babble: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    (copy / "CosyVoice-BlankEN").mkdir(parents=True)
    for name in ("cosyvoice2.yaml", "CosyVoice-BlankEN/config.json"):
        (copy / name).write_bytes((babble / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"llm\.pt is missing"):
        export_hf(copy, tmp_path / "out", text_tokenizer(babble).to_json())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_force_spares_a_folder_of_someone_elses(babble: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "theirs" / name).write_text("{}")
    with pytest.raises(InvalidRequest, match=r"holds no speech_lm\.json, so it is no earlier export"):
        export_hf(babble, tmp_path / "theirs", text_tokenizer(babble).to_json(), force=True)
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == ["config.json", "model.safetensors"]


def test_a_failure_on_the_way_leaves_the_earlier_export(
    babble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tokenizer = tmp_path / "out", text_tokenizer(babble).to_json()
    export_hf(babble, out, tokenizer)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vivavoce.export.hf.write.write_tensors", full)
    with pytest.raises(OSError, match="No space"):
        export_hf(babble, out, tokenizer, force=True)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
