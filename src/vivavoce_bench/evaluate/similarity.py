"""Speaker similarity of two voices by a model's own speaker encoder."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio
from vivavoce_bench.evaluate.speaking import Samples

Embed = Callable[[Samples, int], NDArray[np.float32] | None]
"""(samples, sample rate) → speaker embedding [n]; None for audio without one (too short, silent)."""

_LONGEST_S = 30.0


def embed_with(embed_recording: Callable[[bytes], Any]) -> Embed:
    def embed(samples: Samples, sample_rate: int) -> NDArray[np.float32] | None:
        file = io.BytesIO()
        soundfile.write(file, samples[: int(_LONGEST_S * sample_rate)], sample_rate, format="WAV", subtype="FLOAT")
        try:
            return as_vector(embed_recording(file.getvalue()))
        except InvalidAudio:
            return None

    return embed


def as_vector(embedding: Any) -> NDArray[np.float32]:
    return np.asarray(embedding, dtype=np.float32).reshape(-1)


def cosines(embedding: NDArray[np.float32], references: Mapping[str, NDArray[np.float32]]) -> dict[str, float]:
    """Cosine of an embedding [n] with each reference."""
    found = {}
    for name, vector in references.items():
        lengths = float(np.linalg.norm(embedding) * np.linalg.norm(vector))
        found[name] = float(np.dot(embedding, vector)) / lengths if lengths else 0.0
    return found
