"""One utterance as the corpus holds it: a voice made a speaker, on the token grid, with a phone per mel frame."""

from __future__ import annotations

import math
import re
import zlib

import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce_training.data.flite import FLITE_RATE, Synthesise
from vivavoce_training.data.store import MELS_PER_TOKEN, SAMPLE_RATE, TOKEN_SAMPLES, Speaker, Utterance

SILENCE_S = (0.05, 0.35)  # how much of the silence before and after the words is kept, at most; drawn for each side
PEAK = (0.5, 0.9)  # highest amplitude of an utterance, drawn; full scale is 1
MAX_S = 20.0

_MEL_SAMPLES = TOKEN_SAMPLES // MELS_PER_TOKEN
_SILENCE = 0
_MORNING = re.compile(r"\bAM\b")


def render(speaker: Speaker, text: str, synthesise: Synthesise, r: np.random.Generator) -> Utterance | None:
    """Speak a text; None if the synthesiser cannot, or if it makes of it what no text of this length is."""
    # flite leaves out the word AM when it is written together.
    respelt = _MORNING.sub("A M", text)
    spoken = synthesise(speaker.voice, respelt, speaker.pitch / speaker.tract, speaker.tract * speaker.tempo)
    if spoken is None or len(spoken.samples) > MAX_S * FLITE_RATE:
        return None
    rate = read_rate(speaker)
    samples = spoken.samples.astype(np.float32)
    wav = soxr.resample(samples - samples.mean(), rate, SAMPLE_RATE, quality="HQ")
    wav *= np.float32(r.uniform(*PEAK) / max(float(np.abs(wav).max()), 1e-9))
    ends = spoken.ends * (FLITE_RATE / rate)
    start, stop = _cut(ends, spoken.phones, len(wav), r.uniform(*SILENCE_S), r.uniform(*SILENCE_S))
    num_tokens = math.ceil((stop - start) / TOKEN_SAMPLES)
    on_grid = wav[start : start + num_tokens * TOKEN_SAMPLES]
    on_grid = np.pad(on_grid, (0, num_tokens * TOKEN_SAMPLES - len(on_grid)))
    labels = frame_phones(ends, spoken.phones, start / SAMPLE_RATE, num_tokens * MELS_PER_TOKEN)
    return Utterance(np.round(on_grid * 32767).astype(np.int16), labels)


def source_recording(speaker: Speaker, text: str, synthesise: Synthesise) -> NDArray[np.float32]:
    """A speaker's recording of a text, float32 [samples] at 24 kHz; the same for the same speaker and text.

    ValueError: the synthesiser finds nothing to say in the text.
    """
    utterance = render(speaker, text, synthesise, np.random.default_rng(zlib.crc32(f"{speaker.name} {text}".encode())))
    if utterance is None:
        raise ValueError(f"text: {speaker.name} cannot say {text!r}; use a sentence of English words")
    return utterance.wav.astype(np.float32) / np.float32(32768)


def read_rate(speaker: Speaker) -> int:
    """The rate in Hz at which the synthesiser's 16 kHz are read: faster moves all formants up."""
    return round(FLITE_RATE * speaker.tract)


def frame_phones(
    ends: NDArray[np.float64], phones: NDArray[np.uint8], start_s: float, num_frames: int
) -> NDArray[np.uint8]:
    """The phone at the centre of each mel frame, uint8 [frames]; silence after the last.

    ends, phones: [phones], the second in which each ends; start_s: where in that time the first frame begins.
    """
    centres = start_s + (np.arange(num_frames) + 0.5) * (_MEL_SAMPLES / SAMPLE_RATE)
    return np.append(phones, np.uint8(_SILENCE))[np.searchsorted(ends, centres, side="right")]


def _cut(
    ends: NDArray[np.float64], phones: NDArray[np.uint8], length: int, before_s: float, after_s: float
) -> tuple[int, int]:
    """First sample and end of what is kept: the words and a limited silence on either side."""
    sounding = np.flatnonzero(phones != _SILENCE)
    first, last = int(sounding[0]), int(sounding[-1])
    words_start = float(ends[first - 1]) if first else 0.0
    start = max(0, round((words_start - before_s) * SAMPLE_RATE))
    stop = min(length, round((float(ends[last]) + after_s) * SAMPLE_RATE))
    return start, max(stop, start + 1)
