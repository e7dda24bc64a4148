"""`python -m benchmarks.cards`: what cards should reach with CosyVoice2's sizes in float16. Computed, not measured.

A second of speech takes 25 decode steps, which read the language model's weights once for all that share the step, and
the flow's and the vocoder's arithmetic. One H200 was measured: the share of these bounds that it reaches is taken for
all cards, and its memory for each listener as well.
"""

from __future__ import annotations

from typing import NamedTuple

WEIGHTS_GB, STEPS, SHARED_BY = 0.73, 25, 64
"""Read by a decode step; steps a second of speech; sequences that share one."""
WORK_TFLOP = 0.33
"""Of flow and vocoder for a second of speech behind a prompt of a third of its length."""
OFFLINE, LISTENERS = 727, 600
"""Of the H200: seconds of speech a second, and streams without a gap (docs/performance.md)."""
FIXED_GB, LISTENER_GB = 4.0, 0.22
"""Memory of weights and batches, and of each listener."""


class Card(NamedTuple):
    """By its maker's data sheet: float16 products with float32 sums, without sparsity; memory and its rate."""

    name: str
    tflops: float
    gb_per_s: float
    gb: int

    def bound(self) -> float:
        """Seconds of speech a second, if nothing were lost."""
        return 1 / (WORK_TFLOP / self.tflops + STEPS * WEIGHTS_GB / SHARED_BY / self.gb_per_s)


H200 = Card("H200", 989, 4800, 141)
CARDS = (
    H200,
    Card("H100 SXM", 989, 3350, 80),
    Card("A100 80 GB", 312, 2039, 80),
    Card("L40S", 362, 864, 48),
    Card("RTX 4090", 165, 1008, 24),
    Card("A10", 125, 600, 24),
    Card("L4", 121, 300, 24),
    Card("RTX 3090", 71, 936, 24),
    Card("RTX 3060", 25.5, 360, 12),
)


def row(card: Card) -> str:
    """A line of the table: audio s per s of work in batches, and listeners by arithmetic or by memory."""
    share = card.bound() / H200.bound()
    by_memory = (card.gb - FIXED_GB) / LISTENER_GB
    listeners = min(LISTENERS * share, by_memory)
    return f"| {card.name} | {card.gb} | {_rounded(OFFLINE * share)} | {_rounded(listeners)} |"


def _rounded(value: float) -> int:
    """To two digits: it is no measurement."""
    step = 10 if value >= 100 else 5 if value >= 20 else 1
    return int(value / step) * step


def table() -> str:
    """Markdown."""
    head = "| card | memory, GB | audio s per s, offline | listeners at once |\n|---|---|---|---|"
    return "\n".join([head, *map(row, CARDS)])


if __name__ == "__main__":
    print(table())
