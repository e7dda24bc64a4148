"""An accepted request and its segments' places in the stages; owned by the loop."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.flow_stage import FlowStream
from vivavoce.engine.handle import Outbox, Outcome, RequestTimings
from vivavoce.engine.lm_stage import Run, TextIn
from vivavoce.engine.request import SpeechRequest, SynthesisRequest
from vivavoce.engine.stream import Cut, Segment, Stream
from vivavoce.engine.vocoder_stage import VocoderStream

Work = Run | TextIn | None
"""A segment's language-model work; None: its speech tokens are given."""


@dataclass(frozen=True, eq=False)
class Arrived:
    """A segment that fits the model, with the language model's work for it."""

    request: SynthesisRequest
    work: Work


@dataclass(eq=False)
class Track:
    """One segment on its way: what it holds in each stage."""

    ticket: Ticket
    segment: Segment
    request: SynthesisRequest
    flow: FlowStream
    wave: VocoderStream
    work: Work
    run: Run | None
    """Rows that wait for their prefill."""
    slot: int | None = None
    tokens: list[int] = field(default_factory=list)
    """Speech tokens decoded so far."""

    @property
    def shares_prompt(self) -> bool:
        """Its chunks go on from a state of the voice's prompt that other streams may have left."""
        policy = self.ticket.request.policy
        if policy is None or policy.joins is not Joins.SEAMLESS or not self.segment.prompt_tokens:
            return False
        return self.flow.voice is not None

    @property
    def cut(self) -> bool:
        """The language model was ended at the most tokens that it may have; nobody had asked for just so many."""
        if not isinstance(self.work, Run) or self.request.sampling.exact_tokens is not None:
            return False
        return len(self.tokens) >= self.work.forced_at

    @property
    def text(self) -> TextIn | None:
        """Where its text arrives token by token."""
        return self.work if isinstance(self.work, TextIn) else None


@dataclass(frozen=True, eq=False)
class Made:
    """Samples of one cut, [n] float32, on the host."""

    track: Track
    cut: Cut
    samples: NDArray[np.float32]


@dataclass(eq=False)
class Ticket:
    """One accepted request."""

    stream: Stream
    request: SpeechRequest
    outbox: Outbox
    arrived: deque[Arrived]
    """Segments that have no track yet."""
    asked: bool = True
    """Somebody wants it; otherwise the engine measures itself."""
    tracks: list[Track] = field(default_factory=list)
    held: dict[int, Made] = field(default_factory=dict)
    """Offline segments that are done before those in front of them, by place."""
    num_chunks: int = 0
    """Chunks handed out."""
    told_final: bool = False
    """The last one of them was marked as final."""
    error: Exception | None = None
    """What is said after the audio that could be made was handed out."""
    started_at: float | None = None
    first_token_at: float | None = None
    lm_s: float = 0.0
    flow_s: float = 0.0
    vocoder_s: float = 0.0
    underruns: int = 0

    @property
    def unfinished(self) -> int:
        """Segments that are still to be made."""
        return sum(not track.segment.finished for track in self.tracks)

    def take(self, more: tuple[int, ...] | Arrived | Exception | None) -> None:
        """More of its text has come; None: all of it; an error: all that will come."""
        if isinstance(more, Exception):
            self.error, more = more, None
        works = [*(one.work for one in self.arrived), *(track.work for track in self.tracks)]
        text = next((work for work in works if isinstance(work, TextIn)), None)
        if isinstance(more, Arrived):
            self.arrived.append(more)
        elif text is not None:
            text.close() if more is None else text.push(more)
        else:
            self.stream.complete = True

    def outcome(self, error: Exception | None, now: float) -> Outcome:
        """How it ended, with what it took."""
        accepted = self.stream.accepted_at

        def after(moment: float | None) -> float | None:
            return None if moment is None else moment - accepted

        timings = RequestTimings(
            started_s=after(self.started_at),
            first_token_s=after(self.first_token_at),
            first_chunk_s=after(self.stream.sounding_since),
            finished_s=after(now),
            lm_s=self.lm_s,
            flow_s=self.flow_s,
            vocoder_s=self.vocoder_s,
            underruns=self.underruns,
        )
        tokens = tuple(tuple(track.tokens) for track in self.tracks)
        return Outcome(error, tokens, timings, tuple(track.cut for track in self.tracks))
