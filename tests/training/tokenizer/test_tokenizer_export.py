from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training.onnx_graph import round_to_half
from training.tokenizer.export import export_tokenizer
from training.tokenizer.model import TokenEncoder, TokenizerSizes, to_indices
from vivavoce.models.features.whisper_mel import whisper_log_mel
from vivavoce.models.onnx_session import open_onnx
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenEncoder, Path]:
    torch.manual_seed(0)
    encoder = TokenEncoder(TokenizerSizes()).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():  # fresh networks are too timid to use all values
            parameter.add_(0.02 * torch.randn_like(parameter))
        encoder.digits.weight.mul_(8)
    round_to_half(encoder)
    path = tmp_path_factory.mktemp("model") / "speech_tokenizer_v2.onnx"
    export_tokenizer(encoder, path)
    return encoder, path


@pytest.mark.parametrize("frames", [1, 4, 5, 97, 400])
@torch.no_grad()
def test_the_file_gives_the_network_s_tokens(exported: tuple[TokenEncoder, Path], frames: int) -> None:
    encoder, path = exported
    features = torch.randn(1, 128, frames, generator=torch.Generator().manual_seed(frames))
    digits = encoder(features)
    tokens = open_onnx(path, num_inputs=2).run(features.numpy(), np.array([frames], np.int32))
    settled = ((digits.abs() - 0.5).abs() > 1e-4).all(-1)[0].numpy()
    assert settled.mean() > 0.95 or frames < 97
    assert (tokens == to_indices(digits)[0].numpy())[settled].all()
    assert frames < 97 or len(set(tokens.tolist())) > 5


def test_through_the_package_s_own_front_end(exported: tuple[TokenEncoder, Path]) -> None:
    encoder, path = exported
    samples = 0.1 * torch.randn(16_000 * 3, generator=torch.Generator().manual_seed(0))
    tokens = SpeechTokenizer.from_file(path)(samples)
    assert tokens.dtype == torch.int32
    assert tokens.shape == (75,)
    with torch.no_grad():
        expected = to_indices(encoder(whisper_log_mel(samples)[None]))[0]
    assert (tokens == expected).float().mean() > 0.95


def test_features_beyond_the_length_give_no_tokens(exported: tuple[TokenEncoder, Path]) -> None:
    features = np.zeros((1, 128, 40), np.float32)
    tokens = open_onnx(exported[1], num_inputs=2).run(features, np.array([21], np.int32))
    assert tokens.shape == (6,)


def test_weights_take_two_bytes(exported: tuple[TokenEncoder, Path]) -> None:
    encoder, path = exported
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    assert path.stat().st_size < 2.02 * parameters
