from __future__ import annotations

import numpy as np
import pytest

from training.speaker.measure import equal_error_rate, identified
from vivavoce.errors import InvalidRequest


def clustered(spread: float, speakers: int = 10, each: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((speakers, 32))
    speaker = np.repeat(np.arange(speakers, dtype=np.int32), each)
    noise = generator.standard_normal((len(speaker), 32))
    return (centres[speaker] + spread * noise).astype(np.float32), speaker


def test_speakers_far_apart_are_all_told() -> None:
    embeddings, speaker = clustered(0.1)
    assert identified(embeddings, embeddings, speaker) == 1.0
    assert equal_error_rate(embeddings, speaker) == 0.0


def test_noise_is_told_as_often_as_chance_has_it() -> None:
    embeddings, speaker = clustered(1e6)
    assert identified(embeddings, embeddings, speaker) == pytest.approx(1 / 8, abs=0.04)
    assert identified(embeddings, embeddings, speaker, ways=2) == pytest.approx(1 / 2, abs=0.06)
    assert equal_error_rate(embeddings, speaker) == pytest.approx(0.5, abs=0.05)


def test_between_the_two() -> None:
    errors = [equal_error_rate(*clustered(spread)) for spread in (0.5, 1.0, 2.0)]
    assert errors == sorted(errors)
    assert 0 < errors[1] < 0.4


def test_what_is_heard_is_held_against_what_was_enrolled() -> None:
    embeddings, speaker = clustered(0.1)
    swapped = embeddings[::-1].copy()
    assert identified(embeddings, swapped, speaker) < 0.1


def test_two_speakers_with_two_utterances_are_needed() -> None:
    with pytest.raises(InvalidRequest, match="make a longer corpus"):
        identified(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32), np.array([0, 0, 1], np.int32))
