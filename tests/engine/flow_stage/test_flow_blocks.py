import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.flow_stage.blocks import Block, at_rate, grid_ends, near_equal, of_blocks, whole_ends
from vivavoce.models.layers.masks import visible_keys


@given(start=st.integers(0, 200), size=st.integers(0, 300), most=st.integers(1, 60))
def test_blocks_are_few_and_near_equal(start, size, most):
    bounds = near_equal(start, start + size, most)
    sizes = np.diff([start, *bounds])
    assert sum(sizes) == size
    assert len(bounds) == -(-size // most)
    assert size == 0 or (sizes.max() <= most and sizes.max() - sizes.min() <= 1)


def test_a_position_sees_to_the_end_of_its_block():
    blocks = (Block(2, 3), Block(5, 5), Block(6, 9))
    ends, known = of_blocks(blocks, 0, 6)
    assert ends.tolist() == [2, 2, 5, 5, 5, 6]
    assert known.tolist() == [3, 3, 5, 5, 5, 9]
    ends, known = of_blocks(blocks, 2, 6)
    assert ends.tolist() == [5, 5, 5, 6]
    assert known.tolist() == [5, 5, 5, 9]
    assert at_rate(of_blocks(blocks[:1], 0, 2)[0], 2).tolist() == [4, 4, 4, 4]


@given(size=st.integers(1, 40), chunk=st.integers(1, 12))
def test_the_grid_is_that_of_the_network(size, chunk):
    import torch

    mask = visible_keys(torch.tensor([size]), size, chunk)[0, 0]
    assert grid_ends(0, size, chunk).tolist() == mask.sum(-1).tolist()
    assert whole_ends(0, size).tolist() == [size] * size
