"""What measures speech, beside what its waveform shows by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vivavoce.evaluate.recogniser import RecogniserFactory
from vivavoce.evaluate.similarity import Embed
from vivavoce.evaluate.wording import Spell, as_written


@dataclass(frozen=True)
class Instruments:
    """Whatever is None is not measured."""

    recogniser: RecogniserFactory | None = None
    jobs: int = 1
    """Processes that listen, each with a recogniser of its own; one: this process."""
    spell: Spell = as_written
    """Applied to texts and transcripts alike before they are compared."""
    embed: Embed | None = None
    longest_s: Callable[[str], float] | None = None
    """The seconds of speech after which the model is stopped in a text."""
