"""Lexicons: words and their respellings, from files, for all requests, for one voice, or for the owner of one key."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

from vivavoce.errors import InvalidRequest, InvalidText, check_kind
from vivavoce_textnorm.checks import check_characters

MAX_WORDS = 10_000
MAX_BYTES = 1 << 20


class Lexicon(Mapping[str, str]):
    """Immutable mapping from a word to its respelling, which is said instead of the word.

    Raises InvalidRequest if a word or respelling is empty, InvalidText if it is not a string or has control characters.
    """

    def __init__(self, words: Mapping[str, str] = MappingProxyType({})) -> None:
        check_kind("lexicon", words, Mapping, "give words and how to say them, such as {'Wien': 'Vienna'}")
        self._words = dict(words)
        self.written = frozenset(self._words)
        """The words as they are written."""
        for word, said in self._words.items():
            _check_entry(word, said)

    def __getitem__(self, word: str) -> str:
        return self._words[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __eq__(self, other: object) -> bool:
        return self._words == (other._words if isinstance(other, Lexicon) else other)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Lexicon], tuple[dict[str, str]]]:
        return Lexicon, (self._words,)  # without the hash, which is different in each process

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self._words.items()))


NO_WORDS = Lexicon()


def read_lexicon(path: Path) -> Lexicon:
    """Read a text file in UTF-8. Each line is a word, a tab and its respelling, or a comment that begins with #."""
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
            problem = f"lexicon: line {number} of {path} is not a word, a tab and a respelling"
            raise InvalidRequest(f"{problem}; write these, or begin the line with #")
        try:
            _check_entry(word, said)
        except InvalidText as error:
            raise InvalidRequest(f"lexicon: line {number} of {path} is refused ({error})") from None
        words[word] = said
    if len(words) > MAX_WORDS:
        raise InvalidRequest(f"lexicon: {path} has {len(words)} words, more than {MAX_WORDS}; leave some out")
    return Lexicon(words)


@dataclass(frozen=True, eq=False)
class Lexicons:
    everybody: Lexicon
    voices: Mapping[str, Lexicon]
    owners: Mapping[str, Lexicon]

    def of(self, owner: str, voice: str) -> Lexicon:
        """Return a request's lexicon: the owner's words win over the voice's words, and these over all.tsv."""
        return _joined(self.everybody, self.voices.get(voice, NO_WORDS), self.owners.get(owner, NO_WORDS))


@lru_cache(maxsize=64)
def _joined(*parts: Lexicon) -> Lexicon:
    return Lexicon({word: said for part in parts for word, said in part.items()})


def read_lexicons(folder: Path | None) -> Lexicons | None:
    """Read all.tsv, voices/NAME.tsv and keys/NAME.tsv of a folder; each may be missing. Return None without a folder.

    All files are read at once, so a request's name never becomes part of a path. Raises InvalidRequest as
    `read_lexicon` does, if `folder` is not a folder, or if a file in it has another name than all.tsv.
    """
    if folder is None:
        return None
    if not folder.is_dir():
        raise InvalidRequest(
            f"lexicons: {folder} is not a folder; name one with all.tsv, voices/NAME.tsv, keys/NAME.tsv"
        )
    found = [
        {
            unicodedata.normalize("NFC", path.name.removesuffix(".tsv")): read_lexicon(path)
            for path in sorted(place.glob("*.tsv"))
            if not path.name.startswith(".")
        }
        for place in (folder, folder / "voices", folder / "keys")
    ]
    everybody = found[0].pop("all", NO_WORDS)
    if found[0]:
        name = f"{min(found[0])}.tsv"
        raise InvalidRequest(
            f"lexicons: {folder / name} has an unknown name; name it all.tsv, voices/NAME.tsv or keys/NAME.tsv"
        )
    return Lexicons(everybody, found[1], found[2])


def _check_entry(word: str, said: str) -> None:
    for text in (word, said):
        if not isinstance(text, str):
            raise InvalidText(f"lexicon: {type(text).__name__} is not a text; give words and their respellings")
        check_characters(text)
    if not word.strip() or not said.strip():
        raise InvalidRequest(f"lexicon: {word!r} has the respelling {said!r}; give a word and its respelling")
