import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import TextStream, detect_generation, read_card, read_config
from vivavoce.checkpoint.weights import check_variant, fold_weight_norm
from vivavoce.errors import CheckpointError, ModelNotFound, UnsupportedModel, VivavoceError
from vivavoce.models.build import build_models
from vivavoce.models.flow.model import Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.hift import HiFT

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


def assert_same_models(one, other):
    for part in ("lm", "flow", "vocoder"):
        for ours, theirs in zip(getattr(one, part).parameters(), getattr(other, part).parameters(), strict=True):
            assert torch.equal(ours, theirs)


def refused(folder: Path, error: type[VivavoceError] = CheckpointError) -> str:
    with pytest.raises(error) as raised:
        build_models(folder, CPU)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_generation_is_detected_not_assumed(folder):
    assert detect_generation(folder) is Generation.V2
    for name, generation in (("cosyvoice.yaml", "v1"), ("cosyvoice3.yaml", "v3")):
        (folder / "cosyvoice2.yaml").rename(folder / name)
        assert generation in refused(folder, UnsupportedModel)
        (folder / name).rename(folder / "cosyvoice2.yaml")


def test_no_folder_and_no_model(tmp_path):
    assert "not a folder" in refused(tmp_path / "nowhere", ModelNotFound)
    assert "cosyvoice2.yaml" in refused(tmp_path)


@pytest.mark.parametrize("missing", ["llm.pt", "flow.pt", "hift.pt", "CosyVoice-BlankEN/config.json"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    assert missing in refused(folder)


@pytest.mark.parametrize("corrupt", ["llm.pt", "flow.pt", "hift.pt"])
@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04" + b"\0" * 100])
def test_a_corrupt_file_is_named(folder, corrupt, content):
    (folder / corrupt).write_bytes(content)
    assert corrupt in refused(folder)


def test_a_truncated_file_is_named(folder):
    content = (folder / "llm.pt").read_bytes()
    (folder / "llm.pt").write_bytes(content[: len(content) // 2])
    assert "llm.pt" in refused(folder)


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
        ("channels: [64]", "channels: [64, 64]", "channels"),
        ("sample_rate: 24000", "sample_rate: 24001", "sample_rate: 24001"),
        ("attention_heads: 4", "attention_heads: 0", "attention_heads: expected a whole number from 1"),
        ("attention_heads: 4", "attention_heads: 3", "attention_heads 3 does not divide output_size 64"),
        ("speech_token_size: 6561", "speech_token_size: .inf", "speech_token_size: expected a finite number"),
        ("speech_token_size: 6561", "speech_token_size: .nan", "speech_token_size: expected a finite number"),
        ("top_p: 0.8", f"top_p: 1{'0' * 400}", "top_p: expected a number"),
        ("token_mel_ratio: 2", "token_mel_ratio: 3", "token_mel_ratio 3"),
        ("fmax: 8000", "fmax: 12001", "fmax 12001"),
    ],
)
def test_a_senseless_setting_is_named(folder, old, new, word):
    change(folder / "cosyvoice2.yaml", old, new)
    assert word in refused(folder)


NUMBER = re.compile(r"(?<=[ \[])-?[0-9][0-9.e+-]*(?=[],}\s])")


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


@pytest.mark.parametrize(
    ("name", "value"), [("num_key_value_heads", 3), ("num_attention_heads", 3), ("num_attention_heads", 64)]
)
def test_heads_that_do_not_divide_are_named(folder, name, value):
    path = folder / "CosyVoice-BlankEN" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value, "hidden_size": 64}))
    assert str(value) in refused(folder)


def test_a_missing_setting_is_named(folder):
    change(folder / "cosyvoice2.yaml", "attention_heads:", "attention_hats:")
    assert "flow.encoder.attention_heads: expected a number, found nothing" in refused(folder)


def test_sizes_come_from_the_files(folder):
    keys = state(folder, "flow")
    config = read_config(folder, keys)
    assert config.lm.hidden_size == json.loads((folder / "CosyVoice-BlankEN/config.json").read_text())["hidden_size"]
    assert config.flow.encoder.num_up_blocks == 4
    assert config.flow.estimator.chunk == config.flow.encoder.chunk * config.flow.encoder.upsampling
    assert config.rates.frames_per_token == 2


def test_safetensors_are_read_when_present(folder, models):
    for part in ("llm", "flow", "hift"):
        save_file({k: v.clone() for k, v in state(folder, part).items()}, folder / f"{part}.safetensors")
        (folder / f"{part}.pt").unlink()
    assert_same_models(build_models(folder, CPU), models)


def test_both_spellings_of_weight_norm_and_the_gan_prefix(folder, models):
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    old = {}
    for key, value in state(folder, "hift").items():
        for new_name, old_name in names.items():
            key = key.replace(new_name, old_name)
        old[f"generator.{key}"] = value
    torch.save(old, folder / "hift.pt")
    assert_same_models(build_models(folder, CPU), models)


def test_training_counters_are_passed_over(folder, models):
    torch.save({**state(folder, "llm"), "epoch": 3, "step": 1000}, folder / "llm.pt")
    assert_same_models(build_models(folder, CPU), models)


def test_variants_are_chosen_by_name(folder):
    weights = state(folder, "llm")
    weights["llm_decoder.bias"] = weights["llm_decoder.bias"] + 1
    torch.save(weights, folder / "llm.rl.pt")
    plain, tuned = build_models(folder, CPU), build_models(folder, CPU, variant="rl")
    assert torch.equal(tuned.lm.speech_head.bias, plain.lm.speech_head.bias + 1)
    (folder / "llm.pt").unlink()
    assert "llm.rl.pt" in refused(folder)


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
    with pytest.raises(CheckpointError, match=r"conv\.weight is split"):
        fold_weight_norm({"conv.weight_g": scale, "conv.weight_v": torch.ones(2, 3, 4)})


def test_weight_norm_has_the_length_g():
    direction, scale = torch.randn(5, 3, 4), torch.rand(5, 1, 1) + 0.5
    weight = fold_weight_norm({"conv.weight_g": scale, "conv.weight_v": direction})["conv.weight"]
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), scale.flatten())
    assert bool(((weight * direction).sum((1, 2)) > 0).all())


def test_half_precision_files_load(folder, models):
    halves = {key: value.half() for key, value in state(folder, "flow").items()}
    torch.save(halves, folder / "flow.pt")
    assert build_models(folder, CPU).flow.token_embedding.weight.dtype is torch.float32


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


@pytest.mark.parametrize(
    ("card", "way"),
    [
        ({}, TextStream.INTERLEAVED),
        ({"text_stream": "interleaved"}, TextStream.INTERLEAVED),
        ({"text_stream": "sentences"}, TextStream.SENTENCES),
    ],
)
def test_the_card_says_how_arriving_text_is_spoken(tmp_path, card, way):
    assert read_card(tmp_path).text_stream is TextStream.INTERLEAVED
    (tmp_path / "vivavoce.json").write_text(json.dumps(card))
    assert read_card(tmp_path).text_stream is way


@pytest.mark.parametrize("wrong", ["words", "Sentences", "", None, True, 3, ["sentences"], {}, "x" * 1000])
def test_an_unknown_way_to_speak_arriving_text_is_refused(tmp_path, wrong):
    (tmp_path / "vivavoce.json").write_text(json.dumps({"text_stream": wrong}))
    with pytest.raises(
        CheckpointError, match=r"^vivavoce\.json: text_stream: .* interleaved, sentences, found"
    ) as raised:
        read_card(tmp_path)
    message = str(raised.value)
    assert repr(wrong)[:60] in message
    assert "\n" not in message
    assert len(message) < 250
