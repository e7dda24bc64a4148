"""Numbers, dates and units in words: wetext made safe for any text, the official rules, processes that read."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vivavoce.errors import RequestCancelled
from vivavoce.frontend.text.official import (
    WHOLE_CHARS,
    Languages,
    WetextNormalizer,
    close_trailing_comma,
    is_only_punctuation,
    load_languages,
    load_reader,
    number_words,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
    spell_out_number,
    spoken_form,
)
from vivavoce.frontend.text.official_processes import ReadingProcesses
from vivavoce_textnorm import Settings, blocks, is_speakable
from vivavoce_textnorm.word_stream import READING, natural_words


@pytest.mark.parametrize(
    ("rule", "cases"),
    [
        (replace_blank, {"a b": "a b", "a  b": "ab", "a 好": "a好", "好 a": "好a", "é b": "éb", " a ": "a"}),
        (replace_blank, {"a\n b": "a\n b", "": ""}),
        (is_only_punctuation, {"": True, "?!…": True, "😀": True, "❤️": False, "a!": False, "½": False}),
        (is_speakable, {"": False, "?!…": False, "😀": False, "❤️": False, "a!": True, "½": True}),
        (close_trailing_comma, {"好，": "好。", "好,,": "好。", "好、，,": "好。"}),
        (lambda text: spell_out_number(text, "<{}>".format), {"12a3²b. 45": "<12>a<3²>b. <45>"}),
    ],
)
def test_rules(rule, cases):
    assert {text: rule(text) for text in cases} == cases


def test_digits_in_words():
    cases = {
        "0": "zero",
        "007": "seven",
        "2024": "two thousand and twenty-four",
        "12345": "twelve thousand, three hundred and forty-five",
        "²": "zero",
        "٣": "three",
        "1" * 37: " ".join(["one"] * 37),
    }
    assert {digits: number_words(digits) for digits in cases} == cases


SENTENCES = (
    "I paid $3.50 on May 5, 2024!",
    "Is it 20% off?",
    "Dr. Smith lives at 221B Baker St. in London.",
    "No. 5 is alive.",
    'She said: "Go home."',
    "It happened in 1999; nobody cared.",
    "See https://x.com/y for more.",
    "At 10:30 a.m. we left.",
    "The lazy dog slept.",
)
CHINESE = (
    "今天是2024年3月5日，气温-3℃。",
    "价格是3.14元！",
    "hello world 你好。",
    "1/2的人，20%的钱。",
    "第1行\n",
    "好 2 好，",
)


@dataclass
class FakeNormalizer:
    """Writes 1 as "one"; like wetext it strips the text and fails, as a whole, where it meets what it does not know."""

    unknown: str = "€"
    seen: list[str] = field(default_factory=list)

    def normalize(self, text):
        self.seen.append(text)
        assert self.unknown not in text
        return text.strip().replace("1", "one")


def read(reader, text):
    """Block by block."""
    return "".join(map(reader, blocks(text.strip(), reader.language)))


@pytest.mark.parametrize(
    ("unknown", "text", "spoken", "seen"),
    [
        # What can be read is read once and whole.
        ("€", " 1 fish,  1 fish ", "one fish,  one fish", ["1 fish,  1 fish"]),
        # Only the part at fault stays as it was.
        ("€", "1 dog, 1 cat for € 1. 1 cow", "one dog, one cat for € one. one cow", None),
        # Spaces in a row are mended before the text is taken apart.
        ("  ", "1 dog,  1\n\ncat", "one dog, one cat", ["1 dog,  1\n\ncat", "1 dog, 1 cat"]),
    ],
)
def test_text_is_taken_apart_no_further_than_it_must_be(unknown, text, spoken, seen):
    fake = FakeNormalizer(unknown)
    assert read(WetextNormalizer("en", fake.normalize), text) == spoken
    assert seen is None or fake.seen == seen


def test_text_is_not_swallowed():
    assert WetextNormalizer("en", lambda text: "")("two words") == "two words"


@pytest.mark.parametrize("text", ["a" * 1800, "ab " * 700, "Some thing here. " * 120, "好，" * 900])
def test_long_text_is_read_in_blocks(text):
    fake = FakeNormalizer()
    assert read(WetextNormalizer("en", fake.normalize), text) == text.strip()
    assert all(len(block) <= WHOLE_CHARS for block in fake.seen)
    assert len(fake.seen) < 4 * len(text) / WHOLE_CHARS


@pytest.mark.parametrize("blank", [" ", "\n", " \n", ""])
def test_white_space_at_seams_of_chinese_is_kept(blank):
    text = "好" * 400 + "。" + blank + "吗" * 400
    assert read(WetextNormalizer("zh", FakeNormalizer().normalize), text) == text


def test_numbers_stay_with_their_words():
    fake = FakeNormalizer()
    read(WetextNormalizer("en", fake.normalize), "we ran 5 km on May 5 " * 100)
    assert len(fake.seen) > 4
    assert not any(block.endswith(("5", "May")) or block.startswith(("5", "km")) for block in fake.seen[:-1])


@given(sentences=st.lists(st.sampled_from(SENTENCES), min_size=25, max_size=35))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
def test_english_blocks_read_as_the_whole(sentences):
    reader = load_reader("en")
    text = " ".join(sentences[:12]) + "\n" + "\n".join(sentences[12:])
    assert len(text) > WHOLE_CHARS
    assert read(reader, text) == reader.normalize(text)


@given(sentences=st.lists(st.sampled_from(CHINESE), min_size=60, max_size=80))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
def test_chinese_blocks_read_as_the_whole(sentences):
    reader = load_reader("zh")
    text = "".join(sentences)
    assert len(text) > WHOLE_CHARS
    assert read(reader, text) == reader.normalize(text.strip())


@given(text=st.text(alphabet="好a1 -—.，,\n²（）", min_size=1_000, max_size=1_900))
@settings(deadline=None, max_examples=20, phases=[Phase.generate])
def test_no_rule_looks_across_the_end_of_a_piece(text):
    said = replace_corner_mark(replace_blank(text.strip().replace("\n", ""))).replace(".", "。").replace(" - ", "，")
    pieces = [words for words, _ in spoken_form(text, "zh", lambda block, rules: block)]
    assert "".join(pieces) == close_trailing_comma(remove_bracket(said))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It costs 3€.", "It costs three euro."),
        ("#1 fan", "number one fan"),
        ("two  spaces, 2 words", "two spaces, two words"),
        ("see [3] and Mr. X", "see [ three ] and Mister X"),
        ("I have 3😀 left", "I have three 😀 left"),
        ("café3 or 4", "café three or four"),
    ],
)
def test_english_that_wetext_cannot_read_whole(text, spoken):
    assert load_reader("en")(text) == spoken


def test_threads_do_not_mix_their_numbers():
    before, read = sys.getswitchinterval(), partial(Languages(str, str, str).read, rules="en")
    numbers = [str(n * 7919) for n in range(1, 400)]
    alone = [number_words(number) for number in numbers]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(read, numbers * 4)) == alone * 4
    finally:
        sys.setswitchinterval(before)


def test_threads_read_one_block_after_the_other():
    together = Barrier(2)
    read = partial(Languages(lambda block: str(together.wait(0.2)), str, str).read, rules="zh")
    with ThreadPoolExecutor(2) as pool:
        for reading in [pool.submit(read, "好") for _ in range(2)]:
            with pytest.raises(BrokenBarrierError):
                reading.result()


@pytest.mark.parametrize("pieces", [["It is ", "11:42 now."], ["<speak>It is 11:42.</speak>"]])
def test_words_that_arrive_are_read_while_no_other_text_is(pieces):
    said = []
    reading = Thread(target=lambda: said.extend(natural_words(pieces, "en", Settings())))
    with READING:
        reading.start()
        reading.join(0.2)
        assert reading.is_alive()
    reading.join()
    assert "eleven forty two" in "".join(words for words, _ in said)


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
    monkeypatch.setattr("vivavoce.frontend.text.official_processes.python_command", lambda *_: command)

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
    monkeypatch.setattr("vivavoce.frontend.text.official_processes.TOO_LONG_S", 0.5)
    only = stand_ins(1)
    assert only.processes.read("hold", "en", LONG) == "hold"
    assert caplog.text.count("another one is started") == 1
    monkeypatch.undo()
    assert only.processes.read("next", "en", LONG) == "NEXT"


def test_text_stays_as_it_is_written_while_no_process_can_be_started(stand_ins, monkeypatch, caplog):
    only = stand_ins(1)
    with monkeypatch.context() as broken:
        broken.setattr("vivavoce.frontend.text.official_processes.python_command", lambda *_: ("/nowhere/python",))
        (process,) = only.processes._all
        process.kill()
        assert [only.processes.read("one", "en", 3) for _ in range(2)] == ["one", "one"]
    assert "no process that normalises texts can be started" in caplog.text
    assert only.processes.read("two", "en", 3) == "TWO"
