"""The cost model against machines whose true costs are known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.engine.cost_model import CPU_PRIORS, GPU_PRIORS, BatchSize, Coefficients, CostModel, Priors, Stage

ROWS = st.integers(1, 64)
FRAMES = st.integers(0, 400)
PAST = st.integers(0, 2000)
TRUTHS = st.builds(
    Coefficients,
    fixed=st.floats(1e-3, 0.3),
    per_row=st.one_of(st.just(0.0), st.floats(1e-5, 1e-2)),
    per_frame=st.floats(1e-5, 1e-2),
    per_pair=st.one_of(st.just(0.0), st.floats(1e-9, 1e-6)),
)
PRIORS = st.sampled_from([GPU_PRIORS, CPU_PRIORS])
SEEDS = st.integers(0, 2**16)


def batch(rows: int, frames: int = 0, past: int = 0) -> BatchSize:
    """`rows` rows of so many new and past positions each."""
    return BatchSize(rows, rows * frames, rows * past)


def any_size(rng: random.Random) -> BatchSize:
    return batch(rng.randint(1, 32), rng.choice([50, 60, 100, 200]), rng.randint(0, 600))


def teach(model: CostModel, truth: Coefficients, batches: int, seed: int, noise: float = 0.05) -> None:
    rng = random.Random(seed)
    for _ in range(batches):
        size = any_size(rng)
        model.observe(Stage.FLOW, size, truth.seconds(size) * max(0.1, rng.gauss(1.0, noise)))


def misses(model: CostModel, truth: Coefficients) -> list[float]:
    rng = random.Random(1234)
    sizes = [any_size(rng) for _ in range(50)]
    return [abs(model.predict(Stage.FLOW, size) / truth.seconds(size) - 1.0) for size in sizes]


def test_the_formula() -> None:
    costs = Coefficients(1.0, 0.1, 0.01, 0.001)
    assert costs.seconds(batch(4, 50, 100)) == pytest.approx(1.0 + 0.4 + 2.0 + 0.001 * 4 * 50 * 150)
    assert costs.seconds(batch(4, 0, 100)) == pytest.approx(1.0 + 0.4 + 0.001 * 400)  # a decode step


@settings(max_examples=40, deadline=None)
@given(PRIORS, TRUTHS, SEEDS)
def test_planted_costs_are_recovered_under_noise(priors: Priors, truth: Coefficients, seed: int) -> None:
    model = CostModel(priors)
    teach(model, truth, 150, seed)
    assert max(misses(model, truth)) < 0.25
    assert sum(misses(model, truth)) / 50 < 0.06
    assert model.snapshot().flow.error < 0.25


@pytest.mark.parametrize("priors", [GPU_PRIORS, CPU_PRIORS])
def test_every_coefficient_is_found(priors: Priors) -> None:
    truth = Coefficients(0.1, 0.02, 1e-4, 1e-7)
    model, rng = CostModel(priors), random.Random(5)
    for _ in range(1000):
        size = batch(rng.randint(1, 32), rng.choice([0, 50, 100, 200, 400]), rng.choice([0, 200, 800]))
        model.observe(Stage.FLOW, size, truth.seconds(size) * rng.gauss(1.0, 0.02))
    for found, planted in zip((model.snapshot().flow.coefficients), (truth), strict=True):
        assert found == pytest.approx(planted, rel=0.25)


@pytest.mark.parametrize("speed", [1e-3, 0.1, 10.0, 1e3])
def test_one_batch_tells_the_machine_s_speed_where_the_prior_has_the_shape(speed: float) -> None:
    model, truth = CostModel(GPU_PRIORS), Coefficients(*(speed * term for term in GPU_PRIORS[Stage.FLOW]))
    assert model.predict(Stage.FLOW, batch(2, 50)) == GPU_PRIORS[Stage.FLOW].seconds(batch(2, 50))  # as it began
    model.observe(Stage.FLOW, batch(2, 50), truth.seconds(batch(2, 50)))
    assert model.predict(Stage.FLOW, batch(32, 200, 500)) == pytest.approx(truth.seconds(batch(32, 200, 500)))


def test_a_slow_first_batch_is_forgotten_with_the_second() -> None:
    model, size = CostModel(GPU_PRIORS), batch(1, 50, 100)
    for seconds in (20.0, 0.2, 0.2, 0.2):
        model.observe(Stage.FLOW, size, seconds)
    assert model.predict(Stage.FLOW, size) == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize("factor", [0.01, 1.0, 30.0])
def test_a_term_that_the_first_batches_lacked_is_learnt_later(factor: float) -> None:
    truth, model = Coefficients(5e-3, 4e-5, 0.0, factor * 3e-8), CostModel(GPU_PRIORS)
    rng = random.Random(2)
    for size in [batch(8)] * 100 + [batch(rng.randint(1, 64), 0, rng.randint(100, 1000)) for _ in range(60)]:
        model.observe(Stage.DECODE, size, truth.seconds(size) * rng.gauss(1.0, 0.03))
    for size in (batch(8), batch(64, 0, 1000), batch(4, 0, 500)):
        assert model.predict(Stage.DECODE, size) == pytest.approx(truth.seconds(size), rel=0.15)


def test_a_far_larger_batch_is_learnt_though_only_small_ones_were_seen() -> None:
    truth, model = Coefficients(0.01, 0.0, 1e-3, 0.0), CostModel(GPU_PRIORS)
    for size in [batch(1, 50)] * 300 + [batch(32, 50)] * 3:
        model.observe(Stage.FLOW, size, truth.seconds(size))
    for size in (batch(1, 50), batch(16, 50), batch(32, 50)):
        assert model.predict(Stage.FLOW, size) == pytest.approx(truth.seconds(size), rel=0.1)


@settings(max_examples=40, deadline=None)
@given(PRIORS, TRUTHS, SEEDS, st.sampled_from([0.0, 0.01, 100.0, 1e6]))
def test_one_outlier_moves_predictions_little(priors: Priors, truth: Coefficients, seed: int, factor: float) -> None:
    model, rng = CostModel(priors), random.Random(seed)
    teach(model, truth, 150, seed)
    sizes = [any_size(rng) for _ in range(20)]
    before = [model.predict(Stage.FLOW, size) for size in sizes]
    model.observe(Stage.FLOW, sizes[0], truth.seconds(sizes[0]) * factor)
    for size, expected in zip(sizes, before, strict=True):
        assert abs(model.predict(Stage.FLOW, size) / expected - 1.0) < 0.25


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 20.0])
def test_a_machine_that_changes_its_speed_is_followed(factor: float) -> None:
    truth, model = Coefficients(0.1, 1e-3, 1e-4, 1e-8), CostModel(GPU_PRIORS)
    teach(model, truth, 500, 1)
    changed = Coefficients(*(factor * term for term in (truth)))
    teach(model, changed, 60, 2)
    assert sum(misses(model, changed)) / 50 < 0.1


@settings(max_examples=60, deadline=None)
@given(
    PRIORS,
    st.lists(st.tuples(ROWS, FRAMES, PAST, st.floats(0.0, 1e6)), max_size=40),
    st.tuples(ROWS, FRAMES, PAST),
    st.tuples(st.integers(0, 64), st.integers(0, 400), st.integers(0, 2000)),
)
def test_predictions_are_never_negative_and_grow_with_the_batch(
    priors: Priors,
    seen: list[tuple[int, int, int, float]],
    size: tuple[int, int, int],
    more: tuple[int, int, int],
) -> None:
    model = CostModel(priors)
    for rows, frames, past, seconds in seen:
        for stage in Stage:
            model.observe(stage, batch(rows, frames, past), seconds)
    larger = batch(*(a + b for a, b in zip(size, more, strict=True)))
    for stage in Stage:
        small, large = model.predict(stage, batch(*size)), model.predict(stage, larger)
        assert 0.0 <= small <= large * (1 + 1e-9) < math.inf


def test_a_term_whose_prior_is_zero_stays_out() -> None:
    model, rng = CostModel(GPU_PRIORS), random.Random(3)
    for _ in range(100):
        size = any_size(rng)
        model.observe(Stage.VOCODER, size, 1e-9 * size.frames * (size.frames + size.past))
    assert model.snapshot().vocoder.coefficients.per_pair == 0.0


def test_a_snapshot_stays_as_it_was() -> None:
    model, truth = CostModel(GPU_PRIORS), Coefficients(0.1, 1e-3, 1e-4, 1e-8)
    teach(model, truth, 10, 1)
    snapshot = model.snapshot()
    coefficients = snapshot.flow.coefficients
    teach(model, truth, 10, 2)
    assert snapshot.flow.coefficients == coefficients
    assert (snapshot.flow.batches, model.snapshot().flow.batches) == (10, 20)


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="flow: a batch cannot take"):
        CostModel(GPU_PRIORS).observe(Stage.FLOW, BatchSize(1), seconds)


@pytest.mark.parametrize("flow", [(0.0, 1.0, 1.0, 1.0), (1.0, -1.0, 0.0, 0.0), (math.inf, 0.0, 0.0, 0.0)])
def test_impossible_priors_are_refused(flow: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="a prior"):
        CostModel({**GPU_PRIORS, Stage.FLOW: Coefficients(*flow)})


def test_a_size_is_computed_once_until_a_batch_teaches_more(monkeypatch: pytest.MonkeyPatch) -> None:
    model, computed = CostModel(CPU_PRIORS), []
    seconds = Coefficients.seconds

    def counted(self: Coefficients, size: BatchSize) -> float:
        computed.append(size)
        return seconds(self, size)

    monkeypatch.setattr(Coefficients, "seconds", counted)
    sizes = [BatchSize(1, 30, 5), BatchSize(2, 30, 5)]
    first = [model.predict(Stage.FLOW, size) for size in sizes]
    assert [model.predict(Stage.FLOW, size) for size in sizes] == first
    assert computed == sizes
    model.observe(Stage.VOCODER, sizes[0], 9.0)
    assert [model.predict(Stage.FLOW, size) for size in sizes] == first
    assert computed == sizes
    model.observe(Stage.FLOW, sizes[0], 9.0)
    assert [model.predict(Stage.FLOW, size) for size in sizes] != first
    assert computed == sizes * 2
