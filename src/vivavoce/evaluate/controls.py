"""Audio and texts made wrong on purpose: a scorer that does not fail them measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest

_PIECE_S = 0.16


class Control(str, Enum):
    """What is made wrong."""

    SHUFFLED = "shuffled"
    """The audio's 160 ms pieces, in another order."""
    WRONG_TEXT = "wrong-text"
    """The text: each audio is held against the text of the next."""
    REVERSED = "reversed"
    """The audio's direction."""


def parse_control(name: str) -> Control:
    """The control of that name.

    Raises:
        InvalidRequest: there is none; the message lists all.
    """
    try:
        return Control(name.replace("_", "-"))
    except ValueError:
        known = ", ".join(control.value for control in Control)
        raise InvalidRequest(f"control: {name!r} is unknown; choose one of {known}") from None


def spoil_audio(samples: NDArray[np.float32], sample_rate: int, control: Control | None) -> NDArray[np.float32]:
    """The audio of a control, as long as before; always the same for the same audio."""
    if control is Control.REVERSED:
        return samples[::-1].copy()
    if control is Control.SHUFFLED:
        size = round(_PIECE_S * sample_rate)
        pieces = [samples[start : start + size] for start in range(0, len(samples), size)]
        order = np.random.default_rng(0).permutation(len(pieces))
        return np.concatenate([pieces[place] for place in order]) if pieces else samples
    return samples


def spoil_texts(texts: Sequence[str], control: Control | None) -> list[str]:
    """The texts that audio is held against: for a control with wrong ones, the next that is another.

    Raises:
        InvalidRequest: there is only one text, and so no wrong one.
    """
    if control is not Control.WRONG_TEXT:
        return list(texts)
    if len(set(texts)) < 2:
        raise InvalidRequest("control: wrong-text needs two different sentences or more; give more")
    wrong = list(texts)
    following = texts[0] if texts[0] != texts[-1] else next(text for text in texts if text != texts[-1])
    for place in reversed(range(len(texts))):
        if place + 1 < len(texts) and texts[place + 1] != texts[place]:
            following = texts[place + 1]
        wrong[place] = following
    return wrong
