"""A file of words that are to be said otherwise than they are written."""

from __future__ import annotations

from pathlib import Path

from vivavoce.errors import InvalidRequest
from vivavoce.service.text.checks import check_characters

MAX_WORDS = 10_000
MAX_BYTES = 1 << 20


def read_lexicon(path: Path) -> dict[str, str]:
    """Words → what is said for them, from a UTF-8 file: a word, a tabulator and its respelling a line; # comments.

    InvalidRequest names the file, and the line that cannot be used; InvalidText: for control characters.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidRequest(f"lexicon: {path} has more than {MAX_BYTES} bytes; leave words out")
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"lexicon: {path} cannot be read ({error}); name a text file in UTF-8") from error
    words: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        word, said = (part.strip() for part in line.partition("\t")[::2])
        if not word or not said:
            raise InvalidRequest(
                f"lexicon: line {number} of {path} is no word, tabulator and respelling; write one, or begin it with #"
            )
        check_characters(said)
        words[word] = said
    if len(words) > MAX_WORDS:
        raise InvalidRequest(f"lexicon: {path} has {len(words)} words, more than {MAX_WORDS}; leave some out")
    return words
