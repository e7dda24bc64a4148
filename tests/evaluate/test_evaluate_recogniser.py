"""Recognisers of the user's own, in this process and in others; and the audio that they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import (
    RATE,
    Constant,
    Dying,
    Failing,
    PitchMeter,
    Spelling,
    Wordless,
    hum,
)

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.listening import Task, listen
from vivavoce.evaluate.recogniser import NamedRecogniser, as_floats, prepare


def task(said: str = "the cat", hz: float = 120.0, seconds: float = 0.2) -> Task:
    return Task(prepare(hum(seconds, hz), RATE), tuple(said.split()))


def test_audio_is_prepared_as_the_protocol_says() -> None:
    wave = prepare(hum(1.0, level=0.9), RATE)
    assert wave.dtype == np.int16
    assert len(wave) == 16_000 + 2 * 3_200
    assert np.abs(wave).max() == round(0.6 * 32767)
    edge = as_floats(wave[:3_000])
    assert 0.3e-4 < edge.std() < 1.5e-4
    np.testing.assert_array_equal(wave, prepare(hum(1.0, level=0.9), RATE))


def test_level_does_not_matter_and_silence_is_not_blown_up() -> None:
    loud, soft = prepare(hum(0.5, level=0.8), RATE), prepare(hum(0.5, level=0.2), RATE)
    assert np.abs(loud.astype(int) - soft).max() < 32767 * 2e-3
    assert np.abs(prepare(np.zeros(RATE, np.float32), RATE)).max() < 32767 * 0.5


def test_a_name_makes_a_recogniser() -> None:
    assert NamedRecogniser("evaluate_fakes:Constant")().transcribe(np.zeros(1, np.float32)) == "the cat sat"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("evaluate_fakes", "'evaluate_fakes' is not of the form module:callable"),
        (":x", "is not of the form"),
        ("no_such_module_here:x", "'no_such_module_here' cannot be imported"),
        ("evaluate_fakes:absent", "module 'evaluate_fakes' has no 'absent'"),
        ("evaluate_fakes:not_a_recogniser", "made a dict, which has no method transcribe"),
        ("evaluate_fakes:broken_factory", "evaluate_fakes:broken_factory fails .RuntimeError: no weights.; mend it"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^recogniser: .*{message}"):
        NamedRecogniser(name)()


def test_a_plain_recogniser_gives_words_only() -> None:
    (heard,) = listen([task()], Constant)
    assert (heard.free, heard.closed, heard.phones, heard.num_phones) == ("the cat sat", None, None, 0)
    assert heard.unknown == frozenset()


def test_one_that_can_more_is_asked_for_more() -> None:
    heard = listen([task("the cap"), task("a box")], Spelling)
    assert [one.closed for one in heard] == ["a box", "a box"]  # sentences are told in order
    assert (heard[0].phones, heard[0].phone_errors, heard[0].num_phones) == ("t h e c a t", 1, 6)
    assert heard[1].unknown == {"box"}
    assert heard[1].num_phones == 1


def test_several_processes_hear_the_same_in_the_same_order() -> None:
    tasks = [task(hz=hz) for hz in (100.0, 150.0, 200.0, 250.0, 300.0)]
    seen: list[int] = []
    apart = listen(tasks, NamedRecogniser("evaluate_fakes:PitchMeter"), 2, seen.append)
    assert apart == listen(tasks, PitchMeter)
    assert [one.free for one in apart] == [f"hum {hz}" for hz in (100, 150, 200, 250, 300)]
    assert seen[-1] == 5


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Failing, "Failing fails .ZeroDivisionError: no such thing.; mend it"),
        (Wordless, "Wordless.transcribe gave a list; it must give a text"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_recogniser_is_one_line(factory: Callable[[], Any], message: str, jobs: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^recogniser: {message}"):
        listen([task(), task()], factory, jobs)


def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(InvalidRequest, match="one of its processes has died; use fewer with --jobs"):
        listen([task(), task()], Dying, 2)
