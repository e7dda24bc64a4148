from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_backend import FakeBackend
from speaking_helpers import ask, hum, strings

from vivavoce.doors.triton.models.spoken_request import read_request
from vivavoce.errors import InvalidRequest, VivavoceError


def read(request: Any) -> Any:
    return read_request(FakeBackend(), request)


def test_all_of_it() -> None:
    wave = hum(1.0)
    request = ask(FakeBackend(), "Hello.", reference_wav=wave, reference_text="Hm.", seed=7, speed=1.2)
    wanted = read(request)
    assert (wanted.text, wanted.reference_text, wanted.voice, wanted.seed) == ("Hello.", "Hm.", "", 7)
    assert wanted.speed == 1.2
    assert np.array_equal(wanted.reference.samples, wave)
    tensor = request.inputs()[1].as_numpy()
    tensor[:] = 0  # the server takes its memory back
    assert np.array_equal(wanted.reference.samples, wave)


def test_what_is_left_out() -> None:
    wanted = read(ask(FakeBackend(), "Hello.", voice="anna", instruct_text="Softly."))
    assert (wanted.reference, wanted.reference_text, wanted.voice, wanted.instruct) == (None, "", "anna", "Softly.")
    assert (wanted.seed, wanted.speed) == (42, 1.0)


def test_a_recording_without_its_length_is_taken_whole() -> None:
    request = FakeBackend().request("", target_text=strings("Hello."), reference_wav=hum(0.7)[None])
    assert len(read(request).reference.samples) == 11_200


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("", {}, "target_text: is empty"),
        (" \n", {}, "target_text: is empty"),
        (b"\xff", {}, "target_text: not UTF-8 at byte 0"),
        ("Hi.", {"reference_text": "Hm."}, "reference_text: belongs to a recording"),
        ("Hi.", {"reference_wav": hum(1.0), "voice": "anna"}, "voice: a name and reference_wav are given"),
        ("Hi.", {"reference_wav": 0 * hum(1.0)}, "reference_wav: is silent"),
        ("Hi.", {"reference_wav": hum(0.2)}, "reference_wav: lasts 0.20 s; at least 0.5 s"),
        ("Hi.", {"reference_wav": hum(31.0)}, "reference_wav: lasts 31.0 s; the limit is 30 s"),
        ("Hi.", {"reference_wav": hum(1.0) * np.float32(np.nan)}, "reference_wav: holds a number that is not finite"),
        ("Hi.", {"seed": -1}, "seed: -1"),
        ("Hi.", {"speed": 3.0}, "speed: 3.0 is outside of 0.5"),
    ],
)
def test_refused(text: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(VivavoceError, match=message):
        read(ask(FakeBackend(), text, **given))


@pytest.mark.parametrize("length", [0, -1, 16_001])
def test_a_length_that_is_none(length: int) -> None:
    tensors = {"reference_wav": hum(1.0)[None], "reference_wav_len": np.array([[length]], np.int32)}
    with pytest.raises(VivavoceError, match=f"reference_wav_len: {length} of a reference_wav of 16000"):
        read(FakeBackend().request("", target_text=strings("Hi."), **tensors))


def test_a_length_without_a_recording() -> None:
    with pytest.raises(InvalidRequest, match="reference_wav_len: belongs to reference_wav"):
        read(FakeBackend().request("", target_text=strings("Hi."), reference_wav_len=np.array([[5]], np.int32)))


def test_no_text_at_all() -> None:
    with pytest.raises(InvalidRequest, match="target_text: is empty"):
        read(FakeBackend().request("", reference_wav=hum(1.0)[None]))
