"""All staged models together, as the server has them call one another; only the server is not real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import FakeBackend, TritonError, decoupled, initialize_args, refused, unary
from speaking_helpers import RATE, ask, hum, wave, waves
from staged_fakes import asked_of, one_at_a_time

from vivavoce.doors.triton.models.audio_tokenizer import AudioTokenizer
from vivavoce.doors.triton.models.cosyvoice2 import CosyVoice2
from vivavoce.doors.triton.models.inner_language_model import TOP_K, TOP_P
from vivavoce.doors.triton.models.speaker_embedding import SpeakerEmbedding
from vivavoce.doors.triton.models.tensorrt_llm import TensorrtLLM
from vivavoce.doors.triton.models.token2wav import Token2Wav
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams
from vivavoce.service.audio.types import Audio
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.voice import Voice

TEXT = "Hi."
STAGES = {"audio_tokenizer": AudioTokenizer, "speaker_embedding": SpeakerEmbedding, "token2wav": Token2Wav}
SAMPLING = SamplingParams(top_p=TOP_P, top_k=TOP_K)


class Repository:
    def __init__(self, folder: Path, voices: Path, *, streams: bool) -> None:
        config: dict[str, Any] = {"model_transaction_policy": {"decoupled": streams}}
        given = {"model_dir": str(folder), "device": "cpu", "voices_dir": str(voices)}
        self.backend = FakeBackend()
        self.models = {
            name: stage.load(initialize_args(given, name=name), self.backend) for name, stage in STAGES.items()
        }
        for name, model in self.models.items():
            self.backend.models[name] = one_at_a_time(unary(model))
        args = initialize_args({**given, "exclude_input_in_output": "true"}, name="tensorrt_llm", **config)
        self.models["tensorrt_llm"] = TensorrtLLM.load(args, self.backend)
        served = (decoupled if streams else unary)(self.models["tensorrt_llm"])
        self.backend.models["tensorrt_llm"] = served if streams else one_at_a_time(served)
        self.spoken = CosyVoice2.load(initialize_args(given, name="cosyvoice2", **config), self.backend)

    def close(self) -> None:
        self.spoken.close()
        for model in self.models.values():
            model.close()


@pytest.fixture(scope="module")
def streaming(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    repository = Repository(babble, tmp_path_factory.mktemp("voices"), streams=True)
    yield repository
    repository.close()


def speaker(babble: Path) -> Voice:
    """As it arrives where it is needed: between models it is of 16 bits."""
    voice = built_in_voices(babble)["babble-a"]
    return replace(voice, embedding=voice.embedding.half().float())


def test_a_stream_is_the_package_s_own(streaming: Repository, synthesizer: Synthesizer, babble: Path) -> None:
    request = ask(streaming.backend, TEXT, seed=4)
    streaming.spoken.execute([request])
    heard = np.concatenate(waves(request.answers()))
    chunks = synthesizer.stream(
        TEXT, speaker(babble), SpeakOptions(seed=4, sampling=SAMPLING), ChunkPolicy.exponential()
    )
    expected = np.concatenate([chunk.samples for chunk in chunks])
    assert len(heard) == len(expected)
    assert np.allclose(heard, expected, atol=1e-4)


def test_eight_with_recordings_of_their_own(streaming: Repository, synthesizer: Synthesizer) -> None:
    recordings = [hum(0.8, hz=100.0 + 20 * number) for number in range(8)]
    requests = [
        ask(streaming.backend, TEXT, reference_wav=recording, seed=number)
        for number, recording in enumerate(recordings)
    ]
    streaming.spoken.execute(requests)
    for number, (recording, request) in enumerate(zip(recordings, requests, strict=True)):
        heard = np.concatenate(waves(request.answers()))
        voice = synthesizer.extractor.extract(Audio(recording, RATE))
        chunks = synthesizer.stream(
            TEXT, voice, SpeakOptions(seed=number, sampling=SAMPLING), ChunkPolicy.exponential()
        )
        assert len(heard) == sum(len(chunk.samples) for chunk in chunks)


def test_who_leaves_frees_the_slot(streaming: Repository) -> None:
    request = ask(streaming.backend, "A text that would take a while to be spoken.")
    streaming.spoken.execute([request])
    answers = request.answers()
    wave(next(answers))
    request.leave()
    *_, last = answers
    assert "client has left" in refused(last, TritonError.CANCELLED)
    again = ask(streaming.backend, TEXT)
    streaming.spoken.execute([again])
    assert sum(map(len, waves(again.answers()))) > 0
    asked = asked_of(streaming.backend, "tensorrt_llm")
    assert any(FakeBackend.get_input_tensor_by_name(one, "stop") for one in asked)
    assert len(streaming.models["token2wav"]._streams) == 0
    assert streaming.models["tensorrt_llm"]._running == {}


def test_whole_answers(babble: Path, tmp_path: Path, synthesizer: Synthesizer) -> None:
    repository = Repository(babble, tmp_path, streams=False)
    try:
        answers = repository.spoken.execute([ask(repository.backend, text, seed=4) for text in (TEXT, "Ho.")])
        for text, answer in zip((TEXT, "Ho."), answers, strict=True):
            expected = synthesizer.speak(text, speaker(babble), SpeakOptions(seed=4, sampling=SAMPLING)).samples
            assert len(wave(answer)) == len(expected)
            assert np.allclose(wave(answer), expected, atol=1e-4)
    finally:
        repository.close()
