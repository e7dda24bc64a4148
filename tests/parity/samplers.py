"""The samplers that goldens were recorded with, in place of the random one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Greedy:
    """The best of all ids, the first on a tie; with `stop_after` the end id from then on, where it is allowed."""

    def __init__(self, eos: int, stop_after: int | None, candidates: int | None = None) -> None:
        self._eos, self._stop_after = eos, stop_after
        self._candidates = candidates
        self.scores: list[Tensor] = []
        self.chosen: list[int] = []

    def __call__(self, scores: Tensor, rows: Sequence[int], decoded: Sequence[Sequence[int]]) -> Tensor:
        self.scores.append(scores[0].clone())
        best = scores[:, : self._candidates].argmax(dim=-1)
        if self._stop_after is not None:
            done = torch.tensor([len(ids) >= self._stop_after for ids in decoded])
            best = torch.where(done & (scores[:, self._eos] > float("-inf")), self._eos, best)
        self.chosen.append(int(best[0]))
        return best


class GreedyWithFill:
    """The best speech token or fill; the end id once it is allowed and `stop_after` ids are decoded."""

    def __init__(self, num_speech_tokens: int, eos: int, fill: int, stop_after: int) -> None:
        self._num, self._eos, self._fill, self._stop_after = num_speech_tokens, eos, fill, stop_after
        self.chosen: list[int] = []

    def __call__(self, scores: Tensor, rows: Sequence[int], decoded: Sequence[Sequence[int]]) -> Tensor:
        self.chosen.append(self._choose(scores, decoded))
        return torch.tensor(self.chosen[-1:])

    def _choose(self, scores: Tensor, decoded: Sequence[Sequence[int]]) -> int:
        if len(decoded[0]) >= self._stop_after and scores[0, self._eos] > float("-inf"):
            return self._eos
        speech = scores[0, : self._num]
        if scores[0, self._fill] > speech.max():
            return self._fill
        return int(speech.argmax())


class Forced:
    """One id as soon as `after` tokens are decoded and its score allows; the best speech token until then."""

    def __init__(self, forced: int, after: int) -> None:
        self._forced, self._after = forced, after

    def __call__(self, scores: Tensor, rows: Sequence[int], decoded: Sequence[Sequence[int]]) -> Tensor:
        if len(decoded[0]) >= self._after and scores[0, self._forced] > float("-inf"):
            return torch.tensor([self._forced])
        return scores.argmax(dim=-1)
