"""Pauses and rates of a text are heard to the sample, however it is listened to and however it comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vivavoce.api import Vivavoce
from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.frontend.front_end import load_front_end
from vivavoce.frontend.speech import Mark, SegmentText, SpeakOptions
from vivavoce.frontend.subtitles import to_srt
from vivavoce.frontend.voices.voice import Voice

RATE = 24_000
NATURAL = SpeakOptions(reading="natural", sampling=SamplingParams(exact_tokens=20))
TEXT = "[pause 250ms]Hello there. [pause 0.5s] It is 5 [pause 1001ms]"
PAUSES = {0: 6_000, 2: 12_000, 4: 24_024}


@pytest.fixture(scope="module")
def voice() -> Voice:
    return Voice(torch.randn(192, generator=torch.Generator().manual_seed(0)), "")


@pytest.fixture(scope="module")
def by_sentences(synthesizer: Vivavoce, babble: Path) -> Vivavoce:
    front_end = load_front_end(babble, synthesizer.front_end.config)
    card = replace(front_end.card, text_stream=TextStream.SENTENCES)
    return Vivavoce(synthesizer.engine, replace(front_end, card=card))


def check(samples: np.ndarray, marks: tuple[Mark, ...], text: str = TEXT) -> None:
    """The pauses are zeros, as many as were asked for, and their marks say when."""
    assert len(marks) == 5
    ends = [0, *(round(one.end_s * RATE) for one in marks)]
    assert ends[-1] == len(samples)
    for place, mark in enumerate(marks):
        part = samples[ends[place] : ends[place + 1]]
        assert round(mark.start_s * RATE) == ends[place]
        assert len(part) == PAUSES.get(place, len(part))
        assert part.any() == (place not in PAUSES)
        assert ("pause" in mark.text or "break" in mark.text) == (place in PAUSES)


def test_whole_speech_has_its_pauses(synthesizer: Vivavoce, voice: Voice) -> None:
    whole = synthesizer.speak(TEXT, voice, options=NATURAL)
    check(whole.samples, whole.marks)
    assert "".join(one.text for one in whole.marks) == TEXT
    assert "pause" not in to_srt(whole.marks)
    assert "Hello there." in to_srt(whole.marks)


async def test_streams_have_them_in_all_three_ways(synthesizer: Vivavoce, voice: Voice) -> None:
    session = synthesizer.stream(TEXT, voice, options=NATURAL)
    chunks = list(session)
    check(np.concatenate([one.samples for one in chunks]), session.marks)
    assert [one.index for one in chunks] == list(range(len(chunks)))
    assert [one.final for one in chunks] == [False] * (len(chunks) - 1) + [True]
    assert session.verdict().segments_given == 5

    session = synthesizer.astream(TEXT, voice, options=NATURAL)
    check(np.concatenate([one.samples async for one in session]), session.marks)

    session = synthesizer.stream(TEXT, voice, options=NATURAL)
    samples, announced = dict.fromkeys(range(5), 0), list[int]()
    async for event in session.events():
        if isinstance(event, SegmentText):
            announced.append(event.place)
        else:
            assert event.segment in announced
            samples[event.segment] += len(event.samples)
            session.on_heard(event.segment, len(event.samples))
    assert {place: samples[place] for place in PAUSES} == PAUSES


@pytest.mark.parametrize(
    "pieces",
    [
        ["[pause 250ms]", "Hello the", "re. [pa", "use 0.5s] It is 5 [pause", " 1001ms]"],
        [TEXT],
        ['<spe', 'ak><break time="250ms"/>Hello there. <break time=".5s"/> It is 5 <break time="1001ms"/></sp', "eak>"],
        ["[pause 250ms] ", "Hello there, all of you. ", "[pause 500ms]\n\n", "It is 5.", "\n", "[pause 1001ms]"],
    ],
)  # fmt: skip
def test_so_does_text_that_arrives_by_sentences(by_sentences: Vivavoce, voice: Voice, pieces: list[str]) -> None:
    session = by_sentences.stream(iter(pieces), voice, options=NATURAL)
    samples = np.concatenate([one.samples for one in session])
    check(samples, session.marks)


def test_by_words_a_pause_is_a_mark(synthesizer: Vivavoce, voice: Voice) -> None:
    session, encode = (
        synthesizer.stream(iter(["Hi [pau", "se 1s] you"]), voice, options=NATURAL),
        synthesizer.front_end.text.encode,
    )
    list(session)
    assert session.verdict().text_tokens == len(encode("Hi. you"))
    (mark,) = session.marks
    assert mark.text == "Hi [pause 1s] you"


def test_pauses_that_arrive_have_the_limits_of_one_text(by_sentences: Vivavoce, voice: Voice) -> None:
    silence = np.concatenate([one.samples for one in by_sentences.stream(iter(["[pause 1s]", "\n[pause 1s]"]), voice)])
    assert len(silence) == 2 * by_sentences.sample_rate
    assert not silence.any()
    planned = by_sentences.front_end.plan_arriving(["Hello there, you.\n[pause 10s]\n"] * 13, voice, NATURAL)
    with pytest.raises(InvalidText, match="pauses add up to 130 s, the limit is 120 s"):
        list(planned)


def test_a_rate_is_that_part_of_the_speed(synthesizer: Vivavoce, voice: Voice) -> None:
    text = '<speak>One. <prosody rate="fast">Two.</prosody> <prosody rate="200%">Three.</prosody></speak>'
    plan = synthesizer.front_end.requests
    assert [one.speed for one in plan(text, voice, replace(NATURAL, speed=0.8))] == [0.8, 1.0, 1.6]
    assert [one.speed for one in plan(text, voice, replace(NATURAL, speed=1.5))] == [1.5, 1.875, 2.0]
    slow, fast = (
        synthesizer.speak(f'<speak><prosody rate="{rate}">Two.</prosody></speak>', voice, options=NATURAL).samples
        for rate in ("x-slow", "medium")
    )
    assert len(slow) == pytest.approx(2 * len(fast), rel=0.1)


def test_a_pause_is_checked_like_all_else(synthesizer: Vivavoce, voice: Voice) -> None:
    conditioning = synthesizer.front_end.conditioning(voice)
    for pause_s, text in ((10.1, ()), (-1.0, ()), (1.0, (1,)), (0.0, ())):
        with pytest.raises(InvalidRequest):
            SegmentRequest(conditioning, text, pause_s=pause_s)
    spoken = synthesizer.engine.submit(EngineRequest((SegmentRequest(conditioning, pause_s=0.1),))).result()
    assert (len(spoken.samples), spoken.segment_samples, spoken.cut) == (2_400, (2_400,), (False,))
