"""Triton's model configurations read back, templates as well: variables stay `${name}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(r'#[^\n]*|\s+|("(?:[^"\\]|\\.)*")|(\$\{\w+\}|[\w.+-]+)|([\[\]{}:,])')


def parse(text: str) -> dict[str, list[Any]]:
    """A message: each field's values in their order, lists spread out, as strings or messages."""
    tokens = _tokens(text)
    message = _message(tokens, end=None)
    return message


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match, f"not text format: {text[position : position + 40]!r}"
        position = match.end()
        token = match.group(1) or match.group(2) or match.group(3)
        if token and token != ",":
            yield token


def _message(tokens: Iterator[str], end: str | None) -> dict[str, list[Any]]:
    fields: dict[str, list[Any]] = {}
    for name in tokens:
        if name == end:
            return fields
        assert re.fullmatch(r"\w+", name), f"no field's name: {name!r}"
        fields.setdefault(name, []).extend(_value(tokens, next(tokens)))
    assert end is None, "a message does not end"
    return fields


def _value(tokens: Iterator[str], token: str) -> list[Any]:
    if token == ":":
        token = next(tokens)
    if token == "[":
        values = []
        while (token := next(tokens)) != "]":
            values += _value(tokens, token)
        return values
    if token == "{":
        return [_message(tokens, end="}")]
    return [token[1:-1].replace('\\"', '"').replace("\\\\", "\\") if token.startswith('"') else token]
