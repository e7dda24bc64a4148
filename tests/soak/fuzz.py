"""`python -m tests.soak.fuzz`: broken requests and files by the ten thousand; each is refused clearly, and in time.

What was tried as number 17 is tried again alone by `--only http --first 17 --items 1`.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import os
import random
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.soak.fuzz_files import Files
from tests.soak.fuzz_wire import doors
from tests.soak.http_crowd import resident_mb

WIRE, FILES = ("http", "websocket", "grpc"), ("voice", "checkpoint", "yaml")
AT_ONCE = 32
LATE_S = {"wire": 20.0, "file": 5.0}
"""No item takes so long; LATE_S["wire"] leaves the doors their own timeouts."""
SETTLED = 0.1
"""Share of the items after which memory may grow by `MOST_GROWTH`."""
MOST_GROWTH = 0.1
MOST_BYTES = 3 << 30
"""Of address space that a broken file may take beyond what there is."""


@dataclass
class Fuzzed:
    """What became of one kind's items."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    """Once settled, and at the end."""
    seconds: float = 0.0

    def note_memory(self) -> None:
        """Now, without what only waits to be collected."""
        gc.collect()
        self.memory_mb.append(resident_mb(os.getpid()))


class Late(Exception):
    """An item took too long."""


class _Log(logging.Handler):
    """Errors, and whatever comes with a traceback: no request may bring them about."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.broken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
            self.broken.append(f"log: {record.getMessage()[:500]} {trace[-800:]}")


@contextmanager
def logged(found: Fuzzed) -> Iterator[None]:
    """What the log complains of meanwhile is found, too."""
    log, root = _Log(), logging.getLogger()
    root.addHandler(log)
    try:
        yield
    finally:
        root.removeHandler(log)
        found.broken += log.broken


async def fuzz_wire(kind: str, numbers: Sequence[int], seed: int) -> Fuzzed:
    """Send the items of these numbers, many at once."""
    found = Fuzzed()
    async with doors() as attacked:
        work: Callable[[random.Random], Awaitable[str]] = getattr(attacked, kind)

        async def sender(mine: Iterator[int]) -> None:
            for number in mine:
                with _judging(found, kind, number, seed) as chance:
                    found.outcomes[await asyncio.wait_for(work(chance), LATE_S["wire"])] += 1

        with logged(found):
            for part in _parts(numbers):
                mine = iter(part)
                await asyncio.gather(*(sender(mine) for _ in range(AT_ONCE)))
                found.note_memory()
    return found


def fuzz_files(kind: str, numbers: Sequence[int], seed: int, folder: Path) -> Fuzzed:
    """Read the items of these numbers."""
    found, files = Fuzzed(), Files(folder)
    with logged(found), _bounded():
        for part in _parts(numbers):
            for number in part:
                with _judging(found, kind, number, seed) as chance, _alarm(LATE_S["file"]):
                    found.outcomes[files.kinds[kind](chance)] += 1
            found.note_memory()
    if files.executed:
        found.broken.append("a file made a program run: the file 'executed' is there")
    return found


def _parts(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    settled = max(1, int(len(numbers) * SETTLED))
    return numbers[:settled], numbers[settled:]


@contextmanager
def _judging(found: Fuzzed, kind: str, number: int, seed: int) -> Iterator[random.Random]:
    """The chance of one item; whatever it breaks with is noted."""
    try:
        yield random.Random(f"{seed} {kind} {number}")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        found.broken.append(f"{kind} {number}: {type(error).__name__}: {str(error)[:500]} ({where})")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """`Late` after so many seconds; what then hangs in native code ends the process, with a traceback."""

    def late(_: int, __: FrameType | None) -> None:
        raise Late(f"took {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _bounded() -> Iterator[None]:
    """Memory has an end, so that a file that wants all of it is found, and nothing else ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(kind: str, numbers: Sequence[int], seed: int) -> Fuzzed:
    """Try the items of these numbers."""
    began = time.monotonic()
    if kind in WIRE:
        found = asyncio.run(fuzz_wire(kind, numbers, seed))
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz_files(kind, numbers, seed, Path(folder))
    found.seconds = time.monotonic() - began
    first, last = found.memory_mb
    if last > first * (1 + MOST_GROWTH):
        found.broken.append(f"memory: {first:.0f} MB after a tenth, {last:.0f} MB at the end")
    return found


def main() -> int:
    """Parse, run, print; 1 if something broke."""
    parser = argparse.ArgumentParser("python -m tests.soak.fuzz", description=__doc__)
    parser.add_argument("--items", type=int, default=10_000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=(*WIRE, *FILES), default=(*WIRE, *FILES))
    options = parser.parse_args()
    faulthandler.enable()
    logging.getLogger("vivavoce.access").setLevel(logging.WARNING)
    numbers, wrong = range(options.first, options.first + options.items), 0
    for kind in options.only:
        found = fuzz(kind, numbers, options.seed)
        memory = " → ".join(f"{one:.0f}" for one in found.memory_mb)
        outcomes = ", ".join(f"{count} {what}" for what, count in found.outcomes.most_common())
        print(
            f"{kind}, seed {options.seed}: {len(numbers)} items in {found.seconds:.0f} s, "
            f"memory {memory} MB: {outcomes}"
        )
        for one in found.broken[:20]:
            print(f"  broken: {one}")
        wrong += len(found.broken)
    print(f"{wrong} broken" if wrong else "all kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
