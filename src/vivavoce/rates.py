"""The time bases of one model and the exact conversions between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Samples, mel frames and speech tokens per second."""

    sample_rate: int
    samples_per_frame: int
    tokens_per_second: int

    @property
    def frames_per_token(self) -> int:
        """Mel frames per speech token: 2 in CosyVoice2; 0 if it is not a whole number (1.72 in CosyVoice 1)."""
        frames, rest = divmod(self.sample_rate, self.samples_per_frame * self.tokens_per_second)
        return 0 if rest else frames

    def frames_of(self, tokens: int) -> int:
        """Return the number of whole mel frames that this many speech tokens last.

        The official code's int(tokens / 50 · 22050 / 256) gives the same number for all lengths that the flow accepts.
        """
        return tokens * self.sample_rate // (self.samples_per_frame * self.tokens_per_second)

    def tokens_in(self, frames: int) -> int:
        """Return the largest number of speech tokens that fit into this many mel frames."""
        return ((frames + 1) * self.samples_per_frame * self.tokens_per_second - 1) // self.sample_rate

    @property
    def frames_per_second(self) -> float:
        return self.sample_rate / self.samples_per_frame
