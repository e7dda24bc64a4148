"""Texts read in other processes are read as here, whatever becomes of the processes."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce.service.text.normalize import load_languages
from vivavoce.service.text.readers import ReadingProcesses

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
def processes(languages):
    processes = ReadingProcesses(2, languages, digits_in_chinese=True)
    yield processes
    processes.close()


def test_they_read_as_this_process_does(processes, languages):
    with ThreadPoolExecutor(8) as threads:
        forms = list(threads.map(processes.spoken_form, TEXTS * 3))
    assert forms == [languages.spoken_form(text) for text in TEXTS * 3]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_they_read_in_the_language_that_was_asked_for(processes, languages, language):
    forms = [processes.spoken_form(text, language) for text in TEXTS]
    assert forms == [languages.spoken_form(text, language) for text in TEXTS]
    assert {form.language for form in forms} == {language}


def test_one_that_has_ended_is_replaced(processes, languages, caplog):
    processes.spoken_form("ready")
    for process in list(processes._all):
        process.kill()
        process.wait()
    assert [processes.spoken_form(text) for text in TEXTS] == [languages.spoken_form(text) for text in TEXTS]
    assert caplog.text.count("another one takes its place") == 2
    assert all(process.poll() is None for process in processes._all)
    assert len(processes._all) == 2


def test_they_end_with_whoever_asked(languages):
    processes = ReadingProcesses(1, languages, digits_in_chinese=False)
    (process,) = processes._all
    del processes
    assert process.returncode == 0


def test_after_the_end_texts_are_read_here(languages):
    processes = ReadingProcesses(1, languages, digits_in_chinese=True)
    processes.close()
    assert processes.spoken_form(TEXTS[0]) == languages.spoken_form(TEXTS[0])
    assert [process.poll() for process in processes._all] == [0]


class Failing:
    """Rules that fail on everything, as they never do."""

    def spoken_form(self, text, language=None):
        raise RuntimeError(f"no way through {text}")


def test_what_no_rules_can_read_is_an_error_here():
    processes = ReadingProcesses(1, Failing(), digits_in_chinese=False)
    (process,) = processes._all
    process.stdin.write(b"[]\n")  # no text: its rules fail
    process.stdin.flush()
    assert process.stdout.readline() == b"null\n"
    processes.close()
