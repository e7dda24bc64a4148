"""How alike two voices are to a model's own speaker encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio
from vivavoce.evaluate.audio_files import as_wav_bytes
from vivavoce.evaluate.speaking import Samples, VoiceLike

Embed = Callable[[Samples, int], NDArray[np.float32] | None]
"""(samples, sample rate) → speaker embedding [n]; None for audio that has none (too short, silent)."""

_LONGEST_S = 30.0
"""Of an utterance, the part that is embedded: recordings for voices may be no longer."""

MOST_KEPT = 32
"""References of which all cosines are kept."""


def embed_with(embed_recording: Callable[[bytes], Any]) -> Embed:
    """The `Embed` of a loaded model's `embed`, which is given WAV files."""

    def embed(samples: Samples, sample_rate: int) -> NDArray[np.float32] | None:
        start = samples[: int(_LONGEST_S * sample_rate)]
        try:
            return as_vector(embed_recording(as_wav_bytes(start, sample_rate)))
        except InvalidAudio:
            return None

    return embed


def as_vector(embedding: Any) -> NDArray[np.float32]:
    """An embedding, whatever holds it, as [n] float32."""
    return np.asarray(embedding, dtype=np.float32).reshape(-1)


def cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Cosine of two embeddings [n]: 1 alike, 0 nothing in common."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / lengths if lengths else 0.0


class References:
    """The voices' own embeddings."""

    def __init__(self, voices: Mapping[str, VoiceLike]) -> None:
        self._vectors = {name: as_vector(voice.embedding) for name, voice in voices.items()}

    def __len__(self) -> int:
        return len(self._vectors)

    def similarities(self, embedding: NDArray[np.float32], voice: str) -> dict[str, float] | None:
        """Cosines with every reference; of more than 32, only with the nearest and that of `voice`; None without any.

        What is kept of a list with a thousand prompts would otherwise grow with its square.
        """
        cosines = {name: cosine(embedding, vector) for name, vector in self._vectors.items()}
        if len(cosines) <= MOST_KEPT:
            return cosines or None
        nearest = max(cosines, key=cosines.__getitem__)
        return {name: cosines[name] for name in dict.fromkeys((voice, nearest)) if name in cosines}
