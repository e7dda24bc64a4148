"""Texts read in processes of their own, so that an engine in this one keeps its turns.

wetext holds the interpreter for milliseconds a text (see `reading`). Processes are started as programs, not forked:
the caller may use CUDA and threads, and its main module need not be importable. Each,
`python -m vivavoce.service.text.reading_processes [--digits-in-chinese]`, answers a line of JSON (text, language or
null) with another one, and ends when its input does.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from queue import SimpleQueue

from vivavoce.child import python_command
from vivavoce.service.text.reading import Language, Languages, SpokenForm, load_languages

log = logging.getLogger(__name__)


class ReadingProcesses:
    """Reads as `Languages` does; from any number of threads, as many texts at once as there are processes.

    Args:
        count: processes, 1 or more; a third of a second after their start they read.
        languages: reads what a process could not: its rules fail, or it has ended.
        digits_in_chinese: as in `load_languages`.
    """

    def __init__(self, count: int, languages: Languages, *, digits_in_chinese: bool) -> None:
        self._languages, self._digits_in_chinese = languages, digits_in_chinese
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self._idle.put(self._start())
        self._finalizer = weakref.finalize(self, _end, self._all)

    def spoken_form(self, text: str, language: Language | None = None) -> SpokenForm:
        """See `Languages.spoken_form`; waits for a process that is idle."""
        process, form = self._idle.get(), None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([text, language]).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            form = None if answer is None else SpokenForm(*answer)
        except (OSError, ValueError):  # it has ended
            if self._finalizer.alive:
                log.warning("a process that read texts has ended (%s); another one takes its place", process.poll())
                self._all.remove(process)
                _end([process])
                process = self._start()
        finally:
            self._idle.put(process)
        return form or self._languages.spoken_form(text, language)

    def close(self) -> None:
        """End the processes; what is still to be read is read here."""
        self._finalizer()

    def _start(self) -> subprocess.Popen[bytes]:
        command = python_command(__name__, *(["--digits-in-chinese"] if self._digits_in_chinese else []))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._all.append(process)
        return process


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Their input ends, and so do they."""
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # a text that was not sent yet
                pipe.close()
    for process in processes:
        process.wait()


def main() -> None:
    """Answer each text with its spoken form and language; with null where the rules fail."""
    # The parent process is interrupted, too, and closes the input when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    languages = load_languages(digits_in_chinese="--digits-in-chinese" in sys.argv[1:])
    form: SpokenForm | None
    for line in sys.stdin.buffer:
        try:
            form = languages.spoken_form(*json.loads(line))
        except Exception:  # the parent process reads it once more, and learns why
            form = None
        sys.stdout.buffer.write(json.dumps(form).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
