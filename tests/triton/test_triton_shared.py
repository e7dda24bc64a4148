"""What the models share: requests read from tensors, how long speech may be and what ends it, clients that leave."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend
from speaking_helpers import ask, hum

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.request import Conditioning, SegmentRequest
from vivavoce.errors import VivavoceError
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models import backend
from vivavoce_triton.models.backend import AsyncModel, Inputs
from vivavoce_triton.models.inner_models import merged_prompt, output_length, spoken_tokens
from vivavoce_triton.models.speaking import read_request


def read(text, **given):
    return read_request(Inputs(FakeBackend(), ask(text, **given)), "official")


def test_all_of_it():
    recording = hum(1.0)
    request = ask("Hello.", reference_wav=recording, reference_text="Hm.", seed=7, speed=1.2)
    wanted = read_request(Inputs(FakeBackend(), request), "natural")
    assert (wanted.text, wanted.reference_text, wanted.voice, wanted.options.seed) == ("Hello.", "Hm.", "", 7)
    assert (wanted.options.speed, wanted.options.reading) == (1.2, "natural")
    request.inputs()[1].as_numpy()[:] = 0  # the server takes its memory back
    assert np.array_equal(wanted.reference.samples, recording)


def test_what_is_left_out():
    wanted = read("Hello.", voice="anna", instruct_text="Softly.")
    assert (wanted.reference, wanted.reference_text, wanted.voice) == (None, "", "anna")
    assert (wanted.options.instruct, wanted.options.seed, wanted.options.speed) == ("Softly.", 42, 1.0)
    assert wanted.options.reading == "official"
    assert read("Hello.", reading="off").options.reading == "off"


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
        ("Hi.", {"reference_wav": hum(1.0) * np.float32(np.nan)}, "reference_wav: holds a number that is not finite"),
        ("Hi.", {"seed": -1}, "seed: -1"),
        ("Hi.", {"speed": 3.0}, "speed: 3.0 is outside of 0.5"),
        ("Hi.", {"reading": "loud"}, "reading: 'loud' is not one of"),
    ],
)
def test_refused(text, given, message):
    with pytest.raises(VivavoceError, match=message):
        read(text, **given)


RELEASE = MergedVocabulary(151_663, 6_561, Generation.V2)


def segment(length):
    voice = Conditioning(torch.zeros(192))
    return SegmentRequest(voice, text=tuple(range(100, 100 + length)))


@pytest.mark.parametrize(
    ("length", "least", "most"),
    [(1, 2, 20), (37, 74, 740), (38, 76, 750), (75, 150, 750), (76, 152, 760), (200, 400, 2_000)],
)
def test_output_length(length, least, most):
    assert output_length(segment(length)) == (least, most)


def test_a_prompt_holds_the_system_prompt_the_transcript_and_the_text_in_this_order():
    vocabulary = MergedVocabulary(900, 6561, Generation.V2)
    voice = Conditioning(torch.zeros(192), (5, 6), (20,), lm_system_text=(7,))
    ids = merged_prompt(vocabulary, SegmentRequest(voice, text=(8,)))
    assert ids == (vocabulary.sos, 7, 5, 6, 8, vocabulary.task, vocabulary.speech(20))


def test_what_is_speech():
    speech, end = 151_663, RELEASE.eos_ids[0]
    assert spoken_tokens(RELEASE, [speech, speech + 6_560]) == ((0, 6_560), None)
    assert spoken_tokens(RELEASE, [speech + 4, end, speech]) == ((4,), end)
    assert spoken_tokens(RELEASE, [end + 2, speech]) == ((), end + 2)
    assert spoken_tokens(RELEASE, [speech, 5]) == ((0,), 5)
    assert spoken_tokens(RELEASE, []) == ((), None)


@pytest.fixture
def watcher(monkeypatch):
    monkeypatch.setattr(backend, "ASK_EVERY_S", 0.01)
    made = AsyncModel(FakeBackend(), "vivavoce", decoupled=True)
    yield made
    made.close()


def test_who_leaves_is_noticed_while_nothing_comes(watcher):
    asked_in: list[str] = []

    def left():
        asked_in.append(threading.current_thread().name)
        return len(asked_in) == 3

    async def wait():
        noticed, calls = asyncio.Event(), 0

        def give_up():
            nonlocal calls
            calls += 1
            noticed.set()

        async with watcher.watched(left, give_up):
            await asyncio.wait_for(noticed.wait(), 30)
        return calls

    assert asyncio.run(wait()) == 1
    assert len(asked_in) == 3
    assert {name.rpartition("_")[0] for name in asked_in} == {"vivavoce-presence"}


def test_a_slow_answer_holds_up_nobody_and_nothing_is_asked_afterwards(watcher):
    begun, may_end, asked = threading.Event(), threading.Event(), 0

    def left():
        nonlocal asked
        asked += 1
        begun.set()
        assert may_end.wait(30)
        return False

    async def work():
        async with watcher.watched(left, pytest.fail):
            while not begun.is_set():  # other work of the loop goes on
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.01, may_end.set)
        return asked

    at_the_end = asyncio.run(work())
    assert may_end.is_set()  # the block waited for the answer that was under way
    assert asked == at_the_end
