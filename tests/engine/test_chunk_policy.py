import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy, Joins
from vivavoce.errors import InvalidRequest


def test_official_hops():
    policy = ChunkPolicy.official()
    assert [policy.hop(index) for index in range(5)] == [25, 50, 100, 100, 100]
    assert policy.joins is Joins.OFFICIAL


@pytest.mark.parametrize(("prompt", "added"), [(0, 0), (1, 24), (25, 0), (87, 13), (344, 6)])
def test_alignment_makes_whole_attention_chunks(prompt, added):
    assert ChunkPolicy().alignment(prompt) == added
    assert (prompt + added) % 25 == 0


@pytest.mark.parametrize("settings", [{"first_hop": 7}, {"first_hop": 50, "max_hop": 40}, {"growth": 0}])
def test_impossible_policies_are_refused(settings):
    with pytest.raises(InvalidRequest, match="chunk policy"):
        ChunkPolicy(**settings)
