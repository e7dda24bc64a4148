"""Work that takes too long is ended, by one thread for all of it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce import time_limit as module
from vivavoce.time_limit import time_limit


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "vivavoce-time-limit"]


def ended_within(seconds, work_s):
    ended = threading.Event()
    with time_limit(seconds, ended.set):
        ended.wait(work_s)
    return ended.is_set()


def test_only_late_work_is_ended():
    with ThreadPoolExecutor(8) as pool:
        late = [pool.submit(ended_within, 0.05, 30) for _ in range(4)]
        soon = [pool.submit(ended_within, 60, 0.3) for _ in range(4)]
        assert all(one.result() for one in late)
        assert not any(one.result() for one in soon)
        assert len(watchers()) == 1


def test_work_that_fails_is_no_longer_watched():
    ended = threading.Event()
    with pytest.raises(KeyError), time_limit(0.05, ended.set):
        raise KeyError
    assert not ended.wait(0.4)


def test_the_thread_ends_when_nothing_is_watched_and_comes_again():
    with module._changed:
        module._changed.notify()  # it may wait for the limits of earlier work
    assert not ended_within(0.3, 0)
    until = time.monotonic() + 10
    while watchers():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert ended_within(0.05, 30)
