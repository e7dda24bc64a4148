"""When a stream of speech tokens is cut, and how many each chunk takes: a pure function of what has happened so far.

A chunk of `hop` tokens is cut as soon as `hop + lookahead` are pending. k counts a segment's chunks from 0.

| rule         | first hop | after chunk k                                                                  |
|--------------|-----------|--------------------------------------------------------------------------------|
| exponential  | 15        | 25 · 2^k                                                                       |
| time_based   | 15        | by how many chunks' mean cost the audio is ahead of the clock, for k > 0: more |
|              |           | than 4: (pending // 15 + 1) · 15; more than 2: pending // 15 · 15; never < 15   |
| equal        | 25        | 25                                                                             |

The rules are the engine's own (`engine/chunk_policy.py`), which has two more that serve as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.engine.chunk_policy import ChunkPolicy, Progress


@dataclass(frozen=True)
class ChunkSchedule:
    """A rule with the model's numbers.

    lookahead: tokens after a chunk that the flow reads; tokens_per_second: of the audio.
    """

    policy: ChunkPolicy
    lookahead: int
    tokens_per_second: int

    def hop(self, *, chunks: int, spoken: int, pending: int, prompt_tokens: int, elapsed_s: float) -> int:
        """Tokens of the next chunk, as soon as so many and the lookahead are pending.

        Args:
            chunks: that were cut of this segment.
            spoken: tokens in them.
            pending: tokens that are there and were not cut.
            prompt_tokens: of the voice.
            elapsed_s: since the segment was begun.
        """
        progress = Progress(chunks, spoken, pending, prompt_tokens, elapsed_s)
        return self.policy.next_hop(progress, self.tokens_per_second)
