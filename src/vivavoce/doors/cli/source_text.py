"""The text that `speak` says: from its argument, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from vivavoce.doors.cli.console import is_terminal
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.service.text.checks import MAX_TEXT_CHARS, check_characters, check_length

STDIN = "-"
_MAX_UTF8_BYTES = 4


def read_text(argument: str | None, file: str | None) -> str:
    """The text, checked as far as that needs no model.

    Args:
        argument: the text itself.
        file: a path, or "-" for standard input, which is read also if neither is given.

    Raises:
        InvalidRequest: two texts, or none at all.
        InvalidText: empty, too long, not UTF-8, or with characters that no model speaks.
    """
    if argument is not None and file is not None:
        raise InvalidRequest("text: is given twice, as an argument and with --file; leave one out")
    if argument is None and file is None and is_terminal(sys.stdin):
        raise InvalidRequest('text: none is given; type `vivavoce speak "Hello."`, or use --file, or pipe it in')
    text = argument if argument is not None else _decode(file or STDIN)
    if not text.strip():
        raise InvalidText("text: is empty; write at least one word")
    check_length(text)
    check_characters(text)
    return text


def _decode(path: str) -> str:
    label = "stdin" if path == STDIN else path
    most = _MAX_UTF8_BYTES * (MAX_TEXT_CHARS + 1)  # and a byte order mark
    try:
        content = _read(path, most + 1)
    except OSError as error:
        raise InvalidRequest(f"file: {label!r} cannot be read ({error.strerror}); check the path") from None
    if len(content) > most:
        raise InvalidText(
            f"text: {label!r} is longer than the limit of {MAX_TEXT_CHARS} characters; split it into several files"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise InvalidText(
            f"text: {label!r} is not UTF-8 (byte 0x{byte:02x} at position {error.start}); save it as UTF-8 text"
        ) from None


def _read(path: str, most: int) -> bytes:
    if path == STDIN:
        return sys.stdin.buffer.read(most) if sys.stdin is not None else b""
    with Path(path).open("rb") as file:
        return file.read(most)
