"""Texts read in processes of their own, so that an engine in this one keeps its turns.

wetext holds the interpreter for up to 0.2 s a block (see `reading`). Processes are started as programs, not forked:
the caller may use CUDA and threads, and its main module need not be importable. Each (`main`) answers a line of JSON
(a block, the rules) with another one, and ends when its input does.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from itertools import count
from multiprocessing.connection import wait
from threading import Condition

from vivavoce.child import python_command
from vivavoce.errors import RequestCancelled
from vivavoce.frontend.text.official import WHOLE_CHARS, Rules, load_languages
from vivavoce_textnorm import CancelCheck, never_cancelled

log = logging.getLogger(__name__)

TOO_LONG_S = 30.0
"""A process that reads one block for so long is replaced; the slowest block takes 0.3 s of a processor."""
_ASKED_EVERY_S = 0.1
"""Seconds between two cancellation checks of a request that waits for a process."""
_ENDING_S = 5.0
_NICENESS = 10


class ReadingProcesses:
    """Reads as `Languages` does; from any number of threads, as many blocks at once as there are processes.

    Blocks of shorter texts are read first. The first process is kept for texts of one block; the others, which read
    blocks of longer texts too, give way where processors are busy.

    Args:
        number: of processes: 2 or more, or 1 that reads everything; a third of a second after their start they read.
        digits_in_chinese: as in `load_languages`.
    """

    def __init__(self, number: int, *, digits_in_chinese: bool) -> None:
        self._digits_in_chinese = digits_in_chinese
        self._all = [self._start(place) for place in range(number)]
        self._idle = set(range(number))
        self._waiting: set[tuple[int, int]] = set()  # the length of the whole text, and who came first
        self._came, self._changed = count(), Condition()
        self._finalizer = weakref.finalize(self, _end, self._all)

    def read(self, block: str, rules: Rules, length: int, cancelled: CancelCheck = never_cancelled) -> str:
        """See `Languages.read`; waits for a process that is idle. What none can read stays as it is written.

        length: of the whole text; cancelled: asked while it waits.
        """
        place = self._take(length, cancelled)
        try:
            for _ in range(2):  # a process that had ended while it was idle was not ended by this block
                process = self._all[place]
                try:
                    return _ask(process, block, rules)
                except (OSError, ValueError) as error:
                    if not self._finalizer.alive:
                        break
                    process.kill()
                    told = {"exit_code": process.wait()}
                    log.warning("text process ended: exit %(exit_code)s; another one takes its place", told)
                    _end([process])
                    self._all[place] = self._start(place)
                    if isinstance(error, TimeoutError):
                        break
        except OSError as error:
            log.warning(
                "text process missing: no process that reads texts can be started (%(error)s)", {"error": error}
            )
        finally:
            with self._changed:
                self._idle.add(place)
                self._changed.notify_all()
        return block

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def _take(self, length: int, cancelled: CancelCheck) -> int:
        """The place of an idle process, which is not idle then, when it is this text's turn."""
        least = 0 if length <= WHOLE_CHARS else min(1, len(self._all) - 1)
        with self._changed:
            turn = length, next(self._came)
            self._waiting.add(turn)
            try:
                while not cancelled():
                    fit = [place for place in self._idle if place >= least]
                    if fit and turn == min(self._waiting):
                        self._idle.remove(min(fit))
                        return min(fit)
                    self._changed.wait(_ASKED_EVERY_S)
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        raise RequestCancelled("request: was cancelled")

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        flags = (["--digits-in-chinese"] if self._digits_in_chinese else []) + (["--nice"] if place else [])
        return subprocess.Popen(python_command(__name__, *flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(process: subprocess.Popen[bytes], block: str, rules: Rules) -> str:
    """Its answer; OSError, ValueError: the process has ended; TimeoutError: it takes too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([block, rules]).encode() + b"\n")
    process.stdin.flush()
    if not wait([process.stdout.fileno()], TOO_LONG_S):
        raise TimeoutError
    words: str = json.loads(process.stdout.readline())
    return words


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Their input ends, and so do they."""
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # a text that was not sent yet
                pipe.close()
    for process in processes:
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Answer each block with its words; with itself where the rules fail."""
    # The parent process is interrupted, too, and closes the input when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "--nice" in sys.argv[1:]:
        os.nice(_NICENESS)
    languages = load_languages(digits_in_chinese="--digits-in-chinese" in sys.argv[1:])
    for line in sys.stdin.buffer:
        words, rules = json.loads(line)
        with suppress(Exception):
            words = languages.read(words, rules)
        sys.stdout.buffer.write(json.dumps(words).encode() + b"\n")
        sys.stdout.buffer.flush()
