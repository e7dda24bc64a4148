"""Clients that leave are noticed, whatever is made meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from vivavoce.doors.triton.models import presence
from vivavoce.doors.triton.models.presence import Presence


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Presence]:
    monkeypatch.setattr(presence, "ASK_EVERY_S", 0.01)
    made = Presence()
    yield made
    made.close()


def test_who_leaves_is_noticed_while_nothing_comes(watcher: Presence) -> None:
    asked_in: list[str] = []

    def left() -> bool:
        asked_in.append(threading.current_thread().name)
        return len(asked_in) == 3

    async def wait() -> int:
        noticed, calls = asyncio.Event(), 0

        def give_up() -> None:
            nonlocal calls
            calls += 1
            noticed.set()

        async with watcher.watched(left, give_up):
            await asyncio.wait_for(noticed.wait(), 30)
        return calls

    assert asyncio.run(wait()) == 1
    assert len(asked_in) == 3
    assert {name.rpartition("_")[0] for name in asked_in} == {"vivavoce-presence"}


def test_a_slow_answer_holds_up_nobody_and_nothing_is_asked_afterwards(watcher: Presence) -> None:
    begun, may_end, asked = threading.Event(), threading.Event(), 0

    def left() -> bool:
        nonlocal asked
        asked += 1
        begun.set()
        assert may_end.wait(30)
        return False

    async def work() -> int:
        async with watcher.watched(left, pytest.fail):
            while not begun.is_set():  # other work of the loop goes on
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.01, may_end.set)
        return asked

    at_the_end = asyncio.run(work())
    assert may_end.is_set()  # the block waited for the answer that was under way
    assert asked == at_the_end


def test_what_fails_in_the_block_is_raised(watcher: Presence) -> None:
    async def fail() -> None:
        async with watcher.watched(lambda: False, pytest.fail):
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        asyncio.run(fail())
