"""Clients of models that speak, their answers as audio, and a language model that says what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from fake_backend import PATIENCE_S, FakeBackend, InferenceRequest, InferenceResponse, Tensor, output

from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

RATE = 16_000
DTYPES = {"seed": np.int64, "reference_wav_len": np.int32}


def hum(seconds: float, hz: float = 150.0) -> np.ndarray:
    """Something voiced: harmonics that come and go; [n] float32 at 16 kHz."""
    t = np.arange(int(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * hz * k * t) / k for k in range(1, 8))
    return (0.1 * wave * (1 + np.sin(2 * np.pi * 3 * t))).astype(np.float32)


def ask(text: str | bytes, **given: Any) -> InferenceRequest:
    """A client's request; a recording is padded by half a second, as clients do."""
    tensors: dict[str, np.ndarray] = {}
    for name, value in {"target_text": text, **given}.items():
        if name == "reference_wav":
            tensors[name] = np.pad(value, (0, RATE // 2))[None]
            tensors["reference_wav_len"] = np.array([[len(value)]], np.int32)
        elif isinstance(value, (str, bytes)):
            tensors[name] = np.array([[value.encode() if isinstance(value, str) else value]], object)
        else:
            tensors[name] = np.array([[value]], DTYPES.get(name, np.float32))
    return FakeBackend().request(**tensors)


class Speaker:
    """Asks one speaking model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def begin(self, text: str, **given: Any) -> InferenceRequest:
        """A request that the decoupled model works on."""
        request = ask(text, **given)
        assert self.model.execute([request]) is None
        return request

    def stream(self, text: str, **given: Any) -> list[InferenceResponse]:
        return list(self.begin(text, **given).answers())

    def hear(self, text: str, **given: Any) -> np.ndarray:
        return audio(self.stream(text, **given))


def wave(response: InferenceResponse) -> np.ndarray:
    """The audio of a response: [n] float32."""
    samples = output(response, "waveform")
    assert samples.dtype == np.float32
    assert samples.shape == (1, samples.size)
    return samples[0]


def audio(responses: Iterable[InferenceResponse]) -> np.ndarray:
    """All of a stream: [n] float32."""
    return np.concatenate([wave(response) for response in responses])


def alike(heard: np.ndarray, expected: np.ndarray) -> bool:
    return heard.shape == expected.shape and np.allclose(heard, expected, atol=1e-4)


def near(heard: np.ndarray, expected: np.ndarray) -> bool:
    """The same tokens in batches of other sizes: the vocoder's phases add up what sums differ by in their last bits."""
    if heard.shape != expected.shape:
        return False
    return float(np.square(heard - expected).sum()) < 1e-3 * float(np.square(expected).sum())


def read(request: InferenceRequest) -> dict[str, np.ndarray]:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


class ScriptedLanguageModel:
    """Says for each prompt the tokens that `script` gives for its text ids; knows `stop`, as the real one does.

    gates: by text ids, what must be set before the 41st token comes.
    """

    def __init__(self, vocabulary: MergedVocabulary, script: Callable[[tuple[int, ...]], Sequence[int]]) -> None:
        self.vocabulary, self.script = vocabulary, script
        self.gates: dict[tuple[int, ...], threading.Event] = {}
        self.asked: list[dict[str, np.ndarray]] = []
        self.given: list[int] = []
        """Tokens handed out, by the order of requests."""
        self.stopped: set[str] = set()

    def streaming(self, request: InferenceRequest) -> Iterator[InferenceResponse]:
        tensors = read(request)
        if "stop" in tensors:
            self.stopped.add(request.request_id())
            return
        place, text = len(self.asked), self._text(tensors)
        self.asked.append(tensors)
        self.given.append(0)
        for number, token in enumerate(self.script(text)):
            if text in self.gates and number >= 40:
                assert self.gates[text].wait(PATIENCE_S)
            if request.request_id() in self.stopped or request.is_cancelled():
                return
            self.given[place] += 1
            yield self._response([self.vocabulary.speech(token)])
        yield InferenceResponse([])

    def whole(self, request: InferenceRequest) -> InferenceResponse:
        self.asked.append(read(request))
        said = [self.vocabulary.speech(token) for token in self.script(self._text(self.asked[-1]))]
        return self._response([*said, self.vocabulary.eos_ids[0]])

    def _text(self, tensors: dict[str, np.ndarray]) -> tuple[int, ...]:
        ids = tensors["input_ids"][0].tolist()
        return tuple(ids[1 : ids.index(self.vocabulary.task)])

    def _response(self, ids: Sequence[int]) -> InferenceResponse:
        # As the real one's: [batch, beam, tokens], with room after the tokens that count.
        padded, length = np.array([[[*ids, 0]]], np.int32), np.array([[len(ids)]], np.int32)
        return InferenceResponse([Tensor("output_ids", padded), Tensor("sequence_length", length)])
