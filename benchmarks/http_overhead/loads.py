"""Loads that are sent to a child process, which runs them against its target, and their results; as JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vivavoce_bench.load import ClosedLoop, Ending, Outcome, Piece, Target, Utterance, run_load
from vivavoce_bench.measure import Arrival

SAMPLE_RATE = 24_000
"""The sample rate of a server's pcm."""
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Load:
    """Users, each of whom sends the next utterance when the audio of the last is complete.

    name: unique among the loads; ratios: text → speech tokens per text token, for texts of a fixed length.
    """

    name: str
    users: int
    utterances: Sequence[Utterance]
    policy: str
    ratios: Mapping[str, float] = field(default_factory=dict)

    def sampling(self, text: str) -> dict[str, float]:
        """Limits of the speech's length; empty: the model decides it."""
        ratio = self.ratios.get(text)
        return {} if ratio is None else {"min_ratio": ratio, "max_ratio": ratio}

    def own_fields(self, utterance: Utterance) -> dict[str, Any]:
        """Fields of a request beyond OpenAI's."""
        return {"seed": utterance.seed, "chunk_policy": self.policy, "sampling": self.sampling(utterance.text)}

    def request_id(self, number: int) -> str:
        return f"{self.name}-{number}"


@dataclass(frozen=True, eq=False)
class Result:
    """The outcomes of a load; times are of the machine's monotonic clock, which all its processes share.

    accepted_s: number of an utterance → time at which the engine got its request, if the target tells it.
    """

    outcomes: Sequence[Outcome]
    accepted_s: Mapping[int, float]


class LoadTarget(Protocol):
    """The target that a child process runs loads against."""

    @property
    def accepted_s(self) -> dict[int, float]:
        """Number of an utterance → time at which the engine got its request; filled while a load runs."""

    def target(self, load: Load) -> Target:
        """The target for the requests of this load."""


class Child:
    """A process that answers loads: `python -m MODULE ARGUMENTS`."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process
        self.about: dict[str, Any] = self._read()
        """The description that the process sends when it is ready."""

    def run(self, load: Load) -> Result:
        """Run the load in the process, and wait for its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()
        told = self._read()
        sample_rate = told["sample_rate"]
        outcomes = [
            Outcome(
                start_s=start_s,
                end_s=end_s,
                sample_rate=sample_rate,
                arrivals=tuple(Arrival(at_s, count) for at_s, count in arrivals),
                utterance=utterance,
                ending=Ending(ending),
                problem=problem,
            )
            for utterance, (start_s, end_s, arrivals, ending, problem) in zip(
                load.utterances, told["outcomes"], strict=True
            )
        ]
        return Result(outcomes, {int(number): at_s for number, at_s in told["accepted_s"].items()})

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} has ended; its messages are above")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """A `Child` for the block; the process ends when its input is closed."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Child(module, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def answer_loads(about: Mapping[str, Any], speaker: LoadTarget, close: Callable[[], Any]) -> None:
    """Run in the child process: send `about`, then run each load from stdin, until stdin is closed."""
    loop = asyncio.new_event_loop()  # one for all loads, so that connections stay open between them
    try:
        _write(about)
        for line in sys.stdin:
            load = read_load(json.loads(line))
            speaker.accepted_s.clear()
            target = speaker.target(load)
            outcomes = loop.run_until_complete(run_load(target, load.utterances, ClosedLoop(load.users)))
            rows = [
                (one.start_s, one.end_s, [(a.at_s, a.num_samples) for a in one.arrivals], one.ending.value, one.problem)
                for one in outcomes
            ]
            _write({"sample_rate": target.sample_rate, "outcomes": rows, "accepted_s": speaker.accepted_s})
        closing = close()
        if asyncio.iscoroutine(closing):
            loop.run_until_complete(closing)
    finally:
        loop.close()


def read_load(told: dict[str, Any]) -> Load:
    """The load of which `asdict` gave this dictionary, also after JSON."""
    return Load(**{**told, "utterances": [Utterance(**one) for one in told["utterances"]]})


def _write(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)


async def counted(chunks: AsyncIterator[bytes]) -> AsyncIterator[Piece]:
    """Pieces of 16-bit audio; a chunk from the network may end within a sample."""
    rest = 0
    async for chunk in chunks:
        samples, rest = divmod(rest + len(chunk), 2)
        yield Piece(samples)
