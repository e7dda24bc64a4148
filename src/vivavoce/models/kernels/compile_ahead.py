"""Kernels compiled before they are launched, side by side: a network has dozens of variants, each takes a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import triton

_ahead: ContextVar[bool] = ContextVar("ahead", default=False)


def launched(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """What launches a kernel on a grid; inside of `compiled_ahead` it compiles it for these arguments only."""
    return partial(kernel.warmup, grid=grid) if _ahead.get() else kernel[grid]


@contextmanager
def compiled_ahead() -> Iterator[bool]:
    """Launches inside of this only compile, on all cores, and are waited for at the end; what they give is nothing.

    Kernels keep what is compiled, and Triton keeps it on disk. Where it cannot be done, as in Triton's interpreter,
    this gives False, and launches are launches.
    """
    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or os.environ.get("TRITON_INTERPRET") == "1":
        yield False
        return
    token = _ahead.set(True)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as workers, mode(workers):
            yield True
    finally:
        _ahead.reset(token)
