"""Decoded audio: float samples, conversion to 16 bits, and checks, levels and trimming of reference recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio

Samples = NDArray[np.float32]
"""Mono samples [n] in float32. ±1 is full scale; larger values are allowed."""

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000
MIN_REFERENCE_S = 0.5
"""Minimum length of a reference in seconds: a shorter recording has less than one syllable."""
MAX_REFERENCE_S = 30.0
"""Maximum length of a reference in seconds, which is the official speech tokenizer's limit."""
MIN_REFERENCE_PEAK = 1e-3
"""Minimum range of a reference's samples, highest minus lowest; below it, the recording counts as silent."""
MAX_REFERENCE_PEAK = 100.0
"""Maximum peak of a reference. Loud recordings slightly exceed ±1; a peak above this means samples in integer units."""

CANCELLED = 1e-4
"""Channels cancel each other if the energy of their mean, divided by the first channel's, is below this (-40 dB)."""
QUIET_DB = -30.0
"""Quieter speech in a reference is amplified to this level (dB of full scale), since synthesis copies the level."""
KEPT_QUIET_S = 0.2
"""Seconds of silence that trimming keeps at each end of a reference. With more silence there, models also speak with
long silences, and lose words."""
LEAST_TRIMMED_S = 0.2
"""Minimum number of seconds that trimming removes at an end; if it would remove less, the end stays unchanged."""
_FRAMES_PER_S = 100
_LOUDEST_FRAMES = 50
"""The level of speech is the median level of this many loudest frames (0.5 s); clicks and pauses hardly change it."""
_LARGEST_CREST_DB = 30.0
"""The level of speech is at most this many dB below the peak: a lower median means less than 0.5 s of speech."""
_RUN_FRAMES = 5
"""Minimum length of a sound that counts as speech, in frames; the click of a mouse is shorter."""
_NOISE_DB, _NEAR_DB, _FAR_DB = 6.0, 20.0, 40.0
"""A frame is speech if it is 6 dB louder than the noise; this threshold is kept 20 to 40 dB below the speech level."""
_SCALE, _LARGEST = 32768, 32767
_KNEE = 0.8


@dataclass(frozen=True, eq=False)
class Audio:
    """Mono samples [n], float32, and their sample rate in hertz."""

    samples: Samples
    sample_rate: int

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or self.samples.dtype != np.float32:
            raise ValueError(f"samples are {self.samples.dtype} {self.samples.shape}, not float32 [n]")
        if self.sample_rate <= 0:
            raise ValueError(f"sample_rate is {self.sample_rate}, not positive")

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate


def audio_of(pair: tuple[Any, ...], *, field: str = "reference audio") -> Audio:
    """Convert (array, rate) to mono audio. array: [n], [channels, n] or [n, channels], floats or integers; rate: hertz.
    Raises InvalidAudio for another pair."""
    if len(pair) != 2:
        raise InvalidAudio(f"{field}: {len(pair)} values are not a recording; give (array, rate)")
    array, rate = pair
    try:
        array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    except ValueError:
        raise InvalidAudio(f"{field}: the array is ragged; give [n] or [channels, n]") from None
    if array.ndim not in (1, 2) or not array.size:
        raise InvalidAudio(f"{field}: the array has the shape {list(array.shape)}; give [n] or [channels, n]")
    if array.dtype.kind not in "fiu" or (array.dtype.itemsize > 4 and array.dtype.kind != "f"):
        kinds = "floats in ±1, or integers of 8, 16 or 32 bits"
        raise InvalidAudio(f"{field}: the array has the type {array.dtype}; give {kinds}, whose scale is known")
    if not isinstance(rate, (int, float, np.integer, np.floating)) or not 1 <= rate < np.inf or rate != int(rate):
        raise InvalidAudio(f"{field}: the rate {rate!r} is not a whole number of hertz; give one, such as 24000")
    if array.dtype.kind in "iu":
        middle = 2.0 ** (8 * array.dtype.itemsize - 1)
        array = array / middle - (array.dtype.kind == "u")
    if array.ndim == 2:
        channels = array if array.shape[0] <= array.shape[1] else array.T
        array = audible(channels.mean(axis=0), channels[0])
    return Audio(array.astype(np.float32), int(rate))


def audible(mix: NDArray[Any], channel: NDArray[Any]) -> NDArray[Any]:
    """Return `mix`, the mean of all channels [n]; or `channel`, the first one [n], if the channels cancel each other,
    as with swapped poles in a cable."""
    with np.errstate(over="ignore", invalid="ignore"):
        return channel if np.dot(mix, mix) < CANCELLED * np.dot(channel, channel) else mix


def amplified(samples: Samples, gain: float) -> Samples:
    """Multiply samples [n] by `gain`. If gain > 1, values beyond 0.8 are compressed smoothly to below 1."""
    louder = samples * np.float32(gain)
    beyond = np.maximum(np.abs(louder) - _KNEE, 0) / (1 - _KNEE)
    bent = np.sign(louder) * (_KNEE + (1 - _KNEE) * np.tanh(beyond))
    return np.where((gain > 1) & (beyond > 0), bent, louder).astype(np.float32)


def to_int16(samples: NDArray[np.floating]) -> NDArray[np.int16]:
    """Multiply samples of any shape by 32768, round to the nearest integer and limit to ±32767.

    Decoders divide by 32768, so 16-bit audio stays the same after decoding and `to_int16`. Raises ValueError if a
    sample is NaN, which a model must not produce."""
    unknown = np.isnan(samples)
    if unknown.any():
        raise ValueError(f"{unknown.sum()} of {samples.size} samples are NaN")
    scaled = np.rint(samples * samples.dtype.type(_SCALE))  # exact, since the scale is a power of two
    return np.minimum(np.maximum(scaled, -_LARGEST), _LARGEST).astype(np.int16)


def check_rate(rate: int, label: str) -> None:
    """Raise InvalidAudio if the sample rate is outside of 8000–192000 Hz; `label` begins the message."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise InvalidAudio(
            f"{label} has a sample rate of {rate} Hz; the limits are {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE}; "
            "convert it to 24000 Hz"
        )


def check_finite(samples: Samples, label: str) -> None:
    """Raise InvalidAudio, with the number of bad samples, if any is NaN or infinite; `label` begins the message."""
    num_bad = samples.size - int(np.isfinite(samples).sum())
    if num_bad:
        raise InvalidAudio(
            f"{label} has {num_bad} of {samples.size} samples that are NaN or infinite; export the recording again"
        )


def check_reference(audio: Audio, *, field: str = "reference audio") -> None:
    """Raise InvalidAudio if `audio` cannot be a reference: it is shorter than 0.5 s, longer than 30 s, silent, far out
    of scale or not finite, or its rate is outside of 8000–192000 Hz. `field` begins the message."""
    check_rate(audio.sample_rate, f"{field}:")
    if audio.duration_s < MIN_REFERENCE_S:
        raise InvalidAudio(
            f"{field}: lasts {audio.duration_s:.2f} s; at least {MIN_REFERENCE_S:g} s are needed; "
            "record a sentence of 3 to 10 s"
        )
    if audio.duration_s > MAX_REFERENCE_S:
        raise InvalidAudio(
            f"{field}: lasts {audio.duration_s:.1f} s; the limit is {MAX_REFERENCE_S:g} s; "
            "cut out 3 to 10 s of clear speech"
        )
    check_finite(audio.samples, field + ":")
    peak = float(np.abs(audio.samples).max())
    if (span := float(np.ptp(audio.samples))) < MIN_REFERENCE_PEAK:  # constant samples are silent, too
        raise InvalidAudio(
            f"{field}: is silent (its samples span {span:.2g}, at least {MIN_REFERENCE_PEAK:g} is needed); "
            "check the microphone and record again"
        )
    if peak > MAX_REFERENCE_PEAK:
        raise InvalidAudio(f"{field}: has a peak of {peak:.3g}, beyond {MAX_REFERENCE_PEAK:g}; scale the samples to ±1")


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of a recording in dB of full scale.

    frames: level of each frame of 10 ms. speech, noise: level of the speech and of the noise in the whole recording.
    speaks: whether each frame is speech."""

    frames: NDArray[np.float64]
    speech: float
    noise: float
    speaks: NDArray[np.bool_]


def levels_of(audio: Audio) -> Levels:
    """Measure the levels of a checked recording."""
    samples, hop = audio.samples, audio.sample_rate // _FRAMES_PER_S
    frames = samples[: len(samples) // hop * hop].reshape(-1, hop).astype(np.float64)
    levels = 10 * np.log10(np.square(frames).mean(axis=1) + 1e-30)
    peak = float(np.abs(samples).max())
    speech = max(float(np.median(np.sort(levels)[-_LOUDEST_FRAMES:])), 20 * np.log10(peak) - _LARGEST_CREST_DB)
    noise = float(np.percentile(levels[levels > speech - 2 * _FAR_DB], 10))  # without frames of zeros
    quiet = min(max(noise + _NOISE_DB, speech - _FAR_DB), speech - _NEAR_DB)
    runs = np.convolve(levels > quiet, np.ones(_RUN_FRAMES), "valid") > _RUN_FRAMES - 0.5
    return Levels(levels, speech, noise, np.convolve(runs, np.ones(_RUN_FRAMES)) > 0.5)


def improved(audio: Audio, *, trim: bool = True, levels: Levels | None = None) -> Audio:
    """Adjust the level of a reference that has passed `check_reference`; also remove silence at its ends if `trim`.

    Speech below `QUIET_DB` is amplified, and a recording with samples beyond ±1 is attenuated. Trimming keeps
    `KEPT_QUIET_S` of silence before and after the speech. levels: the recording's levels, if they are measured."""
    samples, hop, levels = audio.samples, audio.sample_rate // _FRAMES_PER_S, levels or levels_of(audio)
    peak, speaks = float(np.abs(samples).max()), np.flatnonzero(levels.speaks)
    if trim and len(speaks):
        kept = int(KEPT_QUIET_S * _FRAMES_PER_S)
        begin, end = (speaks[0] - kept) * hop, (speaks[-1] + 1 + kept) * hop
        least = LEAST_TRIMMED_S * audio.sample_rate
        begin, end = begin if begin > least else 0, end if len(samples) - end > least else len(samples)
        if end - begin >= MIN_REFERENCE_S * audio.sample_rate:
            samples = samples[begin:end]
    gain = min(max(1.0, 10 ** ((QUIET_DB - levels.speech) / 20)), 1 / peak if peak > 1 else np.inf)
    return Audio(samples * np.float32(gain) if gain != 1 else samples, audio.sample_rate)
