"""Threads that read texts: few at once, however many ask."""

from __future__ import annotations

import asyncio
import threading

from vivavoce.frontend.text_threads import AT_ONCE, in_turn


async def test_few_texts_have_threads_and_all_get_their_turn() -> None:
    """Hundreds of waiting threads would keep the interpreter from an engine's thread."""
    running, most, done = 0, 0, 0
    lock, go_on = threading.Lock(), threading.Event()

    def read() -> int:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, sum(thread.name == "vivavoce-text" for thread in threading.enumerate()))
        go_on.wait(30)
        with lock:
            running, done = running - 1, done + 1
            return done

    asked = [asyncio.ensure_future(in_turn(read, go_on.set)) for _ in range(50)]
    while running < AT_ONCE:
        await asyncio.sleep(0)
    assert running == AT_ONCE
    go_on.set()
    assert sorted(await asyncio.gather(*asked)) == list(range(1, 51))
    assert most <= 2 * AT_ONCE, "one that has answered may not have ended yet"


async def test_a_waiting_text_can_be_given_up() -> None:
    go_on = threading.Event()
    first = [asyncio.ensure_future(in_turn(lambda: go_on.wait(30), go_on.set)) for _ in range(AT_ONCE)]
    waiting = asyncio.ensure_future(in_turn(lambda: True, lambda: None))
    await asyncio.sleep(0)
    waiting.cancel()
    go_on.set()
    assert all(await asyncio.gather(*first))
    assert waiting.cancelled() or (await asyncio.gather(waiting, return_exceptions=True))
