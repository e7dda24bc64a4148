"""Labels of an utterance from the teacher's plan: where speech begins and ends, and a speech token for every 40 ms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce_training.data.kokoro.network import CURVE_SAMPLES, FRAME_SAMPLES, Plan
from vivavoce_training.data.kokoro.phonemes import PAUSE, SPACE
from vivavoce_training.data.spelling import SILENCE, placed, spell
from vivavoce_training.data.store import TOKEN_SAMPLES

LAG_FRAMES = 2  # a symbol's frames begin 50 ms before its sound is heard
SILENT, SILENT_SPACE = -2.0, -5.0
"""Energy below which a punctuation mark, or a space, is silent; lower for a space, because plosives are quiet, too."""
LOWEST_HZ = 60.0
FARTHEST = 12.0  # A pitch farther than this from the utterance's median, in semitones, is an error.
NEIGHBOURHOOD = 12  # Loudness is averaged over this many frames of 25 ms.
SOFT, LOUD = -0.5, 1.0  # Thresholds of energy, relative to the mean energy of the utterance's speech.
PAUSE_FRAMES = (2, 14)
"""Range of the silence kept on each side of the words, in frames of 25 ms; less where the plan has less silence."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """Labels of an utterance, which is samples [first, last) of the waveform; its last token may need padding."""

    first: int
    last: int
    tokens: NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Curves:
    """A plan as NumPy arrays. phones (or `SILENCE`), energy, inside (False: padding): [batch, frames]; semitones:
    [batch, 2 · frames], pitch above 1 Hz of the nearest voiced place; voiced: [batch, 2 · frames], True where the pitch
    is reliable.
    """

    phones: NDArray[np.uint8]
    energy: NDArray[np.float32]
    inside: NDArray[np.bool_]
    semitones: NDArray[np.float32]
    voiced: NDArray[np.bool_]

    @classmethod
    def of(cls, plan: Plan, phones: NDArray[np.uint8]) -> Curves:
        """Convert a plan. phones: [batch, symbols], the phone of each symbol, `SPACE` or `PAUSE`."""
        symbol, frames = plan.symbol.cpu().numpy(), plan.frames.cpu().numpy()
        pitch, both = plan.pitch.float().cpu().numpy(), plan.energy.float().cpu().numpy()
        inside = np.arange(symbol.shape[1]) < frames[:, None]
        energy = both.reshape(len(both), -1, 2).mean(-1)
        spoken = np.take_along_axis(phones, symbol, 1)
        tones = 12 * np.log2(np.maximum(_smooth(_smooth(pitch)), LOWEST_HZ))
        voiced = _settled(pitch, tones, np.repeat(inside & (energy >= SILENT), 2, 1))
        semitones = np.take_along_axis(tones, _nearest(voiced), 1).astype(np.float32)
        return cls(_with_silence(spoken, energy, inside), energy, inside, semitones, voiced)


def spoken_by(curves: Curves, usual: NDArray[np.float32], r: np.random.Generator) -> list[Spoken | None]:
    """Make the labels of each utterance of a batch, or None for an utterance without speech.

    usual: [batch], the speakers' median pitch in semitones above 1 Hz.
    """
    sounding = curves.phones != SILENCE
    batch, size = sounding.shape
    some = sounding.any(1)
    begin, end = sounding.argmax(1), size - sounding[:, ::-1].argmax(1)
    low, high = PAUSE_FRAMES
    start = np.maximum(0, begin - r.integers(low, high + 1, batch))
    stop = np.minimum(curves.inside.sum(1), end + r.integers(low, high + 1, batch))
    count = -(-(stop - start) * FRAME_SAMPLES // TOKEN_SAMPLES)
    token = np.arange(int(count.max()))
    # Centres of both halves of every token, in samples of the whole waveform.
    halves = start[:, None, None] * FRAME_SAMPLES + token[:, None] * TOKEN_SAMPLES + np.array([240, 720])
    phone, place = placed(_at(curves.phones, np.minimum(halves // FRAME_SAMPLES, stop[:, None, None])))
    centre = halves.mean(-1).astype(np.int64)
    tones = _at(_token_mean(curves.semitones), centre // CURVE_SAMPLES) - usual[:, None]
    loudness = _at(_loudness(curves.energy, sounding), centre // FRAME_SAMPLES)
    tokens = spell(phone, place, tones.astype(np.float32), loudness)
    return [
        Spoken(int(a) * FRAME_SAMPLES, int(b) * FRAME_SAMPLES, row[:n]) if there else None
        for a, b, row, n, there in zip(start, stop, tokens, count, some, strict=True)
    ]


def _at(values: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values [batch, n] at `places` [batch, ...]; a place after the end gets the last value."""
    flat = np.minimum(places.reshape(len(places), -1), values.shape[1] - 1)
    return np.take_along_axis(values, flat, 1).reshape(places.shape)


def _with_silence(
    spoken: NDArray[np.uint8], energy: NDArray[np.float32], inside: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return each frame's phone. Quiet pauses and the end are `SILENCE`; a loud pause prolongs the phone before."""
    spoken = np.pad(spoken[:, LAG_FRAMES:], ((0, 0), (0, LAG_FRAMES)), constant_values=PAUSE)
    frame, size = np.arange(spoken.shape[1]), spoken.shape[1]
    known = spoken < SPACE
    before = np.maximum.accumulate(np.where(known, frame, -1), 1)
    held = np.where(before >= 0, before, known.argmax(1)[:, None])  # sound before the first phone belongs to it
    loud = (energy >= SILENT) & inside
    heard = known | (energy >= np.where(spoken == SPACE, SILENT_SPACE, SILENT))
    phones = np.where(heard, np.take_along_axis(spoken, held, 1), SILENCE)
    last_loud = size - 1 - loud[:, ::-1].argmax(1)
    phones[(frame > last_loud[:, None]) | ~inside | ~known.any(1, keepdims=True)] = SILENCE
    return phones.astype(np.uint8)


def _settled(pitch: NDArray[np.float32], tones: NDArray[np.float32], loud: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where the pitch is reliable, [batch, n]. It is not at the ends of voiced parts, where it rises from 0."""
    voiced = (pitch > LOWEST_HZ) & loud
    ordered = np.sort(np.where(voiced, tones, np.inf), 1)
    usual = np.take_along_axis(ordered, voiced.sum(1, keepdims=True) // 2, 1)
    voiced &= np.abs(tones - np.where(np.isfinite(usual), usual, 0)) < FARTHEST
    wide = np.pad(voiced, ((0, 0), (1, 1)))
    return voiced & wide[:, :-2] & wide[:, 2:]


def _nearest(voiced: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the index of the voiced place nearest to each place, [batch, n]; without one, the place's own index."""
    size = voiced.shape[1]
    place = np.arange(size)
    before = np.maximum.accumulate(np.where(voiced, place, -size), 1)
    after = np.minimum.accumulate(np.where(voiced, place, 2 * size)[:, ::-1], 1)[:, ::-1]
    nearest = np.where(place - before <= after - place, before, after)
    return np.where((nearest >= 0) & (nearest < size), nearest, place)


def _smooth(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The median of each value and its two neighbours."""
    wide = np.pad(values, ((0, 0), (1, 1)), mode="edge")
    before, here, after = wide[:, :-2], wide[:, 1:-1], wide[:, 2:]
    return np.maximum(np.minimum(before, here), np.minimum(np.maximum(before, here), after))


def _token_mean(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of each value and its two neighbours, which is over 37.5 ms, about a token."""
    wide = np.pad(values, ((0, 0), (1, 1)), mode="edge")
    return ((wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 3).astype(np.float32)


def _loudness(energy: NDArray[np.float32], sounding: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Rate frames -1 (soft), 0 or 1 (loud), by the mean energy of nearby speech relative to the utterance's mean."""
    weight = sounding.astype(np.float32)
    usual = (energy * weight).sum(1, keepdims=True) / np.maximum(weight.sum(1, keepdims=True), 1)
    around = _box((energy - usual) * weight) / np.maximum(_box(weight), 1)
    return (around > LOUD).astype(np.int8) - (around < SOFT).astype(np.int8)


def _box(values: NDArray[np.float32]) -> NDArray[np.float32]:
    half = NEIGHBOURHOOD // 2
    sums = np.cumsum(np.pad(values, ((0, 0), (half + 1, half))), 1, dtype=np.float64)
    return (sums[:, 2 * half + 1 :] - sums[:, : -2 * half - 1]).astype(np.float32)
