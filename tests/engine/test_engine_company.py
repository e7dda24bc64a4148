"""A request is spoken among any neighbours as it is alone, and with several decode steps in a launch as with one."""

import random
import threading

import numpy as np
import pytest

from benchmarks.plain import plain_tokens
from tests.engine.engine_helpers import (
    BOTH,
    MUTE,
    arriving,
    given,
    offline,
    running,
    same,
    segment,
    stream,
    voice,
)
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.request import InputMode
from vivavoce.engine.scheduler import Limits
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import RequestCancelled

FREE = [segment(None, text=tuple(range(65, 65 + size)), seed=size, speed=speed) for size, speed in ((5, 1.0), (9, 1.3))]
EXACT = [segment(35, seed=21), segment(30, seed=22, voice=MUTE)]
TEXT_IN = segment(None, text=(65, 66, 67, 68, 69, 70), seed=31)
WATCHED = {
    "offline": offline(FREE[0], EXACT[0]),
    "stream": stream(FREE[1]),
    "short hops": stream(EXACT[0], policy=ChunkPolicy.equal(hop=10, lookahead=0)),
    "official": stream(EXACT[1], policy=ChunkPolicy.official()),
    "conversion": stream(given(40, speed=0.8)),
    "text in": arriving(TEXT_IN, InputMode.TOKENS),
}
POLICIES = [
    ChunkPolicy.low_latency(),
    ChunkPolicy.official(),
    ChunkPolicy.equal(hop=7),
    ChunkPolicy.exponential(first_hop=5),
    ChunkPolicy.time_based(first_hop=6),
]


def submit_all(engine, names):
    handles = {name: engine.submit(WATCHED[name]) for name in names}
    if "text in" in handles:
        text = handles["text in"].text
        for piece in ((71,), (72, 73, 74), (75, 76)):
            text.push(piece)
        text.close()
    return handles


@pytest.fixture(scope="module")
def alone(models):
    with running(models) as engine:
        return {name: submit_all(engine, [name])[name].result() for name in WATCHED}


def neighbour(chance, seed):
    """A request of any kind."""
    who = chance.choice((voice(), voice(9, prompt=12), MUTE))
    policy = chance.choice(POLICIES)
    part = segment(chance.randint(2, 30), seed=seed, speed=chance.choice((0.5, 1.0, 1.7)), voice=who)
    return chance.choice(
        (offline(part, part), stream(part, policy=policy), stream(given(chance.randint(1, 30)), policy=policy))
    )


def be_company(engine, requests, chance):
    """Speak one after the other, each heard to the end or left somewhere."""
    for request in requests:
        handle = engine.submit(request)
        patience = chance.randint(0, 6)
        for number, _ in enumerate(handle):
            if number == patience:
                break


@pytest.mark.slow
@BOTH
def test_alone_and_in_company(models, alone):
    seed = 1
    chance = random.Random(seed)
    groups = [[neighbour(chance, 100 * group + one) for one in range(5)] for group in range(6)]
    with running(models, settings=EngineSettings(slots=16, state_bytes=64 << 20)) as engine:
        threads = [
            threading.Thread(target=be_company, args=(engine, group, random.Random(seed + place)))
            for place, group in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        handles = submit_all(engine, WATCHED)
        # Its text never ends: it is still there when the others are done.
        dropped = engine.submit(arriving(segment(20), InputMode.TOKENS))
        heard = {name: handle.result() for name, handle in handles.items()}
        dropped.cancel()
        for thread in threads:
            thread.join()
        with pytest.raises(RequestCancelled):
            dropped.result()
    for name, spoken in heard.items():
        assert spoken.tokens == alone[name].tokens, name
        same(spoken.samples, alone[name].samples)


@pytest.mark.slow
@BOTH
def test_tokens_are_those_of_the_plain_way(models, alone):
    for name, requests in {"offline": [FREE[0], EXACT[0]], "stream": [FREE[1]], "official": [EXACT[1]]}.items():
        assert [list(tokens) for tokens in alone[name].tokens] == [plain_tokens(models, one) for one in requests]


def test_the_same_seed_gives_the_same_audio(models, alone):
    with running(models) as engine:
        again = engine.submit(WATCHED["stream"]).result()
    assert np.array_equal(again.samples, alone["stream"].samples)


def test_two_engines_share_models(models, alone):
    with running(models) as one, running(models) as other:
        handles = [submit_all(engine, ["stream", "official"]) for engine in (one, other)]
        for pair in handles:
            for name, handle in pair.items():
                same(handle.result().samples, alone[name].samples)


@BOTH
@pytest.mark.slow
def test_little_state_changes_nothing(models, alone):
    """Without room for the past it is computed again."""
    names = ["stream", "short hops", "conversion"]
    with running(models, settings=EngineSettings(slots=8, state_bytes=0)) as engine:
        handles = submit_all(engine, names)
        for name in names:
            same(handles[name].result().samples, alone[name].samples)
        assert engine.stages.flow.planner.recomputed > 0


def test_one_slot_serves_all_in_turn(models, alone):
    with running(models, settings=EngineSettings(slots=1, state_bytes=64 << 20)) as engine:
        handles = submit_all(engine, ["offline", "stream", "official"])
        for name, handle in handles.items():
            spoken = handle.result()
            assert spoken.tokens == alone[name].tokens
            same(spoken.samples, alone[name].samples)


REQUESTS = [
    stream(segment(None, seed=1)),
    stream(segment(25, seed=2), segment(None, seed=3)),
    offline(segment(7, seed=4), segment(None, seed=5)),
]


def launching(models, *shared_steps):
    """Planned as on a GPU, with so many steps in each launch."""
    limits = Limits(shared_steps=shared_steps)
    return running(models, settings=EngineSettings(slots=8, state_bytes=64 << 20, limits=limits), exclusive=False)


THREE = (1, 3)


@pytest.fixture(scope="module")
def one_by_one(models):
    with running(models) as engine:
        return [handle.result() for handle in [engine.submit(one) for one in REQUESTS]]


def test_tokens_and_sound_are_the_same(models, monkeypatch, one_by_one):
    launched: list[int] = []
    decode = LMStage.decode
    monkeypatch.setattr(LMStage, "decode", lambda stage, steps: launched.append(steps) or decode(stage, steps))
    with launching(models, THREE) as engine:
        spoken = [handle.result() for handle in [engine.submit(one) for one in REQUESTS]]
        assert [one.tokens for one in spoken] == [one.tokens for one in one_by_one]
        for one, other in zip(spoken, one_by_one, strict=True):
            same(one.samples, other.samples)
        assert 3 in launched
        assert engine.statistics.stage(Stage.DECODE).batches == sum(launched), "a batch is a step all the same"


def test_a_request_that_ends_within_a_launch_is_not_missed(models, one_by_one):
    with launching(models, THREE) as engine:
        leaving = engine.submit(stream(segment(60, seed=9)))
        staying = engine.submit(REQUESTS[1])
        next(iter(leaving))
        leaving.cancel()
        assert staying.result().tokens == one_by_one[1].tokens


def test_text_that_arrives_is_spoken_the_same(models):
    def tokens(*steps):
        with launching(models, *steps) as engine:
            handle = engine.submit(arriving(segment(None, text=(65, 66)), InputMode.TOKENS))
            assert handle.text.wait_until_wanted()
            handle.text.push((67, 68, 69, 70, 71, 72, 73))
            handle.text.close()
            return handle.result().tokens

    in_threes = tokens(THREE)
    assert tokens() == in_threes
    assert len(in_threes[0]) > 3
