"""The samplers that goldens were recorded with, in place of the random one."""

from __future__ import annotations

import torch
from torch import Tensor

from vivavoce.engine.lm_stage import SamplingState


class Greedy:
    """The best of all ids, the first on a tie; with `stop_after` the end id from then on, where it is allowed.

    `scores`: of each choice in the first slot, which a stage's only sequence takes.
    """

    def __init__(self, eos: int, stop_after: int | None, candidates: int | None = None) -> None:
        self._eos, self._stop_after = eos, stop_after
        self._candidates = candidates
        self.scores: list[Tensor] = []

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        self.scores.append(scores[0].clone())
        best = scores[:, : self._candidates].argmax(dim=-1)
        if self._stop_after is None:
            return best
        done = (state.counts >= self._stop_after) & possible(scores, self._eos)
        return torch.where(done, self._eos, best)


class GreedyWithFill:
    """The best speech token or fill; the end id once it is allowed and `stop_after` ids are decoded."""

    def __init__(self, num_speech_tokens: int, eos: int, fill: int, stop_after: int) -> None:
        self._num, self._eos, self._fill, self._stop_after = num_speech_tokens, eos, fill, stop_after

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        best, speech = scores[:, : self._num].max(dim=-1)
        chosen = torch.where(scores[:, self._fill] > best, self._fill, speech)
        done = (state.counts >= self._stop_after) & possible(scores, self._eos)
        return torch.where(done, self._eos, chosen)


class Forced:
    """One id as soon as `after` ids are decoded and its score allows; the best of all until then."""

    def __init__(self, forced: int, after: int) -> None:
        self._forced, self._after = forced, after

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        due = (state.counts >= self._after) & possible(scores, self._forced)
        return torch.where(due, self._forced, scores.argmax(dim=-1))


def possible(scores: Tensor, index: int) -> Tensor:
    """Where an id may be chosen: [n] bool."""
    return scores[:, index] > float("-inf")
