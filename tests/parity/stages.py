"""One sequence through a stage, without the loop around it, and the samplers that goldens were recorded with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.lm_stage import DecodeRun, LMStage, StreamingPrompt, plain_run
from vivavoce.engine.lm_stage.slots import Chooser, SamplingState
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import TextInterleaver


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


STREAM_POSITIONS = 2048
"""Of a slot whose text arrives: no golden is as long."""


class Streamed(NamedTuple):
    """What was sampled for a text that arrived in pieces: the speech tokens, and all ids."""

    tokens: list[int]
    ids: list[int]


def ids_of(models: Models, request: SegmentRequest, chooser: Chooser) -> Iterator[int]:
    """Ids of a whole text under the official rules, the stop id last, each as soon as it is sampled."""
    run = plain_run(models.config.lm, request, official=True, room=None)
    stage = LMStage(models, slots=1, capacity=run.positions, chooser=chooser)
    yield from _run(stage, stage.open(request.sampling, request.seed), run)


def ids_of_pieces(
    models: Models, voice: Conditioning, pieces: Sequence[Sequence[int]], max_ratio: float, chooser: Chooser
) -> Streamed:
    """A text that arrives in pieces, each when it is needed."""
    config = models.config.lm
    interleaver = TextInterleaver(
        config.vocabulary,
        (config.mix_text, config.mix_speech),
        voice.lm_prompt_text,
        voice.lm_prompt_tokens,
        max_ratio,
        voice.lm_system_text,
        at_once=True,
    )
    stage = LMStage(models, slots=1, capacity=STREAM_POSITIONS, chooser=chooser)
    slot, text = (
        stage.open(SamplingParams(), 0),
        StreamingPrompt(interleaver, config.vocabulary, capacity=STREAM_POSITIONS),
    )
    streamed, coming = Streamed([], []), iter(pieces)
    while not text.done:
        run = text.next_run()
        if run is not None:
            ids = list(_run(stage, slot, run))
            streamed.ids.extend(ids)
            streamed.tokens.extend(text.accept(ids))
        elif (piece := next(coming, None)) is not None:
            text.push(piece)
        else:
            text.close()
    return streamed


def _run(stage: LMStage, slot: int, run: DecodeRun) -> Iterator[int]:
    stage.prefill({slot: run})
    while True:
        (sampled,) = stage.collect(wait=True)
        yield from sampled.ids
        if sampled.ended:
            return
        stage.decode()


def stage_mel(models: Models, voice: Conditioning, tokens: Sequence[int], final: bool, chunked: bool) -> Tensor:
    """All mel after the prompt's, in the one batch that the engine would make it in.

    tokens: the lookahead's included unless `final`; chunked: attend on the official grid  →  [frames, bins]
    """
    stage = FlowStage(models, state_bytes=0)
    hop = len(tokens) - (0 if final else models.config.flow.encoder.lookahead)
    attention = AttentionMode.GRID if chunked else AttentionMode.FULL
    job = stage.start([FlowRow(stage.open(voice), tuple(tokens), hop, attention)])
    while job.steps_left:
        job.step()
    (mel,) = job.result()
    return mel
