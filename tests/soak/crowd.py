"""Users of an engine who ask for anything, leave when they like, and meet faults."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.engine.engine_helpers import MUTE, arriving, given, offline, segment, stream, voice
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import Arrival, SamplingParams, SpeechRequest, SynthesisRequest
from vivavoce.errors import VivavoceError
from vivavoce.service.feeding import feed

POLICIES = (
    ChunkPolicy.low_latency(first_hop=4, lookahead=1),
    ChunkPolicy.equal(hop=4, lookahead=2),
    ChunkPolicy.exponential(first_hop=4),
    ChunkPolicy.time_based(first_hop=4),
    ChunkPolicy.official(first_hop=4),
)
VOICES = (MUTE, MUTE, voice(1, prompt=3), voice(2, prompt=6))
MOST_TOKENS = 7


@dataclass
class Crowd:
    """`users` threads that share the numbers of requests; what a request is depends on its number alone.

    outcomes: how many ended how; failures: what a user met that no request should end with.
    """

    engine: Engine
    users: int
    cancels: float
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def ask(self, numbers: range) -> None:
        """All requests of these numbers; returns when the last one has ended."""
        left, lock = iter(numbers), threading.Lock()

        def user() -> None:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                outcome = self._one(number)
                with lock:
                    self.outcomes[outcome] += 1

        threads = [threading.Thread(target=user, name=f"user-{one}") for one in range(self.users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, number: int) -> str:
        chance = random.Random(number)
        try:
            return _listen(chance, _submit(chance, number, self.engine), self.cancels)
        except VivavoceError as error:
            return type(error).__name__
        except ConnectionError as error:
            return type(error).__name__
        except BaseException as error:
            self.failures.append(error)
            return "unexpected"


def _listen(chance: random.Random, handle: Handle, cancels: float) -> str:
    if chance.random() >= cancels:
        handle.result()
        return "heard"
    way = chance.randrange(4)
    if way == 0:
        return "dropped at once"
    if way == 1:
        threading.Thread(target=handle.cancel).start()
        handle.result()
        return "heard"
    patience = chance.randint(1, 2)
    for heard, _ in enumerate(handle, 1):
        if heard == patience:
            if way == 2:
                handle.cancel()
            break
    return "left"


def _submit(chance: random.Random, number: int, engine: Engine) -> Handle:
    policy, speaker = chance.choice(POLICIES), chance.choice(VOICES)

    def part(most: int = MOST_TOKENS) -> Any:
        return segment(chance.randint(1, most), seed=number, speed=chance.choice((1.0, 1.0, 0.7, 1.6)), voice=speaker)

    sampling = SamplingParams(max_ratio=2.0)
    short = SynthesisRequest(speaker, text=(65,), sampling=sampling, seed=number)
    kinds: tuple[Callable[[], SpeechRequest], ...] = (
        lambda: offline(part()),
        lambda: offline(part(3), part(3)),
        lambda: stream(part(), policy=policy),
        lambda: stream(part(3), part(3), policy=policy),
        lambda: stream(given(chance.randint(1, MOST_TOKENS), seed=number, voice=speaker), policy=policy),
        lambda: arriving(short, Arrival.TOKENS, policy),
        lambda: arriving(part(3), Arrival.SEGMENTS, policy),
    )
    request = chance.choice(kinds)()
    handle = engine.submit(request)
    if request.arrival is not Arrival.WHOLE:
        more = part(3) if request.arrival is Arrival.SEGMENTS else (67,)
        feed(handle.text, _parts([more] * chance.randint(0, 2), fails=chance.random() < 0.1))
    return handle


def _parts(parts: list[Any], fails: bool) -> Iterator[Any]:
    yield from parts
    if fails:
        raise ConnectionError("the text's source hung up")
