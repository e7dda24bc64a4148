"""Histograms against the values themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.histogram import SECONDS, SIZES, Histogram, HistogramSnapshot, log_bounds


def counted(values: list[float], bounds: tuple[float, ...] = SECONDS) -> HistogramSnapshot:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram.snapshot()


def test_bounds_are_logarithmic_and_reach_from_low_to_high() -> None:
    assert log_bounds(0.1, 10.0, 1) == pytest.approx((0.1, 1.0, 10.0))
    assert len(SECONDS) == 8 * 5 + 1
    assert (SECONDS[0], SECONDS[-1]) == pytest.approx((1e-5, 1e3))
    assert (SIZES[0], SIZES[-1]) == (1.0, 4096.0)


def test_a_bound_belongs_to_its_bucket_and_the_last_bucket_is_open() -> None:
    snapshot = counted([0.0, 1.0, 1.5, 2.0, 1e9], bounds=(1.0, 2.0))
    assert snapshot.counts == (2, 2, 1)
    assert (snapshot.count, snapshot.maximum, snapshot.total) == (5, 1e9, 4.5 + 1e9)


def test_an_empty_one_says_zero() -> None:
    empty = counted([])
    assert (empty.count, empty.mean, empty.maximum, empty.quantile(0.5)) == (0, 0.0, 0.0, 0.0)


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_a_quantile_is_never_too_low_and_at_most_one_bucket_too_high(values: list[float], share: float) -> None:
    snapshot = counted(values)
    value = snapshot.quantile(share)
    assert sum(each <= value for each in values) >= share * len(values) * (1 - 1e-9)
    ordered = sorted(values)
    exact = ordered[max(0, min(len(values), -int(-share * len(values) // 1)) - 1)]
    assert value <= max(exact * 10 ** (1 / 5) * (1 + 1e-9), SECONDS[0]) or value == snapshot.maximum
    assert snapshot.mean == pytest.approx(sum(values) / len(values))


def test_quantiles_tell_buckets_apart() -> None:
    snapshot = counted([0.001] * 90 + [1.0] * 10)
    assert snapshot.quantile(0.0) == pytest.approx(0.001, rel=0.6)
    assert snapshot.quantile(0.9) == pytest.approx(0.001, rel=0.6)
    assert snapshot.quantile(0.91) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        counted([1.0]).quantile(share)


def test_a_snapshot_stays_as_it_was() -> None:
    histogram = Histogram(SIZES)
    histogram.observe(3)
    before = histogram.snapshot()
    histogram.observe(5)
    assert (before.count, histogram.snapshot().count) == (1, 2)
