from __future__ import annotations

import numpy as np
import pytest
import torch

from vivavoce.errors import InvalidAudio
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer


@pytest.fixture
def tokenizer(encoder_data):
    return SpeechTokenizer.from_file(encoder_data / "speech_tokenizer_v2.onnx")


@pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])
def test_stored_tokens(tokenizer, speech, expected, name):
    tokens = tokenizer(speech(name))
    assert tokens.dtype == torch.int32
    # The stand-in rounds, so another FFT may flip a value that lies on the edge.
    assert np.count_nonzero(tokens.numpy() != expected(name, "tokens")) <= 1


@pytest.mark.parametrize(("num_samples", "num_tokens"), [(640, 1), (641, 1), (800, 2), (480_000, 750)])
def test_one_token_per_40_ms(tokenizer, num_samples, num_tokens):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert tokenizer(samples).shape == (num_tokens,)


def test_more_than_30_s_is_refused(tokenizer):
    with pytest.raises(InvalidAudio, match=r"lasts 31\.00 s; .* 30 s at most; cut it"):
        tokenizer(torch.zeros(31 * 16_000))


def test_too_short(tokenizer):
    with pytest.raises(InvalidAudio, match="too few"):
        tokenizer(torch.zeros(100))
