"""What the models that read recordings make of them, and what they refuse."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import vivavoce.doors.triton as triton_door
from tests.doors.triton.fake_backend import FakeBackend, initialize_args, output, refused
from vivavoce.doors.triton.models.place import CPU_PROVIDER, onnx_providers
from vivavoce.service.audio.types import Audio
from vivavoce.service.front_end import load_front_end
from vivavoce.service.text.tokenizer import TextTokenizer

BACKEND = FakeBackend()
MODELS = {"audio_tokenizer": "prompt_speech_tokens", "speaker_embedding": "prompt_spk_embedding"}


def recording(seconds, seed=0):
    return (np.random.default_rng(seed).standard_normal(round(16_000 * seconds)) * 0.1).astype(np.float32)


RECORDINGS = [recording(seconds, seed) for seed, seconds in enumerate((1.0, 0.5, 2.37, 0.8, 1.0))]


def loaded(name, folder, monkeypatch):
    """As the server loads it."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", BACKEND)
    path = Path(triton_door.__file__).parent / "repository" / name / "1" / "model.py"
    spec = importlib.util.spec_from_file_location(f"{name}_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize(initialize_args({"model_dir": str(folder), "device": "cpu"}))
    return model


@pytest.fixture(params=list(MODELS))
def name(request):
    return request.param


@pytest.fixture
def model(name, babble, monkeypatch):
    model = loaded(name, babble, monkeypatch)
    yield model
    model.finalize()


@pytest.fixture(scope="module")
def front_end(babble):
    return load_front_end(babble)


def asked(name, samples, length=None, padding=0):
    tensors = {"reference_wav": np.pad(samples, (0, padding))[None]}
    if name == "audio_tokenizer":
        tensors["reference_wav_len"] = np.array([[len(samples) if length is None else length]], np.int32)
    return BACKEND.request(model_name=name, **tensors)


def test_it_gives_what_the_extractor_gives(name, model, front_end, babble):
    text_size = len(TextTokenizer.from_folder(babble / "CosyVoice-BlankEN"))
    responses = model.execute([asked(name, samples) for samples in RECORDINGS])
    for samples, response in zip(RECORDINGS, responses, strict=True):
        given, audio = output(response, MODELS[name]), Audio(samples, 16_000)
        if name == "audio_tokenizer":
            tokens = front_end.extractor.speech_tokens(audio).numpy()
            assert given.dtype == np.int32
            np.testing.assert_array_equal(given, tokens[None] + text_size)
        else:
            assert given.dtype == np.float16
            np.testing.assert_array_equal(given, front_end.extractor.embedding(audio).half().numpy()[None])


def test_padding_is_not_heard(babble, monkeypatch):
    model = loaded("audio_tokenizer", babble, monkeypatch)
    plain, padded = model.execute([asked("audio_tokenizer", RECORDINGS[0], padding=padding) for padding in (0, 9_000)])
    np.testing.assert_array_equal(output(plain, "prompt_speech_tokens"), output(padded, "prompt_speech_tokens"))
    model.finalize()


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (recording(0.3), "reference_wav: lasts 0.30 s; at least 0.5 s"),
        (recording(31), "reference_wav: lasts 31.0 s; the limit is 30 s"),
        (np.zeros(16_000, np.float32), "reference_wav: is silent"),
        (recording(1) * 32_768, "reference_wav: has a peak of"),
        (np.where(np.arange(16_000) == 99, np.inf, recording(1)).astype(np.float32), "reference_wav: holds a number"),
    ],
)
def test_bad_recordings_are_refused_alone(name, model, samples, sentence):
    good, bad, other = model.execute([asked(name, RECORDINGS[0]), asked(name, samples), asked(name, RECORDINGS[2])])
    assert sentence in refused(bad)
    assert output(good, MODELS[name]).size
    assert output(other, MODELS[name]).size


@pytest.mark.parametrize(("length", "sentence"), [(0, "0 of the 16000"), (16_001, "16001 of the 16000")])
def test_a_length_is_of_its_recording(babble, monkeypatch, length, sentence):
    model = loaded("audio_tokenizer", babble, monkeypatch)
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
    monkeypatch.setattr("vivavoce.doors.triton.models.place.find_spec", lambda name: object())
    assert onnx_providers(torch.device("cpu"), tensorrt=True) == [CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda")) == [cuda, CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda", 0), tensorrt=True) == [tensorrt, cuda, CPU_PROVIDER]
    assert onnx_providers(torch.device("cuda", 1), tensorrt=True) == [CPU_PROVIDER]
    monkeypatch.setattr("vivavoce.doors.triton.models.place.find_spec", lambda name: None)
    assert onnx_providers(torch.device("cuda"), tensorrt=True) == [cuda, CPU_PROVIDER]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU_PROVIDER])
    assert onnx_providers(torch.device("cuda")) == [CPU_PROVIDER]


def test_a_missing_folder_is_named(babble, monkeypatch):
    from vivavoce.errors import ModelNotFound

    for given in ("", "/nowhere/at all"):
        with pytest.raises(ModelNotFound, match=f"model_dir: '{given}' is no folder"):
            loaded("audio_tokenizer", given, monkeypatch)
