"""Random numbers by position, and repetition-aware sampling with them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.models.randomness import SamplingRows, draw, normal, nucleus, repeats, sample, uniform
from vivavoce_kernels.layouts import NoiseStream

SEED = torch.tensor(12345)


def test_uniform_is_uniform():
    x = uniform(SEED, NoiseStream.NUCLEUS, torch.arange(200_000))
    assert x.min() > 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.005
    assert torch.histc(x, 20, 0, 1).std() < 400  # of 10,000 a bin: chance alone gives about 100


def test_normal_is_normal():
    x = normal(SEED, NoiseStream.SOURCE, torch.arange(200_000))
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 3) < 0.1


def test_neighbours_are_independent():
    x = normal(SEED, NoiseStream.SOURCE, torch.arange(100_000))
    for lag in (1, 9, 480, 4320):
        assert abs((x[:-lag] * x[lag:]).mean()) < 0.015


def test_seeds_and_streams_differ():
    counters = torch.arange(1000)
    one = uniform(SEED, NoiseStream.NUCLEUS, counters)
    assert (one == uniform(SEED, NoiseStream.NUCLEUS, counters)).all()
    assert (one != uniform(SEED + 1, NoiseStream.NUCLEUS, counters)).float().mean() > 0.99
    assert (one != uniform(SEED, NoiseStream.FALLBACK, counters)).float().mean() > 0.99


def test_pieces_equal_whole():
    counters = torch.arange(10_000)
    pieces = [normal(SEED, NoiseStream.SOURCE, piece) for piece in counters.split(977)]
    assert torch.equal(torch.cat(pieces), normal(SEED, NoiseStream.SOURCE, counters))


def test_a_row_per_seed():
    seeds = torch.tensor([[1], [2]])
    both = uniform(seeds, NoiseStream.NUCLEUS, torch.arange(5))
    assert torch.equal(both[1], uniform(torch.tensor(2), NoiseStream.NUCLEUS, torch.arange(5)))


def rows(batch, top_p=0.8, top_k=25, window=10, max_repeats=1.0):
    return SamplingRows(
        torch.full((batch,), top_p),
        torch.full((batch,), top_k),
        torch.full((batch,), window),
        torch.full((batch,), max_repeats),
    )


def plain_nucleus(probabilities, top_p, top_k):
    """The definition, one candidate after another."""
    ranked = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    taken, total = [], 0.0
    for i in ranked:
        if total >= top_p or len(taken) >= top_k:
            break
        taken.append(i)
        total += probabilities[i]
    return taken


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=40), st.floats(0.05, 0.99), st.integers(1, 30))
def test_nucleus_is_its_definition(scores, top_p, top_k):
    probabilities = torch.tensor([scores], dtype=torch.float64).softmax(-1)
    ids, weights = nucleus(probabilities, torch.tensor([top_p], dtype=torch.float64), torch.tensor([top_k]))
    wanted = plain_nucleus(probabilities[0].tolist(), top_p, top_k)
    taken = ids[0, weights[0] > 0].tolist()
    # A sum that meets top_p exactly may round either way; candidates on either side of it may then differ by one.
    assert taken == wanted or (abs(len(taken) - len(wanted)) == 1 and taken[: len(wanted)] == wanted[: len(taken)])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(1e-6, 1 - 1e-6))
def test_draw_never_picks_what_has_no_weight(weights, uniform):
    if sum(weights) < 1e-3:
        weights[0] = 1.0
    index = int(draw(torch.tensor([weights]), torch.tensor([uniform])))
    assert torch.tensor(weights)[index] > 0


def test_draw_follows_the_weights():
    weights = torch.tensor([[0.1, 0.0, 0.6, 0.3]]).expand(100_000, -1)
    picks = draw(weights, torch.rand(100_000, generator=torch.Generator().manual_seed(0)))
    shares = torch.bincount(picks, minlength=4) / 100_000
    torch.testing.assert_close(shares, weights[0], atol=0.01, rtol=0)


def test_repeats_counts_inside_the_window_only():
    recent = torch.tensor([[5, 5, 1, 2, 5, 3]])
    for window, count in ((1, 0), (2, 1), (5, 2), (6, 3), (50, 3)):
        assert int(repeats(recent, torch.tensor([window]), torch.tensor([5]))) == count


def test_a_repeated_candidate_is_never_taken():
    scores = torch.zeros(1, 50)
    scores[0, 7] = 20.0
    recent = torch.full((1, 10), -1)
    uniforms = torch.rand(1, 2)
    assert int(sample(scores, recent, rows(1), uniforms)) == 7
    recent[0, -3] = 7
    assert int(sample(scores, recent, rows(1), uniforms)) != 7


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_row_does_not_depend_on_its_batch(size):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(8, 600, generator=generator)
    recent = torch.randint(0, 600, (8, 10), generator=generator)
    uniforms = torch.rand(8, 2, generator=generator)
    together = sample(scores, recent, rows(8), uniforms)
    parts = [
        sample(scores[i : i + size], recent[i : i + size], rows(len(scores[i : i + size])), uniforms[i : i + size])
        for i in range(0, 8, size)
    ]
    assert torch.equal(together, torch.cat(parts))


def test_a_sum_that_meets_top_p_ends_the_nucleus():
    """0.5 + 0.3 is 0.8 when added one by one in float32, and the next candidate is out."""
    probabilities = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04]])
    _, weights = nucleus(probabilities, torch.tensor([0.8]), torch.tensor([25]))
    assert int((weights > 0).sum()) == 2


@pytest.mark.parametrize("top_p", [0.0, 1e-9])
def test_there_is_always_a_candidate(top_p):
    scores = torch.tensor([[3.0, 2.0, 1.0, float("-inf")]])
    picked = sample(scores, torch.full((1, 5), -1), rows(1, top_p=top_p), torch.tensor([[0.99, 0.5]]))
    assert int(picked) == 0
