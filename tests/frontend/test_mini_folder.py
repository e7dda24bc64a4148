"""The mini model's folder: small, in 16 bit, in the official layout, with its card and its notices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vivavoce.checkpoint.folder import SPEAKERS, TextStream, read_card
from vivavoce.checkpoint.spk2info import read_spk2info, write_spk2info
from vivavoce.checkpoint.weights import read_tensors
from vivavoce.frontend.model_choice import MINI, model_folder
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_inspect.model import inspect_model
from vivavoce_training.assemble import NOTICE, VOICES
from vivavoce_training.weights import MINI as TEMPLATE

MOST_BYTES = 45_000_000


def test_it_is_the_default() -> None:
    assert model_folder(None) == model_folder("mini") == model_folder("Mini") == MINI
    card = read_card(MINI)
    assert (card.name, card.trained, card.demo) == ("mini", True, True)
    assert card.text_stream is TextStream.SENTENCES
    assert card.languages == ("en",)


def test_it_is_whole_and_small() -> None:
    assert not inspect_model(MINI).problems
    assert sum(path.stat().st_size for path in MINI.rglob("*") if path.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("part", ["llm", "flow", "hift"])
def test_weights_are_stored_in_16_bit(part: str) -> None:
    state = read_tensors(MINI / f"{part}.pt")
    wide = {name for name, tensor in state.items() if tensor.dtype != torch.float16}
    assert all(name.endswith("parametrizations.weight.original0") for name in wide)  # norms, one number a channel


def test_what_is_not_learned_is_what_the_training_keeps() -> None:
    for path in TEMPLATE.rglob("*"):
        if path.is_file():
            assert (MINI / path.relative_to(TEMPLATE)).read_bytes() == path.read_bytes(), path.name
    assert (MINI / "NOTICE.md").read_bytes() == Path(NOTICE).read_bytes()
    assert "<!--" not in (MINI / "README.md").read_text(encoding="utf-8")


def test_its_voices_can_be_cloned_from() -> None:
    speakers = read_spk2info(MINI / SPEAKERS)
    assert list(speakers) == list(VOICES)
    assert all(entry.prompt is not None and len(entry.prompt.text_ids) for entry in speakers.values())


def test_the_card_tells_of_its_voices_the_best_one_first() -> None:
    voices = built_in_voices(MINI)
    assert [(voice.name, voice.language, voice.sex) for voice in voices.values()] == [
        ("warm", "en", "female"),
        ("calm", "en", "male"),
        ("bright", "en", "female"),
        ("clear", "en", "female"),
        ("gentle", "en", "female"),
        ("deep", "en", "male"),
        ("steady", "en", "male"),
        ("lively", "en", "male"),
    ]
    assert all(voice.transcript == VOICES[voice.name][1] and voice.description for voice in voices.values())


def test_official_names_tell_language_and_sex(tmp_path: Path) -> None:
    entry = read_spk2info(MINI / SPEAKERS)["calm"]
    write_spk2info(tmp_path / SPEAKERS, dict.fromkeys(("中文女", "粤语女", "英文男", "calm"), entry))
    found = [(voice.name, voice.language, voice.sex) for voice in built_in_voices(tmp_path).values()]
    assert found == [
        ("中文女", "zh", "female"),
        ("粤语女", "yue", "female"),
        ("英文男", "en", "male"),
        ("calm", "", ""),
    ]
