"""Speaker embeddings of a whole corpus, and how well they tell speakers apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.errors import InvalidRequest
from vivavoce.models.encoders import EMBEDDING_SIZE
from vivavoce.models.features import speaker_fbank
from vivavoce_training.data.store import Corpus
from vivavoce_training.speaker.model import SpeakerNet
from vivavoce_training.utterances import BATCH_TOKENS, equal_length_batches, exact_float32, heard

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
    """Return the share of trials in which an utterance is closest, by cosine, to its own speaker's other utterance.

    A trial draws `ways` speakers, or all if there are fewer, an enrolled utterance of each, and another utterance of
    the first speaker. enrolled: embeddings [utterances, size]; heard: embeddings of the same utterances, perhaps
    degraded; speaker: [utterances]. InvalidRequest: fewer than two speakers have two utterances.
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
    """Return the error rate at which pairs of one speaker are refused as often as pairs of two speakers are accepted.

    embeddings: [utterances, size]; up to `most` of them, evenly spaced, are paired; speaker: [utterances].
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


@torch.inference_mode()
def extract_embeddings(
    corpus: Corpus,
    net: SpeakerNet,
    device: torch.device,
    *,
    utterances: NDArray[np.int64] | None = None,
    change: Callable[[Tensor], Tensor] = lambda samples: samples,
    batch_tokens: int = BATCH_TOKENS,
) -> NDArray[np.float32]:
    """Compute embeddings of complete utterances, [utterances, 192], not normalised, in float32.

    corpus: at least 25 ms in each utterance; utterances: their indices, None for all; change: applied to the samples
    [batch, n] at 16 kHz; batch_tokens: most tokens in a batch.
    """
    utterances = np.arange(len(corpus)) if utterances is None else utterances
    embeddings = np.empty((len(utterances), EMBEDDING_SIZE), np.float32)
    net.eval()
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances, batch_tokens):
            samples = change(heard(corpus, utterances[rows], device))
            embeddings[rows] = net(speaker_fbank(samples)).cpu().numpy()
    return embeddings
