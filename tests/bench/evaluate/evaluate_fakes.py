"""A recogniser that hears the first word of every text, a model that hums, and tones; importable in other processes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio

RATE = 24_000
Samples = NDArray[np.float32]


def hum(seconds: float, hz: float = 120.0, rate: int = RATE, level: float = 0.3) -> Samples:
    """Ten harmonics of a fundamental."""
    t = np.arange(round(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * hz * k * t) / k for k in range(1, 11))
    return (level * wave / np.abs(wave).max()).astype(np.float32)


def noise(seconds: float, rate: int = RATE, level: float = 0.1) -> Samples:
    return (level * np.random.default_rng(3).standard_normal(round(seconds * rate))).astype(np.float32)


class Constant:
    """Hears the same text in everything."""

    def __init__(self, text: str = "the cat sat") -> None:
        self.text = text

    def transcribe(self, samples: Samples) -> str:
        return self.text


class Spelling:
    """Phones are letters, and it knows words without the letter x; closed, it hears the first sentence it was given."""

    def transcribe(self, samples: Samples) -> str:
        return "the cat"

    def closed(self, sentences: Sequence[Sequence[str]]) -> Constant:
        return Constant(" ".join(sentences[0]))

    def phones(self, samples: Samples) -> list[str]:
        return list("thecat")

    def pronunciations(self, word: str) -> list[list[str]]:
        return [] if "x" in word else [list(word)]


class PitchMeter:
    """Tells the strongest frequency to 50 Hz, so that the text depends on the audio alone."""

    def transcribe(self, samples: Samples) -> str:
        assert samples.dtype == np.float32
        spectrum = np.abs(np.fft.rfft(samples))
        return f"hum {spectrum.argmax() * 16_000 / len(samples) // 50 * 50:.0f}"


class Failing:
    def transcribe(self, samples: Samples) -> str:
        raise ZeroDivisionError("no such thing")


class Wordless:
    def transcribe(self, samples: Samples) -> list[str]:
        return ["a", "list"]


class Dying:
    def transcribe(self, samples: Samples) -> str:
        os._exit(3)


not_a_recogniser = dict


def broken_factory() -> Constant:
    raise RuntimeError("no weights")


@dataclass(frozen=True)
class FakeVoice:
    embedding: Any


@dataclass(frozen=True)
class FakeSpeech:
    samples: Samples


class FakeTts:
    """Hums for 60 ms per letter at a pitch that is its voice; a stream has a click at each join if it is to."""

    sample_rate = RATE

    def __init__(self, *, click: float = 0.0, long_texts: Sequence[str] = ()) -> None:
        self.click, self.long_texts = click, long_texts
        self.calls: list[tuple[str, int]] = []

    def speak(self, text: str, voice: Any, *, seed: int, **_: Any) -> FakeSpeech:
        self.calls.append((text, seed))
        times = 5 if text in self.long_texts else 1
        return FakeSpeech(hum(0.06 * len(text) * times, float(voice.embedding[0])))

    def stream(self, text: str, voice: Any, *, seed: int, **_: Any) -> Iterator[FakeSpeech]:
        whole = self.speak(text, voice, seed=seed).samples.copy()
        for piece in np.array_split(whole, 3):
            piece[0] += self.click
            yield FakeSpeech(piece)

    def normalize(self, text: str) -> str:
        """Knows one number."""
        return text.replace("2", "two")

    def embed(self, source: bytes) -> NDArray[np.float32]:
        """The stronger of two pitches, as a direction of its own each."""
        samples, rate = soundfile.read(io.BytesIO(source), dtype="float32")
        if len(samples) < rate // 2:
            raise InvalidAudio("reference audio: too short; record more")
        t = np.arange(len(samples)) / rate
        low, high = (abs(np.exp(-2j * np.pi * hz * t) @ samples) for hz in (LOW, HIGH))
        return direction(LOW) if low > high else direction(HIGH)


LOW, HIGH = 120.0, 200.0


def direction(hz: float) -> NDArray[np.float32]:
    return np.array([hz, hz - 150.0], np.float32)


def voice(hz: float) -> FakeVoice:
    return FakeVoice(direction(hz))
