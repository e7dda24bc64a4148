"""Limits of every text, whatever it is read by."""

from vivavoce_textnorm import (
    MAX_TEXT_CHARS,
    check_characters,
    check_length,
    check_surrogates,
    check_text,
    excerpt,
    name_some,
)

__all__ = [
    "MAX_TEXT_CHARS",
    "check_characters",
    "check_length",
    "check_surrogates",
    "check_text",
    "excerpt",
    "name_some",
]
