"""What is told of a reference recording: a good one gets no warning, each fault that is put into it gets its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vivavoce.frontend.audio.audit import audit
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.audio.samples import Audio, levels_of

SAMPLES = sorted((Path(__file__).parents[3] / "docs" / "samples").glob("*.mp3"))
SAID = "The rain has stopped and the garden smells of mint. Shall we take our tea outside?"
Change = Callable[[Audio], np.ndarray]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_good_recordings_get_no_warning(path: Path) -> None:
    found = audit(decode_audio(path), SAID)
    assert found.warnings == ()
    assert 3.5 < found.speech_s < found.duration_s
    assert found.noise_db < -50 < -20 < found.level_db < -10
    assert found.cut_s is None


def level(audio: Audio) -> float:
    """The amplitude of the speech."""
    return float(10 ** (levels_of(audio).speech / 20))


def noisy(audio: Audio) -> np.ndarray:
    return audio.samples + 0.25 * level(audio) * np.random.default_rng(0).standard_normal(len(audio.samples))


def tones(audio: Audio, hertz: tuple[float, ...], share: float) -> np.ndarray:
    time = np.arange(len(audio.samples)) / audio.sample_rate
    return audio.samples + share * level(audio) * sum(np.sin(2 * np.pi * one * time) for one in hertz)


def music(audio: Audio) -> np.ndarray:
    return tones(audio, (220.0, 277.2, 329.6, 440.0, 554.4), 0.03)


def hum(audio: Audio) -> np.ndarray:
    return tones(audio, tuple(50.0 * number for number in range(1, 8)), 0.05)


def telephone(audio: Audio) -> np.ndarray:
    return resample_sinc(resample_sinc(audio.samples, audio.sample_rate, 8_000).numpy(), 8_000, 24_000).numpy()


def clipped(audio: Audio) -> np.ndarray:
    return np.clip(audio.samples * 8, -1, 1)


def quiet(audio: Audio) -> np.ndarray:
    return audio.samples * 0.005


def paused(audio: Audio) -> np.ndarray:
    middle = 2 * audio.sample_rate
    return np.concatenate([audio.samples[:middle], np.zeros(2 * audio.sample_rate), audio.samples[middle:]])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (noisy, "has noise only"),
        (music, "has a hum or music"),
        (hum, "has a hum or music"),
        (telephone, "sounds like a telephone"),
        (clipped, "is clipped"),
        (quiet, "is very quiet"),
        (paused, "pauses for"),
    ],
)
@pytest.mark.parametrize("voice", ["warm", "deep"])
def test_each_fault_is_told(voice: str, change: Change, told: str) -> None:
    audio = decode_audio(next(one for one in SAMPLES if one.stem == voice))
    warnings = audit(Audio(change(audio).astype(np.float32), audio.sample_rate), SAID).warnings
    assert [one for one in warnings if one.startswith(told)], warnings
    assert all(";" in one for one in warnings)  # each says what to do
    assert len(warnings) == 1


def test_a_short_recording_and_a_long_one_are_told() -> None:
    audio = decode_audio(SAMPLES[0])
    (short,) = audit(Audio(audio.samples[: audio.sample_rate], audio.sample_rate)).warnings
    assert short.startswith("has only 0.")
    long = Audio(np.tile(audio.samples, 4), audio.sample_rate)
    found = audit(long)
    (warning,) = found.warnings
    assert found.cut_s is not None
    assert 3.0 < found.cut_s < 13.0
    assert f"best at {found.cut_s:.1f} s, where it pauses" in warning
    near = slice(round((found.cut_s - 0.03) * long.sample_rate), round((found.cut_s + 0.03) * long.sample_rate))
    assert np.abs(long.samples[near]).max() < 0.05 * np.abs(long.samples).max()
    assert audit(long, advised_s=30.0).warnings == ()


@pytest.mark.parametrize(
    ("transcript", "word"), [("Yes.", "few"), (SAID * 4, "many"), ("雨停了", "few"), ("雨停了。" * 30, "many")]
)
def test_a_transcript_of_another_length_is_told(transcript: str, word: str) -> None:
    (warning,) = audit(decode_audio(SAMPLES[0]), transcript).warnings
    assert f"too {word} for that" in warning
