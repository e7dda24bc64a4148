"""An engine that launches several decode steps at once speaks what one speaks that launches them one by one."""

from __future__ import annotations

import pytest

from tests.engine.engine_helpers import (
    arriving,
    assert_clean,
    offline,
    running,
    same,
    segment,
    stream,
)
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.engine import Engine
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.request import Arrival

REQUESTS = [
    stream(segment(None, seed=1)),
    stream(segment(25, seed=2), segment(None, seed=3)),
    offline(segment(7, seed=4), segment(None, seed=5)),
]


@pytest.fixture
def many_steps(monkeypatch):
    """Planned as on a GPU, with three steps in each launch."""
    monkeypatch.setattr(Engine, "_exclusive", False)
    monkeypatch.setattr("vivavoce.engine.scheduler._STEPS", ((1, 3),))


@pytest.fixture(scope="module")
def one_by_one(models):
    with running(models) as engine:
        return [handle.result() for handle in [engine.submit(one) for one in REQUESTS]]


def test_tokens_and_sound_are_the_same(models, monkeypatch, one_by_one, many_steps):
    launched: list[int] = []
    decode = LMStage.decode
    monkeypatch.setattr(LMStage, "decode", lambda stage, steps: launched.append(steps) or decode(stage, steps))
    with running(models) as engine:
        spoken = [handle.result() for handle in [engine.submit(one) for one in REQUESTS]]
        assert [one.tokens for one in spoken] == [one.tokens for one in one_by_one]
        for one, other in zip(spoken, one_by_one, strict=True):
            same(one.samples, other.samples)
        assert_clean(engine)
        assert 3 in launched
        assert engine.statistics.stage(Stage.DECODE).batches == sum(launched), "a batch is a step all the same"


def test_whoever_leaves_within_a_launch_is_not_missed(models, one_by_one, many_steps):
    with running(models) as engine:
        leaving = engine.submit(stream(segment(60, seed=9)))
        staying = engine.submit(REQUESTS[1])
        next(iter(leaving))
        leaving.cancel()
        assert staying.result().tokens == one_by_one[1].tokens
        assert_clean(engine)


def test_text_that_arrives_is_spoken_the_same(models, monkeypatch, many_steps):
    def tokens():
        with running(models) as engine:
            handle = engine.submit(arriving(segment(None, text=(65, 66)), Arrival.TOKENS))
            assert handle.text.wait_until_wanted()
            handle.text.push((67, 68, 69, 70, 71, 72, 73))
            handle.text.close()
            return handle.result().tokens

    in_threes = tokens()
    monkeypatch.setattr("vivavoce.engine.scheduler._STEPS", ())
    assert tokens() == in_threes
    assert len(in_threes[0]) > 3
