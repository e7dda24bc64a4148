"""Speech tokens and speaker embeddings of a corpus by a checkpoint's own ONNX models, to go on with its training."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.folder import SPEAKER_ENCODER, detect_generation, speech_tokenizer_of
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce_training.data.build import num_cores
from vivavoce_training.data.store import Corpus, write_array
from vivavoce_training.record import log
from vivavoce_training.utterances import heard_alone

PIECE = 200  # utterances that one process takes at a time


def encode(corpus: Path, model: Path, jobs: int | None = None, *, tokens: bool = True) -> None:
    """Write `tokens.npy`, unless `tokens` is false, and `embeddings.npy` into a corpus folder, with `jobs` processes
    (None: one per core).
    """
    source = Corpus.open(corpus)
    starts = range(0, len(source), PIECE)
    with ProcessPoolExecutor(jobs or num_cores(), mp_context=get_context("spawn")) as pool:
        pieces = list(pool.map(_hear, repeat(corpus), repeat(model), starts, repeat(tokens)))
    if tokens:
        write_array(corpus / "tokens.npy", np.concatenate([heard for heard, _ in pieces]))
    write_array(corpus / "embeddings.npy", np.concatenate([embeddings for _, embeddings in pieces]))
    log.info("%s: %sembeddings of %d utterances", corpus, "tokens and " if tokens else "", len(source))


def _hear(folder: Path, model: Path, first: int, with_tokens: bool) -> tuple[NDArray[np.int16], NDArray[np.float16]]:
    torch.set_num_threads(1)
    corpus = Corpus.open(folder)
    tokenizer = (
        SpeechTokenizer.from_file(model / speech_tokenizer_of(detect_generation(model))) if with_tokens else None
    )
    encoder = SpeakerEncoder.from_file(model / SPEAKER_ENCODER)
    tokens, embeddings = [], []
    for utterance in range(first, min(first + PIECE, len(corpus))):
        wave = heard_alone(corpus, utterance)
        if tokenizer is not None:
            tokens.append(tokenizer(wave).numpy().astype(np.int16))
        embeddings.append(encoder(wave).numpy().astype(np.float16))
    return np.concatenate(tokens) if tokens else np.zeros(0, np.int16), np.stack(embeddings)
