"""The time bases of one model and the exact conversions between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Samples, mel frames and speech tokens per second; one token is a whole number of frames."""

    sample_rate: int
    samples_per_frame: int
    tokens_per_second: int

    def __post_init__(self) -> None:
        if self.sample_rate % (self.samples_per_frame * self.tokens_per_second):
            raise ValueError(
                f"{self.sample_rate} samples per second are no whole number of {self.samples_per_frame}-sample "
                f"frames for each of {self.tokens_per_second} tokens"
            )

    @property
    def frames_per_token(self) -> int:
        """Mel frames per speech token (2 in CosyVoice2)."""
        return self.sample_rate // (self.samples_per_frame * self.tokens_per_second)

    @property
    def frames_per_second(self) -> float:
        """Mel frames per second of audio."""
        return self.sample_rate / self.samples_per_frame
