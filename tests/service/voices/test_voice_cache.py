from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce.service.voices.cache import VoiceCache


class Maker:
    """Makes a voice per call and counts; may fail for the first calls, and may wait for a signal."""

    def __init__(self, make, failures: int = 0) -> None:
        self.calls, self._make, self._failures = 0, make, failures
        self.started, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self):
        self.calls += 1
        self.started.set()
        assert self.go.wait(10)
        if self.calls <= self._failures:
            raise OSError(f"failure {self.calls}")
        return self._make()


@pytest.fixture
def make(plain_voice):
    return lambda failures=0: Maker(plain_voice, failures)


def test_a_voice_is_made_once(make):
    cache, maker = VoiceCache(), make()
    assert cache.get("a", maker) is cache.get("a", maker)
    assert maker.calls == 1


def test_the_least_recently_used_voice_leaves_first(make):
    cache, maker = VoiceCache(2), make()
    for key in ("a", "b", "a", "c"):
        cache.get(key, maker)
    assert maker.calls == 3
    cache.get("a", maker)
    assert maker.calls == 3
    cache.get("b", maker)
    assert maker.calls == 4


def test_a_failure_is_not_remembered(make):
    cache, maker = VoiceCache(), make(failures=1)
    with pytest.raises(OSError, match=r"failure 1"):
        cache.get("a", maker)
    assert cache.get("a", maker) is not None
    assert maker.calls == 2


def test_failures_displace_no_voice(make):
    cache, good, bad = VoiceCache(1), make(), make(failures=10)
    voice = cache.get("a", good)
    for i in range(10):
        with pytest.raises(OSError, match=r"failure"):
            cache.get(i, bad)
    assert cache.get("a", good) is voice


@pytest.mark.parametrize("_", range(5))
def test_ten_threads_make_one_voice(make, _):
    cache, maker = VoiceCache(), make()
    maker.go.clear()
    barrier = threading.Barrier(11)

    def ask(_: int):
        barrier.wait()
        return cache.get("a", maker)

    with ThreadPoolExecutor(10) as pool:
        voices = [pool.submit(ask, i) for i in range(10)]
        barrier.wait()
        assert maker.started.wait(10)
        maker.go.set()
        assert len({id(voice.result()) for voice in voices}) == 1
    assert maker.calls == 1


def test_one_of_the_waiting_threads_goes_on_after_a_failure(make):
    cache, maker = VoiceCache(), make(failures=1)
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
    assert voices.count(None) == 1
    assert len({id(voice) for voice in voices if voice is not None}) == 1
    assert maker.calls == 2


def test_other_keys_do_not_wait(make):
    cache, slow, quick = VoiceCache(), make(), make()
    slow.go.clear()
    thread = threading.Thread(target=cache.get, args=("slow", slow))
    thread.start()
    try:
        assert slow.started.wait(10)
        assert cache.get("quick", quick) is not None
    finally:
        slow.go.set()
        thread.join(10)
