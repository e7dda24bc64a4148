"""How well embeddings tell speakers apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest

WAYS = 8
TRIALS = 2000


def identified(
    enrolled: NDArray[np.float32],
    heard: NDArray[np.float32],
    speaker: NDArray[np.int32],
    *,
    ways: int = WAYS,
    seed: int = 0,
) -> float:
    """Share of trials in which an utterance is closest, by cosine, to another one of its own speaker.

    A trial takes `ways` speakers, fewer if there are not as many, one enrolled utterance of each, and an utterance
    of the first.

    Args:
        enrolled: [utterances, size].
        heard: [utterances, size], the same utterances, perhaps degraded.
        speaker: [utterances].
        ways: speakers of a trial.
        seed: of the trials.

    Raises:
        InvalidRequest: fewer than two speakers have two utterances.
    """
    generator = np.random.default_rng(seed)
    enrolled, heard = _normalised(enrolled), _normalised(heard)
    own = {index: np.flatnonzero(speaker == index) for index in np.unique(speaker)}
    able = [index for index, utterances in own.items() if len(utterances) > 1]
    if len(able) < 2:
        raise InvalidRequest("corpus: fewer than two speakers have two utterances; make a longer corpus")
    right = 0
    for _ in range(TRIALS):
        chosen = generator.permutation(able)[:ways]
        test, first = generator.permutation(own[chosen[0]])[:2]
        models = [first, *(generator.choice(own[index]) for index in chosen[1:])]
        right += int((enrolled[models] @ heard[test]).argmax() == 0)
    return right / TRIALS


def equal_error_rate(embeddings: NDArray[np.float32], speaker: NDArray[np.int32], most: int = 2000) -> float:
    """Error where as many pairs of one speaker are refused as pairs of two are accepted, by cosine.

    embeddings: [utterances, size], of which evenly `most` at most are paired; speaker: [utterances].
    """
    chosen = np.linspace(0, len(speaker) - 1, min(most, len(speaker))).astype(np.int64)
    scores = _normalised(embeddings[chosen])
    pairs = np.triu_indices(len(chosen), 1)
    same = (speaker[chosen][:, None] == speaker[chosen])[pairs]
    order = np.argsort(-(scores @ scores.T)[pairs], kind="stable")
    same = same[order]
    accepted = np.cumsum(~same) / max(1, (~same).sum())
    refused = 1 - np.cumsum(same) / max(1, same.sum())
    at = int(np.abs(accepted - refused).argmin())
    return float((accepted[at] + refused[at]) / 2)


def _normalised(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    normalised: NDArray[np.float32] = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(min=1e-9)
    return normalised
