"""The speakers of the corpus: four voices, each changed in the length of its vocal tract, its pitch and its tempo.

Training speakers fill the ranges evenly; test speakers stand at fixed places which the training speakers keep clear
of, so a test speaker is new to a trained model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from vivavoce_training.data.flite import VOICES
from vivavoce_training.data.store import Speaker

TRACT = (0.86, 1.17)
PITCH = (0.78, 1.28)
TEMPO = (0.88, 1.15)
MIN_DISTANCE = 0.1
"""Between a test and a training speaker of one voice, in the unit square of `place`: 3 % of tract or 5 % of pitch."""

_R3 = 1.2207440846057596
"""The root of x⁴ = x + 1: its powers step evenly through the unit cube (M. Roberts 2018, "The unreasonable
effectiveness of quasirandom sequences")."""

_PLACES: dict[str, tuple[tuple[float, float], ...]] = {
    "kal16": ((0.22, 0.20), (0.78, 0.85), (0.50, 0.50), (0.25, 0.75), (0.75, 0.20)),
    "awb": ((0.20, 0.12), (0.80, 0.80), (0.50, 0.45), (0.20, 0.80), (0.80, 0.20)),
    "rms": ((0.20, 0.85), (0.78, 0.15), (0.50, 0.50), (0.20, 0.25), (0.80, 0.80)),
    "slt": ((0.20, 0.20), (0.80, 0.75), (0.45, 0.50), (0.20, 0.80), (0.75, 0.20)),
}
"""Test speakers of each voice in the unit square; the first two of each are far apart."""


def train_speakers(count: int, seed: int) -> list[Speaker]:
    """`count` speakers spread evenly over the voices and the ranges, none near a test speaker.

    The first n of more speakers are the same n speakers.
    """
    points = {voice: _points(voice, seed) for voice in VOICES}
    voices = [VOICES[index % len(VOICES)] for index in range(count)]
    return [
        _speaker(f"{voice}-{index // len(VOICES):03d}", voice, *next(points[voice]))
        for index, voice in enumerate(voices)
    ]


def test_speakers() -> list[Speaker]:
    """20 speakers that no training knows; the first 8, two of each voice, differ clearly from one another."""
    return [
        _speaker(f"test-{voice}-{index}", voice, *_PLACES[voice][index], tempo)
        for index, tempo in enumerate((0.35, 0.65, 0.5, 0.2, 0.8))
        for voice in VOICES
    ]


test_speakers.__test__ = False  # type: ignore[attr-defined]  # a name that pytest would collect


def place(speaker: Speaker) -> tuple[float, float]:
    """Where a speaker's tract and pitch lie in their ranges, each 0–1 on a logarithmic scale."""
    return _share(TRACT, speaker.tract), _share(PITCH, speaker.pitch)


def _points(voice: str, seed: int) -> Iterator[tuple[float, float, float]]:
    """Evenly spread points of the unit cube, from a place that depends on voice and seed, clear of test speakers."""
    generator = random.Random(f"{voice} {seed}")
    point = [generator.random() for _ in range(3)]
    steps = [_R3**-power for power in (1, 2, 3)]
    while True:
        point = [(coordinate + step) % 1.0 for coordinate, step in zip(point, steps, strict=True)]
        if all(math.dist(point[:2], taken) >= MIN_DISTANCE for taken in _PLACES[voice]):
            yield point[0], point[1], point[2]


def _speaker(name: str, voice: str, tract: float, pitch: float, tempo: float) -> Speaker:
    """tract, pitch, tempo: shares of their ranges on a logarithmic scale."""
    bounds = ((TRACT, tract), (PITCH, pitch), (TEMPO, tempo))
    return Speaker(name, voice, *(round(low * (high / low) ** share, 4) for (low, high), share in bounds))


def _share(bounds: tuple[float, float], value: float) -> float:
    low, high = bounds
    return math.log(value / low) / math.log(high / low)
