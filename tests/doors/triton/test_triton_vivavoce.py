"""The whole engine as one model, driven as the server drives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, ResponseSender, TritonError, initialize_args, refused
from speaking_helpers import RATE, ask, hum, near, wave, waves

from vivavoce.doors.triton.models import vivavoce_model
from vivavoce.doors.triton.models.request_voices import open_voices
from vivavoce.doors.triton.models.speaking_parameters import SpeakingParameters
from vivavoce.doors.triton.models.spoken_request import SpokenRequest
from vivavoce.doors.triton.models.vivavoce_model import VivavoceModel
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import EngineStopped, InvalidRequest, ModelNotFound, Overloaded, VoiceNotFound
from vivavoce.service.audio.types import Audio
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer

TEXT = "Good morning, how are you?"
SHORT = SamplingParams(max_ratio=2.0)
"""Random weights hardly ever end by themselves."""
BACKEND = FakeBackend()


def arguments(babble: Path, voices: Path, *, decoupled: bool = True, **parameters: str) -> dict[str, str]:
    given = {"model_dir": str(babble), "device": "cpu", "voices_dir": str(voices), **parameters}
    return initialize_args(given, name="vivavoce", model_transaction_policy={"decoupled": decoupled})


def make(babble: Path, voices: Path, *, decoupled: bool = True) -> VivavoceModel:
    """As `load`, without the seconds of warming up."""
    parameters = SpeakingParameters.read(arguments(babble, voices, decoupled=decoupled))
    synthesizer = Synthesizer.load(babble, torch.device("cpu"))
    found = open_voices(parameters, synthesizer.extractor, synthesizer.extractor.fingerprint)
    return VivavoceModel(BACKEND, synthesizer, found, parameters.policy if decoupled else None)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    def options(wanted: SpokenRequest) -> SpeakOptions:
        return SpeakOptions(instruct=wanted.instruct or None, seed=wanted.seed, speed=wanted.speed, sampling=SHORT)

    monkeypatch.setattr(vivavoce_model, "_options", options)


@pytest.fixture(scope="module")
def streaming(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VivavoceModel]:
    model = make(babble, tmp_path_factory.mktemp("voices"))
    yield model
    model.close()


@pytest.fixture(scope="module")
def offline(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VivavoceModel]:
    model = make(babble, tmp_path_factory.mktemp("voices"), decoupled=False)
    yield model
    model.close()


def stream(model: VivavoceModel, request: Any) -> list[Any]:
    assert model.execute([request]) is None
    return list(request.answers())


def own(synthesizer: Synthesizer, model: VivavoceModel, text: str, seed: int) -> np.ndarray:
    voice = model._voices._registry.resolve(None)
    return np.concatenate(
        [
            one.samples
            for one in synthesizer.stream(
                text, voice, SpeakOptions(seed=seed, sampling=SHORT), ChunkPolicy.exponential()
            )
        ]
    )


def test_a_stream_is_the_package_s_own(streaming: VivavoceModel, synthesizer: Synthesizer) -> None:
    chunks = waves(stream(streaming, ask(BACKEND, TEXT, seed=3)))
    assert len(chunks) > 1
    assert len(chunks[0]) < len(np.concatenate(chunks)) / 2
    assert np.allclose(np.concatenate(chunks), own(synthesizer, streaming, TEXT, 3), atol=1e-4)


def test_without_a_seed_it_is_the_same_each_time(streaming: VivavoceModel) -> None:
    first, again, other = (
        np.concatenate(waves(stream(streaming, ask(BACKEND, TEXT, **given)))) for given in ({}, {}, {"seed": 43})
    )
    assert np.allclose(first, again, atol=1e-4)
    assert first.shape != other.shape or not np.allclose(first, other, atol=1e-2)


def test_each_of_eight_gets_its_own(streaming: VivavoceModel, synthesizer: Synthesizer) -> None:
    texts = [f"Say {word}." for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    requests = [ask(BACKEND, text, seed=number) for number, text in enumerate(texts)]
    assert streaming.execute(requests) is None  # it returns before there is any audio
    for number, (text, request) in enumerate(zip(texts, requests, strict=True)):
        heard = np.concatenate(waves(request.answers()))
        assert near(heard, own(synthesizer, streaming, text, number))


def test_a_recording_is_extracted_once(streaming: VivavoceModel, synthesizer: Synthesizer, monkeypatch: Any) -> None:
    recording, calls = hum(1.0, hz=190.0), []
    extract = streaming._synthesizer.extractor.extract
    monkeypatch.setattr(
        streaming._synthesizer.extractor, "extract", lambda *given: [calls.append(given), extract(*given)][1]
    )
    for _ in range(2):
        given = {"reference_wav": recording, "reference_text": "Hm.", "seed": 1}
        heard = np.concatenate(waves(stream(streaming, ask(BACKEND, TEXT, **given))))
    assert len(calls) == 1
    voice = synthesizer.extractor.extract(Audio(recording, RATE), "Hm.")
    expected = [
        one.samples
        for one in synthesizer.stream(TEXT, voice, SpeakOptions(seed=1, sampling=SHORT), ChunkPolicy.exponential())
    ]
    assert np.allclose(heard, np.concatenate(expected), atol=1e-4)


def test_voices_by_name(streaming: VivavoceModel) -> None:
    first, second = (
        np.concatenate(waves(stream(streaming, ask(BACKEND, TEXT, voice=name)))) for name in ("babble-a", "babble-b")
    )
    assert first.shape != second.shape or not np.allclose(first, second, atol=1e-2)
    [unknown] = stream(streaming, ask(BACKEND, TEXT, voice="nobody"))
    assert "voice: 'nobody' is not registered" in refused(unknown, TritonError.NOT_FOUND)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("", {}, "target_text: is empty"),
        ("...", {}, "nothing in '...' can be spoken"),
        (TEXT, {"reference_wav": 0 * hum(1.0)}, "reference_wav: is silent"),
        (TEXT, {"speed": 9.0}, "speed: 9.0"),
    ],
)
def test_refusals_harm_nobody(
    streaming: VivavoceModel, offline: VivavoceModel, text: str, given: dict[str, Any], message: str
) -> None:
    good, bad = ask(BACKEND, TEXT), ask(BACKEND, text, **given)
    streaming.execute([bad, good])
    [error] = bad.answers()
    assert message in refused(error)
    assert sum(map(len, waves(good.answers()))) > 0
    error, answer = offline.execute([bad, good])
    assert message in refused(error)
    assert len(wave(answer)) > 0


def test_whole_answers(offline: VivavoceModel, synthesizer: Synthesizer) -> None:
    texts = ["One, two.", "A somewhat longer text is spoken here.", "Three."]
    answers = offline.execute([ask(BACKEND, text, seed=5) for text in texts])
    voice = offline._voices._registry.resolve(None)
    for text, answer in zip(texts, answers, strict=True):
        expected = synthesizer.speak(text, voice, SpeakOptions(seed=5, sampling=SHORT)).samples
        assert np.allclose(wave(answer), expected, atol=1e-4)


def test_who_leaves_is_not_spoken_to(streaming: VivavoceModel) -> None:
    before = cancelled(streaming)
    request = ask(BACKEND, " ".join([TEXT] * 40))
    streaming.execute([request])
    answers = request.answers()
    wave(next(answers))
    request.leave()
    *_, last = answers
    assert "was cancelled" in refused(last, TritonError.CANCELLED)
    stream(streaming, ask(BACKEND, "Hi."))  # the engine takes its messages in order
    assert cancelled(streaming) == before + 1


def test_who_leaves_before_the_whole_answer_ends_the_work(offline: VivavoceModel) -> None:
    before = cancelled(offline)
    gone, heard = ask(BACKEND, " ".join([TEXT] * 40)), ask(BACKEND, "Hi.")
    leaving = threading.Timer(0.3, gone.leave)
    leaving.start()
    refusal, answer = offline.execute([gone, heard])
    leaving.join()
    assert "was cancelled" in refused(refusal, TritonError.CANCELLED)
    assert len(wave(answer)) > 0
    offline.execute([ask(BACKEND, "Hi.")])  # the engine takes its messages in order
    assert cancelled(offline) == before + 1


def cancelled(model: VivavoceModel) -> int:
    return model._synthesizer.engine.statistics.requests.cancelled


def test_who_has_left_before_is_not_begun(streaming: VivavoceModel) -> None:
    accepted = streaming._synthesizer.engine.statistics.requests.accepted
    request = ask(BACKEND, TEXT)
    request.leave()
    [answer] = stream(streaming, request)
    assert "client has left" in refused(answer, TritonError.CANCELLED)
    assert streaming._synthesizer.engine.statistics.requests.accepted == accepted


def test_too_many_are_told_when_to_come_again(streaming: VivavoceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(streaming: bool) -> None:
        raise Overloaded("engine: is full; try again in 3 s", 3.0)

    monkeypatch.setattr(streaming._synthesizer.engine, "check_load", refuse)
    [answer] = stream(streaming, ask(BACKEND, TEXT))
    assert refused(answer, TritonError.UNAVAILABLE) == "engine: is full; try again in 3 s"


def test_closing_lets_streams_end(babble: Path, tmp_path: Path) -> None:
    model = make(babble, tmp_path)
    request = ask(BACKEND, TEXT)
    model.execute([request])
    model.close()
    assert sum(map(len, waves(request.answers()))) > 0
    with pytest.raises(EngineStopped):
        model._synthesizer.speak(TEXT, model._voices._registry.resolve(None))


def test_an_answer_that_cannot_be_sent_ends_the_request(
    streaming: VivavoceModel, monkeypatch: Any, caplog: Any
) -> None:
    def broken(self: ResponseSender, response: Any = None, flags: int = 0) -> None:
        done.set()
        raise RuntimeError("the server is gone")

    done = threading.Event()
    monkeypatch.setattr(ResponseSender, "send", broken)
    streaming.execute([ask(BACKEND, TEXT)])
    assert done.wait(30)
    for running in list(streaming._streams):
        running.result(30)
    assert "the end of a stream could not be sent" in caplog.text


def test_loading(babble: Path, tmp_path: Path) -> None:
    model = VivavoceModel.load(arguments(babble, tmp_path, default_voice="babble-b"), BACKEND)
    try:
        chosen, named = (
            np.concatenate(waves(stream(model, ask(BACKEND, TEXT, **given)))) for given in ({}, {"voice": "babble-b"})
        )
        assert np.allclose(chosen, named, atol=1e-4)
    finally:
        model.close()


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"model_dir": "/nowhere"}, ModelNotFound, "model_dir: '/nowhere'"),
        ({"dynamic_chunk_strategy": "now_and_then"}, InvalidRequest, "'now_and_then' is unknown"),
        ({"use_spk2info_cache": "maybe"}, InvalidRequest, "use_spk2info_cache: 'maybe'"),
        ({"device": "abacus"}, InvalidRequest, "device: 'abacus'"),
        ({"default_voice": "nobody"}, VoiceNotFound, "nobody"),
    ],
)
def test_parameters_that_cannot_be(
    babble: Path, tmp_path: Path, parameters: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        VivavoceModel.load(arguments(babble, tmp_path, **parameters), BACKEND)
