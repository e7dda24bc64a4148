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


def embed_with(extract_voice: Callable[[Any], VoiceLike]) -> Embed:
    """The `Embed` of a loaded model's `extract_voice`."""

    def embed(samples: Samples, sample_rate: int) -> NDArray[np.float32] | None:
        start = samples[: int(_LONGEST_S * sample_rate)]
        try:
            return as_vector(extract_voice(as_wav_bytes(start, sample_rate)))
        except InvalidAudio:
            return None

    return embed


def as_vector(voice: VoiceLike) -> NDArray[np.float32]:
    """A voice's embedding: [n] float32."""
    return np.asarray(voice.embedding, dtype=np.float32).reshape(-1)


def cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Cosine of two embeddings [n]: 1 alike, 0 nothing in common."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / lengths if lengths else 0.0


class References:
    """The voices' own embeddings, each read when it is first compared with."""

    def __init__(self, voices: Mapping[str, VoiceLike]) -> None:
        self._voices = voices
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def similarities(self, embedding: NDArray[np.float32], voice: str) -> dict[str, float] | None:
        """Cosines with every voice of the mapping, and with `voice` if it is found there; None if there is none."""
        names = dict.fromkeys(self._voices)
        if voice not in names and self._find(voice) is not None:
            names[voice] = None
        return {name: cosine(embedding, self._vector(name)) for name in names} or None

    def _find(self, name: str) -> VoiceLike | None:
        return self._voices.get(name)

    def _vector(self, name: str) -> NDArray[np.float32]:
        if name not in self._vectors:
            self._vectors[name] = as_vector(self._voices[name])
        return self._vectors[name]
