"""What the flow stage is asked for: chunks of speech, and the state of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from vivavoce.engine.flow_stage.stream import FlowStream


class Attention(Enum):
    """What the frames of a row see; positions are counted from the prompt's start."""

    FULL = "full"
    """The whole row: whole utterances, and the last chunk of an official stream."""
    GRID = "grid"
    """Everything up to the end of their chunk on a fixed grid: the other chunks of an official stream."""
    BLOCKS = "blocks"
    """Everything up to the end of their block. What was computed does not change, so a chunk continues it."""


@dataclass(frozen=True, eq=False)
class FlowChunk:
    """The next mel of a stream.

    tokens: all speech tokens of the sequence that may be used, the lookahead included, without the prompt's;
    hop: how many after those already spoken are to become mel, at least 1.
    """

    stream: FlowStream
    tokens: Sequence[int]
    hop: int
    attention: Attention

    @property
    def past_frames(self) -> int:
        """Frames that were computed before and are read as state, as things stand."""
        known = self.stream.known if self.attention is Attention.BLOCKS else None
        return known.tokens * self.stream.upsampling if known else 0

    @property
    def frames(self) -> int:
        """Frames that are computed anew, as things stand."""
        stream = self.stream
        return (len(stream.prompt) + stream.spoken + self.hop) * stream.upsampling - self.past_frames


@dataclass(frozen=True, eq=False)
class PromptWork:
    """The state of the prompt of a stream's voice, to be kept for all who speak with it."""

    stream: FlowStream

    @property
    def past_frames(self) -> int:
        """A prompt has no past."""
        return 0

    @property
    def frames(self) -> int:
        """Frames of the prompt that the text does not change."""
        stream = self.stream
        return stream.prompt_end * stream.upsampling
