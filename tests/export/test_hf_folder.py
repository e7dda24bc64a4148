"""A model → one Hugging Face Qwen2 folder, every id, row and file of it; and read back: the same logits."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.plain.lm import LMPrompt, prompt_rows
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.settings import read_config, vocabulary_of
from vivavoce.checkpoint.weights import LM_NAMES, load_into, read_tensors
from vivavoce.engine.lm_stage import plain_run
from vivavoce.engine.request import Conditioning, SegmentRequest
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.frontend.model_choice import MINI
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_export.hf_folder import (
    add_speech,
    export_hf,
    open_hugging_face,
    read_merged,
    read_vocabulary,
    speech_lm,
    tokenizer_config,
)
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

FILES = {"config.json", "generation_config.json", "speech_lm.json", "model.safetensors", "embedding_bias.npy"}
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json"}


def text_tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder / "CosyVoice-BlankEN")


@pytest.fixture(scope="module")
def vocabulary(babble: Path) -> MergedVocabulary:
    return MergedVocabulary(len(text_tokenizer(babble)), 6561, Generation.V2)


@settings(max_examples=50, deadline=None)
@given(text=st.integers(1, 200_000), speech=st.integers(1, 10_000))
def test_ids_follow_one_another_without_gaps(text: int, speech: int) -> None:
    vocabulary = MergedVocabulary(text, speech, Generation.V2)
    order = [*(vocabulary.speech(token) for token in (0, speech - 1)), *vocabulary.eos_ids, vocabulary.sos]
    assert order == [text, text + speech - 1, *range(text + speech, text + speech + 4)]
    assert vocabulary.task == text + speech + 4 == vocabulary.size - 1
    assert vocabulary.padded_size % 128 == 0
    assert 0 <= vocabulary.padded_size - vocabulary.size < 128
    assert len(vocabulary.added_tokens()) == vocabulary.size - text


@settings(max_examples=50, deadline=None)
@given(text=st.integers(1, 200_000), speech=st.integers(1, 10_000))
def test_cosyvoice3_s_control_ids_are_its_own(text: int, speech: int) -> None:
    """Those of the network, behind the text: two of them frame the text, and all of them end speech."""
    vocabulary, own = MergedVocabulary(text, speech, Generation.V3), vocabulary_of(Generation.V3, speech)
    assert (vocabulary.sos, vocabulary.task) == (text + own.sos, text + own.task)
    assert vocabulary.eos_ids[0] == text + own.eos
    assert sorted(vocabulary.eos_ids) == [text + one for one in own.stop_ids]
    assert vocabulary.head == range(text, text + own.num_logits) == range(text, vocabulary.size)
    names = vocabulary.added_tokens()
    assert len({*names}) == len(names) == own.num_logits
    spelled = [names[one] for one in (0, own.sos, own.eos, own.task, own.fill, speech + 4, -1)]
    some = ["<|sos|>", "<|eos1|>", "<|task_id|>", "<|fill|>"]
    assert spelled == ["<|s_0|>", *some, f"<|s_{speech + 4}|>", f"<|s_{speech + 199}|>"]


def test_the_folder_holds_what_a_plain_reader_expects(merged: Path, babble: Path, vocabulary: MergedVocabulary) -> None:
    """Rows of both tables, an untouched backbone, and a bias that forbids every id but the head's own."""
    assert {path.name for path in merged.iterdir()} == FILES | TOKENIZER_FILES
    with safe_open(merged / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    official, written = read_tensors(babble / "llm.pt"), load_file(merged / "model.safetensors")
    table, head = written.pop("model.embed_tokens.weight"), written.pop("lm_head.weight")
    text, speech = vocabulary.text_size, slice(vocabulary.text_size, vocabulary.sos)
    assert len(table) == len(head) == vocabulary.padded_size
    assert torch.equal(table[:text], official["llm.model.model.embed_tokens.weight"][:text])
    assert torch.equal(table[speech], official["speech_embedding.weight"])
    assert torch.equal(table[vocabulary.sos : vocabulary.size], official["llm_embedding.weight"])
    assert torch.equal(head[speech], official["llm_decoder.weight"])
    assert not table[vocabulary.size :].any()
    assert not head[:text].any()
    assert not head[vocabulary.sos :].any()
    backbone = ("llm.model.model.layers", "llm.model.model.norm")
    assert {f"llm.model.{name}" for name in written} == {key for key in official if key.startswith(backbone)}
    assert all(torch.equal(tensor, official[f"llm.model.{name}"]) for name, tensor in written.items())
    bias = np.load(merged / "embedding_bias.npy", allow_pickle=False)
    assert (bias.shape, bias.dtype) == ((vocabulary.padded_size,), np.float32)
    assert np.flatnonzero(np.isfinite(bias)).tolist() == list(range(text, vocabulary.sos))
    assert (bias[~np.isfinite(bias)] == -math.inf).all()
    assert np.array_equal(bias[speech], official["llm_decoder.bias"].numpy())


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
        stored = read_tensors(MINI / "llm.pt")["llm.model.model.norm.weight"].dtype
        assert export_hf(folder, out, ours.to_json()).dtype == stored
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
    vocabulary = MergedVocabulary(tokenizer.get_vocab_size(), 10, Generation.V2)
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


def test_a_failure_on_the_way_leaves_the_earlier_export(
    babble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tokenizer = tmp_path / "out", text_tokenizer(babble).to_json()
    export_hf(babble, out, tokenizer)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vivavoce_export.hf_folder.TensorFile", full)
    with pytest.raises(OSError, match="No space"):
        export_hf(babble, out, tokenizer, force=True)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


PROMPT = LMPrompt(text=(72, 101, 108), prompt_text=(5, 200, 31), prompt_speech=(0, 17, 6560, 6561, 6563, 900))


def original(folder: Path) -> SpeechLM:
    with torch.device("meta"):
        lm = SpeechLM(read_config(folder, ()).lm)
    load_into(lm, read_tensors(folder / "llm.pt"), LM_NAMES, "llm.pt", torch.float32)
    return lm.eval().requires_grad_(False)


def logits(lm: SpeechLM, prompt: LMPrompt = PROMPT) -> Tensor:
    return lm.speech_head(lm(prompt_rows(lm, prompt)[None]))


@pytest.fixture(scope="module", params=["babble", "babble_v3", "mini"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder, and what is exported of it."""
    source = MINI if request.param == "mini" else request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("hf") / "merged"
    export_hf(source, folder, TextTokenizer.from_folder(source / "CosyVoice-BlankEN").to_json(), dtype="float32")
    return source, folder


def edit(path: Path, **changes: object) -> None:
    """Set keys of a JSON file, and drop those that are None."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_equal_logits(model: tuple[Path, Path]) -> None:
    source, merged = model
    lm = speech_lm(*read_merged(merged))
    assert torch.equal(logits(lm), logits(original(source)))


def test_the_configuration_is_the_originals(model: tuple[Path, Path]) -> None:
    source, merged = model
    config, _ = read_merged(merged)
    expected = read_config(source, ()).lm
    text_size = len(TextTokenizer.from_folder(source / "CosyVoice-BlankEN"))
    # The silent tokens of a model's card are not in the merged folder.
    vocabulary = replace(expected.vocabulary, silent=config.vocabulary.silent)
    assert config == replace(expected, text_vocab_size=text_size, vocabulary=vocabulary)


def test_one_table_and_one_head_give_equal_logits(model: tuple[Path, Path]) -> None:
    """As a runtime computes that knows merged ids only, and adds the bias that lies beside the weights."""
    source, merged = model
    lm, vocabulary, weights = original(source), read_vocabulary(merged), load_file(merged / "model.safetensors")
    ids = (
        vocabulary.sos,
        *PROMPT.prompt_text,
        *PROMPT.text,
        vocabulary.task,
        *(vocabulary.speech(token) for token in PROMPT.prompt_speech),
    )
    rows = weights["model.embed_tokens.weight"][list(ids)]
    bias = torch.from_numpy(np.load(merged / "embedding_bias.npy"))
    every = linear(lm(rows[None]), weights["lm_head.weight"]) + bias
    speech = slice(vocabulary.head.start, vocabulary.head.stop)
    torch.testing.assert_close(every[..., speech], logits(lm), atol=1e-5, rtol=0)
    forbidden = torch.ones(vocabulary.padded_size, dtype=torch.bool)
    forbidden[speech] = False
    assert (every[..., forbidden] == -math.inf).all()
    torch.testing.assert_close(every.softmax(-1)[..., speech], logits(lm).softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("both", [False, True])
def test_the_bias_beside_the_weights_counts_before_the_published_place(babble: Path, changed: Path, both: bool) -> None:
    weights, bias = load_file(changed / "model.safetensors"), np.load(changed / "embedding_bias.npy")
    if not both:
        (changed / "embedding_bias.npy").unlink()
    stored = torch.ones(len(bias)) if both else torch.from_numpy(bias)
    save_file(weights | {"lm_head.bias": stored}, changed / "model.safetensors")
    assert torch.equal(logits(speech_lm(*read_merged(changed))), logits(original(babble)))


def test_a_lost_bias_is_none(babble: Path, changed: Path) -> None:
    (changed / "embedding_bias.npy").unlink()
    lm, reference = speech_lm(*read_merged(changed)), original(babble)
    assert not lm.speech_head.bias.any()
    torch.testing.assert_close(logits(lm) + reference.speech_head.bias, logits(reference), atol=1e-5, rtol=0)


def test_what_cosyvoice3_may_say_is_what_our_engine_lets_it_say(babble_v3: Path, merged_v3: Path) -> None:
    config = read_config(babble_v3, ()).lm
    segment = SegmentRequest(Conditioning(torch.zeros(192)), text=(72, 101))
    allowed = plain_run(config, segment, official=False, room=None).allowed
    first = len(text_tokenizer(babble_v3))
    generation = json.loads((merged_v3 / "generation_config.json").read_text())
    assert generation["eos_token_id"][0] == first + config.vocabulary.eos
    assert sorted(generation["eos_token_id"]) == [first + one for one in allowed]
    bias = np.load(merged_v3 / "embedding_bias.npy")
    finite = np.flatnonzero(np.isfinite(bias))
    assert not bias[finite].any()
    assert finite.tolist() == [first + one for one in (*range(config.vocabulary.num_speech_tokens), *allowed)]


def test_cosyvoice3_s_head_has_no_bias(babble_v3: Path, merged_v3: Path, tmp_path: Path) -> None:
    """Folders of the official deployment have none at all, and rows for text in the head; others are strange."""
    folder = Path(shutil.copytree(merged_v3, tmp_path / "changed"))
    weights, text = load_file(folder / "model.safetensors"), len(text_tokenizer(babble_v3))
    weights["lm_head.weight"][:text] = 1
    save_file(weights, folder / "model.safetensors")
    stated = torch.from_numpy(np.load(folder / "embedding_bias.npy"))
    (folder / "embedding_bias.npy").unlink()
    assert torch.equal(open_hugging_face(folder).bias, stated)
    assert torch.equal(logits(speech_lm(*read_merged(folder))), logits(original(babble_v3)))
    np.save(folder / "embedding_bias.npy", np.ones(len(weights["lm_head.weight"]), np.float32))
    with pytest.raises(CheckpointError, match="the head has a bias, and CosyVoice3's has none"):
        read_merged(folder)


def test_new_and_old_spellings_of_the_settings(changed: Path) -> None:
    expected, _ = read_merged(changed)
    edit(changed / "config.json", rope_theta=None, dtype=None)
    assert read_merged(changed)[0] == expected
    edit(changed / "config.json", rope_parameters=None, rope_theta=expected.rope_theta, rope_scaling=None)
    assert read_merged(changed)[0] == expected
    (changed / "speech_lm.json").unlink()
    assert read_merged(changed)[0] == expected  # babble's settings are the release's


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", r"config\.json: is missing in"),
        ("model.safetensors", r"model\.safetensors is missing"),
        ("tokenizer.json", r"no tokenizer file has <\|s_0\|>"),
    ],
)
def test_a_missing_file_is_named(changed: Path, file: str, message: str) -> None:
    (changed / file).unlink()
    with pytest.raises(CheckpointError, match=message):
        read_merged(changed)


def test_settings_out_of_their_range_are_refused(changed: Path) -> None:
    config = changed / "config.json"
    before = config.read_text()
    edit(config, num_hidden_layers=1000)
    with pytest.raises(CheckpointError, match=r"^config.json: num_hidden_layers: expected a whole number"):
        read_merged(changed)
    config.write_text(before)
    edit(changed / "speech_lm.json", mix_ratio=[5])
    with pytest.raises(CheckpointError, match=r"^speech_lm.json: mix_ratio: \[5\] are not two numbers"):
        read_merged(changed)


def test_transformers_computes_equal_logits(model: tuple[Path, Path]) -> None:
    """Where transformers is installed: the folder as its users load it, with the head's bias put in."""
    source, merged = model
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForCausalLM.from_pretrained(merged, torch_dtype="auto").eval()
    network.lm_head.bias = torch.nn.Parameter(torch.from_numpy(np.load(merged / "embedding_bias.npy")))
    vocabulary = read_vocabulary(merged)
    speech = [vocabulary.speech(token) for token in PROMPT.prompt_speech]
    ids = [vocabulary.sos, *PROMPT.prompt_text, *PROMPT.text, vocabulary.task, *speech]
    with torch.no_grad():
        every = network(torch.tensor([ids])).logits
    head = slice(vocabulary.head.start, vocabulary.head.stop)
    torch.testing.assert_close(every[..., head], logits(original(source)), atol=1e-4, rtol=0)
    assert (every[..., : vocabulary.text_size] == -math.inf).all()
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi."}], tokenize=False)
    ours = TextTokenizer.from_folder(source / "CosyVoice-BlankEN")
    assert tokenizer(chat).input_ids == [vocabulary.sos, *ours.encode("Hi."), vocabulary.task]
