"""What tests of the models that speak have in common: requests as clients make them, and the answers as audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_backend import FakeBackend, InferenceRequest, InferenceResponse, output

RATE = 16_000


def hum(seconds: float, hz: float = 150.0) -> np.ndarray:
    """Something voiced: harmonics that come and go; [n] float32 at 16 kHz."""
    t = np.arange(int(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * hz * k * t) / k for k in range(1, 8))
    return (0.1 * wave * (1 + np.sin(2 * np.pi * 3 * t))).astype(np.float32)


def strings(text: str | bytes) -> np.ndarray:
    return np.array([[text.encode() if isinstance(text, str) else text]], object)


def ask(backend: FakeBackend, text: str | bytes, **given: Any) -> InferenceRequest:
    """A client's request; a recording is padded by half a second, as clients do."""
    tensors: dict[str, np.ndarray] = {"target_text": strings(text)}
    for name, value in given.items():
        if name == "reference_wav":
            tensors[name] = np.concatenate([value, np.zeros(RATE // 2, np.float32)])[None]
            tensors["reference_wav_len"] = np.array([[len(value)]], np.int32)
        elif isinstance(value, (str, bytes)):
            tensors[name] = strings(value)
        elif name == "seed":
            tensors[name] = np.array([[value]], np.int64)
        else:
            tensors[name] = np.array([[value]], np.float32)
    return backend.request("", **tensors)


def waves(responses: Any) -> list[np.ndarray]:
    """The audio of each response: [n] float32."""
    return [wave(response) for response in responses]


def wave(response: InferenceResponse) -> np.ndarray:
    samples = output(response, "waveform")
    assert samples.dtype == np.float32
    assert samples.ndim == 2
    assert len(samples) == 1
    return samples[0]


def near(heard: np.ndarray, expected: np.ndarray) -> bool:
    """The same tokens in batches of other sizes: the vocoder's phases add up what sums differ by in their last bits."""
    return heard.shape == expected.shape and float(np.square(heard - expected).sum()) < 1e-3 * float(
        np.square(expected).sum()
    )
