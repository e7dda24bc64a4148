from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce.lru_cache import LruCache


class Maker:
    """Makes a value per call and counts; may fail for the first calls, and may wait for a signal."""

    def __init__(self, failures: int = 0) -> None:
        self.calls, self._failures = 0, failures
        self.started, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self):
        self.calls += 1
        self.started.set()
        assert self.go.wait(10)
        if self.calls <= self._failures:
            raise OSError(f"failure {self.calls}")
        return object()


def test_a_voice_is_made_once():
    cache, maker = LruCache(32), Maker()
    assert cache.get("a", maker) is cache.get("a", maker)
    assert maker.calls == 1


def test_the_least_recently_used_voice_leaves_first():
    cache, maker = LruCache(2), Maker()
    for key in ("a", "b", "a", "c"):
        cache.get(key, maker)
    assert maker.calls == 3
    cache.get("a", maker)
    assert maker.calls == 3
    cache.get("b", maker)
    assert maker.calls == 4


def test_a_failure_is_not_remembered():
    cache, maker = LruCache(32), Maker(failures=1)
    with pytest.raises(OSError, match=r"failure 1"):
        cache.get("a", maker)
    assert cache.get("a", maker) is not None
    assert maker.calls == 2


def test_failures_displace_no_voice():
    cache, good, bad = LruCache(1), Maker(), Maker(failures=10)
    voice = cache.get("a", good)
    for i in range(10):
        with pytest.raises(OSError, match=r"failure"):
            cache.get(i, bad)
    assert cache.get("a", good) is voice


@pytest.mark.parametrize("_", range(3))
@pytest.mark.parametrize("failures", [0, 1])
def test_ten_threads_make_one_voice_and_one_goes_on_after_a_failure(failures, _):
    cache, maker = LruCache(32), Maker(failures)
    maker.go.clear()
    barrier = threading.Barrier(11)

    def ask(_: int):
        barrier.wait()
        try:
            return cache.get("a", maker)
        except OSError:
            return None

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, i) for i in range(10)]
        barrier.wait()
        assert maker.started.wait(10)
        maker.go.set()
        voices = [answer.result() for answer in answers]
    assert voices.count(None) == failures
    assert len({id(voice) for voice in voices if voice is not None}) == 1
    assert maker.calls == 1 + failures


def test_other_keys_do_not_wait():
    cache, slow, quick = LruCache(32), Maker(), Maker()
    slow.go.clear()
    thread = threading.Thread(target=cache.get, args=("slow", slow))
    thread.start()
    try:
        assert slow.started.wait(10)
        assert cache.get("quick", quick) is not None
    finally:
        slow.go.set()
        thread.join(10)
