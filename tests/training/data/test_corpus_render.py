"""An utterance lies on the token grid and its labels under its sounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.corpus_fakes import PHONE_S, tone
from training.data.flite import Spoken
from training.data.render import PEAK, SILENCE_S, frame_phones, read_rate, render, source_recording
from training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES, Speaker

FRAME_S = 0.02

speakers = st.builds(
    Speaker,
    name=st.just("anna"),
    voice=st.just("slt"),
    tract=st.floats(0.86, 1.17),
    pitch=st.floats(0.78, 1.28),
    tempo=st.floats(0.88, 1.15),
)


def test_a_frame_has_the_phone_at_its_centre() -> None:
    ends = np.array([0.05, 0.11, 0.17])
    phones = np.array([0, 7, 3], np.uint8)
    # centres at 0.01, 0.03, 0.05 (where the first phone ends), …; beyond the last phone is silence
    assert frame_phones(ends, phones, 0.0, 10).tolist() == [0, 0, 7, 7, 7, 3, 3, 3, 0, 0]
    assert frame_phones(ends, phones, 0.04, 3).tolist() == [7, 7, 7]


@given(speaker=speakers, seed=st.integers(0, 1000))
def test_the_grid_and_the_durations(speaker: Speaker, seed: int) -> None:
    utterance = render(speaker, "Hello world.", tone, np.random.default_rng(seed))
    assert utterance is not None
    assert len(utterance.wav) == utterance.num_tokens * TOKEN_SAMPLES
    assert len(utterance.phones) == utterance.num_tokens * MELS_PER_TOKEN
    sounding = np.flatnonzero(utterance.phones)
    # ten phones, slower by the tempo alone: the stretch for the tract is undone by reading faster
    assert len(sounding) * FRAME_S == pytest.approx(10 * PHONE_S * speaker.tempo, abs=FRAME_S + 0.001)
    assert sounding[0] * FRAME_S <= SILENCE_S[1] + FRAME_S
    assert (len(utterance.phones) - 1 - sounding[-1]) * FRAME_S <= SILENCE_S[1] + 2 * FRAME_S
    peak = np.abs(utterance.wav).max() / 32768
    assert PEAK[0] - 0.01 <= peak <= PEAK[1] + 0.01


@given(speaker=speakers, seed=st.integers(0, 1000))
def test_labels_lie_under_the_sound(speaker: Speaker, seed: int) -> None:
    utterance = render(speaker, "Hello world.", tone, np.random.default_rng(seed))
    assert utterance is not None
    frames = utterance.wav.reshape(-1, TOKEN_SAMPLES // MELS_PER_TOKEN).astype(np.float32)
    is_loud = np.sqrt((frames**2).mean(axis=1)) > 0.15 * 32768
    is_labelled = utterance.phones > 0
    assert (is_loud != is_labelled).sum() <= 2  # at the two edges a frame is half full


def test_pitch_and_formants_move_as_asked() -> None:
    speaker = Speaker("anna", "slt", tract=1.1, pitch=0.9, tempo=1.0)
    utterance = render(speaker, "Hello world, how are you?", tone, np.random.default_rng(0))
    assert utterance is not None
    assert read_rate(speaker) == 17600
    power = np.abs(np.fft.rfft(utterance.wav * np.hanning(len(utterance.wav))))
    assert power.argmax() * 24000 / len(utterance.wav) == pytest.approx(90, abs=1.5)
    assert abs(utterance.wav.astype(float).mean()) < 30  # the synthesiser's offset is gone


def test_what_cannot_be_said() -> None:
    anna = Speaker("anna", "slt")
    assert render(anna, "?", tone, np.random.default_rng(0)) is None
    assert render(anna, "a" * 2000, tone, np.random.default_rng(0)) is None
    with pytest.raises(ValueError, match="anna cannot say"):
        source_recording(anna, "...", tone)


def test_a_recording_is_always_the_same() -> None:
    anna, ben = Speaker("anna", "slt", 0.9), Speaker("ben", "slt", 1.1)
    first = source_recording(anna, "Good morning.", tone)
    assert first.dtype == np.float32
    assert np.array_equal(first, source_recording(anna, "Good morning.", tone))
    assert not np.array_equal(first, source_recording(ben, "Good morning.", tone))


def test_the_hours_before_noon_are_spelt_for_the_synthesiser() -> None:
    heard: list[str] = []

    def listening(voice: str, text: str, pitch: float = 1.0, stretch: float = 1.0) -> Spoken | None:
        heard.append(text)
        return tone(voice, text, pitch, stretch)

    render(Speaker("anna", "slt"), "At ten AM I AMEND it.", listening, np.random.default_rng(0))
    assert heard == ["At ten A M I AMEND it."]
