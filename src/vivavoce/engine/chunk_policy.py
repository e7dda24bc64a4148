"""How a stream is cut into chunks, as an immutable value of the request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vivavoce.errors import InvalidRequest


class Joins(str, Enum):
    """How neighbouring chunks are computed and joined."""

    OFFICIAL = "official"
    """As the official code does: the last chunk attends to everything, fades sum to 1.08, phases restart."""
    SEAMLESS = "seamless"
    """The last chunk is computed like the others, fades sum to 1, the source's phase runs on."""


@dataclass(frozen=True)
class ChunkPolicy:
    """Hops in speech tokens: `first_hop` (plus what aligns the prompt to whole chunks), then growing to `max_hop`.

    A chunk of h tokens is made once h + lookahead tokens exist beyond what was spoken.
    """

    first_hop: int = 25
    growth: int = 2
    max_hop: int = 100
    joins: Joins = Joins.SEAMLESS

    def __post_init__(self) -> None:
        # At twice the speed a token is one frame, and a chunk must hold the vocoder's overlap of 8 frames.
        if not isinstance(self.joins, Joins):
            raise InvalidRequest(f"chunk policy: joins {self.joins!r} is unknown; use Joins.SEAMLESS or Joins.OFFICIAL")
        whole = all(type(value) is int for value in (self.first_hop, self.growth, self.max_hop))
        if not whole or not 8 <= self.first_hop <= self.max_hop or self.growth < 1:
            raise InvalidRequest(
                f"chunk policy: first_hop {self.first_hop}, max_hop {self.max_hop}, growth {self.growth}; "
                "whole numbers with 8 <= first_hop <= max_hop and growth >= 1 are needed"
            )

    @classmethod
    def official(cls) -> ChunkPolicy:
        """The official schedule with the official joins, for parity."""
        return cls(joins=Joins.OFFICIAL)

    @classmethod
    def seamless(cls) -> ChunkPolicy:
        """The official schedule without its seams; the default of streams."""
        return cls()

    def hop(self, index: int, prompt_tokens: int, attention_chunk: int) -> int:
        """Speech tokens of chunk `index` of a stream whose voice brings `prompt_tokens`.

        The first hop is longer by what makes prompt and hop whole chunks of attention. The official code takes its
        first hop for the size of such a chunk; seamless streams ask the model (`attention_chunk`), and round every
        hop up to whole ones: frames of a part of a chunk would change when the rest arrives.
        """
        hop = min(self.max_hop, self.first_hop * self.growth**index)
        unit = self.first_hop if self.joins is Joins.OFFICIAL else attention_chunk
        if self.joins is Joins.SEAMLESS:
            hop += -hop % unit
        return hop + (-prompt_tokens % unit if index == 0 else 0)
