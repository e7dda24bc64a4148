"""Recognisers: the user's own, PocketSphinx, and listening in several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import RATE, Constant, Dying, Failing, PitchMeter, Spelling, Wordless, hum
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce_bench.evaluate import PocketSphinx, word_errors
from vivavoce_bench.evaluate.cases import SENTENCES
from vivavoce_bench.evaluate.error_rate import phone_errors, words
from vivavoce_bench.evaluate.recogniser import (
    END,
    START,
    Heard,
    Task,
    as_floats,
    bigram_arpa,
    listen,
    prepare,
    recogniser_named,
)
from vivavoce_bench.evaluate.speaking import Control, spoil_audio


def task(said="the cat", hz=120.0, seconds=0.2):
    return Task(prepare(hum(seconds, hz), RATE), tuple(said.split()))


def test_audio_is_prepared_as_the_protocol_says():
    wave = prepare(hum(1.0, level=0.9), RATE)
    assert (wave.dtype, len(wave)) == (np.int16, 16_000 + 2 * 3_200)
    assert np.abs(wave).max() == round(0.6 * 32767)
    assert 0.3e-4 < as_floats(wave[:3_000]).std() < 1.5e-4
    np.testing.assert_array_equal(wave, prepare(hum(1.0, level=0.9), RATE))
    # Level does not matter, and silence is not blown up.
    assert np.abs(prepare(hum(1.0, level=0.2), RATE).astype(int) - wave).max() < 32767 * 2e-3
    assert np.abs(prepare(np.zeros(RATE, np.float32), RATE)).max() < 32767 * 0.5


def test_a_name_makes_a_recogniser():
    assert recogniser_named("evaluate_fakes:Constant")().transcribe(np.zeros(1, np.float32)) == "the cat sat"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("evaluate_fakes", "'evaluate_fakes' is not of the form module:callable"),
        (":x", "is not of the form"),
        ("no_such_module_here:x", "'no_such_module_here' cannot be imported"),
        ("evaluate_fakes:absent", "module 'evaluate_fakes' has no 'absent'"),
        ("evaluate_fakes:not_a_recogniser", "made a dict, which has no method transcribe"),
        ("evaluate_fakes:broken_factory", "evaluate_fakes:broken_factory fails .RuntimeError: no weights.; correct it"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(name, message):
    with pytest.raises(InvalidRequest, match=f"^recogniser: .*{message}"):
        recogniser_named(name)()


def test_a_recogniser_is_asked_for_all_that_it_can():
    assert listen([task()], Constant) == [Heard("the cat sat", None, None)]
    assert listen([task("the cap"), task("a box")], Spelling) == [  # sentences are told in order
        Heard("the cat", "a box", "t h e c a t", 1, 6),
        Heard("the cat", "a box", "t h e c a t", 5, 1, frozenset({"box"})),
    ]


@pytest.mark.usefixtures("planted")
def test_several_processes_hear_the_same_in_the_same_order():
    tasks = [task(hz=hz) for hz in (100.0, 150.0, 200.0, 250.0, 300.0)]
    seen: list[int] = []
    apart = listen(tasks, recogniser_named("evaluate_fakes:PitchMeter"), 2, seen.append)
    assert apart == listen(tasks, PitchMeter)
    assert [one.free for one in apart] == [f"hum {hz}" for hz in (100, 150, 200, 250, 300)]
    assert seen[-1] == 5


@pytest.mark.parametrize(
    ("factory", "jobs", "message"),
    [
        *((Failing, jobs, "Failing fails .ZeroDivisionError: no such thing.; correct it") for jobs in (1, 2)),
        *((Wordless, jobs, "Wordless.transcribe gave a list; it must give a text") for jobs in (1, 2)),
        (Dying, 2, "one of its processes has failed; use fewer processes with --jobs"),
    ],
)
def test_a_failing_recogniser_is_one_line(factory, jobs, message):
    with pytest.raises(InvalidRequest, match=f"^recogniser: {message}"):
        listen([task(), task()], factory, jobs)


CLIP = Path(__file__).parents[2] / "data" / "evaluate" / "eleven_forty_two.flac"
TEXT = "It is eleven forty two in Boston."


@pytest.fixture(scope="module")
def sphinx():
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    return PocketSphinx()


@pytest.fixture(scope="module")
def speech():
    audio = decode_audio(CLIP)
    return as_floats(prepare(audio.samples, audio.sample_rate))


def test_free_words_and_phones_in_any_order(sphinx, speech):
    phones = sphinx.phones(speech)
    hiss = 0.01 * np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    sphinx.phones(as_floats(prepare(hiss, 16_000)))
    assert sphinx.phones(speech) == phones
    errors, total = phone_errors([sphinx.pronunciations(word) for word in words(TEXT)], phones)
    assert total == 25
    assert errors / total < 0.4
    assert sphinx.transcribe(speech) == "it is eleven forty two in boston"


@pytest.mark.slow
def test_closed_words(sphinx, speech):
    closed = sphinx.closed([words(TEXT), ["the", "dog", "barked", "qqzz"]])
    assert word_errors([(TEXT, closed.transcribe(speech))]).errors == 0
    audio = decode_audio(CLIP)
    backwards = spoil_audio(audio.samples, audio.sample_rate, Control.REVERSED)
    reversed_speech = as_floats(prepare(backwards, audio.sample_rate))
    assert word_errors([(TEXT, closed.transcribe(reversed_speech))]).rate > 0.6


def test_pronunciations(sphinx):
    assert sphinx.pronunciations("boston") == [["B", "AA", "S", "T", "AH", "N"], ["B", "AO", "S", "T", "AH", "N"]]
    assert sphinx.pronunciations("qqzz") == sphinx.pronunciations("你好") == []
    assert [word for sentence in SENTENCES for word in words(sentence) if not sphinx.pronunciations(word)] == []
    assert len(set(SENTENCES)) == 20


def test_without_the_package_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pocketsphinx", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vivavoce\[eval\]'"):
        PocketSphinx()


sentences = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5), min_size=1, max_size=5)


def read(arpa):
    """Probabilities by word (with backoff) and by pair."""
    ones, twos = arpa.split("\\1-grams:\n")[1].split("\\2-grams:\n")
    tables = [[line.split() for line in part.splitlines() if line] for part in (ones, twos)]
    single = {word: (10 ** float(one), 10 ** float(backoff)) for one, word, backoff in tables[0]}
    return single, {(first, second): 10 ** float(one) for one, first, second in tables[1][:-1]}


@given(sentences)
def test_what_may_follow_a_word_sums_to_one(said):
    single, pairs = read(bigram_arpa(said))
    vocabulary = {word for sentence in said for word in sentence} | {START, END}
    assert set(single) == vocabulary
    assert sum(probability for probability, _ in single.values()) == pytest.approx(1, abs=1e-4)
    for first in vocabulary - {END}:
        followers = vocabulary - {START}
        if all((first, second) in pairs for second in followers):
            continue  # nothing is left that the discount could go to
        total = sum(pairs.get((first, second), single[first][1] * single[second][0]) for second in followers)
        assert total == pytest.approx(1, abs=1e-4)


def test_pairs_that_occur_are_likelier():
    arpa = bigram_arpa([["the", "cat"], ["the", "dog"], ["the", "cat"]])
    assert arpa.startswith("\\data\\\nngram 1=5\nngram 2=5\n\n\\1-grams:\n")
    assert arpa.endswith("\n\\end\\\n")
    single, pairs = read(arpa)
    assert pairs["the", "cat"] > pairs["the", "dog"] > single["the"][1] * single[END][0]
    assert pairs[START, "the"] > 0.8
