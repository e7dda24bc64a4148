"""Recordings on disk, through libsndfile."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio, InvalidRequest


def read_recording(path: Path) -> tuple[NDArray[np.float32], int]:
    """The samples [n] of a recording, its channels averaged, and its sample rate.

    Raises:
        InvalidAudio: not audio that libsndfile reads, empty, or with samples that are not finite.
    """
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidAudio(f"audio: {str(path)!r} cannot be read ({error}); give a wav, flac, ogg or mp3") from None
    if not len(samples) or not np.isfinite(samples).all():
        raise InvalidAudio(f"audio: {str(path)!r} holds no samples, or some that are not finite; export it again")
    return samples.mean(axis=1), int(rate)


def recording_seconds(path: Path) -> float:
    """The length of a recording; errors as in `read_recording`."""
    try:
        found = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidAudio(f"audio: {str(path)!r} cannot be read ({error}); give a wav, flac, ogg or mp3") from None
    return float(found.frames / found.samplerate)


def write_recording(path: Path, samples: NDArray[np.float32], sample_rate: int) -> None:
    """Write a 16-bit WAV file; samples beyond ±1 are clipped. `InvalidRequest` if the place cannot be written."""
    try:
        soundfile.write(path, np.clip(samples, -1, 1), sample_rate, subtype="PCM_16")
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidRequest(f"out: {str(path)!r} cannot be written ({error}); choose another folder") from None


def as_wav_bytes(samples: NDArray[np.float32], sample_rate: int) -> bytes:
    """A float WAV file in memory."""
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
