"""Trained parts become a checkpoint with stored voices; the test set is what `vivavoce eval` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import SPEAKERS, speech_tokenizer_of
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.front_end import load_front_end
from vivavoce.frontend.model_choice import model_folder
from vivavoce_bench.evaluate.cases import read_audio_table, read_seed_tts_list
from vivavoce_training.assemble import NOTICE, PARTS, PROMPTS, VOICES, assemble, write_test_set
from vivavoce_training.data.kokoro.teacher import Labelled
from vivavoce_training.data.speakers import test_speakers as held_out_speakers
from vivavoce_training.data.store import SAMPLE_RATE, Speaker
from vivavoce_training.weights import MINI, SPEECH_TOKENIZER

RECORDING = Path(__file__).parents[1] / "data" / "parity" / "wavs" / "zero_shot_prompt.wav"


class Recorder:
    """Plays one recording, each time a little shorter, and remembers who should have said what."""

    def __init__(self) -> None:
        self.asked: list[tuple[Speaker, str]] = []
        self._speech = decode_audio(RECORDING)
        assert self._speech.sample_rate == SAMPLE_RATE

    def __call__(self, speaker: Speaker, text: str) -> Labelled:
        self.asked.append((speaker, text))
        silence = 9600  # 0.4 s, or ten tokens, which a stored voice keeps
        samples = np.pad(self._speech.samples[: -4800 * len(self.asked)], (silence, 0))
        return Labelled(samples, np.arange(len(samples) // 960, dtype=np.int32))


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
    assert len({speaker.timbre for speaker, _ in recorder.asked}) == len(VOICES)


def test_stored_voices_are_zero_shot_prompts(assembled: Path) -> None:
    entries = read_spk2info(assembled / SPEAKERS)
    assert list(entries) == list(VOICES)
    front_end = load_front_end(assembled)
    for place, (name, (_, text)) in enumerate(VOICES.items()):
        prompt = entries[name].prompt
        assert tuple(prompt.text_ids.tolist()) == front_end.text.encode(text)
        tokens = prompt.llm_speech_tokens
        assert tokens.equal(prompt.flow_speech_tokens)
        assert tokens.tolist() == [*range(97 - 5 * (place + 1))]  # the labels: 3.88 s, and 0.2 s less each time
        assert prompt.mel.shape == (2 * len(tokens), 80)


def test_settings_of_another_generation_name_the_tokenizer(tmp_path: Path) -> None:
    settings = MINI.with_name("mini3")
    folder = assemble(model_folder("mini"), tmp_path / "new", Recorder(), settings)
    assert {path.name for path in settings.iterdir()} < {path.name for path in folder.iterdir()}
    assert not [name for name in ("cosyvoice2.yaml", SPEECH_TOKENIZER) if (folder / name).exists()]
    own, name = model_folder("mini") / SPEECH_TOKENIZER, speech_tokenizer_of(Generation.V3)
    assert (folder / name).read_bytes() == own.read_bytes()
    assert list(read_spk2info(folder / SPEAKERS)) == list(VOICES)


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


SENTENCES = ("One.", "Two, or more?", "Three fish.", "Four.", "Five chairs.")
HELD_OUT = held_out_speakers()[:3]


def tone(speaker: Speaker, text: str) -> np.ndarray:
    """A tone whose length tells the text, and its pitch the speaker."""
    seconds = np.arange(2400 * len(text)) / SAMPLE_RATE
    return (0.5 * np.sin(2 * np.pi * (100 + 20 * HELD_OUT.index(speaker)) * seconds)).astype(np.float32)


def record(speaker: Speaker, text: str) -> Labelled:
    return Labelled(tone(speaker, text), np.zeros(0, np.int32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "new"
    write_test_set(folder, SENTENCES, HELD_OUT, record)
    return folder


def samples_of(path: Path) -> np.ndarray:
    audio = decode_audio(path)
    assert audio.sample_rate == SAMPLE_RATE
    return np.asarray(audio.samples)


def test_the_list_gives_each_sentence_a_speaker_in_turn(folder: Path) -> None:
    cases = read_seed_tts_list(folder / "zero_shot.lst")
    assert [case.text for case in cases] == list(SENTENCES)
    for number, case in enumerate(cases):
        speaker = HELD_OUT[number % 3]
        assert case.prompt_text == PROMPTS[number % 3 % 2]
        np.testing.assert_allclose(samples_of(Path(case.voice)), tone(speaker, case.prompt_text), atol=1e-4)
        np.testing.assert_allclose(samples_of(case.truth), tone(speaker, case.text), atol=1e-4)


def test_the_ceiling_holds_the_same_recordings(folder: Path) -> None:
    truths = [case.truth for case in read_seed_tts_list(folder / "zero_shot.lst")]
    ceiling = read_audio_table(folder / "source.tsv")
    assert [case.audio for case in ceiling] == truths
    assert [case.text for case in ceiling] == list(SENTENCES)


def test_a_prompt_is_no_test_sentence() -> None:
    held_out = Path(__file__).parents[2] / "benchmarks" / "sentences" / "held_out.txt"
    assert not set(PROMPTS) & set(held_out.read_text(encoding="utf-8").splitlines())
