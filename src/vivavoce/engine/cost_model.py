"""Seconds of a batch by stage and size, learnt while the engine runs.

A batch of a stage takes

    fixed + per_row · rows + per_frame · frames + per_pair · pairs      seconds, no coefficient negative.

Each stage is a Kalman filter over its coefficients, which drift slowly. Its noise is a share of the time itself, since
a long batch scatters more than a short one. Three things make it fit for a live machine:

- The prior gives the shape, the first observations the scale: a prior made for another machine costs a few batches.
- An observation moves the estimate by a few standard deviations at most, so that a page fault or a paused machine
  does little; observations that keep missing on the same side are believed with double the force each time.
- The estimate is projected onto non-negative coefficients along what the filter knows of their correlation, hence
  predictions grow with the batch and are never negative.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import Enum
from math import inf, isfinite, sqrt
from operator import mul
from statistics import median_low

NOISE = 0.1
"""Scatter of one batch's time, as a share of it."""
DRIFT = 0.01
"""How far a coefficient may wander from one batch to the next, as a share of it."""
CLIP = 3.0
"""Standard deviations of surprise that one observation may bring."""
UNMET_SPREAD = 10.0
"""Doubt about a coefficient whose term was 0 in all of the first observations, as a multiple of its prior."""
SCALING_BATCHES = 5
"""The first observations, whose median sets the prior's scale."""
ERROR_MEMORY = 0.05
"""Weight of the newest batch in the mean error."""
TICK_S = 1e-7
"""Shortest time that is believed; a coarse clock may say 0."""

_TERMS = 4
_Vector = list[float]


class Stage(str, Enum):
    """The kinds of batches."""

    PREFILL = "prefill"
    DECODE = "decode"
    FLOW = "flow"
    VOCODER = "vocoder"


@dataclass(frozen=True)
class Work:
    """The size of one batch, padding included.

    rows: slots, prompts or chunks in it; frames: new positions (prompt rows, mel frames) summed over the rows, 0 where
    every row makes one (decode); past: positions attended beyond the new ones, summed over the rows.
    """

    rows: int
    frames: int = 0
    past: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.frames < 0 or self.past < 0:
            raise ValueError(f"a batch has at least one row and no negative size: {self}")

    @classmethod
    def batch(cls, rows: int, frames: int = 0, past: int = 0) -> Work:
        """`rows` rows that are padded to `frames` new positions and `past` past positions each."""
        return cls(rows, rows * frames, rows * past)

    @property
    def pairs(self) -> float:
        """Pairs of a new position and a position it attends, rows being equally long."""
        return max(self.frames, self.rows) * (self.past + self.frames) / self.rows

    def _terms(self) -> _Vector:
        return [1.0, float(self.rows), float(self.frames), self.pairs]


@dataclass(frozen=True)
class Coefficients:
    """Seconds per batch, per row, per new position and per attended pair of positions.

    As a prior: a term that is 0 is one that the stage does not have, and stays 0.
    """

    fixed: float
    per_row: float
    per_frame: float
    per_pair: float

    def seconds(self, size: Work) -> float:
        """Seconds of a batch of that size."""
        return self.fixed + self.per_row * size.rows + self.per_frame * size.frames + self.per_pair * size.pairs


@dataclass(frozen=True)
class Priors:
    """What each stage is taken to cost before its first batch; all that stays of it is the ratio of the terms."""

    prefill: Coefficients
    decode: Coefficients
    flow: Coefficients
    vocoder: Coefficients

    def __post_init__(self) -> None:
        for stage in Stage:
            terms = astuple(self.of(stage))
            if not all(isfinite(term) and term >= 0 for term in terms) or terms[0] == 0:
                raise ValueError(f"{stage.value}: a prior is finite, not negative, and has a fixed part: {terms}")

    def of(self, stage: Stage) -> Coefficients:
        """The prior of one stage."""
        by_stage = {
            Stage.PREFILL: self.prefill,
            Stage.DECODE: self.decode,
            Stage.FLOW: self.flow,
            Stage.VOCODER: self.vocoder,
        }
        return by_stage[stage]


GPU_PRIORS = Priors(
    prefill=Coefficients(2e-3, 5e-5, 1e-6, 2e-9),
    decode=Coefficients(1e-3, 6e-6, 0.0, 6e-9),
    flow=Coefficients(2.2e-2, 3e-4, 8e-6, 6e-9),
    vocoder=Coefficients(9e-4, 3e-5, 2e-6, 0.0),
)
"""A data-centre GPU that runs the 0.5 B model on kernels of our own, as fitted under load on one H200."""

PLAIN_GPU_PRIORS = Priors(
    prefill=Coefficients(15e-3, 1e-4, 7e-6, 1e-9),
    decode=Coefficients(5e-3, 4e-5, 0.0, 3e-8),
    flow=Coefficients(2e-1, 1e-3, 3e-5, 1.4e-8),
    vocoder=Coefficients(1.2e-2, 1e-4, 1e-5, 0.0),
)
"""The same without them: launches dominate small batches."""

CPU_PRIORS = Priors(
    prefill=Coefficients(2e-2, 5e-3, 7e-3, 1e-7),
    decode=Coefficients(7e-2, 1e-2, 0.0, 1e-7),
    flow=Coefficients(5e-2, 1e-2, 3e-2, 1e-5),
    vocoder=Coefficients(1e-2, 1e-3, 6e-3, 0.0),
)
"""A laptop's CPU with the 0.5 B model: arithmetic dominates, batches save little but the reading of weights."""


@dataclass(frozen=True)
class StageCosts:
    """What is known of one stage.

    error: mean |measured − predicted| / predicted of recent batches, each counted as 1 at most; batches: observed ones.
    """

    coefficients: Coefficients
    error: float
    batches: int


@dataclass(frozen=True)
class CostSnapshot:
    """What is known of every stage."""

    prefill: StageCosts
    decode: StageCosts
    flow: StageCosts
    vocoder: StageCosts


class CostModel:
    """Predicts a batch's seconds from what batches took; one thread observes, any thread may read."""

    def __init__(self, priors: Priors) -> None:
        self._stages = {stage: _StageFilter(priors.of(stage)) for stage in Stage}

    def observe(self, stage: Stage, size: Work, seconds: float) -> None:
        """Learn that a batch of that size took so long; seconds: finite, not negative."""
        if not 0 <= seconds < inf:
            raise ValueError(f"{stage.value}: a batch cannot take {seconds} s")
        self._stages[stage].observe(size._terms(), max(seconds, TICK_S))

    def predict(self, stage: Stage, size: Work) -> float:
        """Seconds that a batch of that size will take; ≥ 0, and no less for more or for longer rows."""
        return self._stages[stage].known.coefficients.seconds(size)

    def snapshot(self) -> CostSnapshot:
        """What is known now."""
        return CostSnapshot(*(self._stages[stage].known for stage in Stage))


class _StageFilter:
    """One stage's coefficients θ and their covariance P.

    `known` is replaced as a whole after each observation, which is what makes it readable from other threads.
    """

    def __init__(self, prior: Coefficients) -> None:
        self.known = StageCosts(prior, 0.0, 0)
        self._prior: _Vector = list(astuple(prior))
        self._first: list[tuple[_Vector, float]] = []
        self._theta: _Vector = self._prior
        self._widest: _Vector = [0.0] * _TERMS
        self._covariance: list[_Vector] = []
        self._streak = 0  # > 0: so many observations in a row were far too slow; < 0: far too fast

    def observe(self, terms: _Vector, seconds: float) -> None:
        expected = max(_dot(self._theta, terms), TICK_S)
        if len(self._first) < SCALING_BATCHES:
            self._first.append((terms, seconds))
            self._replay()
        else:
            self._update(terms, seconds)
        batches = self.known.batches + 1
        weight = max(ERROR_MEMORY, 1.0 / batches)
        miss = min(abs(seconds - expected) / expected, 1.0)
        error = self.known.error + weight * (miss - self.known.error)
        self.known = StageCosts(Coefficients(*self._theta), error, batches)

    def _replay(self) -> None:
        """Begin anew with all observations so far, and with the scale that they agree on.

        The lower median: first batches are slow (kernels are chosen, memory is claimed), hardly ever too fast. A
        coefficient is doubted by as much as it could be at all: one term alone explaining a whole batch's time.
        """
        scale = median_low(seconds / _dot(self._prior, terms) for terms, seconds in self._first)
        self._streak = 0
        self._theta = [scale * term for term in self._prior]
        self._widest = [self._most(i, scale) ** 2 for i in range(_TERMS)]
        self._covariance = [[self._widest[i] if i == j else 0.0 for j in range(_TERMS)] for i in range(_TERMS)]
        for terms, seconds in self._first:
            self._update(terms, seconds)

    def _most(self, i: int, scale: float) -> float:
        """Seconds per unit of term i, were it the only one; where it has not been met, some multiple of the prior."""
        if self._prior[i] == 0:
            return 0.0
        met = [seconds / terms[i] for terms, seconds in self._first if terms[i] > 0]
        return min(met, default=UNMET_SPREAD * scale * self._prior[i])

    def _update(self, terms: _Vector, seconds: float) -> None:
        expected = max(_dot(self._theta, terms), TICK_S)
        spread = [_dot(row, terms) for row in self._covariance]
        variance = max(_dot(spread, terms), 0.0) + (NOISE * expected) ** 2  # rounding may go below 0
        surprise = self._believed(seconds - expected, sqrt(variance))
        self._theta = [old + part / variance * surprise for old, part in zip(self._theta, spread, strict=True)]
        if self._streak == 0:  # what was not believed in full teaches nothing about how sure we are
            self._narrow(spread, variance)
        self._widen()
        self._project()

    def _believed(self, surprise: float, deviation: float) -> float:
        limit = CLIP * deviation
        if abs(surprise) <= limit:
            self._streak = 0
            return surprise
        sign = 1 if surprise > 0 else -1
        self._streak = self._streak + sign if self._streak * sign > 0 else sign
        limit *= 2.0 ** min(abs(self._streak) - 1, 30)
        return sign * min(abs(surprise), limit)

    def _narrow(self, spread: _Vector, variance: float) -> None:
        for i, row in enumerate(self._covariance):
            for j in range(_TERMS):
                row[j] -= spread[i] * spread[j] / variance

    def _widen(self) -> None:
        """Let the coefficients drift, but never doubt more than at the start: rows of one size would wind it up."""
        for i, (value, widest) in enumerate(zip(self._theta, self._widest, strict=True)):
            drift = DRIFT**2 * max(value**2, DRIFT**2 * widest)
            row = self._covariance[i]
            row[i] = max(row[i], min(row[i] + drift, widest))

    def _project(self) -> None:
        """Put negative coefficients to 0 and move the others as their correlation tells."""
        for _ in range(_TERMS):
            i = min(range(_TERMS), key=self._theta.__getitem__)
            below, row = self._theta[i], self._covariance[i]
            if below >= 0:
                return
            if row[i] > 0:
                self._theta = [value - below * share / row[i] for value, share in zip(self._theta, row, strict=True)]
            self._theta[i] = 0.0
        self._theta = [max(value, 0.0) for value in self._theta]


def _dot(left: _Vector, right: _Vector) -> float:
    return sum(map(mul, left, right))
