"""Trained parts become a checkpoint in the official layout, with stored voices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.assemble import NOTICE, PARTS, VOICES, assemble
from training.configs import MINI
from training.data.store import SAMPLE_RATE, Speaker
from vivavoce.checkpoint.folder import SPEAKERS
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.default_model import model_folder
from vivavoce.service.front_end import load_front_end

RECORDING = Path(__file__).parents[1] / "data" / "parity" / "wavs" / "zero_shot_prompt.wav"


class Recorder:
    """Plays one recording, each time a little shorter, and remembers who should have said what."""

    def __init__(self) -> None:
        self.asked: list[tuple[Speaker, str]] = []
        self._speech = decode_audio(RECORDING)
        assert self._speech.sample_rate == SAMPLE_RATE

    def __call__(self, speaker: Speaker, text: str) -> np.ndarray:
        self.asked.append((speaker, text))
        return self._speech.samples[: -9600 * len(self.asked)]


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> Path:
    """Of the parts that the package brings along."""
    folder = tmp_path_factory.mktemp("models") / "new"
    assert assemble(model_folder("mini"), folder, recorder) == folder
    return folder


def test_the_folder_is_whole(assembled: Path) -> None:
    for name in PARTS:
        assert (assembled / name).read_bytes() == (model_folder("mini") / name).read_bytes()
    for path in (path for path in MINI.rglob("*") if path.is_file()):
        assert (assembled / path.relative_to(MINI)).read_bytes() == path.read_bytes()
    assert (assembled / "NOTICE.md").read_bytes() == NOTICE.read_bytes()


def test_each_voice_is_recorded_by_its_speaker(assembled: Path, recorder: Recorder) -> None:
    assert recorder.asked == list(VOICES.values())
    assert len({speaker.voice for speaker, _ in recorder.asked}) == len(VOICES)


def test_stored_voices_are_zero_shot_prompts(assembled: Path) -> None:
    entries = read_spk2info(assembled / SPEAKERS)
    assert list(entries) == list(VOICES)
    front_end = load_front_end(assembled)
    for place, (name, (_, text)) in enumerate(VOICES.items()):
        prompt = entries[name].prompt
        assert prompt is not None
        assert tuple(prompt.text_ids.tolist()) == front_end.text.encode(text)
        tokens = prompt.llm_speech_tokens
        assert tokens.equal(prompt.flow_speech_tokens)
        assert len(tokens) == 87 - 10 * (place + 1)  # 3.48 s, and 0.4 s less each time
        assert prompt.mel.shape == (2 * len(tokens), 80)


def test_everyone_may_read_the_voices(assembled: Path) -> None:
    assert (assembled / SPEAKERS).stat().st_mode & 0o777 == 0o644


def test_a_missing_part_is_named(tmp_path: Path, recorder: Recorder) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in PARTS:
        (parts / name).touch()
    (parts / "hift.pt").unlink()
    with pytest.raises(InvalidRequest, match=r"parts: hift\.pt is missing in .*; train it, or copy it there"):
        assemble(parts, tmp_path / "new", recorder)
    assert not (tmp_path / "new").exists()
