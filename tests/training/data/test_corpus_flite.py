"""flite itself, where it is installed; and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.data.flite import FLITE_RATE, VOICES, Flite
from training.data.render import source_recording
from training.data.speakers import test_speakers
from training.data.store import PHONES
from vivavoce.errors import MissingDependency

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def flite() -> Flite:
    try:
        return Flite()
    except MissingDependency as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("voice", VOICES)
def test_a_voice_speaks(flite: Flite, voice: str) -> None:
    spoken = flite(voice, TEXT)
    assert spoken is not None
    assert spoken.samples.dtype == np.int16
    names = [PHONES[phone] for phone in spoken.phones]
    assert names[0] == names[-1] == "pau"
    assert " ".join(names).find("f aa k s") > 0
    assert np.all(np.diff(spoken.ends) >= 0)
    assert spoken.ends[-1] == pytest.approx(len(spoken.samples) / FLITE_RATE, abs=0.15)


@pytest.mark.parametrize("voice", VOICES)
def test_pitch_and_tempo(flite: Flite, voice: str) -> None:
    plain, high, slow = flite(voice, TEXT), flite(voice, TEXT, 1.25, 1.0), flite(voice, TEXT, 1.0, 1.2)
    assert plain is not None
    assert high is not None
    assert slow is not None
    assert slow.ends[-1] / plain.ends[-1] == pytest.approx(1.2, abs=0.02)
    assert high.ends[-1] == pytest.approx(plain.ends[-1], abs=0.02)
    assert hertz(high.samples) / hertz(plain.samples) == pytest.approx(1.25, abs=0.08)


def test_what_was_said_before_does_not_matter(flite: Flite) -> None:
    for voice in VOICES:
        before = flite(voice, TEXT)
        flite(voice, "Something else.", 1.2, 0.9)
        after = flite(voice, TEXT)
        assert before is not None
        assert after is not None
        assert np.array_equal(before.samples, after.samples)


def test_a_second_one_speaks_alike(flite: Flite) -> None:
    for voice in VOICES:
        before = flite(voice, TEXT, 1.2, 1.1)
        after = Flite()(voice, TEXT, 1.2, 1.1)
        assert before is not None
        assert after is not None
        assert np.array_equal(before.samples, after.samples)


def test_nothing_to_say(flite: Flite) -> None:
    assert flite("slt", "") is None
    assert flite("kal16", "...") is None


def test_a_speaker_is_recorded(flite: Flite) -> None:
    recording = source_recording(test_speakers()[3], TEXT, flite)
    assert 1.5 < len(recording) / 24000 < 5
    assert 0.5 <= np.abs(recording).max() <= 0.9


def test_a_folder_without_flite(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="apt-get install libflite1"):
        Flite(tmp_path)


def hertz(samples: np.ndarray) -> float:
    """Median pitch over the voiced frames, by autocorrelation."""
    found = []
    for start in range(0, len(samples) - 800, 400):
        frame = samples[start : start + 800].astype(float)
        frame -= frame.mean()
        power = np.correlate(frame, frame, "full")[799:]
        lag = 50 + int(power[50:270].argmax())
        if power[lag] > 0.6 * power[0] > 1e7:
            found.append(FLITE_RATE / lag)
    return float(np.median(found))
