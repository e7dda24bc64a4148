"""Measures the quality of a reference recording, and advises how to record it better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from vivavoce.frontend.audio.samples import Audio, Levels, levels_of

MAX_CLIPPED = 0.001
"""A recording counts as clipped if more than this fraction of its samples is at the peak."""
LEAST_DB, LEAST_OVER_NOISE_DB = -45.0, 15.0
"""Minima of a good recording: the level of its speech in dB of full scale, and speech level minus noise level in dB."""
LEAST_SPEECH_S, MOST_SPEECH_S, LONGEST_PAUSE_S = 2.0, 12.0, 1.5
TELEPHONE_HZ, TELEPHONE_DB = 4_400, -33.0
"""A recording is narrow-band if its energy above `TELEPHONE_HZ`, relative to all energy, is below `TELEPHONE_DB`."""
TONAL_DB, TONAL_LINES = 12.0, 2
"""A recording has hum or music if, between the words, its spectrum has at least `TONAL_LINES` peaks that are more than
`TONAL_DB` above the levels around them."""
RATES = (2.0, 30.0), (1.0, 12.0)
"""Fewest and most letters of a transcript per second of speech; the second pair is for Chinese, Japanese and Korean."""
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_LETTER = regex.compile(r"[\p{L}\p{N}]")
_WINDOW_S = 0.064
Places = NDArray[np.int64]
Values = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Audit:
    """Measurements of a recording. level_db, noise_db: level of the speech and of the pauses, in dB of full scale.
    clipped: fraction of clipped samples. speech_s: seconds of speech without pauses. pause_s: seconds of the longest
    pause. cut_s: position in seconds where a recording with too much speech should end, see `_cut`; None if the speech
    is short enough, or has no such pause. warnings: one line for each problem, with advice."""

    duration_s: float
    speech_s: float
    pause_s: float
    level_db: float
    noise_db: float
    clipped: float
    cut_s: float | None
    warnings: tuple[str, ...]


def audit(
    audio: Audio, transcript: str = "", advised_s: float = MOST_SPEECH_S, *, levels: Levels | None = None
) -> Audit:
    """Measure a recording that has passed `check_reference`. transcript: its text, or "" if unknown. advised_s: a
    warning follows if the speech lasts more seconds. levels: the recording's levels, if they are already measured."""
    levels, size = levels or levels_of(audio), np.abs(audio.samples)
    speaks, peak = np.flatnonzero(levels.speaks), float(size.max())
    clipped = float(np.mean(size > 0.999 * peak)) if peak > 0.99 else 0.0
    gaps = np.diff(speaks) - 1
    speech_s, pause_s = len(speaks) / 100, float(gaps.max(initial=0)) / 100
    span_s = float(speaks[-1] - speaks[0] + 1) / 100 if len(speaks) else 0.0
    cut_s = _cut(speaks, gaps) if span_s > advised_s else None
    found = [
        *_of_sound(audio, levels, clipped),
        *_of_length(speech_s, span_s, pause_s, cut_s, advised_s),
        *_of_transcript(transcript, speech_s),
    ]
    return Audit(
        round(audio.duration_s, 3),
        speech_s,
        pause_s,
        round(levels.speech, 1),
        round(levels.noise, 1),
        round(clipped, 5),
        cut_s,
        tuple(found),
    )


def _of_sound(audio: Audio, levels: Levels, clipped: float) -> list[str]:
    found, over_noise = [], levels.speech - levels.noise
    if clipped > MAX_CLIPPED:
        found.append("is clipped, and speech with its voice will be distorted, too; record it at a lower level")
    if levels.speech < LEAST_DB:
        found.append(f"is very quiet ({levels.speech:.0f} dB); come closer to the microphone and record it again")
    if over_noise < LEAST_OVER_NOISE_DB:
        found.append(f"has noise only {over_noise:.0f} dB below the speech; record it in a quiet room")
    elif _lines(audio, levels) >= TONAL_LINES:
        found.append("has a hum or music behind the speech; record the voice alone")
    if _is_narrow(audio, levels):
        found.append(
            "sounds like a telephone: hardly anything is heard above 4 kHz; record it with a better microphone"
        )
    return found


def _of_length(speech_s: float, span_s: float, pause_s: float, cut_s: float | None, advised_s: float) -> list[str]:
    found = []
    if speech_s < LEAST_SPEECH_S:
        found.append(f"has only {speech_s:.1f} s of speech; record 3 to 10 s")
    if span_s > advised_s:
        where = "" if cut_s is None else f", best at {cut_s:.1f} s, where it pauses"
        found.append(
            f"has {span_s:.1f} s of speech; this model may speak wrong words after more than {advised_s:g} s; "
            f"cut it to 3 to 10 s{where}"
        )
    if pause_s > LONGEST_PAUSE_S:
        found.append(f"pauses for {pause_s:.1f} s, which its voice may imitate; record it without the pause")
    return found


def _of_transcript(transcript: str, speech_s: float) -> list[str]:
    letters = len(_LETTER.findall(transcript))
    low, high = RATES[len(_WIDE.findall(transcript)) * 2 > letters]
    if not letters or not speech_s or low <= letters / speech_s <= high:
        return []
    return [
        f"has {speech_s:.1f} s of speech, and its transcript {letters} letters, too "
        f"{'few' if letters < low * speech_s else 'many'} for that; write exactly the words that are heard"
    ]


def _cut(speaks: Places, gaps: Places) -> float | None:
    """Find the longest pause, at least 0.1 s, that begins 3 s to `MOST_SPEECH_S` after the speech begins. Return its
    middle in seconds of the recording, or None."""
    begin = (speaks - speaks[0]) / 100
    near = np.flatnonzero((gaps >= 10) & (begin[:-1] > 3.0) & (begin[:-1] < MOST_SPEECH_S))
    if not len(near):
        return None
    longest = near[gaps[near].argmax()]
    return round(float(speaks[longest] + 1 + gaps[longest] / 2) / 100, 2)


def _spectra(audio: Audio, chosen: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return the power spectra [windows, bins] of windows of 64 ms that lie in chosen frames (bool, one for each
    10 ms), and the frequencies [bins] in hertz."""
    size, hop = int(_WINDOW_S * audio.sample_rate), audio.sample_rate // 100
    frames = size // hop + 1
    whole = np.convolve(chosen, np.ones(frames), "valid") > frames - 0.5
    starts = np.flatnonzero(whole)[:: frames // 2] * hop
    windows = audio.samples[starts[:, None] + np.arange(size)] * np.hanning(size)
    return np.abs(np.fft.rfft(windows, axis=1)) ** 2, np.fft.rfftfreq(size, 1 / audio.sample_rate)


def _is_narrow(audio: Audio, levels: Levels) -> bool:
    power, hertz = _spectra(audio, levels.speaks)
    if not len(power):
        return False
    mean = power.mean(axis=0)
    high = float(mean[hertz >= TELEPHONE_HZ].sum())
    return high < 10 ** (TELEPHONE_DB / 10) * float(mean.sum())


def _lines(audio: Audio, levels: Levels) -> int:
    """Count the spectral peaks from 100 to 4,000 Hz between words; 0 if the noise is over 40 dB below the speech."""
    if levels.speech - levels.noise > 40.0:
        return 0
    power, hertz = _spectra(audio, ~levels.speaks & (levels.frames > levels.speech - 60.0))
    if len(power) < 3:
        return 0
    level = 10 * np.log10(power.mean(axis=0) + 1e-20)
    level = level[(hertz >= 100) & (hertz <= 4_000)]
    around = np.lib.stride_tricks.sliding_window_view(np.pad(level, 30, mode="reflect"), 61)
    is_peak = level == around[:, 28:33].max(axis=1)
    return int(np.count_nonzero(is_peak & (level - np.median(around, axis=1) > TONAL_DB)))
