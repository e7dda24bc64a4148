"""Counts of requests, and who may come in by them."""

from collections import deque

import pytest

from tests.engine.engine_helpers import FixedCosts, offline, segment, stream
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.books import Books
from vivavoce.engine.handle import Outbox
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.stream import Stream
from vivavoce.engine.ticket import Ticket
from vivavoce.errors import Overloaded
from vivavoce.rates import Rates

RATES = Rates(24_000, 480, 25)
REFUSE, QUEUE = AdmissionMode.REFUSE, AdmissionMode.QUEUE


def books(mode=QUEUE, slots=2, seconds=1e-6, **more):
    return Books(EngineSettings(admission=mode, **more), FixedCosts(seconds), RATES, slots)


def ticket(request=stream(segment()), asked=True):
    return Ticket(Stream(0, request.policy, 0.0, RATES), request, Outbox(), deque(), asked)


def counts(of):
    load = of.load()
    return load.waiting, load.streams, load.starting, load.offline, load.slots_free


def test_a_check_counts_nothing_and_says_what_admission_would():
    ours = books(REFUSE, slots=1)
    ours.check(streaming=True)
    assert ours.load().waiting == 0
    ours.admit(ticket())
    with pytest.raises(Overloaded):
        ours.check(streaming=True)
    ours.check(streaming=False)


def test_the_course_of_a_stream():
    one, entry = books(), ticket()
    one.admit(entry)
    assert counts(one) == (1, 0, 0, 0, 2)
    assert one.may_start(entry)
    assert counts(one) == (0, 1, 1, 0, 1)
    one.sounds(entry)
    one.sounds(entry)
    assert counts(one) == (0, 1, 0, 0, 1)
    one.ended(entry)
    one.ended(entry)
    one.sounds(entry)
    assert counts(one) == (0, 0, 0, 0, 2)


def test_offline_work_takes_no_slot_from_streams():
    one, work = books(slots=1), ticket(offline(segment(), segment()))
    one.admit(work)
    assert one.may_start(work)
    assert counts(one) == (0, 0, 0, 0, 1)
    entry = ticket()
    one.admit(entry)
    assert one.may_start(entry)


def test_a_stream_that_may_not_start_stays_where_it_is():
    one, first, second = books(slots=1), ticket(), ticket()
    one.admit(first)
    one.admit(second)
    assert one.may_start(first)
    assert not one.may_start(second)
    assert counts(one) == (1, 1, 1, 0, 0)
    one.ended(first)
    assert one.may_start(second)


def test_streams_told_to_start_count_before_they_do():
    """Requests come faster than the loop takes them: the second one is refused all the same."""
    one = books(REFUSE, seconds=0.5)
    one.admit(ticket())
    with pytest.raises(Overloaded):
        one.admit(ticket())
    assert counts(one)[0] == 1
    full = books(REFUSE, slots=2)
    full.admit(ticket())
    full.admit(ticket())
    with pytest.raises(Overloaded, match="slots"):
        full.admit(ticket())
    full.admit(ticket(offline(segment())))


def test_a_full_queue_refuses():
    one = books(slots=1, max_waiting=1)
    for _ in range(2):
        entry = ticket()
        one.admit(entry)
        one.may_start(entry)
    with pytest.raises(Overloaded, match="max_waiting is 1"):
        one.admit(ticket())
    with pytest.raises(Overloaded, match="max_waiting is 1"):
        one.admit(ticket(offline(segment())))


def test_nobody_asked_for_nonsense():
    one = books(REFUSE, slots=1, seconds=0.5)
    for _ in range(3):
        entry = ticket(asked=False)
        one.admit(entry)
        assert one.may_start(entry)
