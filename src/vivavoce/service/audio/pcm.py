"""The one way from float samples to 16-bit integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SCALE = 32768
_LARGEST = 32767


def to_int16(samples: NDArray[np.floating]) -> NDArray[np.int16]:
    """Scale by 32768, round to the nearest integer and saturate at ±32767; any shape.

    The scale is the one that decoders divide by, so 16-bit audio comes back bit for bit.

    Raises:
        ValueError: a sample is NaN; no model may produce one.
    """
    num_nan = int(np.isnan(samples).sum())
    if num_nan:
        raise ValueError(f"{num_nan} of {samples.size} samples are NaN")
    scaled = np.rint(samples.astype(np.float64) * _SCALE)
    return np.clip(scaled, -_LARGEST, _LARGEST).astype(np.int16)
