"""Rates and requests at once, by a clock that stands still until it is moved."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.callers import ANYBODY, Allowance, Caller


@dataclass
class Clock:
    now: float = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def allowances(clock: Clock) -> Allowances:
    return Allowances(clock)


def caller(name: str = "anna", **limits: float) -> Caller:
    return Caller(name, name, False, Allowance(**limits))  # type: ignore[arg-type]


def refused(allowances: Allowances, who: Caller, characters: int = 0) -> float:
    """Seconds after which it may try again."""
    with pytest.raises(Overloaded) as error:
        allowances.enter(who, characters)
    return error.value.retry_after_s


def test_who_has_no_limits_leaves_no_trace(allowances: Allowances) -> None:
    for _ in range(1_000):
        allowances.enter(ANYBODY, 10**9)
    assert allowances._accounts == {}


def test_a_minutes_worth_at_once_then_evenly(allowances: Allowances, clock: Clock) -> None:
    anna = caller(requests_per_minute=30)
    for _ in range(30):
        allowances.enter(anna, 5)
    wait_s = refused(allowances, anna)
    assert wait_s == pytest.approx(2.0)
    clock.now += wait_s
    allowances.enter(anna, 5)
    assert refused(allowances, anna) == pytest.approx(2.0)
    clock.now += 3_600
    for _ in range(30):
        allowances.enter(anna, 5)
    refused(allowances, anna)


def test_less_than_one_request_in_a_minute(allowances: Allowances, clock: Clock) -> None:
    anna = caller(requests_per_minute=0.5)
    allowances.enter(anna, 0)
    assert refused(allowances, anna) == pytest.approx(120)
    clock.now += 120
    allowances.enter(anna, 0)


def test_characters_are_counted_and_a_refusal_costs_nothing(allowances: Allowances, clock: Clock) -> None:
    anna = caller(requests_per_minute=2, characters_per_minute=100)
    allowances.enter(anna, 90)
    for _ in range(5):
        assert refused(allowances, anna, 20) == pytest.approx(6.0)
    allowances.enter(anna, 10)
    assert refused(allowances, anna, 1) == pytest.approx(30.0), "of requests there are none left either"


def test_a_text_that_no_minute_holds_is_not_worth_a_wait(allowances: Allowances) -> None:
    anna = caller(characters_per_minute=100)
    with pytest.raises(InvalidRequest, match="text: 101 characters are more than the 100 in a minute"):
        allowances.enter(anna, 101)
    allowances.enter(anna, 100)


def test_requests_at_once(allowances: Allowances) -> None:
    anna = caller(concurrent=2)
    first, second = allowances.enter(anna, 5), allowances.enter(anna, 5)
    assert refused(allowances, anna) == 1.0
    first.leave()
    first.leave()  # once more changes nothing
    third = allowances.enter(anna, 5)
    refused(allowances, anna)
    for other in (second, third):
        other.leave()
    assert allowances._accounts["anna"].running == 0


def test_too_many_at_once_costs_no_rate(allowances: Allowances) -> None:
    anna = caller(concurrent=1, requests_per_minute=2)
    first = allowances.enter(anna, 5)
    refused(allowances, anna)
    first.leave()
    allowances.enter(anna, 5)


def test_callers_do_not_share(allowances: Allowances) -> None:
    allowances.enter(caller("anna", concurrent=1), 5)
    allowances.enter(caller("bert", concurrent=1), 5)
    refused(allowances, caller("anna", concurrent=1))


def test_an_arriving_text_pays_as_it_comes(allowances: Allowances, clock: Clock) -> None:
    anna = caller(characters_per_minute=60)
    visit = allowances.enter(anna, 0)
    visit.charge(60)
    with pytest.raises(Overloaded) as error:
        visit.charge(3)
    assert error.value.retry_after_s == pytest.approx(3.0)
    clock.now += 3
    visit.charge(3)
    allowances.enter(ANYBODY, 0).charge(10**9)


def test_new_limits_hold_at_once(allowances: Allowances, clock: Clock) -> None:
    for _ in range(60):
        allowances.enter(caller(requests_per_minute=60), 0)
    assert refused(allowances, caller(requests_per_minute=6)) == pytest.approx(10.0)
    clock.now += 600
    for _ in range(6):
        allowances.enter(caller(requests_per_minute=6), 0)
    refused(allowances, caller(requests_per_minute=6))
    allowances.enter(caller(concurrent=100), 0)
    allowances.enter(caller(requests_per_minute=6), 0)  # without the limit there is no memory of it


def test_callers_that_went_are_forgotten(allowances: Allowances, clock: Clock) -> None:
    busy = allowances.enter(caller("busy", concurrent=1), 0)
    for number in range(1_000):
        allowances.enter(caller(f"caller-{number}", requests_per_minute=60), 0).leave()
        clock.now += 1
    assert len(allowances._accounts) <= 3
    refused(allowances, caller("busy", concurrent=1))
    busy.leave()


@given(st.floats(0.1, 1e6), st.integers(0, 2000), st.floats(0, 1e9))
def test_who_waits_as_advised_is_let_in(rate: float, spent: int, start: float) -> None:
    clock = Clock(start)
    allowances = Allowances(clock)
    anna = caller(characters_per_minute=rate)
    characters = min(spent, int(max(1, rate)))
    allowances.enter(anna, characters)
    try:
        allowances.enter(anna, characters)
    except Overloaded as error:
        clock.now += error.retry_after_s
        allowances.enter(anna, characters)
