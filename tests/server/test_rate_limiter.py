"""Rates and requests at once, by a clock that stands still until it is moved."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.server.rate_limiter import ANONYMOUS, Principal, RateLimiter


@dataclass
class Clock:
    now: float = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(clock)


def anna(name: str = "anna", **limits: float) -> Principal:
    return Principal(name, name, False, **limits)  # type: ignore[arg-type]


def refused(limiter: RateLimiter, principal: Principal, characters: int = 0) -> float:
    """Seconds after which it may try again."""
    with pytest.raises(Overloaded) as error:
        limiter.enter(principal, characters)
    return error.value.retry_after_s


def test_a_principal_without_limits_leaves_no_trace(limiter: RateLimiter) -> None:
    for _ in range(1_000):
        limiter.enter(ANONYMOUS, 10**9).charge(10**9)
    assert len(limiter) == 0


def test_a_minutes_worth_at_once_then_evenly(limiter: RateLimiter, clock: Clock) -> None:
    principal = anna(requests_per_minute=30)
    for _ in range(30):
        limiter.enter(principal, 5)
    wait_s = refused(limiter, principal)
    assert wait_s == pytest.approx(2.0)
    clock.now += wait_s
    limiter.enter(principal, 5)
    assert refused(limiter, principal) == pytest.approx(2.0)
    clock.now += 3_600
    for _ in range(30):
        limiter.enter(principal, 5)
    refused(limiter, principal)


def test_less_than_one_request_in_a_minute(limiter: RateLimiter, clock: Clock) -> None:
    principal = anna(requests_per_minute=0.5)
    limiter.enter(principal, 0)
    assert refused(limiter, principal) == pytest.approx(120)
    clock.now += 120
    limiter.enter(principal, 0)


def test_characters_are_counted_and_a_refusal_costs_nothing(limiter: RateLimiter) -> None:
    principal = anna(requests_per_minute=2, characters_per_minute=100)
    with pytest.raises(InvalidRequest, match="text: 101 characters are more than the 100 in a minute"):
        limiter.enter(principal, 101)
    limiter.enter(principal, 90)
    for _ in range(5):
        assert refused(limiter, principal, 20) == pytest.approx(6.0)
    limiter.enter(principal, 10)
    assert refused(limiter, principal, 1) == pytest.approx(30.0), "of requests there are none left either"


def test_requests_at_once(limiter: RateLimiter) -> None:
    principal = anna(concurrent=2, requests_per_minute=4)
    first, second = limiter.enter(principal, 5), limiter.enter(principal, 5)
    for _ in range(3):
        assert refused(limiter, principal) == 1.0  # which costs no rate
    limiter.enter(anna("bert", concurrent=1), 5)
    first.leave()
    first.leave()  # once more changes nothing
    limiter.enter(principal, 5)
    refused(limiter, principal)
    second.leave()
    limiter.enter(principal, 5)


def test_an_arriving_text_pays_as_it_comes(limiter: RateLimiter, clock: Clock) -> None:
    permit = limiter.enter(anna(characters_per_minute=60), 0)
    permit.charge(60)
    with pytest.raises(Overloaded) as error:
        permit.charge(3)
    assert error.value.retry_after_s == pytest.approx(3.0)
    clock.now += 3
    permit.charge(3)


def test_new_limits_hold_at_once(limiter: RateLimiter, clock: Clock) -> None:
    for _ in range(60):
        limiter.enter(anna(requests_per_minute=60), 0)
    assert refused(limiter, anna(requests_per_minute=6)) == pytest.approx(10.0)
    clock.now += 600
    for _ in range(6):
        limiter.enter(anna(requests_per_minute=6), 0)
    refused(limiter, anna(requests_per_minute=6))
    limiter.enter(anna(concurrent=100), 0)
    limiter.enter(anna(requests_per_minute=6), 0)  # without the limit its bucket is dropped


def test_idle_accounts_are_dropped_and_busy_ones_stay(limiter: RateLimiter, clock: Clock) -> None:
    limiter.enter(anna("busy", concurrent=1), 0)
    for number in range(100):
        limiter.enter(anna(f"once-{number}", requests_per_minute=60), 0).leave()
        clock.now += 1
    assert len(limiter) <= 3
    refused(limiter, anna("busy", concurrent=1))


@given(st.floats(0.1, 1e6), st.integers(0, 2000), st.floats(0, 1e9))
def test_the_advised_wait_is_long_enough(rate: float, spent: int, start: float) -> None:
    clock = Clock(start)
    limiter = RateLimiter(clock)
    principal = anna(characters_per_minute=rate)
    characters = min(spent, int(max(1, rate)))
    limiter.enter(principal, characters)
    try:
        limiter.enter(principal, characters)
    except Overloaded as error:
        clock.now += error.retry_after_s
        limiter.enter(principal, characters)
