"""Decoded audio as one value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
"""Mono samples [n] in float32; ±1 is full scale, values beyond it are allowed."""


@dataclass(frozen=True, eq=False)
class Audio:
    """Mono samples [n], float32, and how many of them make a second."""

    samples: Samples
    sample_rate: int

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or self.samples.dtype != np.float32:
            raise ValueError(f"samples are {self.samples.dtype} {self.samples.shape}, not float32 [n]")
        if self.sample_rate <= 0:
            raise ValueError(f"sample_rate is {self.sample_rate}, not positive")

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate
