"""Speaker embeddings of a whole corpus."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import Corpus
from training.speaker.fbank import Fbank
from training.speaker.model import SpeakerNet
from training.utterances import BATCH_TOKENS, equal_length_batches, exact_float32, heard
from vivavoce.models.speaker_encoder.onnx import EMBEDDING_SIZE


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
    """Embeddings [utterances, 192], not normalised; each utterance is heard whole, in float32.

    Args:
        corpus: at least 25 ms in each utterance.
        net: on `device`.
        device: where to compute.
        utterances: which; all if None.
        change: applied to the samples [batch, n] at 16 kHz.
        batch_tokens: how much at once.
    """
    utterances = np.arange(len(corpus)) if utterances is None else utterances
    fbank = Fbank().to(device)
    embeddings = np.empty((len(utterances), EMBEDDING_SIZE), np.float32)
    net.eval()
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances, batch_tokens):
            samples = change(heard(corpus, utterances[rows], device))
            embeddings[rows] = net(fbank(samples)).cpu().numpy()
    return embeddings
