"""Which engine is asked first: affinity to voices, no hot spots, headroom."""

from __future__ import annotations

from collections import Counter

import pytest

from vivavoce.errors import EngineStopped, InvalidText, OutOfMemory, Overloaded, VivavoceError, VoiceStoreAway
from vivavoce.frontend.speech import Recording
from vivavoce_fleet.routing import (
    IDLE,
    SPILL,
    EngineLoad,
    is_retryable,
    order,
    shortest_wait,
    voice_key,
)

THREE = [EngineLoad(name, capacity=20) for name in ("0", "1", "2")]


def first(engines: list[EngineLoad], voice: str) -> str:
    return order(engines, voice_key("", voice))[0].name


def test_without_a_voice_the_engine_with_the_most_headroom_comes_first() -> None:
    engines = [
        EngineLoad("busy", streams=15, capacity=20),
        EngineLoad("large", streams=20, capacity=100),
        EngineLoad("small", streams=0, capacity=2),
        EngineLoad("full", streams=20, capacity=20),
    ]
    assert [one.name for one in order(engines)] == ["small", "large", "busy", "full"]
    idle = [EngineLoad("slow", capacity=2), EngineLoad("fast", capacity=100)]
    assert [one.name for one in order(idle)] == ["fast", "slow"]


def test_engines_that_are_not_ready_are_not_asked() -> None:
    engines = [EngineLoad("0", ready=False, capacity=20), EngineLoad("1", streams=19, capacity=20)]
    assert [one.name for one in order(engines, b"voice")] == ["1"]
    assert order([EngineLoad("0", ready=False)]) == []


def test_a_voice_stays_at_one_engine_and_voices_are_spread() -> None:
    chosen = Counter(first(THREE, f"voice {number}") for number in range(300))
    assert set(chosen) == {"0", "1", "2"}
    assert min(chosen.values()) > 60  # a fair hash gives each about 100
    one_more = [EngineLoad("0", streams=1, capacity=20), *THREE[1:]]
    voices = [f"voice {number}" for number in range(300) if first(THREE, f"voice {number}") != "0"]
    assert all(first(one_more, voice) == first(THREE, voice) for voice in voices)


def test_only_the_voices_of_an_engine_that_goes_move() -> None:
    voices = [f"voice {number}" for number in range(100)]
    gone = [EngineLoad("0", ready=False, capacity=20), *THREE[1:]]
    for voice in voices:
        was, now = first(THREE, voice), first(gone, voice)
        assert now == was if was != "0" else now != "0"


def test_an_engine_that_is_busy_with_one_stream_leaves_the_next_to_one_that_is_idle() -> None:
    """Engines that keep up with one or two streams: a processor's."""
    slow = [EngineLoad("0", streams=1, capacity=2), EngineLoad("1", streams=0, capacity=2)]
    assert {first(slow, f"voice {number}") for number in range(20)} == {"1"}
    equal = [EngineLoad("0", streams=1, capacity=2), EngineLoad("1", streams=1, capacity=2)]
    assert {first(equal, f"voice {number}") for number in range(20)} == {"0", "1"}


@pytest.mark.parametrize("capacities", [(20, 20), (100, 10), (400, 400)])
def test_a_voice_that_all_ask_for_makes_no_hot_spot(capacities: tuple[int, int]) -> None:
    streams = [0, 0]
    for _ in range(sum(capacities)):
        engines = [EngineLoad(str(i), True, streams[i], capacities[i]) for i in (0, 1)]
        streams[int(first(engines, "everybody's"))] += 1
        for taken, capacity in zip(streams, capacities, strict=True):
            assert taken <= max(SPILL * sum(streams) / sum(capacities), IDLE) * capacity + 1
    assert all(taken <= SPILL * capacity + 1 for taken, capacity in zip(streams, capacities, strict=True))


def test_keys_tell_voices_apart_and_owners() -> None:
    long = Recording(bytes(1 << 20))
    keys = [
        voice_key("", "anna"),
        voice_key("me", "anna"),
        voice_key("", "bert"),
        voice_key("", long),
        voice_key("", Recording(b"RIFF")),
        voice_key("", Recording(bytes((1 << 20) + 1))),
    ]
    assert len(set(keys)) == len(keys)
    assert voice_key("me", long) == voice_key("you", Recording(bytes(1 << 20), "its transcript"))
    assert voice_key("me", None) is None


def test_of_all_refusals_the_shortest_wait_is_told_and_bad_input_ends_the_search() -> None:
    gone, soon, later = EngineStopped("gone"), Overloaded("soon", 2.0), Overloaded("later", 9.0)
    assert shortest_wait([later, gone, soon]) is soon
    assert shortest_wait([gone, later]) is later
    assert shortest_wait([gone]) is gone
    elsewhere: list[VivavoceError] = [gone, soon, OutOfMemory("memory")]
    assert all(map(is_retryable, elsewhere))
    assert not is_retryable(InvalidText("text"))
    assert not is_retryable(VoiceStoreAway("away"))
