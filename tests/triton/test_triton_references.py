"""What the models that read recordings make of them, and what they refuse."""

import numpy as np
import pytest
from fake_backend import FakeBackend, initialize_args, output, refused

from vivavoce.frontend.audio.samples import Audio
from vivavoce_triton.models.backend import python_model
from vivavoce_triton.models.reference_models import (
    CPU_PROVIDER,
    AudioTokenizer,
    SpeakerEmbedding,
    onnx_providers,
)

BACKEND = FakeBackend()
MODELS = {"audio_tokenizer": "prompt_speech_tokens", "speaker_embedding": "prompt_spk_embedding"}


def recording(seconds, seed=0):
    return (np.random.default_rng(seed).standard_normal(round(16_000 * seconds)) * 0.1).astype(np.float32)


RECORDINGS = [recording(seconds, seed) for seed, seconds in enumerate((1.0, 0.5, 2.37, 0.8, 1.0))]


def loaded(name, folder):
    """As the server loads it."""
    kind = {"audio_tokenizer": AudioTokenizer, "speaker_embedding": SpeakerEmbedding}[name]
    model = python_model(kind, BACKEND)()
    model.initialize(initialize_args({"model_dir": str(folder), "device": "cpu"}))
    return model


@pytest.fixture(params=list(MODELS))
def name(request):
    return request.param


@pytest.fixture
def model(name, babble):
    model = loaded(name, babble)
    yield model
    model.finalize()


def asked(name, samples, length=None, padding=0):
    tensors = {"reference_wav": np.pad(samples, (0, padding))[None]}
    if name == "audio_tokenizer":
        tensors["reference_wav_len"] = np.array([[len(samples) if length is None else length]], np.int32)
    return BACKEND.request(model_name=name, **tensors)


def test_it_gives_what_the_extractor_gives(name, model, synthesizer, vocabulary):
    extractor = synthesizer.front_end.extractor
    responses = model.execute([asked(name, samples) for samples in RECORDINGS])
    for samples, response in zip(RECORDINGS, responses, strict=True):
        given, audio = output(response, MODELS[name]), Audio(samples, 16_000)
        if name == "audio_tokenizer":
            tokens = extractor.speech_tokens(audio).numpy()
            assert given.dtype == np.int32
            np.testing.assert_array_equal(given, tokens[None] + vocabulary.text_size)
        else:
            assert given.dtype == np.float16
            np.testing.assert_array_equal(given, extractor.embedding(audio).half().numpy()[None])


def test_padding_is_not_heard(babble):
    model = loaded("audio_tokenizer", babble)
    plain, padded = model.execute([asked("audio_tokenizer", RECORDINGS[0], padding=padding) for padding in (0, 9_000)])
    np.testing.assert_array_equal(output(plain, "prompt_speech_tokens"), output(padded, "prompt_speech_tokens"))
    model.finalize()


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (recording(31), "reference_wav: lasts 31.0 s; the limit is 30 s"),
        (np.where(np.arange(16_000) == 99, np.inf, recording(1)).astype(np.float32), "reference_wav: holds a number"),
    ],
)
def test_bad_recordings_are_refused_alone(name, model, samples, sentence):
    good, bad, other = model.execute([asked(name, RECORDINGS[0]), asked(name, samples), asked(name, RECORDINGS[2])])
    assert sentence in refused(bad)
    assert output(good, MODELS[name]).size
    assert output(other, MODELS[name]).size


@pytest.mark.parametrize(("length", "sentence"), [(0, "0 of the 16000"), (16_001, "16001 of the 16000")])
def test_a_length_is_of_its_recording(babble, length, sentence):
    model = loaded("audio_tokenizer", babble)
    (response,) = model.execute([asked("audio_tokenizer", RECORDINGS[0], length)])
    assert f"reference_wav_len: {sentence}" in refused(response)
    missing, nothing = model.execute([BACKEND.request(reference_wav=RECORDINGS[0][None]), BACKEND.request()])
    assert "reference_wav_len: 0 numbers; send one" in refused(missing)
    assert "reference_wav: is missing" in refused(nothing)
    model.finalize()


def test_providers_follow_the_device(monkeypatch):
    import onnxruntime
    import torch

    cuda, tensorrt = "CUDAExecutionProvider", "TensorrtExecutionProvider"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [tensorrt, cuda, CPU_PROVIDER])
    monkeypatch.setattr("vivavoce_triton.models.reference_models.find_spec", lambda name: object())
    assert onnx_providers(torch.device("cpu"), tensorrt=True) == [CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda")) == [cuda, CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda", 0), tensorrt=True) == [tensorrt, cuda, CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda", 1), tensorrt=True) == [CPU_PROVIDER]
    monkeypatch.setattr("vivavoce_triton.models.reference_models.find_spec", lambda name: None)
    assert onnx_providers(torch.device("cuda"), tensorrt=True) == [cuda, CPU_PROVIDER]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU_PROVIDER])
    assert onnx_providers(torch.device("cuda")) == [CPU_PROVIDER]
