from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vivavoce.errors import CheckpointError
from vivavoce.models.onnx_session import open_onnx
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"campplus\.onnx is missing in .*; download"):
        SpeakerEncoder.from_file(tmp_path / "campplus.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model" * 50, None])
def test_corrupt_file(tmp_path, encoder_data, content, capfd):
    path = tmp_path / "campplus.onnx"
    whole = (encoder_data / "campplus.onnx").read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(
        CheckpointError, match=r"campplus\.onnx in .* is not a usable ONNX model .*; download"
    ) as caught:
        SpeakerEncoder.from_file(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_swapped_files(encoder_data):
    with pytest.raises(CheckpointError, match=r"speech_tokenizer_v2\.onnx .* takes 2 inputs, not 1"):
        SpeakerEncoder.from_file(encoder_data / "speech_tokenizer_v2.onnx")
    with pytest.raises(CheckpointError, match=r"campplus\.onnx .* takes 1 inputs, not 2"):
        SpeechTokenizer.from_file(encoder_data / "campplus.onnx")


def test_threads_may_share_a_model(encoder_data):
    model = open_onnx(encoder_data / "campplus.onnx", num_inputs=1)
    inputs = [np.random.default_rng(seed).standard_normal((1, 50, 80)).astype(np.float32) for seed in range(8)]
    alone = [model.run(features) for features in inputs]
    with ThreadPoolExecutor(4) as pool:
        for expected, found in zip(alone, pool.map(model.run, inputs), strict=True):
            np.testing.assert_array_equal(found, expected)
