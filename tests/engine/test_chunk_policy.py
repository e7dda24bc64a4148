from itertools import accumulate

import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy, Joins
from vivavoce.errors import InvalidRequest


def test_official_hops():
    policy = ChunkPolicy.official()
    assert [policy.hop(index, 87, 25) for index in range(5)] == [38, 50, 100, 100, 100]
    assert policy.joins is Joins.OFFICIAL


@pytest.mark.parametrize(("prompt", "added"), [(0, 0), (1, 24), (25, 0), (87, 13), (344, 6)])
def test_the_first_hop_ends_with_an_attention_chunk(prompt, added):
    assert ChunkPolicy().hop(0, prompt, 25) == 25 + added
    assert ChunkPolicy.official().hop(0, prompt, 25) == 25 + added


@pytest.mark.parametrize("chunk", [10, 25, 40])
def test_seamless_hops_are_whole_attention_chunks(chunk):
    policy = ChunkPolicy(first_hop=12, max_hop=90)
    for prompt in (0, 7, 87):
        ends = accumulate((policy.hop(index, prompt, chunk) for index in range(6)), initial=prompt)
        assert all(end % chunk == 0 for end in list(ends)[1:])


@pytest.mark.parametrize(
    "settings", [{"first_hop": 7}, {"first_hop": 50, "max_hop": 40}, {"growth": 0}, {"first_hop": 8.5}]
)
def test_impossible_policies_are_refused(settings):
    with pytest.raises(InvalidRequest, match="chunk policy"):
        ChunkPolicy(**settings)
