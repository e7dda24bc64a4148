"""One request in the engine's process: what its thread still brings when its listener has left, or was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from vivavoce.engine.handle import Handle, More, Outbox, Outcome, RequestTimings
from vivavoce.engine.request import AudioChunk, Conditioning, SpeechRequest, SynthesisRequest
from vivavoce.errors import InvalidText, Overloaded
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.parts import Part
from vivavoce.service.host.speaker import SegmentText, SpeechPiece
from vivavoce.service.host.studio import Studio
from vivavoce.service.host.talk import AHEAD, Talk


class Engine:
    """Takes requests, or refuses those of its first submissions that `refusals` counts; speaks nothing by itself."""

    def __init__(self, refusals: int = 0, room_for_checks: int = 1_000) -> None:
        self.refusals, self.room_for_checks = refusals, room_for_checks
        self.submitted = 0
        self.pushed: list[More] = []
        self.outbox = Outbox()

    def check_load(self, streaming: bool) -> None:
        self.room_for_checks -= 1
        if self.room_for_checks < 0:
            raise Overloaded("engine: full")

    def submit(self, request: SpeechRequest) -> Handle:
        self.submitted += 1
        if self.submitted <= self.refusals:
            raise Overloaded("engine: full")
        return Handle(self.outbox, cancel=lambda: None, push=self.pushed.append)


class StandIn:
    """A studio of such an engine, whose voices are asked for when there should be none to ask for."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.synthesizer = engine, self

    def voice(self, owner: str, voice: object) -> object:
        raise AssertionError("a voice was extracted for a request that has no room")


def talk_of(engine: Engine, text: str | None = None) -> Talk:
    return Talk(cast(Studio, StandIn(engine)), SpeechOrder(text))


def part(place: int, conditioning: Conditioning) -> Part:
    return Part(SynthesisRequest(conditioning, text=(1, 2)), place, place + 1)


async def in_thread(work: Callable[[], Any]) -> Any:
    return work()


def test_a_text_that_comes_after_its_listener_has_left_is_spoken_to_nobody(conditioning: Conditioning) -> None:
    async def work() -> None:
        engine = Engine()
        talk = talk_of(engine)
        talk.close()
        talk.offer(part(0, conditioning))
        talk.offer_words(SynthesisRequest(conditioning, text=(1,)), 1)
        talk.complete()
        assert engine.submitted == 0

    asyncio.run(work())


def test_a_refusal_stays_the_reason_whatever_comes_after_it(conditioning: Conditioning) -> None:
    async def work() -> None:
        engine = Engine(refusals=1)
        talk = talk_of(engine)
        talk.offer(part(0, conditioning))
        talk.offer(part(1, conditioning))  # there would be room again, but for the middle of a text
        talk.complete()
        with pytest.raises(Overloaded):
            await anext(talk.events())
        assert engine.submitted == 1

    asyncio.run(work())


def test_what_came_before_a_bad_piece_is_spoken_to_its_end(conditioning: Conditioning) -> None:
    async def work() -> None:
        engine, bad = Engine(), InvalidText("text: letters that the model lacks")
        talk = talk_of(engine)
        talk._all_there = False
        for place in range(AHEAD + 3):
            talk.offer(part(place, conditioning))
        talk.fail(bad)
        assert len(engine.pushed) == AHEAD, "the first went with the request, two wait for the listener"
        talk.heard(1)
        assert bad not in engine.pushed
        talk.heard(2)
        assert len(engine.pushed) == AHEAD + 3
        assert engine.pushed[-1] is bad

    asyncio.run(work())


def test_a_text_whose_first_piece_is_bad_fails_with_it() -> None:
    async def work() -> None:
        talk = talk_of(Engine())
        talk.fail(InvalidText("text: letters that the model lacks"))
        with pytest.raises(InvalidText, match="letters"):
            await anext(talk.events())

    asyncio.run(work())


@pytest.mark.parametrize("text", ["Hello there.", None])
def test_room_that_was_taken_while_it_waited_for_a_thread_is_seen_before_its_voice_is_made(text: str | None) -> None:
    async def work() -> None:
        with pytest.raises(Overloaded):
            await talk_of(Engine(room_for_checks=1), text).begin(in_thread)

    asyncio.run(work())


def test_audio_that_was_made_comes_before_the_failure(conditioning: Conditioning) -> None:
    async def work() -> None:
        engine = Engine()
        talk = talk_of(engine)
        talk.offer(part(0, conditioning))
        engine.outbox.put(AudioChunk(np.ones(3, np.float32), 24_000, 0, False, 0))
        engine.outbox.end(Outcome(Overloaded("engine: full"), (), RequestTimings()))
        events = talk.events()
        assert isinstance(await anext(events), SegmentText)
        assert isinstance(await anext(events), SpeechPiece)
        with pytest.raises(Overloaded):
            await anext(events)

    asyncio.run(work())
