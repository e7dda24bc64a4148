"""Chinese: numbers as wetext reads them, then the punctuation that the model was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vivavoce.service.text.rules import (
    close_trailing_comma,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
)


@dataclass(frozen=True)
class Chinese:
    """Text with Chinese characters in it, as it is spoken. `read` writes numbers, dates and units in words."""

    read: Callable[[str], str]

    def normalize(self, text: str) -> str:
        """The text as the model is to be given it. The order of the rules matters and is the official one."""
        text = self.read(text)
        text = text.replace("\n", "")
        text = replace_blank(text)
        text = replace_corner_mark(text)
        text = text.replace(".", "。")
        text = text.replace(" - ", "，")
        text = remove_bracket(text)
        return close_trailing_comma(text)
