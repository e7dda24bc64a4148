"""A merged folder read back: the same logits as the original's, in our layout and in the published one."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.folder import read_config
from vivavoce.checkpoint.names import LM_NAMES
from vivavoce.checkpoint.weights import load_into, read_tensors
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.folder_settings import read_vocabulary
from vivavoce.export.hf.reread import read_merged, speech_lm
from vivavoce.export.hf.write import export_hf
from vivavoce.models.lm.prompting import LMPrompt, prompt_rows
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.service.default_model import MINI
from vivavoce.service.text.tokenizer import TextTokenizer

PROMPT = LMPrompt(text=(72, 101, 108), prompt_text=(5, 200, 31), prompt_speech=(0, 17, 6560, 6561, 6563, 900))


def original(folder: Path) -> SpeechLM:
    with torch.device("meta"):
        lm = SpeechLM(read_config(folder, ()).lm)
    load_into(lm, read_tensors(folder / "llm.pt"), LM_NAMES, "llm.pt", torch.float32)
    return lm.eval().requires_grad_(False)


def logits(lm: SpeechLM, prompt: LMPrompt = PROMPT) -> Tensor:
    return lm.speech_head(lm(prompt_rows(lm, prompt)[None]))


def export(source: Path, folder: Path) -> Path:
    tokenizer = TextTokenizer.from_folder(source / "CosyVoice-BlankEN")
    export_hf(source, folder, tokenizer.to_json(), dtype="float32")
    return folder


@pytest.fixture(scope="module", params=["babble", "mini"])
def source(request: pytest.FixtureRequest, babble: Path) -> Path:
    return babble if request.param == "babble" else MINI


@pytest.fixture(scope="module")
def merged(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(source, tmp_path_factory.mktemp("hf") / "merged")


@pytest.fixture(scope="module")
def small(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(babble, tmp_path_factory.mktemp("hf") / "small")


@pytest.fixture
def changed(small: Path, tmp_path: Path) -> Path:
    """A copy of the folder of babble, to change."""
    return Path(shutil.copytree(small, tmp_path / "changed"))


def edit(path: Path, **changes: object) -> None:
    """Set keys of a JSON file, and drop those that are None."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_equal_logits(source: Path, merged: Path) -> None:
    lm = speech_lm(*read_merged(merged))
    assert torch.equal(logits(lm), logits(original(source)))


def test_the_configuration_is_the_originals(source: Path, merged: Path) -> None:
    config, _ = read_merged(merged)
    expected = read_config(source, ()).lm
    text_size = len(TextTokenizer.from_folder(source / "CosyVoice-BlankEN"))
    assert config == LMConfig(**{**vars(expected), "text_vocab_size": text_size})


def test_one_table_and_one_head_give_equal_logits(source: Path, merged: Path) -> None:
    """As a runtime computes that knows merged ids only, and adds the bias that lies beside the weights."""
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
    speech = slice(vocabulary.text_size, vocabulary.sos)
    torch.testing.assert_close(every[..., speech], logits(lm), atol=1e-5, rtol=0)
    forbidden = torch.ones(vocabulary.padded_size, dtype=torch.bool)
    forbidden[speech] = False
    assert (every[..., forbidden] == -math.inf).all()
    torch.testing.assert_close(every.softmax(-1)[..., speech], logits(lm).softmax(-1), atol=1e-6, rtol=0)


def test_the_published_layout_has_the_bias_among_the_weights(babble: Path, changed: Path) -> None:
    weights, bias = load_file(changed / "model.safetensors"), np.load(changed / "embedding_bias.npy")
    (changed / "embedding_bias.npy").unlink()
    save_file(weights | {"lm_head.bias": torch.from_numpy(bias)}, changed / "model.safetensors")
    assert torch.equal(logits(speech_lm(*read_merged(changed))), logits(original(babble)))


def test_of_two_biases_the_one_beside_the_weights_counts(babble: Path, changed: Path) -> None:
    weights = load_file(changed / "model.safetensors")
    rows = len(weights["lm_head.weight"])
    save_file(weights | {"lm_head.bias": torch.ones(rows)}, changed / "model.safetensors")
    assert torch.equal(logits(speech_lm(*read_merged(changed))), logits(original(babble)))


def test_a_lost_bias_is_none(babble: Path, changed: Path) -> None:
    (changed / "embedding_bias.npy").unlink()
    lm, reference = speech_lm(*read_merged(changed)), original(babble)
    assert not lm.speech_head.bias.any()
    torch.testing.assert_close(logits(lm) + reference.speech_head.bias, logits(reference), atol=1e-5, rtol=0)


def test_shards_are_put_together(babble: Path, changed: Path) -> None:
    weights = load_file(changed / "model.safetensors")
    (changed / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = {name: weights[name] for name in part}
        save_file(shard, changed / f"model-0000{number}-of-00002.safetensors")
    assert torch.equal(logits(speech_lm(*read_merged(changed))), logits(original(babble)))


def test_new_and_old_spellings_of_the_settings(changed: Path) -> None:
    expected, _ = read_merged(changed)
    edit(changed / "config.json", rope_theta=None, dtype=None)
    assert read_merged(changed)[0] == expected
    edit(changed / "config.json", rope_parameters=None, rope_theta=expected.rope_theta, rope_scaling=None)
    assert read_merged(changed)[0] == expected
    (changed / "speech_lm.json").unlink()
    assert read_merged(changed)[0] == expected  # babble's settings are the release's


def test_added_tokens_may_stand_in_any_of_their_places(changed: Path) -> None:
    expected = read_vocabulary(changed)
    tokens = {token: expected.text_size + n for n, token in enumerate(expected.added_tokens())}
    (changed / "tokenizer.json").unlink()
    edit(changed / "tokenizer_config.json", added_tokens_decoder={str(i): {"content": t} for t, i in tokens.items()})
    assert read_vocabulary(changed) == expected
    edit(changed / "tokenizer_config.json", added_tokens_decoder=None)
    (changed / "added_tokens.json").write_text(json.dumps(tokens))
    assert read_vocabulary(changed) == expected


@settings(max_examples=20, deadline=None)
@given(text=st.integers(1, 3000), speech=st.integers(1, 400))
def test_where_speech_begins_is_read_and_not_assumed(
    tmp_path_factory: pytest.TempPathFactory, text: int, speech: int
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    ids = {"<|s_0|>": text, "<|eos1|>": text + speech, "<|eos2|>": text + speech + 1, "<|eos3|>": text + speech + 2}
    ids |= {"<|sos|>": text + speech + 3, "<|task_id|>": text + speech + 4}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    vocabulary = read_vocabulary(folder)
    assert (vocabulary.text_size, vocabulary.num_speech_tokens) == (text, speech)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config says that the weights are quantised"),
    ],
)
def test_features_that_we_lack_are_refused(changed: Path, changes: dict[str, object], message: str) -> None:
    edit(changed / "config.json", **changes)
    with pytest.raises(UnsupportedModel, match=message):
        read_merged(changed)


def test_quantised_weights_are_refused(changed: Path) -> None:
    weights = load_file(changed / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(weights | {name: weights[name].to(torch.int8)}, changed / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=rf"{name} is int8, which is quantised"):
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


def test_tokens_out_of_order_are_refused(changed: Path) -> None:
    content = (changed / "tokenizer.json").read_text()
    swapped = content.replace("<|sos|>", "<|x|>").replace("<|task_id|>", "<|sos|>").replace("<|x|>", "<|task_id|>")
    (changed / "tokenizer.json").write_text(swapped)
    with pytest.raises(CheckpointError, match="not in the merged model's order"):
        read_merged(changed)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("lm_head.weight", 100, r"lm_head.weight is \[100, \d+\] and not of at least"),
        ("model.embed_tokens.weight", 0, "model.embed_tokens.weight is missing"),
        ("model.norm.weight", 10, r"norm.weight \[10\] instead of"),
        ("model.layers.0.mlp.up_proj.weight", 0, r"1 missing \(layers.0.mlp.up_proj.weight\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changed: Path, name: str, rows: int, message: str) -> None:
    weights = load_file(changed / "model.safetensors")
    weights[name] = weights[name][:rows].clone()
    save_file({key: value for key, value in weights.items() if len(value)}, changed / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_merged(changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [(np.zeros(10, np.float32), r"bias is \[10\] and not"), (np.array(["x"], object), "cannot be read")],
)
def test_a_bias_that_does_not_fit_is_refused(changed: Path, content: np.ndarray, message: str) -> None:
    np.save(changed / "embedding_bias.npy", content, allow_pickle=True)
    with pytest.raises(CheckpointError, match=message):
        read_merged(changed)


def test_transformers_computes_equal_logits(source: Path, merged: Path) -> None:
    """Where transformers is installed: the folder as its users load it, with the head's bias put in."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(merged, torch_dtype="auto").eval()
    model.lm_head.bias = torch.nn.Parameter(torch.from_numpy(np.load(merged / "embedding_bias.npy")))
    vocabulary = read_vocabulary(merged)
    speech = [vocabulary.speech(token) for token in PROMPT.prompt_speech]
    ids = [vocabulary.sos, *PROMPT.prompt_text, *PROMPT.text, vocabulary.task, *speech]
    with torch.no_grad():
        every = model(torch.tensor([ids])).logits
    torch.testing.assert_close(
        every[..., vocabulary.text_size : vocabulary.sos], logits(original(source)), atol=1e-4, rtol=0
    )
    assert (every[..., : vocabulary.text_size] == -math.inf).all()
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi."}], tokenize=False)
    ours = TextTokenizer.from_folder(source / "CosyVoice-BlankEN")
    assert tokenizer(chat).input_ids == [vocabulary.sos, *ours.encode("Hi."), vocabulary.task]
