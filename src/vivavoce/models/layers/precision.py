"""Where float32 has to mean float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision_convolutions() -> Iterator[None]:
    """Convolutions on CUDA without TF32, whose 10 bits of mantissa are torch's default for them.

    The switch belongs to the process; it is put back at the end.
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
