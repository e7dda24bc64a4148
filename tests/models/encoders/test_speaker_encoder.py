from __future__ import annotations

import numpy as np
import pytest
import torch

from vivavoce.errors import CheckpointError, InvalidAudio
from vivavoce.models.onnx_session import OnnxModel, open_onnx
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder


@pytest.fixture
def encoder(encoder_data):
    return SpeakerEncoder.from_file(encoder_data / "campplus.onnx")


@pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])
def test_stored_embedding(encoder, speech, expected, name):
    embedding = encoder(speech(name))
    assert embedding.shape == (192,)
    assert embedding.dtype == torch.float32
    np.testing.assert_allclose(embedding.numpy(), expected(name, "embedding"), rtol=0, atol=1e-4)


def test_speakers_differ_and_runs_do_not(encoder, speech):
    first, second = encoder(speech("speech_24k_float")), encoder(speech("speech_22k_int16"))
    assert (first - second).abs().max() > 0.1
    assert torch.equal(first, encoder(speech("speech_24k_float")))


def test_too_short(encoder):
    with pytest.raises(InvalidAudio, match="too few"):
        encoder(torch.zeros(100))


def test_output_of_another_size_names_the_file(encoder_data, speech):
    class Short(OnnxModel):
        def run(self, *inputs: np.ndarray) -> np.ndarray:
            return super().run(*inputs)[:100]

    opened = open_onnx(encoder_data / "campplus.onnx", num_inputs=1)
    encoder = SpeakerEncoder(Short(opened.path, opened.session))
    with pytest.raises(CheckpointError, match=r"campplus\.onnx .* gives 100 numbers, not 192"):
        encoder(speech("speech_24k_float"))
