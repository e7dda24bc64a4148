"""What clients send as JSON, read within bounds: values take far more memory and time than they have bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from vivavoce.errors import InvalidRequest

SMALL = 1 << 16
"""Bytes or characters that are worked with in the event loop."""
_MOST_SIGNS = 1 << 17
"""Commas and brackets of a text: two for each letter of what is to be spoken and more."""

_Made = TypeVar("_Made")


def check_values(text: str | bytes, field: str) -> None:
    """Refuse JSON of too many values before it is read.

    Raises:
        InvalidRequest: names `field`.
    """
    if isinstance(text, str):
        signs = text.count(",") + text.count("[") + text.count("{")
    else:
        signs = text.count(b",") + text.count(b"[") + text.count(b"{")
    if signs > _MOST_SIGNS:
        raise InvalidRequest(f"{field}: holds {signs} commas and brackets, more than {_MOST_SIGNS}; send fewer values")


async def aside(size: int, work: Callable[[], _Made]) -> _Made:
    """Do work on a text of so many bytes: in a thread where everybody else would wait for it."""
    return work() if size <= SMALL else await asyncio.to_thread(work)
