"""Users and arrivals, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from bench_fakes import Scripted, run

from vivavoce.bench.load import ClosedLoop, OpenLoop, run_load
from vivavoce.bench.outcome import Ending
from vivavoce.bench.target import Refused, Utterance
from vivavoce.errors import InvalidRequest


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
    target = Scripted(lambda utterance: [(lengths[utterance.number], 1)])
    outcomes = run(run_load(target, utterances(5), ClosedLoop(2)))
    assert target.most == 2
    # The first user is busy for 3 s; the second one does three meanwhile.
    assert [one.start_s for one in outcomes] == pytest.approx([0.0, 0.0, 1.0, 2.0, 3.0])
    assert [one.utterance.number for one in outcomes] == [0, 1, 2, 3, 4], "in the order of the load, not of the ends"


def test_users_without_work_do_not_come() -> None:
    target = Scripted(lambda utterance: [(1.0, 1)])
    assert len(run(run_load(target, utterances(2), ClosedLoop(8)))) == 2
    assert target.most == 2


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


def test_a_failure_midway_keeps_what_came() -> None:
    class Breaking(Scripted):
        async def speak(self, utterance):  # type: ignore[no-untyped-def]
            async for piece in super().speak(utterance):
                yield piece
            raise OSError("gone")

    (one,) = run(run_load(Breaking(lambda utterance: [(0.5, 7)]), utterances(1), ClosedLoop()))
    assert (one.ending, one.problem, len(one.arrivals)) == (Ending.FAILED, "OSError: gone", 1)


def test_who_is_refused_waits_as_told() -> None:
    target = Scripted(lambda utterance: Refused(4.0) if utterance.number < 2 else [(1.0, 1)])
    outcomes = run(run_load(target, utterances(4), ClosedLoop(1)))
    assert [one.ending for one in outcomes] == [Ending.REFUSED, Ending.REFUSED, Ending.OK, Ending.OK]
    assert [at for at, _ in target.calls] == pytest.approx([0.0, 4.0, 8.0, 9.0])


def test_the_end_of_each_request_is_told() -> None:
    seen: list[int] = []
    run(run_load(Scripted(lambda utterance: [(1.0, 1)]), utterances(5), ClosedLoop(2), seen.append))
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_concurrency_outside_its_limits_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"concurrency: {count} is outside of 1 … 4096"):
        ClosedLoop(count)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_outside_its_limits_is_refused(rate: float) -> None:
    with pytest.raises(InvalidRequest, match=r"rate: .* is outside of 0"):
        OpenLoop(rate)
