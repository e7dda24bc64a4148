"""Predicts the seconds of a batch from its stage and size, and learns while the engine runs.

A batch takes fixed + per_row · rows + per_frame · frames + per_pair · pairs seconds; no coefficient is negative. Each
stage has a Kalman filter, which estimates coefficients that drift slowly; its measurement noise is a share of the time.
The prior gives the ratio of the terms, and the first observations give the scale. An observation's error is clipped at
a few standard deviations; the limit doubles with each further error in the same direction. A negative coefficient is
set to 0, and the other coefficients move along their correlation with it, so predictions always grow with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite, sqrt
from operator import mul
from statistics import median_low
from typing import NamedTuple

NOISE = 0.1
"""Standard deviation of one batch's time, as a share of this time."""
DRIFT = 0.01
"""Standard deviation of a coefficient's change from one batch to the next, as a share of the coefficient."""
CLIP = 3.0
"""Limit, in standard deviations, of the error of one observation; larger errors are clipped."""
UNMET_SPREAD = 10.0
"""Standard deviation of a coefficient whose term was 0 in all first observations, as a multiple of its prior."""
SCALING_BATCHES = 5
"""Number of first observations; their median sets the scale of the prior."""
ERROR_MEMORY = 0.05
"""Weight of the newest batch in the running mean of the error."""
MOST_PREDICTIONS = 1_024
"""Number of batch sizes whose predicted times are cached for each stage."""
TICK_S = 1e-7
"""Lower bound in seconds of a measured time; a coarse clock may measure 0."""


class Stage(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    FLOW = "flow"
    SHORT_FLOW = "short_flow"
    VOCODER = "vocoder"


class ShortBatches(NamedTuple):
    """Limits of short batches, for which the flow has faster kernels: a chunk has at most `frames` mel frames, and a
    batch at most `chunks` chunks. Both are 0 if the flow lacks these kernels.
    """

    frames: int = 0
    chunks: int = 0

    def include(self, frames: Sequence[int]) -> bool:
        return max(frames) <= self.frames and len(frames) <= self.chunks

    def stage(self, frames: Sequence[int]) -> Stage:
        return Stage.SHORT_FLOW if self.include(frames) else Stage.FLOW


class BatchSize(NamedTuple):
    """The size of one batch, padding included.

    rows: slots, prompts or chunks, at least 1; frames: new positions of all rows together, 0 for a decode step, in
    which each row has one new position; past: earlier positions that the rows attend to, summed over the rows.
    """

    rows: int
    frames: int = 0
    past: int = 0


class Coefficients(NamedTuple):
    """Seconds for each batch, row, new position and query-key pair; a coefficient that is 0 in the prior stays 0."""

    fixed: float
    per_row: float
    per_frame: float
    per_pair: float

    def seconds(self, size: BatchSize) -> float:
        rows, frames, past = size
        pairs = (frames if frames > rows else rows) * (past + frames) / rows
        return self[0] + self[1] * rows + self[2] * frames + self[3] * pairs


@dataclass(frozen=True)
class StageCosts:
    """Measured costs of one stage; error: mean of min(1, |measured − predicted| / predicted) of recent batches."""

    coefficients: Coefficients
    error: float
    batches: int


@dataclass(frozen=True)
class CostSnapshot:
    prefill: StageCosts
    decode: StageCosts
    flow: StageCosts
    short_flow: StageCosts
    vocoder: StageCosts


Priors = dict[Stage, Coefficients]
"""Each stage's assumed costs before its first batch; only the ratio of the terms matters, because the scale is learnt.
A stage without an entry begins with the costs of `FLOW`."""
GPU_PRIORS: Priors = {
    Stage.PREFILL: Coefficients(2e-3, 5e-5, 1e-6, 2e-9),
    Stage.DECODE: Coefficients(1e-3, 6e-6, 0.0, 6e-9),
    Stage.FLOW: Coefficients(2.2e-2, 3e-4, 8e-6, 6e-9),
    Stage.SHORT_FLOW: Coefficients(1e-2, 1e-4, 0.0, 4e-9),
    Stage.VOCODER: Coefficients(9e-4, 3e-5, 2e-6, 0.0),
}
"""A data-centre GPU that runs the 0.5 B model on our own kernels, as fitted under load on one H200."""
PLAIN_GPU_PRIORS: Priors = {
    Stage.PREFILL: Coefficients(15e-3, 1e-4, 7e-6, 1e-9),
    Stage.DECODE: Coefficients(5e-3, 4e-5, 0.0, 3e-8),
    Stage.FLOW: Coefficients(2e-1, 1e-3, 3e-5, 1.4e-8),
    Stage.VOCODER: Coefficients(1.2e-2, 1e-4, 1e-5, 0.0),
}
"""The same GPU without our own kernels: the host's kernel launches dominate the time of small batches."""
CPU_PRIORS: Priors = {
    Stage.PREFILL: Coefficients(2e-2, 5e-3, 7e-3, 1e-7),
    Stage.DECODE: Coefficients(7e-2, 1e-2, 0.0, 1e-7),
    Stage.FLOW: Coefficients(5e-2, 1e-2, 3e-2, 1e-5),
    Stage.VOCODER: Coefficients(1e-2, 1e-3, 6e-3, 0.0),
}
"""A laptop's CPU with the 0.5 B model: arithmetic dominates; batching saves little except repeated reads of weights."""


class CostModel:
    """Predicts a batch's seconds from the times of earlier batches; one thread observes, any thread may read."""

    def __init__(self, priors: Priors) -> None:
        self._stages = {stage: _Filter(priors.get(stage, priors[Stage.FLOW])) for stage in Stage}

    def observe(self, stage: Stage, size: BatchSize, seconds: float) -> None:
        """Learn the time of a batch; seconds: finite, not negative."""
        if not 0 <= seconds < inf:
            raise ValueError(f"{stage.value}: a batch cannot take {seconds} s")
        rows, frames, past = size
        terms = (1.0, float(rows), float(frames), max(frames, rows) * (past + frames) / rows)
        seconds, learnt = max(seconds, TICK_S), self._stages[stage]
        known, expected = learnt.known, max(sum(map(mul, learnt.theta, terms)), TICK_S)
        if len(learnt.first) < SCALING_BATCHES:
            learnt.first.append((terms, seconds))
            learnt.begin()
        else:
            learnt.update(terms, seconds)
        batches, miss = known.batches + 1, min(abs(seconds - expected) / expected, 1.0)
        error = known.error + max(ERROR_MEMORY, 1.0 / batches) * (miss - known.error)
        learnt.known = StageCosts(Coefficients(*learnt.theta), error, batches)
        learnt.predictions = {}

    def predict(self, stage: Stage, size: BatchSize) -> float:
        """Return the seconds that a batch of this size will take; ≥ 0, and never less for more rows or longer rows."""
        predictions = self._stages[stage].predictions
        seconds = predictions.get(size)
        if seconds is None:
            if len(predictions) >= MOST_PREDICTIONS:
                predictions.clear()
            seconds = predictions[size] = self._stages[stage].known.coefficients.seconds(size)
        return seconds

    def snapshot(self) -> CostSnapshot:
        return CostSnapshot(*(one.known for one in self._stages.values()))


class _Filter:
    """One stage's coefficients θ and their covariance.

    `known` and `predictions` are replaced as a whole, so any thread may read them.
    """

    def __init__(self, prior: Coefficients) -> None:
        if not all(isfinite(term) and term >= 0 for term in prior) or prior.fixed == 0:
            raise ValueError(f"a prior must be finite and not negative, with a fixed part above 0: {prior}")
        self.known = StageCosts(prior, 0.0, 0)
        self.predictions: dict[BatchSize, float] = {}
        """Predicted seconds by size; cached because the scheduler asks for the same sizes in every turn of the loop."""
        self._prior, self.theta = prior, list(prior)
        self.first: list[tuple[tuple[float, ...], float]] = []
        self._widest: list[float] = []
        self._covariance: list[list[float]] = []
        self._streak = 0  # observations in a row that were far too slow (> 0) or far too fast (< 0)

    def begin(self) -> None:
        # Start again from the prior with all observations so far. Their lower median sets the scale: first batches are
        # often too slow, hardly ever too fast. A coefficient's first standard deviation is its largest possible value.
        scale = median_low(seconds / sum(map(mul, self._prior, terms)) for terms, seconds in self.first)
        self._streak, self.theta, self._widest = 0, [scale * term for term in self._prior], []
        for i, prior in enumerate(self._prior):
            met = [seconds / terms[i] for terms, seconds in self.first if terms[i] > 0]
            self._widest.append(min(met, default=UNMET_SPREAD * scale * prior) ** 2 if prior else 0.0)
        self._covariance = [[most if i == j else 0.0 for j in range(4)] for i, most in enumerate(self._widest)]
        for terms, seconds in self.first:
            self.update(terms, seconds)

    def update(self, terms: tuple[float, ...], seconds: float) -> None:
        theta, covariance = self.theta, self._covariance
        expected = max(sum(map(mul, theta, terms)), TICK_S)
        spread = [sum(map(mul, row, terms)) for row in covariance]
        variance = max(sum(map(mul, spread, terms)), 0.0) + (NOISE * expected) ** 2  # rounding may go below 0
        surprise, limit = seconds - expected, CLIP * sqrt(variance)
        if abs(surprise) <= limit:
            self._streak = 0
        else:
            sign = 1 if surprise > 0 else -1
            self._streak = self._streak + sign if self._streak * sign > 0 else sign
            surprise = sign * min(abs(surprise), limit * 2.0 ** min(abs(self._streak) - 1, 30))
        for i, widest in enumerate(self._widest):
            theta[i] += spread[i] / variance * surprise
            row = covariance[i]
            if self._streak == 0:  # a clipped observation does not reduce the uncertainty
                row[:] = [value - spread[i] * other / variance for value, other in zip(row, spread, strict=True)]
            # Drift never raises a variance above its first value; batches of a single size would otherwise inflate it.
            row[i] = max(row[i], min(row[i] + DRIFT**2 * max(theta[i] ** 2, DRIFT**2 * widest), widest))
        for _ in range(4):  # set a negative coefficient to 0, and move the others along their correlation
            below = min(theta)
            if below >= 0:
                return
            i = theta.index(below)
            row = covariance[i]
            if row[i] > 0:
                theta[:] = [value - below * share / row[i] for value, share in zip(theta, row, strict=True)]
            theta[i] = 0.0
        theta[:] = [max(value, 0.0) for value in theta]
