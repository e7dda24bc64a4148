"""A model folder: its settings as data, its sizes, weights, card and identity, and everything that can be wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vivavoce
from vivavoce.checkpoint.config import Generation, SilentTokens, qwen2_of
from vivavoce.checkpoint.folder import detect_generation, fingerprint, read_card
from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import (
    FLOW_NAMES,
    LM_NAMES,
    VOCODER_NAMES,
    check_variant,
    find_part,
    fold_weight_norm,
    read_tensors,
)
from vivavoce.errors import CheckpointError, ModelNotFound, UnsupportedModel, VivavoceError
from vivavoce.models.build import build_models
from vivavoce.models.flow.model import Flow
from vivavoce.models.generations import NETWORKS
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.hift import HiFT


def read(tmp_path: Path, text: str):
    path = tmp_path / "cosyvoice2.yaml"
    path.write_text(text, encoding="utf-8")
    return read_official_yaml(path)


def test_tags_become_data(tmp_path):
    document = read(
        tmp_path,
        """
seed: !apply:random.seed [1986]
net: !new:some.module.Net
    size: !ref <size>
    act: !name:torch.nn.functional.relu
    inner: !new:other.Thing {a: 1}
size: 64
chunk: !ref <size> * 2 - 1
deep: !ref <net[size]>
less: !ref (<below> + 0.5) * -<size> // <two>
below: -1.5
two: 2
unknown: !strange {x: 1}
parts: [!ref <size>, null]
""",
    )
    assert document["seed"] == {"!": "apply:random.seed", "args": [1986]}
    assert document["net"]["!"] == "new:some.module.Net"
    assert document["net"]["size"] == 64
    assert document["net"]["inner"] == {"!": "new:other.Thing", "a": 1}
    assert document["chunk"] == 127
    assert document["deep"] == 64
    assert document["less"] == 32
    assert document["unknown"] == {"!": "tag:strange", "x": 1}
    assert document["parts"] == [64, None]


@pytest.mark.parametrize(
    "text",
    [
        "a: !apply:os.system ['touch {path}']",
        "a: !new:subprocess.Popen {{args: [touch, '{path}']}}",
        "a: !!python/object/apply:os.system ['touch {path}']",
        "a: !ref __import__('os').system('touch {path}')",
        "a: !module:os.system",
    ],
)
def test_nothing_is_ever_called(tmp_path, text):
    witness = tmp_path / "called"
    with suppress(CheckpointError):
        read(tmp_path, text.format(path=witness))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: !ref <b>", "this key does not exist"),
        ("a: !ref <b>\nb: !ref <a>", "refers to itself"),
        ("a: !ref <b> * 2\nb: text", "not arithmetic"),
        ("a: !ref <b> * 2\nb: '1'", "not arithmetic"),
        ("a: !ref <b> * 2\nb: [1]", "not arithmetic"),
        ("a: !ref <b> * 2\nb: .inf", "not arithmetic"),
        ("a: !ref <b> * 2\nb: 1" + "0" * 60, "not arithmetic"),
        ("a: !ref <b> <b>\nb: 2", "not arithmetic"),
        ("a: !ref 1<b>\nb: 2", "not arithmetic"),
        ("a: !ref <b> / 0\nb: 1", "not arithmetic"),
        ("a: [", "not valid YAML"),
        ("- 1\n- 2", "no settings"),
        ("", "no settings"),
        ("a: " + "[" * 5000, "not valid YAML"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, text, word):
    with pytest.raises(CheckpointError, match=word) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


ALIASES = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
REFERENCES = "a0: 1\n" + "".join(f"a{n}: [!ref <a{n - 1}>, !ref <a{n - 1}>]\n" for n in range(1, 40))
SUMS = "a0: 1\n" + "".join(f"a{n}: !ref <a{n - 1}> + <a{n - 1}>\n" for n in range(1, 40))
SQUARES = "a0: 99999\n" + "".join(f"a{n}: !ref <a{n - 1}> * <a{n - 1}>\n" for n in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
TAGS = f"%TAG !e! !{'x' * 40_000}\n---\na: [" + "!e!x 1," * 4_000 + "]"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: " + "x" * 100_001, "100000 bytes, which is the limit"),
        (ALIASES, "line 1 .anchors and aliases are not understood"),
        (MERGES, "line 1 .anchors and aliases"),
        ("a: {<<: [{b: 1}, {b: 2}]}", "line 1 .*merge"),
        (REFERENCES, "references make more than 5000 values"),
        (SUMS, "references make more than 5000 values"),
        (SQUARES, "'<a0> [*] <a0>': not arithmetic on numbers of 1e.15|'<a1> [*] <a1>': not arithmetic"),
        ("a: !ref 9999999999 * 9999999999", "not arithmetic on numbers of 1e[+]15 at most"),
        ("a: " + "1:" * 40_000 + "1", "more than 500 characters in one value"),
        ("a: " + "1:" * 240 + "1.5", "not valid YAML"),
        ("a: 0x" + "f" * 40_000, "more than 500 characters in one value"),
        ("a: !ref " + "-" * 90_000 + "1", "more than 500 characters in one value"),
        ("a: !ref " + "-" * 480 + "1 + x", "!ref '-{79}: not arithmetic"),
        ("a: !ref " + "(" * 240 + "1" + ")" * 240, "!ref '[(]{79}: not arithmetic"),
        ("a: !ref <" + "x" * 480 + ">", "!ref 'x{79}: this key does not exist"),
        ('a: !ref "1\\n2"', "!ref '1.n2': not arithmetic"),
        ("a: [" + "1," * 40_000 + "]", "more than 5000 values"),
        ("a: " + "- " * 40_000, "not valid YAML"),
        ("a: " + "{a: " * 2_000, "not valid YAML"),
        (TAGS, "more than 500 characters in one value"),
        ("a: !!" + "x" * 480 + " 1", "not valid YAML in line 1"),
        ("a: !!int ''", "not valid YAML"),
        ("a: !!bool x", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
    ],
)
def test_a_small_file_cannot_become_much(tmp_path, text, word):
    """Unbounded, most of these take gigabytes and do not end."""
    begin = time.process_time()
    with pytest.raises(CheckpointError, match=word) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250
    assert time.process_time() - begin < 5


CPU = torch.device("cpu")


@pytest.fixture
def folder(babble: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(babble, tmp_path / "model"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def state(folder: Path, part: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / f"{part}.pt", weights_only=True)


def refused(folder: Path, error: type[VivavoceError] = CheckpointError) -> str:
    with pytest.raises(error) as raised:
        build_models(folder, CPU)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_generation_is_detected_not_assumed(folder):
    assert detect_generation(folder) is Generation.V2
    for name in ("cosyvoice3.yaml", "cosyvoice.yaml"):  # without a speech tokenizer of their own
        (folder / name).write_text("")
        assert detect_generation(folder) is Generation.V2
    (folder / "cosyvoice.yaml").unlink()
    (folder / "cosyvoice2.yaml").unlink()
    assert detect_generation(folder) is Generation.V3


def test_no_folder_and_no_model(tmp_path):
    assert "not a folder" in refused(tmp_path / "nowhere", ModelNotFound)
    assert "cosyvoice2.yaml" in refused(tmp_path)


@pytest.mark.parametrize("name", ["llm.pt", "flow.pt", "hift.pt", "CosyVoice-BlankEN/config.json"])
def test_a_missing_or_corrupt_file_is_named(folder, name):
    for content in (b"", b"not a pickle", b"PK\x03\x04" + b"\0" * 100):
        (folder / name).write_bytes(content)
        assert Path(name).name in refused(folder)
    (folder / name).unlink()
    assert name in refused(folder)


def test_code_in_a_checkpoint_is_not_run(folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "called",))

    torch.save({"x": Evil()}, folder / "llm.pt")
    assert "llm.pt" in refused(folder)
    assert not (tmp_path / "called").exists()


def test_one_error_lists_all_that_is_wrong(folder):
    weights = state(folder, "llm")
    del weights["llm_decoder.bias"], weights["llm.model.model.norm.weight"]
    weights["surprise.weight"] = torch.zeros(1)
    weights["llm_embedding.weight"] = torch.zeros(3, 64)
    torch.save(weights, folder / "llm.pt")
    message = refused(folder)
    for word in ("2 missing", "llm_decoder.bias", "norm.weight", "1 unexpected", "surprise", "[3, 64]", "[2, 64]"):
        assert word in message


def test_a_size_that_contradicts_the_weights_is_an_error(folder):
    change(folder / "cosyvoice2.yaml", "linear_units: 128", "linear_units: 256")
    assert "wrong shape" in refused(folder)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("sample_rate: 24000", "sample_rate: fast", "sample_rate: expected a number"),
        ("num_blocks: 2", "num_blocks: 2.5", "num_blocks: expected a whole number"),
        ("channels: [32]", "channels: [32, 32]", "channels"),
        ("sample_rate: 24000", "sample_rate: 24001", "sample_rate: 24001"),
        ("attention_heads: 4", "attention_heads: 3", "attention_heads 3 does not divide output_size 64"),
        ("speech_token_size: 6561", "speech_token_size: .inf", "speech_token_size: expected a finite number"),
        ("top_p: 0.8", f"top_p: 1{'0' * 400}", "top_p: expected a number"),
        ("token_mel_ratio: 2", "token_mel_ratio: 3", "token_mel_ratio 3"),
        ("fmax: 8000", "fmax: 12001", "fmax 12001"),
    ],
)
def test_a_senseless_setting_is_named(folder, old, new, word):
    change(folder / "cosyvoice2.yaml", old, new)
    assert word in refused(folder)


EMPTY = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
NUMBER = re.compile(r"(?<=[ \[])-?[0-9][0-9.e+-]*(?=[],}\s])")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosyvoice2.yaml", "CosyVoice-BlankEN/config.json"])
@pytest.mark.parametrize("wrong", ["0", "3", "1000001", ".inf", "[2, 3]", "9" * 5000])
def test_no_number_breaks_the_reader_or_the_networks(folder, name, wrong):
    """Each number in turn is replaced: networks can be built, or a CheckpointError says why not."""
    path, keys = folder / name, list(state(folder, "flow"))
    sound = read_config(folder, keys)
    text = path.read_text(encoding="utf-8")
    numbers = list(NUMBER.finditer(text))
    assert len(numbers) >= 10
    for number in numbers:
        path.write_text(text[: number.start()] + wrong + text[number.end() :], encoding="utf-8")
        with suppress(CheckpointError), torch.device("meta"):
            config = read_config(folder, keys)
            # A network whose configuration is as before can be built as before.
            config.lm == sound.lm or SpeechLM(config.lm)
            config.flow == sound.flow or Flow(config.flow)
            config.vocoder == sound.vocoder or HiFT(config.vocoder)


@pytest.fixture
def first(babble_v1: Path, tmp_path: Path) -> Path:
    """CosyVoice 1's settings, in a folder of their own."""
    return Path(shutil.copy(babble_v1 / "cosyvoice.yaml", tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("channels: [32, 32]", "channels: [32]", "CosyVoice 1's U-Net has two equal levels"),
        ("channels: [32, 32]", "channels: [60, 60]", "60 are not 8 equal groups"),
        ("input_frame_rate: 50", "input_frame_rate: 25", "25; CosyVoice 1 needs 50 speech tokens per second"),
        ("attention_heads: 4", "attention_heads: 3", "llm.text_encoder: attention_heads 3 does not divide output_size"),
    ],
)
def test_a_senseless_setting_of_the_first_generation_is_named(first, old, new, word):
    change(first, old, new)
    with pytest.raises(CheckpointError, match=re.escape(word)):
        read_config(first.parent, ())


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["0", "3", "[2, 3]"])
def test_no_number_breaks_the_first_generation(first, wrong):
    text, sound = first.read_text(encoding="utf-8"), read_config(first.parent, ())
    numbers = list(NUMBER.finditer(text))
    assert len(numbers) >= 30
    for number in numbers:
        first.write_text(text[: number.start()] + wrong + text[number.end() :], encoding="utf-8")
        with suppress(CheckpointError), torch.device("meta"):
            config = read_config(first.parent, ())
            for name, part in NETWORKS[Generation.V1].items():
                getattr(config, name) == getattr(sound, name) or part.build(config)


def test_the_first_generation_s_language_model_is_no_qwen2(first):
    with pytest.raises(UnsupportedModel, match="is not Qwen2"):
        qwen2_of(read_config(first.parent, ()).lm)


def test_sizes_come_from_the_files(folder):
    keys = state(folder, "flow")
    config = read_config(folder, keys)
    assert config.lm.hidden_size == json.loads((folder / "CosyVoice-BlankEN/config.json").read_text())["hidden_size"]
    assert config.flow.encoder.num_up_blocks == 2
    assert config.flow.estimator.chunk == config.flow.encoder.chunk * config.flow.encoder.upsampling
    assert config.rates.frames_per_token == 2


def test_a_head_s_size_is_computed_once(folder):
    """Each decode step asks for it several times a layer."""
    keys = state(folder, "flow")
    lm = read_config(folder, keys).lm
    assert lm.head_dim == lm.hidden_size // lm.num_heads == vars(lm)["head_dim"]
    assert lm == read_config(folder, keys).lm
    assert replace(lm, hidden_size=2 * lm.hidden_size).head_dim == 2 * lm.head_dim


def test_other_spellings_are_the_same_model(folder, models):
    """safetensors, training counters, the older spelling of weight norm with a GAN's prefix."""
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    old = {}
    for key, value in state(folder, "hift").items():
        for new_name, old_name in names.items():
            key = key.replace(new_name, old_name)
        old[f"generator.{key}"] = value
    torch.save(old, folder / "hift.pt")
    torch.save({**state(folder, "llm"), "epoch": 3, "step": 1000}, folder / "llm.pt")
    save_file({key: value.clone() for key, value in state(folder, "flow").items()}, folder / "flow.safetensors")
    (folder / "flow.pt").unlink()
    loaded = build_models(folder, CPU)
    for part in ("lm", "flow", "vocoder"):
        for ours, theirs in zip(getattr(loaded, part).parameters(), getattr(models, part).parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_names_without_end_are_refused(folder):
    keys = [f"encoder.up_encoders.{block}.norm_ff.weight" for block in range(257)]
    with pytest.raises(CheckpointError, match=r"up_encoders has 257 blocks, the limit is 256"):
        read_config(folder, keys)
    names = json.dumps({f"{number:08x}": EMPTY for number in range(80_000)}).encode()
    (folder / "llm.safetensors").write_bytes(len(names).to_bytes(8, "little") + names)
    with pytest.raises(CheckpointError, match=r"^llm\.safetensors: is corrupt or too large; make"):
        read_tensors(folder / "llm.safetensors")


def test_variants_are_chosen_by_name(folder):
    weights = state(folder, "llm")
    weights["llm_decoder.bias"] = weights["llm_decoder.bias"] + 1
    torch.save(weights, folder / "llm.rl.pt")
    plain, tuned = build_models(folder, CPU), build_models(folder, CPU, variant="rl")
    assert torch.equal(tuned.lm.speech_head.bias, plain.lm.speech_head.bias + 1)
    (folder / "llm.pt").unlink()
    assert "llm.rl.pt" in refused(folder)


def test_another_files_language_model_takes_the_place_of_the_folders(folder, models, babble_v3, tmp_path):
    weights = state(folder, "llm")
    weights["llm_decoder.bias"] = weights["llm_decoder.bias"] + 1
    torch.save({f"module.{key}": value for key, value in weights.items()} | {"step": 9}, tmp_path / "mine.pt")
    (folder / "llm.pt").unlink()
    mine = build_models(folder, CPU, llm=tmp_path / "mine.pt")
    assert torch.equal(mine.lm.speech_head.bias, models.lm.speech_head.bias + 1)
    assert torch.equal(mine.flow.token_embedding.weight, models.flow.token_embedding.weight)
    with pytest.raises(CheckpointError, match=r"^absent\.pt: is missing in "):
        build_models(folder, CPU, llm=tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match=r"^model: llm\.pt does not fit its configuration: "):
        build_models(folder, CPU, llm=babble_v3 / "llm.pt")


@pytest.mark.parametrize("variant", ["nosuch", "../llm", "decoder"])
def test_a_variant_that_no_part_has_is_refused(folder, variant):
    with pytest.raises(CheckpointError, match=r"the folder has none"):
        build_models(folder, CPU, variant=variant)
    for name in ("llm.rl.pt", "flow.cache.safetensors", "flow.decoder.estimator.fp32.onnx"):
        (folder / name).touch()
    with pytest.raises(CheckpointError, match=r"^variant: '.*' is not in model; take one of cache, rl, or none$"):
        check_variant(folder, variant)
    for fine in ("rl", "cache", None):
        check_variant(folder, fine)


@pytest.mark.parametrize("scale", [torch.ones(3, 1, 1), torch.ones(2, 1), torch.ones(2, 1, 1, dtype=torch.int32)])
def test_a_weight_norm_that_does_not_fit_is_named(scale):
    with pytest.raises(CheckpointError, match=r"conv\.weight have the shapes"):
        fold_weight_norm({"conv.weight_g": scale, "conv.weight_v": torch.ones(2, 3, 4)})


def test_weights_are_copied_from_the_file(folder):
    loaded = build_models(folder, CPU)
    before = loaded.lm.speech_head.weight.clone()
    (folder / "llm.pt").write_bytes(b"\0" * (folder / "llm.pt").stat().st_size)
    assert torch.equal(loaded.lm.speech_head.weight, before)


def test_card(folder, tmp_path):
    card = read_card(folder)
    assert not card.trained
    assert card.scripts == {"Latin"}
    (folder / "vivavoce.json").unlink()
    assert read_card(folder).trained
    assert read_card(folder).scripts is None
    (folder / "vivavoce.json").write_text("[]")
    with pytest.raises(CheckpointError):
        read_card(folder)
    (folder / "vivavoce.json").write_bytes(b"{}" + b" " * 32_000_000)
    with pytest.raises(CheckpointError, match="more than 32000000 bytes"):
        read_card(folder)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models/CosyVoice2-0.5B", "CosyVoice2-0.5B"),
        ("hub/models--FunAudioLLM--CosyVoice2-0.5B/snapshots/eec1ae6c", "CosyVoice2-0.5B"),  # Hugging Face's cache
        ("snapshots/mine", "mine"),
    ],
)
def test_a_model_is_named_after_its_folder(tmp_path, folder, name):
    assert read_card(tmp_path / folder).name == name


@pytest.mark.parametrize("wrong", ["words", "Sentences", None, True, ["sentences"], {}, "x" * 1000])
def test_an_unknown_way_to_speak_arriving_text_is_refused(tmp_path, wrong):
    (tmp_path / "vivavoce.json").write_text(json.dumps({"text_stream": wrong}))
    with pytest.raises(CheckpointError, match=r"text_stream: .* interleaved, sentences, found") as raised:
        read_card(tmp_path)
    assert repr(wrong)[:60] in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("wrong", [0, 101, 4.0, "4", True, []])
def test_steps_of_a_distilled_flow_are_a_number(tmp_path, wrong):
    (tmp_path / "vivavoce.json").write_text(json.dumps({"flow_steps": wrong}))
    with pytest.raises(CheckpointError, match="flow_steps: expected a whole number from 1 to 100, found"):
        read_card(tmp_path)


def test_a_distilled_flow_takes_its_own_number_of_steps(own_babble, tmp_path):
    keys = read_tensors(find_part(own_babble, "flow"))
    assert read_config(own_babble, keys).flow.num_steps == 10
    shutil.copytree(own_babble, tmp_path / "few")
    card = json.loads((own_babble / "vivavoce.json").read_text())
    (tmp_path / "few" / "vivavoce.json").write_text(json.dumps(card | {"flow_steps": 4}))
    assert read_config(tmp_path / "few", keys).flow.num_steps == 4


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [1],
        {},
        {"tokens": 3},
        {"tokens": [-1]},
        {"tokens": [True]},
        {"tokens": ["3"]},
        {"tokens": [3], "longest": 1.0},
        {"tokens": [3], "first": -1},
        {"tokens": [3], "first": 6},
        {"tokens": [3], "longest": 2},
    ],
)
def test_silent_tokens_of_a_card_are_ids_and_two_numbers(tmp_path, wrong):
    (tmp_path / "vivavoce.json").write_text(json.dumps({"silence": wrong}))
    with pytest.raises(CheckpointError, match=r"silence: expected .*, found .*; correct it, or leave it out"):
        read_card(tmp_path)


def test_a_card_names_the_models_silent_tokens(own_babble, tmp_path):
    keys = read_tensors(find_part(own_babble, "flow"))
    assert read_config(own_babble, keys).lm.vocabulary.silent == SilentTokens((), longest=5, first=5)
    shutil.copytree(own_babble, tmp_path / "quiet")
    card = json.loads((own_babble / "vivavoce.json").read_text())
    silence = {"tokens": [3, 4], "longest": 9, "first": 2}
    (tmp_path / "quiet" / "vivavoce.json").write_text(json.dumps(card | {"silence": silence}))
    assert read_config(tmp_path / "quiet", keys).lm.vocabulary.silent == SilentTokens((3, 4), longest=9, first=2)


@pytest.mark.parametrize(
    ("ids", "first", "spoken"),
    [
        ([0, 0, 0, 7, 0, 0, 0, 0, 8, 0], 3, [0, 0, 0, 7, 0, 0, 0, 8, 0]),
        ([0, 0, 0, 7, 0, 0, 0, 0, 8, 0], 1, [0, 7, 0, 0, 0, 8, 0]),
        ([0, 0, 7], 0, [7]),
        ([7, 0, 0, 0, 0], 0, [7, 0, 0, 0]),
        ([0, 0, 0, 0], 1, [0]),
    ],
)
def test_silent_tokens_are_dropped_before_the_first_sound_and_when_too_many_follow_one_another(ids, first, spoken):
    silent = SilentTokens((0, 9), longest=3, first=first)
    for cut in range(len(ids)):
        places, run = silent.spoken(ids[:cut], silent.run_at_start)
        rest, _ = silent.spoken(ids[cut:], run)
        assert [ids[place] for place in places] + [ids[cut + place] for place in rest] == spoken


@pytest.mark.parametrize(
    ("part", "names", "module"),
    [("llm", LM_NAMES, "lm"), ("flow", FLOW_NAMES, "flow"), ("hift", VOCODER_NAMES, "vocoder")],
)
def test_names_lead_there_and_back(babble, models, part, names, module):
    official = read_tensors(babble / f"{part}.pt")
    if part == "hift":
        official = fold_weight_norm(official)
    used = [name for name in official if name not in names.unused]
    ours = [names.to_ours(name) for name in used]
    assert sorted(ours) == sorted(getattr(models, module).state_dict())
    assert [names.to_official(name) for name in ours] == used


FILES = {
    "campplus.onnx": b"speaker encoder",
    "speech_tokenizer_v2.onnx": b"speech tokenizer",
    "cosyvoice2.yaml": b"fmax: 8000",
    "llm.pt": b"language model",
}


@pytest.fixture
def identity_folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def test_the_identity_goes_with_the_contents(identity_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(identity_folder, tmp_path / "another name")
    os.utime(copy / "campplus.onnx", (0, 0))
    assert fingerprint(copy) == fingerprint(identity_folder) == "16d422b403ac62f8"


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2.onnx", "cosyvoice2.yaml"])
def test_only_three_files_are_the_identity(identity_folder: Path, name: str) -> None:
    before, stat = fingerprint(identity_folder), (identity_folder / name).stat()
    (identity_folder / "llm.pt").write_bytes(b"fine-tuned")
    (identity_folder / "speech_tokenizer_v2.batch.onnx").write_bytes(b"for training")
    assert fingerprint(identity_folder) == before
    (identity_folder / name).write_bytes(FILES[name].swapcase())
    os.utime(identity_folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(identity_folder) != before
    (identity_folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.split("_")[0].split("2")[0]):
        fingerprint(identity_folder)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064d}\nsize 2034390000\n"


@pytest.mark.parametrize(
    "name",
    [
        *("llm.pt", "flow.pt", "hift.safetensors", "campplus.onnx", "speech_tokenizer_v2.onnx", "spk2info.pt"),
        *("cosyvoice2.yaml", "vivavoce.json", "CosyVoice-BlankEN/config.json", "CosyVoice-BlankEN/vocab.json"),
        *("CosyVoice-BlankEN/merges.txt", "CosyVoice-BlankEN/tokenizer_config.json"),
    ],
)
def test_a_pointer_of_git_lfs_is_named_with_the_command(babble: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(babble, tmp_path / "cloned"))
    (folder / name).write_text(POINTER)
    with pytest.raises(CheckpointError) as caught:
        vivavoce.load(folder, device="cpu")
    place = (folder / name).parent
    assert str(caught.value) == (
        f"{Path(name).name}: is a pointer of git-lfs, not the file itself; type `git lfs pull` in {place}"
    )


@pytest.mark.parametrize("stray", ["cosyvoice.yaml", "cosyvoice3.yaml"])
def test_a_yaml_of_another_generation_is_left_alone_or_named(babble: Path, tmp_path: Path, stray: str) -> None:
    folder = Path(shutil.copytree(babble, tmp_path / "mine"))
    (folder / stray).write_text("sample_rate: 22050\n")
    assert detect_generation(folder) is Generation.V2
    with vivavoce.load(folder, device="cpu") as tts:
        assert tts.generation is Generation.V2
        assert tts.front_end.text.explain("Hi.").spoken
    (folder / "speech_tokenizer_v2.onnx").unlink()
    names = " and ".join(sorted(["cosyvoice2.yaml", stray], key=lambda name: name.replace(".yaml", "")))
    with pytest.raises(CheckpointError, match=f"^model: mine holds {names}; remove the files of other models$"):
        detect_generation(folder)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_the_weights_within_a_wrapper_are_read(tmp_path: Path, suffix: str) -> None:
    state = {"a.weight": torch.arange(3.0), "a.module.bias": torch.ones(2)}
    path, prefixed = tmp_path / f"llm.{suffix}", {f"module.{name}": tensor for name, tensor in state.items()}
    wrapped = [state, prefixed]
    if suffix == "pt":
        wrapped += [{"module": state}, {"module": prefixed, "epoch": 3, "step": 90}, {"state_dict": {"module": state}}]
    for one in wrapped:
        save_file(one, path) if suffix == "safetensors" else torch.save(one, path)
        read = read_tensors(path)
        assert read.keys() == state.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in state.items())


def test_a_training_state_says_how_to_get_the_weights(tmp_path: Path) -> None:
    state, path = {"a.weight": torch.zeros(2)}, tmp_path / "llm.pt"
    torch.save({"module": state, "optimizer": None, "ds_version": "0.15.1", "param_shapes": torch.Size([2])}, path)
    with pytest.raises(CheckpointError, match=r"DeepSpeed, whose zero_to_fp32\.py makes weights"):
        read_tensors(path)
    torch.save({"model": state, "optimizer": {"state": {}}}, path)
    with pytest.raises(CheckpointError, match="more than tensors: model, optimizer; save the dict of named tensors"):
        read_tensors(path)
