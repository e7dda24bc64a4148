"""Text as a person would read it out: numbers, dates, addresses and signs in words, in ten languages.

What other packages use is named here; they import no module of this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vivavoce_textnorm.checks import (
    MAX_TEXT_CHARS,
    check_characters,
    check_length,
    check_surrogates,
    check_text,
    excerpt,
    name_some,
)
from vivavoce_textnorm.language_id import (
    DAY_FIRST,
    Language,
    contains_chinese,
    detect_language,
    is_speakable,
    with_country,
)
from vivavoce_textnorm.lexicon import NO_WORDS, Lexicon, Lexicons, read_lexicon, read_lexicons
from vivavoce_textnorm.normalizer import (
    AS_WRITTEN,
    MAX_BLOCK_CHARS,
    AsWritten,
    CancelCheck,
    Normalizer,
    Stretch,
    blocks,
    check_wanted,
    never_cancelled,
)
from vivavoce_textnorm.types import NormalizedText, Piece, Say, Settings

if TYPE_CHECKING:
    from vivavoce_textnorm.inline_tags import OPEN_BRACKET, check_paused
    from vivavoce_textnorm.natural import NaturalNormalizer, read_block
    from vivavoce_textnorm.official import (
        LoadedOnUse,
        OfficialNormalizer,
        as_trained_on,
        check_official_rules,
        has_official_rules,
    )
    from vivavoce_textnorm.reading_processes import ReadingProcesses
    from vivavoce_textnorm.ssml import find_runs, is_ssml, phonemes
    from vivavoce_textnorm.word_stream import gather_ssml

# Their modules compile hundreds of patterns or need much of the standard library: the first use imports them.
_IMPORTED_LATER = {
    "LoadedOnUse": "official",
    "NaturalNormalizer": "natural",
    "OPEN_BRACKET": "inline_tags",
    "OfficialNormalizer": "official",
    "ReadingProcesses": "reading_processes",
    "as_trained_on": "official",
    "check_official_rules": "official",
    "check_paused": "inline_tags",
    "find_runs": "ssml",
    "gather_ssml": "word_stream",
    "has_official_rules": "official",
    "is_ssml": "ssml",
    "phonemes": "ssml",
    "read_block": "natural",
}

__all__ = [
    "AS_WRITTEN",
    "DAY_FIRST",
    "MAX_BLOCK_CHARS",
    "MAX_TEXT_CHARS",
    "NO_WORDS",
    "OPEN_BRACKET",
    "AsWritten",
    "CancelCheck",
    "Language",
    "Lexicon",
    "Lexicons",
    "LoadedOnUse",
    "NaturalNormalizer",
    "NormalizedText",
    "Normalizer",
    "OfficialNormalizer",
    "Piece",
    "ReadingProcesses",
    "Say",
    "Settings",
    "Stretch",
    "as_trained_on",
    "blocks",
    "check_characters",
    "check_length",
    "check_official_rules",
    "check_paused",
    "check_surrogates",
    "check_text",
    "check_wanted",
    "contains_chinese",
    "detect_language",
    "excerpt",
    "find_runs",
    "gather_ssml",
    "has_official_rules",
    "is_speakable",
    "is_ssml",
    "name_some",
    "never_cancelled",
    "phonemes",
    "read_block",
    "read_lexicon",
    "read_lexicons",
    "with_country",
]


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_IMPORTED_LATER[name]}"), name)
    return found
