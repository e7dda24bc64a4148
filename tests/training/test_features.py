"""Mels of a corpus: each utterance's own, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.training.tones import write_tones
from training.configs import mini_config
from training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES
from training.features import mels_of
from vivavoce.models.features.mel import prompt_mel


def test_each_utterance_is_heard_alone(tmp_path: Path) -> None:
    corpus, config = write_tones(tmp_path), mini_config().mel
    mels = mels_of(corpus, config, torch.device("cpu"))
    assert mels.shape == (corpus.num_tokens * MELS_PER_TOKEN, config.num_bins)
    assert mels.dtype == torch.float16
    for utterance in range(len(corpus)):
        first, last = corpus.start[utterance : utterance + 2]
        wave = np.asarray(corpus.wav[first * TOKEN_SAMPLES : last * TOKEN_SAMPLES], np.float32) / 32768
        alone = prompt_mel(torch.from_numpy(wave)[None], config)[0]
        found = mels[first * MELS_PER_TOKEN : last * MELS_PER_TOKEN].float()
        torch.testing.assert_close(found, alone, rtol=0, atol=0.01)
