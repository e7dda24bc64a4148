import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.flow_stage.blocks import at_rate, block_ends, grid_ends, near_equal, whole_ends
from vivavoce.models.layers.masks import visible_keys


@given(start=st.integers(0, 200), size=st.integers(0, 300), most=st.integers(1, 60))
def test_blocks_are_few_and_near_equal(start, size, most):
    bounds = near_equal(start, start + size, most)
    sizes = np.diff([start, *bounds])
    assert sum(sizes) == size
    assert len(bounds) == -(-size // most)
    assert size == 0 or (sizes.max() <= most and sizes.max() - sizes.min() <= 1)


def test_a_position_sees_to_the_end_of_its_block():
    assert block_ends((2, 5, 6), 0, 6).tolist() == [2, 2, 5, 5, 5, 6]
    assert block_ends((2, 5, 6), 2, 6).tolist() == [5, 5, 5, 6]
    assert at_rate(block_ends((2, 3), 0, 3), 2).tolist() == [4, 4, 4, 4, 6, 6]


@given(size=st.integers(1, 40), chunk=st.integers(1, 12))
def test_the_grid_is_that_of_the_network(size, chunk):
    import torch

    mask = visible_keys(torch.tensor([size]), size, chunk)[0, 0]
    assert grid_ends(0, size, chunk).tolist() == mask.sum(-1).tolist()
    assert whole_ends(0, size).tolist() == [size] * size
