"""The shortest audio that a feature is defined for."""

from __future__ import annotations

from vivavoce.errors import InvalidAudio


def require_samples(num_samples: int, minimum: int, sample_rate: int) -> None:
    """Refuse fewer than `minimum` samples.

    Raises:
        InvalidAudio: names both lengths in seconds.
    """
    if num_samples < minimum:
        raise InvalidAudio(
            f"audio: {num_samples} samples ({num_samples / sample_rate:.3f} s) are too few; features need "
            f"at least {minimum} ({minimum / sample_rate:.3f} s); use a longer recording"
        )
