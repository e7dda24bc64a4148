"""Idle OpenMP threads of callers, which would slow the engine's thread down.

torch's CPU operations run in teams of OpenMP threads, and every Python thread that ever ran one keeps its team. GNU's
library counts them all: once there are more than processors, none of them waits actively any more, and each of the
thousand short operations of a decode step pays for going to sleep. A speech thread beside one idle caller was half as
fast. So callers give their teams back when they submit work; the next operation of theirs makes a new one.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

_SOFT = 1
"""`omp_pause_soft`: threads are freed, settings stay (OpenMP 5.0, section 3.2.44)."""


class _Pause(Protocol):
    def __call__(self, kind: int, /) -> int: ...


def release_idle_team() -> None:
    """Free the calling thread's OpenMP threads; nothing happens where torch brings no GNU OpenMP."""
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _pause() -> _Pause | None:
    folder = Path(torch.__file__).parent
    for path in (*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")):
        try:
            return ctypes.CDLL(str(path)).omp_pause_resource_all
        except (OSError, AttributeError):  # not loadable, or older than OpenMP 5
            continue
    return None
