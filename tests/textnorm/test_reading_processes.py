"""Processes that read texts: the same words as this one, shorter texts first, and no text lost when one ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vivavoce.errors import RequestCancelled
from vivavoce_textnorm.official import load_languages
from vivavoce_textnorm.reading_processes import ReadingProcesses

TEXTS = [
    "It costs $5 on May 3.",
    "今天是2024年5月3日。",
    "costs 3€",
    '"Quoted"\nand a second line, 100%',
    "7",
    "naïve café ☕",
]


@pytest.fixture(scope="module")
def languages():
    return load_languages(digits_in_chinese=True)


@pytest.fixture
def processes():
    processes = ReadingProcesses(2, digits_in_chinese=True)
    yield processes
    processes.close()


@pytest.mark.parametrize("rules", ["en", "zh", "digits"])
def test_they_read_as_this_process_does(processes, languages, rules):
    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda text: processes.read(text, rules, len(text)), TEXTS * 3))
    assert read == [languages.read(text, rules) for text in TEXTS * 3]


def test_those_that_read_blocks_of_long_texts_give_way(processes):
    with ThreadPoolExecutor(1) as thread:
        short = thread.submit(processes.read, "It was 11:42.", "en", 13)
        assert processes.read("On 3/4/2024", "en", 20_000).startswith("On the fourth of march")
        short.result()
    first, second = (os.getpriority(os.PRIO_PROCESS, process.pid) for process in processes._all)
    assert (first, second) == (os.nice(0), min(os.nice(0) + 10, 19))


def test_one_that_has_ended_is_replaced(processes, languages, caplog):
    processes.read("ready", "en", 5)
    for process in list(processes._all):
        process.kill()
        process.wait()
    for length in (13, 20_000):
        read = [processes.read(text, "en", length) for text in TEXTS]
        assert read == [languages.read(text, "en") for text in TEXTS]
    assert caplog.text.count("another one is started") == 2
    assert all(process.poll() is None for process in processes._all)


def test_they_end_with_whoever_asked():
    processes = ReadingProcesses(1, digits_in_chinese=False)
    (process,) = processes._all
    del processes
    assert process.returncode == 0


def test_what_the_rules_cannot_read_stays_as_it_is_written(processes):
    assert processes.read(3, "en", 1) == 3  # no text: the rules fail


STAND_IN = """
import json, sys, time
from pathlib import Path
for line in sys.stdin:
    block, _ = json.loads(line)
    with open(sys.argv[1], "a") as log:
        log.write(block + " ")
    while block.startswith("hold") and not Path(sys.argv[1] + ".go").exists():
        time.sleep(0.01)
    print(json.dumps(block.upper()), flush=True)
"""
LONG = 20_000


class StandIns:
    """Processes that are at a block "hold …" until they are let go, and threads that wait for them."""

    def __init__(self, number, log):
        self.log, self.go, self.threads = log, Path(f"{log}.go"), ThreadPoolExecutor(8)
        self.processes = ReadingProcesses(number, digits_in_chinese=False)

    def read(self, block, length, cancelled=lambda: False):
        """A block whose process is asked or waited for."""
        waiting = len(self.processes._waiting)
        future = self.threads.submit(self.processes.read, block, "en", length, cancelled)
        until(lambda: block in self.seen or len(self.processes._waiting) > waiting)
        return future

    @property
    def seen(self):
        return self.log.read_text().split() if self.log.exists() else []


def until(condition):
    late = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.005)


@pytest.fixture
def stand_ins(monkeypatch, tmp_path):
    log, all_of_them = tmp_path / "log", []
    command = (sys.executable, "-c", STAND_IN, str(log))
    monkeypatch.setattr("vivavoce_textnorm.reading_processes.python_command", lambda *_: command)

    def start(number):
        all_of_them.append(StandIns(number, log))
        return all_of_them[-1]

    yield start
    (tmp_path / "log.go").touch()
    for one in all_of_them:
        one.threads.shutdown()
        one.processes.close()


def test_long_texts_leave_a_process_to_short_ones(stand_ins):
    both = stand_ins(2)
    long = [both.read(f"hold{n}", LONG) for n in range(3)]
    assert both.processes.read("short", "en", 5) == "SHORT"
    assert both.seen == ["hold0", "short"]
    both.go.touch()
    assert [one.result() for one in long] == ["HOLD0", "HOLD1", "HOLD2"]


def test_shorter_texts_come_first_and_equal_ones_in_their_order(stand_ins):
    only = stand_ins(1)
    asked = [only.read(*one) for one in [("hold", LONG), ("b", LONG), ("c", LONG), ("d", 900), ("e", 5), ("f", 5)]]
    only.go.touch()
    assert [one.result() for one in asked] == ["HOLD", "B", "C", "D", "E", "F"]
    assert only.seen == ["hold", "e", "f", "d", "b", "c"]


def test_a_text_that_is_given_up_while_it_waits_is_not_read(stand_ins):
    only, left = stand_ins(1), threading.Event()
    held, given_up = only.read("hold", LONG), only.read("b", LONG, left.is_set)
    left.set()
    with pytest.raises(RequestCancelled):
        given_up.result()
    only.go.touch()
    assert (held.result(), only.seen) == ("HOLD", ["hold"])


def test_a_text_that_is_given_up_already_is_not_read(stand_ins):
    only = stand_ins(1)
    with pytest.raises(RequestCancelled):
        only.processes.read("b", "en", LONG, lambda: True)
    assert only.processes.read("c", "en", LONG) == "C"
    assert only.seen == ["c"]


def test_one_that_takes_too_long_is_replaced_and_its_block_stays_as_it_is_written(stand_ins, monkeypatch, caplog):
    monkeypatch.setattr("vivavoce_textnorm.reading_processes.TOO_LONG_S", 0.5)
    only = stand_ins(1)
    assert only.processes.read("hold", "en", LONG) == "hold"
    assert caplog.text.count("another one is started") == 1
    monkeypatch.undo()
    assert only.processes.read("next", "en", LONG) == "NEXT"


def test_text_stays_as_it_is_written_while_no_process_can_be_started(stand_ins, monkeypatch, caplog):
    only = stand_ins(1)
    with monkeypatch.context() as broken:
        broken.setattr("vivavoce_textnorm.reading_processes.python_command", lambda *_: ("/nowhere/python",))
        (process,) = only.processes._all
        process.kill()
        assert [only.processes.read("one", "en", 3) for _ in range(2)] == ["one", "one"]
    assert "no process that normalises texts can be started" in caplog.text
    assert only.processes.read("two", "en", 3) == "TWO"
