"""What a recording must be to serve as a voice's reference."""

from __future__ import annotations

import numpy as np

from vivavoce.errors import InvalidAudio
from vivavoce.service.audio.types import Audio, Samples

MIN_REFERENCE_S = 0.5
"""Below this there is not one syllable to take a voice from."""

MAX_REFERENCE_S = 30.0
"""The official speech tokenizer accepts no more than 30 s."""

MIN_REFERENCE_PEAK = 1e-3
"""-60 dB of full scale: a recording that never gets louder is silence or a muted microphone."""

MAX_REFERENCE_PEAK = 100.0
"""A little beyond ±1 is a loud recording; this far beyond, float samples were stored on an integer scale."""


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
    _check_level(float(np.abs(audio.samples).max()), field)


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


def _check_level(peak: float, field: str) -> None:
    if peak < MIN_REFERENCE_PEAK:
        raise InvalidAudio(
            f"{field}: is silent (peak {peak:.2g}, at least {MIN_REFERENCE_PEAK:g} is needed); "
            "check the microphone and record again"
        )
    if peak > MAX_REFERENCE_PEAK:
        raise InvalidAudio(f"{field}: has a peak of {peak:.3g}, beyond {MAX_REFERENCE_PEAK:g}; scale the samples to ±1")
