"""Users, arrivals and texts of a load, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from bench_fakes import Scripted, run

from vivavoce.errors import InvalidRequest
from vivavoce_bench.load import ClosedLoop, Ending, OpenLoop, Refused, Utterance, Workload, run_load, with_words
from vivavoce_bench.texts import SENTENCES


def utterances(count: int) -> list[Utterance]:
    return [Utterance(number, f"Text {number}.") for number in range(count)]


def test_one_user_asks_when_the_last_answer_is_whole() -> None:
    target = Scripted(lambda utterance: [(0.25, 100), (0.5, 200)])
    outcomes = run(run_load(target, utterances(3), ClosedLoop()))
    assert [at for at, _ in target.calls] == pytest.approx([0.0, 0.75, 1.5])
    assert [one.utterance.number for one in outcomes] == [0, 1, 2]
    for one in outcomes:
        assert one.ending is Ending.OK
        assert one.ttfb_s == pytest.approx(0.25)
        assert one.gaps_s == pytest.approx([0.5])
        assert one.end_s - one.start_s == pytest.approx(0.75)
        assert one.audio_s == pytest.approx(0.3)
        assert one.rtf == pytest.approx(2.5)


def test_each_of_several_users_takes_the_next_utterance() -> None:
    lengths = [3.0, 1.0, 1.0, 1.0, 1.0]
    target, seen = Scripted(lambda utterance: [(lengths[utterance.number], 1)]), list[int]()
    outcomes = run(run_load(target, utterances(5), ClosedLoop(2), seen.append))
    assert seen == [1, 2, 3, 4, 5]
    assert target.most == 2
    # The first user is busy for 3 s; the second one does three meanwhile.
    assert [one.start_s for one in outcomes] == pytest.approx([0.0, 0.0, 1.0, 2.0, 3.0])
    assert [one.utterance.number for one in outcomes] == [0, 1, 2, 3, 4], "in the order of the load, not of the ends"


def test_arrivals_do_not_wait_for_answers() -> None:
    target = Scripted(lambda utterance: [(100.0, 1)])
    load = OpenLoop(rate=2.0, seed=5)
    outcomes = run(run_load(target, utterances(20), load))
    assert target.most == 20
    assert [at for at, _ in target.calls] == pytest.approx(load.arrivals(20))
    assert [one.start_s for one in outcomes] == pytest.approx(load.arrivals(20))
    assert all(one.ttfb_s == pytest.approx(100.0) for one in outcomes)


def test_arrivals_are_a_poisson_process_of_that_rate() -> None:
    times = OpenLoop(rate=4.0, seed=1).arrivals(4001)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    # Of an exponential distribution the deviation is the mean; of a regular beat it would be 0.
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(0.25, rel=0.05)
    assert times == OpenLoop(rate=4.0, seed=1).arrivals(4001)
    assert times != OpenLoop(rate=4.0, seed=2).arrivals(4001)


def test_a_late_program_counts_as_waiting() -> None:
    """A user comes at the planned moment, and what keeps the program from asking then is the user's wait."""

    async def held_up() -> float:
        loop = asyncio.get_running_loop()
        load = OpenLoop(rate=1.0, seed=3)
        second = load.arrivals(2)[1]

        class Blocking(Scripted):
            async def speak(self, utterance):  # type: ignore[no-untyped-def]
                if utterance.number == 0:
                    loop._virtual.now += second + 5.0  # type: ignore[attr-defined]
                async for piece in super().speak(utterance):
                    yield piece

        outcomes = await run_load(Blocking(lambda utterance: [(0.0, 1)]), utterances(2), load)
        return outcomes[1].ttfb_s

    assert run(held_up()) == pytest.approx(5.0)


def test_failures_are_outcomes_and_end_nothing_else() -> None:
    def script(utterance: Utterance):  # type: ignore[no-untyped-def]
        return [ValueError("no such voice"), [(1.0, 5)], []][utterance.number]

    broken, fine, silent = run(run_load(Scripted(script), utterances(3), ClosedLoop(3)))
    assert (broken.ending, broken.problem) == (Ending.FAILED, "ValueError: no such voice")
    assert fine.ending is Ending.OK
    assert (silent.ending, silent.problem) == (Ending.FAILED, "no audio came")


def test_who_is_refused_waits_as_told() -> None:
    target = Scripted(lambda utterance: Refused(4.0) if utterance.number < 2 else [(1.0, 1)])
    outcomes = run(run_load(target, utterances(4), ClosedLoop(1)))
    assert [one.ending for one in outcomes] == [Ending.REFUSED, Ending.REFUSED, Ending.OK, Ending.OK]
    assert [at for at, _ in target.calls] == pytest.approx([0.0, 4.0, 8.0, 9.0])


@pytest.mark.parametrize(
    ("load", "values", "field"),
    [(ClosedLoop, (0, -1, 4097), "concurrency"), (OpenLoop, (0.0, -1.0, float("nan"), float("inf")), "rate")],
)
def test_a_load_outside_its_limits_is_refused(load: Any, values: tuple[float, ...], field: str) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=f"^{field}: "):
            load(value)


def test_the_seed_decides_and_the_purpose_as_well() -> None:
    one, other = Workload(seed=1), Workload(seed=2)
    assert one.utterances(50) == Workload(seed=1).utterances(50)
    assert [u.text for u in one.utterances(50)] != [u.text for u in other.utterances(50)]
    assert [u.text for u in one.utterances(50)] != [u.text for u in one.utterances(50, "warm-up")]


def test_texts_come_in_rounds_and_voices_in_turn() -> None:
    texts = ["one", "two", "three"]
    said = Workload(texts, voices=("anna", "ben"), seed=7).utterances(12)
    assert Counter(u.text for u in said) == {"one": 4, "two": 4, "three": 4}
    assert [u.voice for u in said] == ["anna", "ben"] * 6
    assert [u.seed for u in said] == list(range(7, 19))
    assert [u.number for u in said] == list(range(12))


def test_words_bound_the_texts() -> None:
    assert with_words(["a", "a b", "a b c"], 2, 3) == ["a b", "a b c"]
    with pytest.raises(InvalidRequest, match="words: no text has 4 to 9 words, they have 1 to 3"):
        with_words(["a", "a b c"], 4, 9)


def test_the_sentences_spread_in_length() -> None:
    counts = sorted(len(sentence.split()) for sentence in SENTENCES)
    assert len(set(SENTENCES)) == len(SENTENCES) == 40
    assert (counts[0], counts[-1]) == (3, 34)
    assert counts[19] <= 11
    assert not any(character.isdigit() for character in "".join(SENTENCES))
