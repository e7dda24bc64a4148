"""Speakers, what flite says for them, and their utterances on the token grid with labels under the sounds."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.corpus_fakes import PHONE_S, tone
from vivavoce.errors import MissingDependency
from vivavoce_training.data.flite import FLITE_RATE, VOICES, Flite, Spoken
from vivavoce_training.data.render import PEAK, SILENCE_S, frame_phones, read_rate, render, source_recording
from vivavoce_training.data.speakers import MIN_DISTANCE, PITCH, TEMPO, TRACT, place, test_speakers, train_speakers
from vivavoce_training.data.store import MELS_PER_TOKEN, PHONES, TOKEN_SAMPLES, Speaker

SQUARES = 4


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_ranges_are_filled_evenly(seed: int) -> None:
    speakers = train_speakers(320, seed)
    assert len({speaker.name for speaker in speakers}) == 320
    assert Counter(speaker.voice for speaker in speakers) == dict.fromkeys(VOICES, 80)
    for bounds, values in (
        (TRACT, [speaker.tract for speaker in speakers]),
        (PITCH, [speaker.pitch for speaker in speakers]),
        (TEMPO, [speaker.tempo for speaker in speakers]),
    ):
        shares = np.log(np.array(values) / bounds[0]) / math.log(bounds[1] / bounds[0])
        assert shares.min() >= -0.001
        assert shares.max() <= 1.001
        counts, _ = np.histogram(shares, bins=10, range=(0, 1))
        assert counts.min() >= 20  # 32 on average
    for voice in VOICES:
        squares = Counter(
            tuple(min(SQUARES - 1, int(share * SQUARES)) for share in place(speaker))
            for speaker in speakers
            if speaker.voice == voice
        )
        assert len(squares) == SQUARES**2
        assert max(squares.values()) <= 9  # 5 on average


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_test_speakers_are_strangers(seed: int) -> None:
    for known in train_speakers(1000, seed):
        for stranger in test_speakers():
            if known.voice == stranger.voice:
                assert math.dist(place(known), place(stranger)) >= MIN_DISTANCE - 0.005  # values are rounded


def test_test_speakers_differ() -> None:
    strangers = test_speakers()
    assert len({speaker.name for speaker in strangers}) == len(strangers) == 20
    assert Counter(speaker.voice for speaker in strangers[:8]) == dict.fromkeys(VOICES, 2)
    for one, other in combinations(strangers, 2):
        if one.voice == other.voice:
            assert math.dist(place(one), place(other)) > 2 * MIN_DISTANCE
    for one, other in combinations(strangers[:8], 2):
        if one.voice == other.voice:
            assert math.dist(place(one), place(other)) > 0.5


def test_speakers_depend_on_the_seed_alone() -> None:
    assert train_speakers(40, 3) == train_speakers(80, 3)[:40]
    assert train_speakers(40, 3) != train_speakers(40, 4)
    assert test_speakers() == test_speakers()


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
    assert spoken.samples.dtype == np.int16
    names = [PHONES[phone] for phone in spoken.phones]
    assert names[0] == names[-1] == "pau"
    assert " ".join(names).find("f aa k s") > 0
    assert np.all(np.diff(spoken.ends) >= 0)
    assert spoken.ends[-1] == pytest.approx(len(spoken.samples) / FLITE_RATE, abs=0.15)


@pytest.mark.parametrize("voice", VOICES)
def test_pitch_and_tempo(flite: Flite, voice: str) -> None:
    plain, high, slow = flite(voice, TEXT), flite(voice, TEXT, 1.25, 1.0), flite(voice, TEXT, 1.0, 1.2)
    assert slow.ends[-1] / plain.ends[-1] == pytest.approx(1.2, abs=0.02)
    assert high.ends[-1] == pytest.approx(plain.ends[-1], abs=0.02)
    assert hertz(high.samples) / hertz(plain.samples) == pytest.approx(1.25, abs=0.08)


@pytest.mark.parametrize("voice", VOICES)
def test_neither_what_was_said_before_nor_another_one_matters(flite: Flite, voice: str) -> None:
    before = flite(voice, TEXT, 1.2, 1.1)
    flite(voice, "Something else.", 1.2, 0.9)
    for after in (flite(voice, TEXT, 1.2, 1.1), Flite()(voice, TEXT, 1.2, 1.1)):
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
    frames = utterance.wav.reshape(-1, TOKEN_SAMPLES // MELS_PER_TOKEN).astype(np.float32)
    is_loud = np.sqrt((frames**2).mean(axis=1)) > 0.15 * 32768
    is_labelled = utterance.phones > 0
    assert (is_loud != is_labelled).sum() <= 2  # at the two edges a frame is half full


def test_pitch_and_formants_move_as_asked() -> None:
    speaker = Speaker("anna", "slt", tract=1.1, pitch=0.9, tempo=1.0)
    utterance = render(speaker, "Hello world, how are you?", tone, np.random.default_rng(0))
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
