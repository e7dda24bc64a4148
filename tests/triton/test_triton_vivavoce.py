"""The model `vivavoce`, the whole engine as one, driven as the server drives it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, ResponseSender, TritonError, initialize_args, refused
from speaking_helpers import RATE, Speaker, alike, ask, audio, hum, near, wave

from vivavoce.api import Vivavoce
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.errors import (
    EngineStopped,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedModel,
    VoiceNotFound,
)
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.speaking import RequestVoices, chunk_policy
from vivavoce_triton.models.token2wav import Token2Wav
from vivavoce_triton.models.vivavoce_model import VivavoceModel

TEXT, LONG = "Hi.", "Good morning, how are you? " * 40
BACKEND = FakeBackend()


def arguments(babble, voices, *, streams=True, **more):
    given = {"model_dir": str(babble), "device": "cpu", "voices_dir": str(voices), **more}
    return Parameters(initialize_args(given, model_transaction_policy={"decoupled": streams}))


class Engine(Speaker):
    """The model, and the engine inside it."""

    @property
    def engine(self):
        return self.model._tts.engine

    @property
    def requests(self):
        """What the engine has counted."""
        return self.engine.statistics.requests


@contextmanager
def loaded(babble, voices, *, streams=True, **more):
    """As `load`, without the seconds of warming up."""
    parameters = arguments(babble, voices, streams=streams, **more)
    synthesizer = Vivavoce(*load_model(babble, (torch.device("cpu"),)))
    extractor = synthesizer.front_end.extractor
    found = RequestVoices(parameters, extractor, extractor.fingerprint)
    policy = chunk_policy(parameters)
    policy = policy and policy_for(synthesizer.front_end.config.generation, policy)
    model = VivavoceModel(BACKEND, synthesizer, found, policy)
    yield Engine(model)
    model.close()


@pytest.fixture(scope="module")
def streaming(babble, tmp_path_factory):
    with loaded(babble, tmp_path_factory.mktemp("voices")) as found:
        yield found


@pytest.fixture(scope="module")
def offline(babble, tmp_path_factory):
    with loaded(babble, tmp_path_factory.mktemp("voices"), streams=False) as found:
        yield found


@pytest.fixture
def own(synthesizer, babble):
    """The package's own stream."""

    def stream(text, seed, voice=None):
        voice = voice or built_in_voices(babble)["babble-a"]
        chunks = synthesizer.stream(text, voice, options=SpeakOptions(seed=seed), policy=ChunkPolicy.exponential())
        return np.concatenate([chunk.samples for chunk in chunks])

    return stream


def test_a_stream_is_the_package_s_own(streaming, own):
    answers = streaming.stream("Good morning.", seed=3)
    heard = audio(answers)
    assert len(answers) > 1
    assert len(wave(answers[0])) < len(heard) / 2
    assert alike(heard, own("Good morning.", 3))


def test_the_other_generations_stream_too(other_babble, tmp_path):
    more = {"dynamic_chunk_strategy": "official"} if other_babble.name == "babble-v1" else {}
    with loaded(other_babble, tmp_path, **more) as other:
        answers = other.stream("Good morning, everybody.", reference_wav=hum(1.0), reference_text="Hm.", seed=3)
        assert len(audio(answers)) > 1_000


def test_each_of_eight_gets_its_own(streaming, own):
    requests = [ask(f"{letter}.", seed=number) for number, letter in enumerate("abcdefgh")]
    assert streaming.model.execute(requests) is None  # it returns before there is any audio
    for number, (letter, request) in enumerate(zip("abcdefgh", requests, strict=True)):
        assert near(audio(request.answers()), own(f"{letter}.", number))


def test_a_recording_is_extracted_once(streaming, own, synthesizer, monkeypatch):
    recording, calls, extractor = hum(1.0, hz=190.0), [], streaming.model._tts.front_end.extractor
    extract = extractor.extract
    monkeypatch.setattr(extractor, "extract", lambda *given: [calls.append(given), extract(*given)][1])
    voice = synthesizer.front_end.extractor.extract(Audio(recording, RATE), "Hm.")
    for _ in range(2):
        heard = streaming.hear(TEXT, reference_wav=recording, reference_text="Hm.", seed=1)
        assert alike(heard, own(TEXT, 1, voice))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("...", {}, "nothing in '...' can be spoken"),
        (TEXT, {"reference_wav": 0 * hum(1.0)}, "reference_wav: is silent"),
    ],
)
def test_refusals_harm_nobody(streaming, offline, text, given, message):
    good, bad = ask(TEXT), ask(text, **given)
    streaming.model.execute([bad, good])
    [error] = bad.answers()
    assert message in refused(error)
    assert len(audio(good.answers())) > 0
    error, answer = offline.model.execute([bad, good])
    assert message in refused(error)
    assert len(wave(answer)) > 0


def test_whole_answers(offline, synthesizer, babble):
    texts, voice = ["One.", "Two, three.", "Four."], built_in_voices(babble)["babble-a"]
    for text, answer in zip(texts, offline.model.execute([ask(text, seed=5) for text in texts]), strict=True):
        assert alike(wave(answer), synthesizer.speak(text, voice, options=SpeakOptions(seed=5)).samples)


def test_who_leaves_is_not_spoken_to(streaming):
    before = streaming.requests.cancelled
    request = streaming.begin(LONG)
    answers = request.answers()
    wave(next(answers))
    request.leave()
    *_, last = answers
    assert "was cancelled" in refused(last, TritonError.CANCELLED)
    streaming.hear(TEXT)  # the engine takes its messages in order
    assert streaming.requests.cancelled == before + 1


def test_who_leaves_before_the_whole_answer_ends_the_work(offline):
    before = offline.requests.cancelled
    gone = ask(LONG)
    leaving = threading.Timer(0.3, gone.leave)
    leaving.start()
    refusal, answer = offline.model.execute([gone, ask(TEXT)])
    leaving.join()
    assert "was cancelled" in refused(refusal, TritonError.CANCELLED)
    assert len(wave(answer)) > 0
    offline.model.execute([ask(TEXT)])
    assert offline.requests.cancelled == before + 1


def test_who_has_left_before_is_not_begun(streaming):
    accepted, request = streaming.requests.accepted, ask(TEXT)
    request.leave()
    streaming.model.execute([request])
    [answer] = request.answers()
    assert "client has disconnected" in refused(answer, TritonError.CANCELLED)
    assert streaming.requests.accepted == accepted


def test_too_many_are_told_when_to_come_again(streaming, monkeypatch):
    def refuse(streaming):
        raise Overloaded("engine: is full; try again in 3 s", 3.0)

    monkeypatch.setattr(streaming.engine, "check_load", refuse)
    [answer] = streaming.stream(TEXT)
    assert refused(answer, TritonError.UNAVAILABLE) == "engine: is full; try again in 3 s"


def test_closing_lets_streams_end(babble, tmp_path):
    with loaded(babble, tmp_path) as found:
        request = found.begin(TEXT)
    assert len(audio(request.answers())) > 0
    with pytest.raises(EngineStopped):
        found.model._tts.speak(TEXT, built_in_voices(babble)["babble-a"])


def test_an_answer_that_cannot_be_sent_ends_the_request(streaming, monkeypatch, caplog):
    def broken(self, response=None, flags=0):
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(ResponseSender, "send", broken)
    streaming.begin(TEXT)
    for running in list(streaming.model._streams):
        running.result(30)
    assert "the end of a stream could not be sent" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"model_dir": "/nowhere"}, ModelNotFound, "model_dir: '/nowhere'"),
        ({"dynamic_chunk_strategy": "now_and_then"}, InvalidRequest, "'now_and_then' is unknown"),
        ({"use_spk2info_cache": "maybe"}, InvalidRequest, "use_spk2info_cache: 'maybe'"),
        ({"device": "abacus"}, InvalidRequest, "device: 'abacus'"),
        ({"sample_rate": "22050"}, InvalidRequest, "sample_rate: 22050 in config.pbtxt, but the model's rate is 24000"),
        ({"default_voice": "nobody"}, VoiceNotFound, "nobody"),
        ({"flow_backend": "caffe"}, InvalidRequest, "flow_backend: 'caffe' is unknown"),
        ({"lm_backend": "gguf"}, InvalidRequest, "lm_backend: 'gguf' is unknown"),
        ({"tp": "two"}, InvalidRequest, "tp: 'two' is not a number"),
        ({"pp": "2"}, InvalidRequest, "pp: 2 is for lm_backend"),
        ({"trt_concurrent": "2"}, InvalidRequest, "trt_concurrent: 2 is for flow_backend tensorrt"),
        ({"trust_model_code": "maybe"}, InvalidRequest, "trust_model_code: 'maybe'"),
    ],
)
def test_parameters_that_cannot_be(babble, tmp_path, parameters, error, message):
    with pytest.raises(error, match=message):
        VivavoceModel.load(arguments(babble, tmp_path, **parameters), BACKEND)


def test_cosyvoice_1_speaks_whole_texts_officially_and_no_steps(babble_v1, tmp_path):
    with pytest.raises(InvalidRequest, match="CosyVoice 1 has no exponential; use official"):
        VivavoceModel.load(arguments(babble_v1, tmp_path), BACKEND)
    with pytest.raises(UnsupportedModel, match="token2wav cannot serve CosyVoice 1"):
        Token2Wav.load(arguments(babble_v1, tmp_path), BACKEND)
