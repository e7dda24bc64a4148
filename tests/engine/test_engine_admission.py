"""Who may come in, who waits, who is refused; time is what a model of costs says."""

import pytest

from tests.engine.engine_helpers import (
    FixedCosts,
    catch_up,
    offline,
    running,
    segment,
    stream,
)
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.scheduler import Limits
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import Overloaded, RequestCancelled

SLOW = FixedCosts(0.5)
"""Seconds of any step: a first stream may run at the machine's pace, a second one may not."""
LONG = stream(segment(500))
SHORT = stream(segment(3))


def settings(mode=AdmissionMode.QUEUE, **more):
    return EngineSettings(**{"slots": 4, "state_bytes": 16 << 20, "admission": mode, **more})


def test_a_stream_too_many_is_refused(models):
    with running(models, settings=settings(AdmissionMode.REFUSE), costs=SLOW) as engine:
        running_one = engine.submit(LONG)
        with pytest.raises(Overloaded) as refused:
            engine.submit(SHORT)
        assert "real time" in refused.value.figures
        assert 1 <= refused.value.retry_after_s <= 60
        next(iter(running_one))  # it goes on
        assert engine.statistics.requests.refused == 1
        running_one.cancel()
        catch_up(engine)
        assert len(engine.submit(SHORT).result().samples) == 3 * 960


def test_who_replaces_one_that_has_left_is_not_refused_for_it(models):
    with running(models, settings=settings(AdmissionMode.REFUSE, slots=1)) as engine:
        for _ in range(20):
            engine.submit(LONG).cancel()
            engine.submit(LONG).cancel()  # at once: no step has been taken since
        assert len(engine.submit(SHORT).result().samples) == 3 * 960


def test_a_stream_too_many_waits(models):
    with running(models, settings=settings(), costs=SLOW) as engine:
        first, second = engine.submit(LONG), engine.submit(SHORT)
        catch_up(engine)
        assert engine.statistics.waiting == 1
        first.cancel()
        assert len(second.result().samples) == 3 * 960
        assert engine.statistics.waiting == 0


def test_those_who_wait_start_in_their_order(models):
    with running(models, settings=settings(), costs=SLOW) as engine:
        first = engine.submit(stream(segment(10)))
        rest = [engine.submit(SHORT) for _ in range(3)]
        for handle in (first, *rest):
            handle.result()
        starts = [handle.outcome.timings.started_s for handle in rest]
        assert starts == sorted(starts)
        assert starts[0] > first.outcome.timings.started_s


def test_the_queue_has_an_end(models):
    with running(models, settings=settings(max_waiting=2), costs=SLOW) as engine:
        first = engine.submit(LONG)
        catch_up(engine)
        waiting = [engine.submit(SHORT) for _ in range(2)]
        with pytest.raises(Overloaded, match="busy with other requests"):
            engine.submit(SHORT)
        waiting.pop().cancel()
        catch_up(engine)
        waiting.append(engine.submit(SHORT))
        first.cancel()
        assert [len(handle.result().samples) for handle in waiting] == [3 * 960] * 2


def test_who_leaves_the_queue_is_never_begun(models):
    with running(models, settings=settings(), costs=SLOW) as engine:
        first, second, third = engine.submit(LONG), engine.submit(SHORT), engine.submit(SHORT)
        catch_up(engine)
        second.cancel()
        catch_up(engine)
        assert engine.statistics.waiting == 1
        first.cancel()
        third.result()
        with pytest.raises(RequestCancelled):
            second.result()


def test_offline_work_leaves_slots_to_streams(models):
    """Six segments on four slots: one of them stays free."""
    spare = settings(limits=Limits(spare_slots=0.25))
    with running(models, settings=spare) as engine:
        work = engine.submit(offline(*(segment(200, seed=seed) for seed in range(6))))
        for _ in range(3):
            catch_up(engine)
        assert engine.statistics.slots.used == 3
        engine.submit(SHORT).result()
        assert not work.done
        assert engine.statistics.slots.peak == 4
        work.cancel()
