"""Recordings in, WAV files out, and chunks joined."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio, InvalidRequest

Samples = NDArray[np.float32]

REFERENCE_RATE = 16_000
"""Of a reference recording as Triton takes it."""


@dataclass(frozen=True, eq=False)
class Audio:
    """samples: [n] float32 in ±1."""

    samples: Samples
    sample_rate: int

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return len(self.samples) / self.sample_rate


def read_reference(source: Path | bytes) -> Samples:
    """A recording as [n] float32, mono at 16 kHz; channels are averaged.

    Args:
        source: a file, or its content.

    Raises:
        InvalidAudio: no such file, nothing that libsndfile reads, empty, or with samples that are not finite.
    """
    import soundfile
    import soxr

    label = f"{len(source)} bytes" if isinstance(source, bytes) else repr(str(source))
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidAudio(f"reference audio: {label} cannot be read ({error}); give a wav, flac, ogg or mp3") from None
    if not len(samples) or not np.isfinite(samples).all():
        raise InvalidAudio(f"reference audio: {label} holds no samples, or some that are not finite; export it again")
    mono = samples.mean(axis=1)
    if rate != REFERENCE_RATE:
        mono = soxr.resample(mono, rate, REFERENCE_RATE)
    return np.ascontiguousarray(mono, dtype=np.float32)


def write_wav(path: Path, audio: Audio) -> None:
    """Write a 16-bit WAV file; samples beyond ±1 are clipped. `InvalidRequest` if the place cannot be written."""
    import soundfile

    try:
        soundfile.write(str(path), np.clip(audio.samples, -1, 1), audio.sample_rate, subtype="PCM_16", format="WAV")
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidRequest(f"output: {str(path)!r} cannot be written ({error}); choose another place") from None


def join(chunks: Sequence[Samples], overlap: int) -> tuple[Samples, tuple[int, ...]]:
    """Chunks [n_i] one after another, each cross-faded linearly with the end of what is before it.

    Args:
        chunks: in their order.
        overlap: samples that a chunk repeats of the one before it; fewer where one of the two is shorter.

    Returns:
        (the audio [n], the samples that each chunk adds to it; they sum up to n).
    """
    pieces: list[Samples] = []
    added: list[int] = []
    for chunk in chunks:
        shared = min(overlap, len(pieces[-1]), len(chunk)) if pieces else 0
        if shared:
            rise = np.linspace(0, 1, shared, dtype=np.float32)
            faded = pieces[-1][-shared:] * (1 - rise) + chunk[:shared] * rise
            pieces[-1] = pieces[-1][:-shared]
            pieces.append(np.concatenate([faded, chunk[shared:]]))
        else:
            pieces.append(chunk)
        added.append(len(chunk) - shared)
    return (np.concatenate(pieces) if pieces else np.zeros(0, np.float32)), tuple(added)
