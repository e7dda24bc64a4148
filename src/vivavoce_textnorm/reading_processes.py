"""Reads texts in separate processes, so that an engine in this process is not slowed down.

wetext holds the interpreter lock for up to 0.2 s a block (see `official`), and the natural rules hold it for one
millisecond or more, so with many texts at once the engine's thread would wait. The processes are started as programs,
not forked, because the caller may use CUDA and threads, and its main module may not be importable. Each process
(`main`) answers a line of JSON (a block and its settings) with another (the words), and ends when its input ends.
"""

from __future__ import annotations

import base64
import heapq
import json
import logging
import os
import pickle
import select
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from vivavoce.child import ignore_signals, python_command
from vivavoce.errors import RequestCancelled
from vivavoce_textnorm.normalizer import MAX_BLOCK_CHARS, CancelCheck, check_wanted, never_cancelled
from vivavoce_textnorm.official import Rules, has_official_rules, load_languages
from vivavoce_textnorm.types import Say, Settings

log = logging.getLogger("vivavoce.reading_processes")  # the command line shows notes of loggers with this prefix

TOO_LONG_S = 30.0
"""Time limit for a block; after that, its process is replaced. The slowest block takes 0.3 s of processor time."""
_ASKED_EVERY_S = 0.1
_ENDING_S = 5.0
_NICENESS = 10


class ReadingProcesses:
    """Reads blocks as `Languages` and `read_run` do, one block at a time in each process, for any number of threads.

    Blocks of shorter texts are read first. The first process reads only texts of one block, unless it is the only
    process. The other processes read all texts, and have a lower priority on the processor.

    Args:
        number: number of processes; each is ready a third of a second after its start.
        digits_in_chinese: as in `load_languages`.
    """

    def __init__(self, number: int, *, digits_in_chinese: bool) -> None:
        self._digits_in_chinese = digits_in_chinese
        self._all = [self._start(place) for place in range(number)]
        self._idle = set(range(number))
        self._waiting: list[_Turn] = []  # kept as a heap
        self._came, self._state = count(), Lock()
        self._finalizer = weakref.finalize(self, _end, self._all)

    def read(self, block: str, rules: Rules, length: int, cancelled: CancelCheck = never_cancelled) -> str:
        """Read a block by the official rules; return it unchanged if no process can. length: of the whole text."""
        words = self._asked((block, rules), self._places(length), length, cancelled)
        return block if words is None else words

    def read_block(
        self,
        block: str,
        language: str,
        settings: Settings,
        said: Mapping[str, Say],
        inside: tuple[bool, bool],
        length: int,
        cancelled: CancelCheck = never_cancelled,
    ) -> str:
        """Read a block by the natural rules in another process, or in this process if no other process can."""
        asked = _natural(block, language, settings, said, inside)
        words = self._asked(asked, self._places(length), length, cancelled)
        if words is None:
            from vivavoce_textnorm.natural import read_block

            return read_block(block, language, settings, said, inside)
        return words

    def warm_up(self, samples: Iterable[tuple[str, str]], settings: Settings) -> None:
        asked = [_natural(text, language, settings, {}, (False, False)) for text, language in samples]

        def read(place: int) -> None:
            for one in asked:
                self._asked(one, range(place, place + 1))

        with ThreadPoolExecutor(len(self._all)) as threads:
            list(threads.map(read, range(len(self._all))))

    def _places(self, length: int) -> range:
        return range(0 if length <= MAX_BLOCK_CHARS else min(1, len(self._all) - 1), len(self._all))

    def _asked(
        self, asked: tuple[Any, ...], places: range, length: int = 0, cancelled: CancelCheck = never_cancelled
    ) -> str | None:
        place = self._take(places, length, cancelled)
        try:
            for _ in range(2):  # twice, because an idle process may have ended before the block came
                process = self._all[place]
                try:
                    return _ask(process, asked)
                except (OSError, ValueError) as error:
                    if not self._finalizer.alive:
                        break
                    process.kill()
                    told = {"exit_code": process.wait()}
                    log.warning("text process ended: exit %(exit_code)s; another one is started", told)
                    _end([process])
                    self._all[place] = self._start(place)
                    if isinstance(error, TimeoutError):
                        break
        except OSError as error:
            log.warning(
                "text process missing: no process that normalises texts can be started (%(error)s)", {"error": error}
            )
        finally:
            self._give(place)
        return None

    def close(self) -> None:
        self._finalizer()

    def _take(self, places: range, length: int, cancelled: CancelCheck) -> int:
        check_wanted(cancelled)
        given = SimpleQueue[int]()
        turn = length, next(self._came), places, given
        with self._state:
            heapq.heappush(self._waiting, turn)
            self._hand_out()
        while True:
            try:
                return given.get(timeout=_ASKED_EVERY_S)
            except Empty:
                if not cancelled():
                    continue
            with self._state:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    heapq.heapify(self._waiting)
                    self._hand_out()
                else:  # a process was given to this turn just after the timeout
                    self._idle.add(given.get())
                    self._hand_out()
            raise RequestCancelled("request: was cancelled")

    def _give(self, place: int) -> None:
        with self._state:
            self._idle.add(place)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give idle processes to the next waiting threads. No other threads are woken: hundreds of woken threads would
        occupy the interpreter for longer than the reading takes.
        """
        while self._waiting and (fit := self._idle.intersection(self._waiting[0][2])):
            place = min(fit)
            self._idle.remove(place)
            heapq.heappop(self._waiting)[3].put(place)

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        flags = (["--digits-in-chinese"] if self._digits_in_chinese else []) + (["--nice"] if place else [])
        return subprocess.Popen(python_command(__name__, *flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


_Turn = tuple[int, int, range, SimpleQueue[int]]


def _natural(
    block: str, language: str, settings: Settings, said: Mapping[str, Say], inside: tuple[bool, bool]
) -> tuple[Any, ...]:
    own = {sign: (what.how, what.content, what.order) for sign, what in said.items() if sign in block}
    return block, language, _packed(settings), own, inside


@lru_cache(maxsize=64)
def _packed(settings: Settings) -> str:
    return base64.b64encode(pickle.dumps(settings)).decode()


@lru_cache(maxsize=64)
def _unpacked(settings: str) -> Settings:
    unpacked: Settings = pickle.loads(base64.b64decode(settings))
    return unpacked


def _ask(process: subprocess.Popen[bytes], asked: tuple[Any, ...]) -> str | None:
    """Let a process read a block. Raises OSError or ValueError if the process has ended, TimeoutError if it is slow."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.flush()
    answered = select.poll()
    answered.register(process.stdout, select.POLLIN)
    if not answered.poll(TOO_LONG_S * 1e3):
        raise TimeoutError
    words: str | None = json.loads(process.stdout.readline())
    return words


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # the pipe may hold text that was not sent
                pipe.close()
    for process in processes:
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_naturally(
    block: str, language: str, settings: str, said: Mapping[str, Sequence[str]], inside: tuple[bool, bool]
) -> str:
    # Imported here because its patterns take most of a second to compile; the official rules do not need them.
    from vivavoce_textnorm.natural import read_block

    own = {sign: Say(*what) for sign, what in said.items()}
    before, after = inside
    return read_block(block, language, _unpacked(settings), own, (before, after))


def main() -> None:
    """Answer each block with its words, or with null if the rules fail."""
    ignore_signals()  # the parent closes the input when it ends
    if "--nice" in sys.argv[1:]:
        os.nice(_NICENESS)
    digits_in_chinese = "--digits-in-chinese" in sys.argv[1:]
    languages = load_languages(digits_in_chinese=digits_in_chinese) if has_official_rules() else None
    for line in sys.stdin.buffer:
        block, how, *natural = json.loads(line)
        words = None
        with suppress(Exception):
            if natural:
                words = _read_naturally(block, how, *natural)
            elif languages:
                words = languages.read(block, how)
        sys.stdout.buffer.write(json.dumps(words).encode() + b"\n")
        sys.stdout.buffer.flush()
