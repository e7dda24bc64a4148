"""Speech tokens of a whole corpus."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.store import Corpus
from training.tokenizer.model import TokenEncoder, to_indices
from training.utterances import BATCH_TOKENS, equal_length_batches, exact_float32, heard
from vivavoce.models.features.whisper_mel import whisper_log_mel


@torch.inference_mode()
def extract_tokens(
    corpus: Corpus, encoder: TokenEncoder, device: torch.device, *, batch_tokens: int = BATCH_TOKENS
) -> NDArray[np.int16]:
    """Tokens [corpus.num_tokens]; each utterance is heard alone and whole, in float32, as a prompt is.

    A digit that lies on the boundary of two values may round otherwise than in ONNX Runtime, which adds in another
    order.
    """
    encoder.eval()
    tokens = np.empty(corpus.num_tokens, np.int16)
    with exact_float32():
        for batch in equal_length_batches(corpus, np.arange(len(corpus)), batch_tokens):
            indices = to_indices(encoder(whisper_log_mel(heard(corpus, batch, device)))).short().cpu().numpy()
            for row, first in zip(indices, corpus.start[batch], strict=True):
                tokens[first : first + len(row)] = row
    return tokens
