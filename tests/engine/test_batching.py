from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.batching import bounded_groups


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 2000))
def test_each_item_once_and_no_group_too_large(sizes, budget):
    groups = bounded_groups(sizes, budget)
    assert sorted(place for group in groups for place in group) == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(sizes[place] for place in group) <= budget


def test_like_sizes_share_a_batch():
    assert bounded_groups([10, 100, 11, 99], 200) == [[1, 3], [2, 0]]
