"""What lives once an engine is warm is passed over by garbage collections, and no longer when engines are closed."""

import gc
import weakref

import pytest

from vivavoce.engine.collector import LivingSetAside
from vivavoce.engine.engine import Engine
from vivavoce.engine.settings import EngineSettings

SMALL = EngineSettings(slots=4, state_bytes=16 << 20)


class Cycle:
    """Only a collection frees it."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_set_aside():
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0


def test_collections_pass_over_what_lived_when_it_was_set_aside():
    dead, living = Cycle(), Cycle()
    seen_dead, seen_living = weakref.ref(dead), weakref.ref(living)
    set_aside = LivingSetAside()
    del dead
    set_aside.begin()
    assert seen_dead() is None
    del living
    later = weakref.ref(Cycle())
    gc.collect()
    assert seen_living() is not None
    assert later() is None
    set_aside.end()
    gc.collect()
    assert seen_living() is None


def test_the_last_one_who_wishes_it_ends_it():
    first, second = LivingSetAside(), LivingSetAside()
    first.begin()
    first.begin()
    second.begin()
    first.end()
    first.end()
    assert gc.get_freeze_count() > 0
    second.end()
    assert gc.get_freeze_count() == 0


def test_one_that_never_began_ends_nothing():
    began = LivingSetAside()
    began.begin()
    LivingSetAside().end()
    assert gc.get_freeze_count() > 0
    began.end()


def test_a_warm_engine_has_it_until_it_is_closed(models):
    with Engine(models, SMALL) as engine:
        assert gc.get_freeze_count() == 0
        engine.warm_up(seconds=0)
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_warm_engine_that_nobody_uses_leaves_no_memory(models):
    engine = Engine(models, SMALL)
    engine.warm_up(seconds=0)
    loop, thread = weakref.ref(engine._loop), engine._runner.thread
    del engine
    assert gc.get_freeze_count() == 0
    thread.join(60)
    gc.collect()
    assert loop() is None
