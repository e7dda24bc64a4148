import torch

from vivavoce.models.counter_noise import Stream, normal, uniform

SEED = torch.tensor(12345)


def test_uniform_is_uniform():
    x = uniform(SEED, Stream.NUCLEUS, torch.arange(200_000))
    assert x.min() > 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.005
    assert torch.histc(x, 20, 0, 1).std() < 400  # of 10,000 a bin: chance alone gives about 100


def test_normal_is_normal():
    x = normal(SEED, Stream.SOURCE, torch.arange(200_000))
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 3) < 0.1


def test_neighbours_are_independent():
    x = normal(SEED, Stream.SOURCE, torch.arange(100_000))
    for lag in (1, 9, 480, 4320):
        assert abs((x[:-lag] * x[lag:]).mean()) < 0.015


def test_seeds_and_streams_differ():
    counters = torch.arange(1000)
    one = uniform(SEED, Stream.NUCLEUS, counters)
    assert (one == uniform(SEED, Stream.NUCLEUS, counters)).all()
    assert (one != uniform(SEED + 1, Stream.NUCLEUS, counters)).float().mean() > 0.99
    assert (one != uniform(SEED, Stream.FALLBACK, counters)).float().mean() > 0.99


def test_pieces_equal_whole():
    counters = torch.arange(10_000)
    pieces = [normal(SEED, Stream.SOURCE, piece) for piece in counters.split(977)]
    assert torch.equal(torch.cat(pieces), normal(SEED, Stream.SOURCE, counters))


def test_a_row_per_seed():
    seeds = torch.tensor([[1], [2]])
    both = uniform(seeds, Stream.NUCLEUS, torch.arange(5))
    assert torch.equal(both[1], uniform(torch.tensor(2), Stream.NUCLEUS, torch.arange(5)))
