"""A map over processes: in order, and no item but the bad one is lost."""

from __future__ import annotations

from itertools import count, islice

import pytest

from tests.training.data.corpus_fakes import make_nothing, make_worker
from training.data.workers import ordered_map

ITEMS = [f"item {index}" for index in range(40)]


def test_results_come_in_order() -> None:
    assert list(ordered_map(make_worker, ITEMS, jobs=2)) == [item.upper() for item in ITEMS]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_loses_the_item_alone(jobs: int) -> None:
    items = [*ITEMS[:5], "crash", *ITEMS[5:20], "crash", "crash", *ITEMS[20:]]
    expected = [None if item == "crash" else item.upper() for item in items]
    assert list(ordered_map(make_worker, items, jobs=jobs)) == expected


def test_a_hang_loses_the_item_alone() -> None:
    items = [*ITEMS[:3], "hang", *ITEMS[3:]]
    expected = [None if item == "hang" else item.upper() for item in items]
    assert list(ordered_map(make_worker, items, jobs=2, patience_s=1.0)) == expected


def test_a_bug_is_raised() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        list(ordered_map(make_worker, ["a", "raise", "b"], jobs=1))


def test_a_worker_that_cannot_start_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no library"):
        list(ordered_map(make_nothing, ITEMS, jobs=1))


def test_items_may_be_without_end() -> None:
    results = ordered_map(make_worker, (str(number) for number in count()), jobs=2)
    assert list(islice(results, 300)) == [str(number) for number in range(300)]
    results.close()


def test_no_items_no_results() -> None:
    assert list(ordered_map(make_worker, [], jobs=2)) == []
