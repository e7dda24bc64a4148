"""English, and every text without Chinese characters: read by wetext, then left-over digits spelled by inflect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from vivavoce.service.text.rules import spell_out_number


@dataclass(frozen=True)
class English:
    """Text without Chinese characters, as it is spoken.

    `read` writes numbers, dates and units in words; `read_digits` does so for text that is nothing but digits, which
    the official front end takes for Chinese; `spell` is for the digits that remain.
    """

    read: Callable[[str], str]
    read_digits: Callable[[str], str]
    spell: Callable[[str], str]

    def normalize(self, text: str) -> str:
        """The text as the model is to be given it."""
        read = self.read_digits if text.isdigit() else self.read
        return spell_out_number(read(text), self.spell)


class NumberWords:
    """Runs of digits as English words: "2024" is "two thousand and twenty-four".

    inflect takes more than a second to import and is needed for few texts, so the first run of digits imports it.
    """

    def __init__(self) -> None:
        # inflect's engine counts thousands on itself while it works: two threads at once would mix their numbers.
        self._lock = Lock()

    def __call__(self, digits: str) -> str:
        """The number in words; digit by digit where it is larger than inflect has words for (37 digits or more)."""
        import inflect

        with self._lock:
            return self._in_words(digits, inflect.NumOutOfRangeError)

    def _in_words(self, digits: str, too_large: type[Exception]) -> str:
        try:
            return str(self._engine.number_to_words(digits))
        except too_large:
            return " ".join(str(self._engine.number_to_words(digit)) for digit in digits)

    @cached_property
    def _engine(self) -> Any:
        import inflect

        return inflect.engine()
