"""The teacher: what it plans becomes labels; its network treats a batch as its items; lines and corpora are built."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from vivavoce_training.data import build as building
from vivavoce_training.data.build import build
from vivavoce_training.data.kokoro.labels import LAG_FRAMES, Curves, Spoken, spoken_by
from vivavoce_training.data.kokoro.network import AdaIN, Extent, Generator, Plan, StyledBlock
from vivavoce_training.data.kokoro.phonemes import PAUSE, SPACE, Line, line_of, read_lines, write_lines
from vivavoce_training.data.kokoro.teacher import Said
from vivavoce_training.data.speakers import train_speakers
from vivavoce_training.data.spelling import PHONE_INDEX, PHONES, SILENCE_TOKEN, digits_of, level_of
from vivavoce_training.data.store import Speaker

NUMBERS = {symbol: 10 + place for place, symbol in enumerate("ˈˌː .,haᵊIlOɪt~")}


def test_signs_belong_to_the_phone_that_they_stand_by() -> None:
    line = line_of("Hi, lo.", "hˈI, lˈOː.", NUMBERS)
    assert line is not None
    shown = ["_" if one == SPACE else "|" if one == PAUSE else PHONES[one] for one in line.phones]
    assert shown == ["|", "h", "I", "I", "|", "_", "l", "O", "O", "O", "|", "|"]
    assert line.ids[0] == line.ids[-1] == 0
    assert len(line.ids) == len(line.phones)


@pytest.mark.parametrize("symbols", ["", ". ,", "a~a", "a" * 500])
def test_texts_without_phones_or_with_unknown_ones_are_left_out(symbols: str) -> None:
    assert line_of("text", symbols, NUMBERS) is None


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    lines = [("a", Line("One.", (0, 5, 0), (PAUSE, 3, PAUSE))), ("b", Line("Two “2”", (0, 6, 0), (PAUSE, 4, PAUSE)))]
    assert write_lines(tmp_path / "lines.jsonl", lines) == 2
    assert read_lines(tmp_path / "lines.jsonl") == {"a": [lines[0][1]], "b": [lines[1][1]]}


def plan_of(phones: str, each: int = 8, hertz: float = 200.0) -> tuple[Plan, np.ndarray]:
    """A plan in which each symbol takes `each` frames; "_" is a silent mark, "-" a loud space."""
    symbols = np.repeat(np.arange(len(phones)), each)
    quiet = np.array([phones[one] == "_" for one in symbols])
    loud = np.pad(~quiet[LAG_FRAMES:], (0, LAG_FRAMES), constant_values=False)
    energy = np.repeat(np.where(loud, 6.0, -9.0), 2)[None].astype(np.float32)
    pitch = np.repeat(np.where(loud, hertz, 0.0), 2)[None].astype(np.float32)
    frames = torch.tensor([len(symbols)])
    plan = Plan(frames, frames, torch.from_numpy(symbols)[None], torch.from_numpy(pitch), torch.from_numpy(energy))
    known = [PAUSE if one == "_" else SPACE if one == "-" else PHONE_INDEX[one] for one in phones]
    return plan, np.array([known], np.uint8)


def said(phones: str, usual: float = 0.0, hertz: float = 200.0) -> Spoken:
    curves = Curves.of(*plan_of(phones, hertz=hertz))
    (spoken,) = spoken_by(curves, np.array([usual], np.float32), np.random.default_rng(0))
    assert spoken is not None
    return spoken


def shape_of(tokens: np.ndarray) -> str:
    return "".join("_" if one == SILENCE_TOKEN else "x" for one in tokens)


def test_silence_is_cut_and_pauses_are_silent() -> None:
    spoken = said("___al__il___")
    shape = shape_of(spoken.tokens)
    assert shape.strip("_").count("_") == pytest.approx(10, abs=1)  # two marks of 8 frames of 25 ms
    assert len(shape) - len(shape.lstrip("_")) <= 9
    assert (spoken.last - spoken.first) % 600 == 0
    assert len(spoken.tokens) == -(-(spoken.last - spoken.first) // 960)


def test_a_space_that_sounds_belongs_to_the_phone_before() -> None:
    assert "_" not in shape_of(said("_a-l_").tokens).strip("_")


def test_the_pitch_is_told_against_the_speaker_s_own() -> None:
    median = 12 * np.log2(200.0)
    for shift in (-4, 0, 3):
        tokens = said("_alil_", usual=median, hertz=200.0 * 2 ** (shift * 1.7 / 12)).tokens
        levels = level_of(digits_of(tokens[tokens != SILENCE_TOKEN]))
        assert set(levels.tolist()) == {shift}


def test_a_line_without_speech_gives_nothing() -> None:
    curves = Curves.of(*plan_of("____"))
    assert spoken_by(curves, np.zeros(1, np.float32), np.random.default_rng(0)) == [None]


@torch.no_grad()
def test_padding_is_not_heard() -> None:
    torch.manual_seed(0)
    block, style = StyledBlock(6, 4, double=True), torch.randn(2, 128)
    x = torch.randn(2, 6, 9)
    x[1, :, 5:] = 0
    batch = block(x, style, torch.tensor([9, 5]))
    alone = block(x[1:, :, :5], style[1:], torch.tensor([5]))
    torch.testing.assert_close(batch[1, :, :10], alone[0], rtol=0, atol=1e-5)
    assert not batch[1, :, 10:].any()
    norm = AdaIN(6)
    mean = norm(x, style, Extent.of(torch.tensor([9, 5]), 9))
    torch.testing.assert_close(mean[1:, :, :5], norm(x[1:, :, :5], style[1:], Extent.of(torch.tensor([5]), 5)))


def test_the_source_sounds_at_the_pitch() -> None:
    torch.manual_seed(0)
    generator = Generator()
    with torch.no_grad():
        generator.m_source["l_linear"].weight.zero_()[0, 0] = 1.0
        wave = generator.source(torch.full((1, 80), 150.0))[0]
    spectrum = torch.fft.rfft(wave).abs()
    assert float(spectrum[1:].argmax() + 1) * 24000 / len(wave) == pytest.approx(150, abs=2)


class FakeTeacher:
    """Says each line with as many tokens as it has ids, all of the line's first phone."""

    def usual_pitch(self, speakers: list[Speaker]) -> np.ndarray:
        return np.zeros(len(speakers), np.float32)

    def traits(self, speakers: list[Speaker]) -> list[tuple[float, ...]]:
        return [(float(place),) for place, _ in enumerate(speakers)]

    def say(self, lines: list[Line], speakers: list[Speaker], usual: np.ndarray, r: object, *, aloud: bool) -> Said:
        assert [one.manner[0] for one in speakers] == [line.text[0] for line in lines]
        longest = max(len(line.ids) for line in lines)
        wave = torch.full((len(lines), longest * 960 + 99), 0.1) if aloud else None
        spoken = [Spoken(50, 50 + len(line.ids) * 960 - 500, np.full(len(line.ids), 7, np.int16)) for line in lines]
        return Said(
            wave, [None if line.text.endswith("mute") else one for line, one in zip(lines, spoken, strict=True)]
        )


def lines_of_each(count: int) -> dict[str, list[Line]]:
    r = random.Random(0)
    return {accent: [Line(f"{accent} {n}", (0,) * r.randint(5, 30), (PAUSE,)) for n in range(count)] for accent in "ab"}


@pytest.mark.parametrize("aloud", [True, False])
def test_a_corpus_holds_each_line_once(aloud: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_AT_ONCE", 4)
    lines = lines_of_each(9)
    lines["a"].append(Line("a mute", (0,) * 8, (PAUSE,)))
    speakers = train_speakers(40, 0)
    corpus = build(tmp_path, 9.0, FakeTeacher(), speakers, lines, 1, aloud=aloud)  # type: ignore[arg-type]
    assert sorted(corpus.texts) == sorted(f"{accent} {n}" for accent in "ab" for n in range(9))
    expected = {line.text: len(line.ids) for accent in "ab" for line in lines[accent]}
    assert np.diff(corpus.start).tolist() == [expected[text] for text in corpus.texts]
    assert (corpus.labels == 7).all()
    assert [one.traits for one in corpus.speakers[:2]] == [(0.0,), (1.0,)]
    if aloud:
        first, last = corpus.start[0] * 960, corpus.start[1] * 960
        assert 0.5 * 32767 - 1 <= corpus.wav[first : last - 500].min() <= 0.9 * 32767 + 1
        assert not corpus.wav[last - 500 : last].any()
    else:
        assert not (tmp_path / "wav.npy").exists()


def test_a_corpus_ends_when_its_hours_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_AT_ONCE", 4)
    speakers = train_speakers(40, 0)
    corpus = build(tmp_path, 0.004, FakeTeacher(), speakers, lines_of_each(200), 1)  # type: ignore[arg-type]
    assert 0.004 <= corpus.hours < 0.01
