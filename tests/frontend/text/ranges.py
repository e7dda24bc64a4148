"""Segments, and the characters of a text that each speaks."""

from __future__ import annotations

from vivavoce.frontend.text.segmentation import find_spans
from vivavoce_textnorm import is_speakable


def letters(text: str) -> str:
    return "".join(character for character in text if is_speakable(character))


def spans(text: str, segments: list[str]) -> list[str]:
    """What of the text each segment speaks, checked: the ranges follow one another and cover the text."""
    found = list(find_spans(text, [(segments, "")], [(len(text), "".join(segments))]))
    assert [one.spoken for one in found] == segments
    assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(text)
    assert all(one.start <= one.end for one in found)
    return [text[one.start : one.end] for one in found]
