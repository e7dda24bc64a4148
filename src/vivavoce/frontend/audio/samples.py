"""Decoded audio as one value: float samples, their way to 16 bits, and what a reference recording must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio

Samples = NDArray[np.float32]
"""Mono samples [n] in float32; ±1 is full scale, values beyond it are allowed."""

MIN_REFERENCE_S = 0.5
"""A shorter recording has less than one syllable."""
MAX_REFERENCE_S = 30.0
"""The official speech tokenizer accepts no more than 30 s."""
MIN_REFERENCE_PEAK = 1e-3
"""-60 dB of full scale: a recording that never gets louder is silence or a muted microphone."""
MAX_REFERENCE_PEAK = 100.0
"""A little beyond ±1 is a loud recording; this far beyond, float samples were stored on an integer scale."""

_SCALE, _LARGEST = 32768, 32767


@dataclass(frozen=True, eq=False)
class Audio:
    """Mono samples [n], float32, and how many of them make a second."""

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
    """Mono of (array, rate): [n], [channels, n] or [n, channels], floats or integers; else InvalidAudio."""
    try:
        array, rate = pair
        array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
        if array.ndim not in (1, 2) or not array.size or array.dtype.kind not in "fiu" or rate != int(rate) or rate < 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        given = ", ".join(type(one).__name__ for one in pair)
        raise InvalidAudio(
            f"{field}: ({given}) is not a recording; give (array of [n] or [channels, n], rate)"
        ) from None
    if array.dtype.kind in "iu":
        middle = 2.0 ** (8 * array.dtype.itemsize - 1)
        array = array / middle - (array.dtype.kind == "u")
    if array.ndim == 2:
        array = array.mean(axis=int(np.argmin(array.shape)))
    return Audio(array.astype(np.float32), int(rate))


def to_int16(samples: NDArray[np.floating]) -> NDArray[np.int16]:
    """Scale by 32768, round to the nearest integer and saturate at ±32767; any shape.

    The scale is the one that decoders divide by, so 16-bit audio comes back bit for bit.

    Raises:
        ValueError: a sample is NaN; no model may produce one.
    """
    num_nan = int(np.isnan(samples).sum())
    if num_nan:
        raise ValueError(f"{num_nan} of {samples.size} samples are NaN")
    scaled = np.rint(samples.astype(np.float64) * _SCALE)
    return np.clip(scaled, -_LARGEST, _LARGEST).astype(np.int16)


def check_finite(samples: Samples, label: str) -> None:
    """Check that no sample is NaN or infinite; `label` begins the message.

    Raises:
        InvalidAudio: says how many are.
    """
    num_bad = samples.size - int(np.isfinite(samples).sum())
    if num_bad:
        raise InvalidAudio(
            f"{label} has {num_bad} of {samples.size} samples that are NaN or infinite; export the recording again"
        )


def check_reference(audio: Audio, *, field: str = "reference audio") -> None:
    """Check that `audio` can be used as a reference.

    Raises:
        InvalidAudio: shorter than 0.5 s, longer than 30 s, silent, far out of scale, not finite.
    """
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
    if peak < MIN_REFERENCE_PEAK:
        raise InvalidAudio(
            f"{field}: is silent (peak {peak:.2g}, at least {MIN_REFERENCE_PEAK:g} is needed); "
            "check the microphone and record again"
        )
    if peak > MAX_REFERENCE_PEAK:
        raise InvalidAudio(f"{field}: has a peak of {peak:.3g}, beyond {MAX_REFERENCE_PEAK:g}; scale the samples to ±1")
