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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.fuzz_files import Files
from tests.soak.fuzz_wire import doors
from tests.soak.http_crowd import resident_mb

WIRE, FILES = ("http", "websocket", "grpc"), ("voice", "checkpoint", "yaml")
AT_ONCE = 32
LATE_S = 20
"""No item takes so long."""
SETTLED, MOST_GROWTH = 10, 0.1
"""After a tenth of the items memory may grow by a tenth."""
MOST_BYTES = 3 << 30
"""Of address space that a broken file may take beyond what there is."""


class Fuzzed(logging.Handler):
    """What became of one kind's items; meanwhile the log may hold no error, and nothing that has a traceback."""

    def __init__(self, kind: str, numbers: range, seed: int) -> None:
        super().__init__(logging.DEBUG)
        self.kind, self.numbers, self._seed = kind, numbers, seed
        self.outcomes: Counter[str] = Counter()
        self.broken: list[str] = []
        self.memory_mb: list[float] = []
        """After a tenth, and at the end."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
            self.broken.append(f"log: {record.getMessage()[:500]} {trace[-800:]}")

    @contextmanager
    def judging(self, number: int) -> Iterator[random.Random]:
        """The chance of one item; whatever it breaks with is noted."""
        try:
            yield random.Random(f"{self._seed} {self.kind} {number}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            self.broken.append(f"{self.kind} {number}: {type(error).__name__}: {str(error)[:500]} ({where})")

    def parts(self) -> Iterator[Iterator[int]]:
        """The first tenth of the numbers, and the others; memory is noted after each."""
        settled = max(1, len(self.numbers) // SETTLED)
        for part in (self.numbers[:settled], self.numbers[settled:]):
            yield iter(part)
            gc.collect()
            self.memory_mb.append(resident_mb(os.getpid()))


async def fuzz_wire(found: Fuzzed) -> None:
    """Send the items, many at once."""
    async with doors() as attacked:

        async def sender(numbers: Iterator[int]) -> None:
            for number in numbers:
                with found.judging(number) as chance:
                    found.outcomes[await asyncio.wait_for(getattr(attacked, found.kind)(chance), LATE_S)] += 1

        for part in found.parts():
            await asyncio.gather(*(sender(part) for _ in range(AT_ONCE)))


def fuzz_files(found: Fuzzed, folder: Path) -> None:
    """Read the items; one that wants all memory gets an end of it."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took {LATE_S} s")

    files, (soft, hard) = Files(folder), resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, hard))
    try:
        for part in found.parts():
            for number in part:
                with found.judging(number) as chance:
                    signal.alarm(LATE_S)
                    found.outcomes[getattr(files, found.kind)(chance)] += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(kind: str, numbers: range, seed: int) -> Fuzzed:
    """Try the items of these numbers."""
    found, root = Fuzzed(kind, numbers, seed), logging.getLogger()
    root.addHandler(found)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(fuzz_wire(found)) if kind in WIRE else fuzz_files(found, Path(folder))
    finally:
        root.removeHandler(found)
    first, last = found.memory_mb
    if last > first * (1 + MOST_GROWTH):
        found.broken.append(f"memory: {first:.0f} MB after a tenth, {last:.0f} MB at the end")
    if Path("executed").exists():
        found.broken.append("a file made a program run: the file 'executed' is there")
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
    wrong = 0
    for kind in options.only:
        began = time.monotonic()
        found = fuzz(kind, range(options.first, options.first + options.items), options.seed)
        outcomes = ", ".join(f"{count} {what}" for what, count in found.outcomes.most_common())
        memory = " → ".join(f"{one:.0f}" for one in found.memory_mb)
        print(f"{kind}, seed {options.seed}: {time.monotonic() - began:.0f} s, memory {memory} MB: {outcomes}")
        print("\n".join(f"  broken: {one}" for one in found.broken[:20]) or "  all kept", flush=True)
        wrong += len(found.broken)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
