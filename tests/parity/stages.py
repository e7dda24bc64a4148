"""One sequence through a stage of the engine, without the loop around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage
from vivavoce.engine.lm_stage import Chooser, LMStage, Run, TextIn, plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SynthesisRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import TextInterleaver

STREAM_POSITIONS = 2048
"""Of a slot whose text arrives: no golden is as long."""


class Streamed(NamedTuple):
    """What was sampled for a text that arrived in pieces: the speech tokens, and all ids."""

    tokens: list[int]
    ids: list[int]


def ids_of(models: Models, request: SynthesisRequest, chooser: Chooser) -> Iterator[int]:
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
    )
    stage = LMStage(models, slots=1, capacity=STREAM_POSITIONS, chooser=chooser)
    slot, text = stage.open(SamplingParams(), 0), TextIn(interleaver, config.vocabulary, capacity=STREAM_POSITIONS)
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


def _run(stage: LMStage, slot: int, run: Run) -> Iterator[int]:
    stage.feed(slot, run)
    stage.prefill([slot])
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
    attention = Attention.GRID if chunked else Attention.FULL
    job = stage.start([FlowChunk(stage.open(voice), tuple(tokens), hop, attention)])
    while job.steps_left:
        job.step()
    (mel,) = job.result()
    assert mel is not None
    return mel
