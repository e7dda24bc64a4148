"""Text normalisation in ten languages: numbers, dates, addresses and symbols are written in words.

Other packages import names from this module only, never from the modules inside this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vivavoce_textnorm.checks import MAX_TEXT_CHARS as MAX_TEXT_CHARS
from vivavoce_textnorm.checks import check_characters as check_characters
from vivavoce_textnorm.checks import check_length as check_length
from vivavoce_textnorm.checks import check_surrogates as check_surrogates
from vivavoce_textnorm.checks import excerpt as excerpt
from vivavoce_textnorm.checks import name_some as name_some
from vivavoce_textnorm.language_id import DAY_FIRST as DAY_FIRST
from vivavoce_textnorm.language_id import Language as Language
from vivavoce_textnorm.language_id import contains_chinese as contains_chinese
from vivavoce_textnorm.language_id import detect_language as detect_language
from vivavoce_textnorm.language_id import is_speakable as is_speakable
from vivavoce_textnorm.language_id import with_country as with_country
from vivavoce_textnorm.lexicon import NO_WORDS as NO_WORDS
from vivavoce_textnorm.lexicon import Lexicon as Lexicon
from vivavoce_textnorm.lexicon import Lexicons as Lexicons
from vivavoce_textnorm.lexicon import read_lexicon as read_lexicon
from vivavoce_textnorm.lexicon import read_lexicons as read_lexicons
from vivavoce_textnorm.normalizer import AS_WRITTEN as AS_WRITTEN
from vivavoce_textnorm.normalizer import MAX_BLOCK_CHARS as MAX_BLOCK_CHARS
from vivavoce_textnorm.normalizer import AsWritten as AsWritten
from vivavoce_textnorm.normalizer import CancelCheck as CancelCheck
from vivavoce_textnorm.normalizer import Normalizer as Normalizer
from vivavoce_textnorm.normalizer import Stretch as Stretch
from vivavoce_textnorm.normalizer import blocks as blocks
from vivavoce_textnorm.normalizer import check_wanted as check_wanted
from vivavoce_textnorm.normalizer import never_cancelled as never_cancelled
from vivavoce_textnorm.types import NormalizedText as NormalizedText
from vivavoce_textnorm.types import Piece as Piece
from vivavoce_textnorm.types import Say as Say
from vivavoce_textnorm.types import Settings as Settings

if TYPE_CHECKING:
    from vivavoce_textnorm.inline_tags import OPEN_BRACKET as OPEN_BRACKET
    from vivavoce_textnorm.inline_tags import check_paused as check_paused
    from vivavoce_textnorm.markup import open_fence as open_fence
    from vivavoce_textnorm.markup import without_markup as without_markup
    from vivavoce_textnorm.natural import NaturalNormalizer as NaturalNormalizer
    from vivavoce_textnorm.natural import read_block as read_block
    from vivavoce_textnorm.official import LoadedOnUse as LoadedOnUse
    from vivavoce_textnorm.official import OfficialNormalizer as OfficialNormalizer
    from vivavoce_textnorm.official import as_trained_on as as_trained_on
    from vivavoce_textnorm.official import check_official_rules as check_official_rules
    from vivavoce_textnorm.official import has_official_rules as has_official_rules
    from vivavoce_textnorm.reading_processes import ReadingProcesses as ReadingProcesses
    from vivavoce_textnorm.ssml import find_runs as find_runs
    from vivavoce_textnorm.ssml import is_ssml as is_ssml
    from vivavoce_textnorm.ssml import phonemes as phonemes
    from vivavoce_textnorm.word_stream import gather_ssml as gather_ssml

# These modules are imported on first use, because their import is slow: it compiles hundreds of patterns, for example.
_IMPORTED_LATER = {
    name: module
    for module, names in (
        ("inline_tags", "OPEN_BRACKET check_paused"),
        ("markup", "open_fence without_markup"),
        ("natural", "NaturalNormalizer read_block"),
        ("official", "LoadedOnUse OfficialNormalizer as_trained_on check_official_rules has_official_rules"),
        ("reading_processes", "ReadingProcesses"),
        ("ssml", "find_runs is_ssml phonemes"),
        ("word_stream", "gather_ssml"),
    )
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_IMPORTED_LATER[name]}"), name)
    return found
