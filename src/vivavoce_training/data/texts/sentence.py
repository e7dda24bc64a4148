"""Rules for sentences of the corpus: characters, length, unsuitable words, and the choice of sentences for tests."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

MIN_WORDS = 3
MAX_WORDS = 18

_WORD = re.compile(r"[a-z']+")
_PLAIN = re.compile(r"[A-Za-z' ,.?!;:-]+")
_ABBREVIATED = re.compile(
    r"[A-Z]{2}|[A-Za-z]\.[A-Za-z]|(?<!')\b[B-HJ-Zb-z]\b(?!')"
    r"|\b(?:etc|esp|eg|ie|cf|vs|viz|approx|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Gov|Sen|Rep|No|Co|Inc"
    r"|Ltd|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Oct|Nov|Dec)\."
)
"""Abbreviations and single letters, which are not read as they are spelled."""
_QUOTED = re.compile(r"(?<![A-Za-z])'|(?<![sS])'(?![A-Za-z])")  # apostrophes that are quotation marks
_SPACES = re.compile(r"\s+")
_LOOSE_MARK = re.compile(r" +([,.?!;:])")
_QUOTES = str.maketrans({"`": "'", "’": "'", "‘": "'"})

_UNSUITABLE = frozenset(
    str.split(
        "0228f90e 039f4a26 0508a634 05b8b79e 05e63c24 0632813d 08a841e9 09508013 0be9b885 0dcc4d33 0ebdc331 0ec52f57 "
        "0f28c496 110c6c5a 1189ac22 11cf8376 120f6e5b 12a667c9 13a465fc 158869a9 183936b0 1b253a25 1b830448 1de4ec03 "
        "1e02eec4 1e5541c6 2062f800 2189c0ed 21ff590c 235e2853 26033e08 27a45e0e 27eb0c4a 2a6060b5 2a6937d7 2bda9b4d "
        "2c1d8af3 2c32c156 2d66da9f 2e2a68ae 2f72ee89 304bf48b 31506a84 3152c94d 38012c26 38136d6e 39c7ad80 3a53db8a "
        "3b1e0d7c 3b2afc70 3b873fc1 3baea611 42c75396 4426e54c 44547426 44f20914 45d866ee 45fb7c3b 460ed72c 46505206 "
        "47b673e0 48fab7a5 4ae19158 4b18aefe 4ed346ce 5055fa00 522788b6 5304378d 566f532d 59a2418c 59cc3cb8 5a36615e "
        "5a9d9dce 5b3ae48b 5ebdc7b0 6122fdf4 619bc82e 6537f8ab 6672b930 6ac3c336 6adc452d 6ef9d9fd 737dd1bc 78a00d18 "
        "796e43a5 7bc67115 7c686cf2 7e85c676 8171c4ec 8353bea1 85fc17f7 867d7897 886d51e9 8b6f82db 8bedb0f8 8f5083e3 "
        "9270c8c3 92a9bf81 937d56e4 938b345c 94a2b576 984b5c6e 986c9900 98980840 98b52c4b 98d44e13 9915ba2d 9ae315a9 "
        "a02d538d a1c1a3b7 a24efab8 a2d1c681 a3686065 a40ccba8 a467a313 a4a50c9c a4c7815e a6ee0e6b a76d588d a9f41dff "
        "ab0c0f27 ab26f696 ad505b0b ad64e56f ad6cacf3 ae96f4ab af48d859 b34e00e1 b587da59 b5a352ef b690cdbe b81d6dc2 "
        "b9ef6083 ba6fb01a ba7463ed bb87adf8 bd331fb1 be00f1af be2db2bf be476b26 c1b4ed05 c22f315f c2c3b68b c3de533e "
        "c8bd849e c91d7a20 cbb06149 cc020323 d11f3961 d17ef521 d1bbb220 d2ce238b d31f9b0c d3655ec2 d529d38c d5405925 "
        "d6be0c9f d75a838d d7d34a40 d84f691f d92f4cf1 dc2abe4e dc4d53ba dcb85fcf dd32831e dd971cc1 df736257 dfb0ce07 "
        "e041c609 e1490e2a e30c2ea7 e512a055 e6836793 e7b98c6a e84dde50 e9143a29 e9b64384 eb9b0354 ee6f01a9 eef3bd09 "
        "eff26b18 f50c51ed f5778592 f59e28f8 f600213e f6952d6e f6a9dcb1 f9d0d9b1 fb96c276 fc3086f6 fcb7d8ae fd70ad90 "
        "fda6539b fdca9cb0 ff5ae7e8"
    )
)
"""Words that must not be in the corpus, by the first 8 hexadecimal digits of their SHA-256."""


def words(sentence: str) -> list[str]:
    """The words in lower case; a hyphen separates two words."""
    return _WORD.findall(sentence.lower().replace("-", " "))


def is_reserved(sentence: str) -> bool:
    """Return whether the sentence is reserved for tests: one in 100 is, chosen by the MD5 of its lower-case text."""
    digest = hashlib.md5(sentence.lower().encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % 100 == 7


def is_suitable(sentence: str) -> bool:
    return not any(_is_unsuitable(word) for word in words(sentence))


def clean(text: str) -> str | None:
    """Return the text with a capital first letter and a final punctuation mark; None if it does not suit the corpus.

    The result holds letters, spaces and `',.?!;:-` only, 3 to 18 words, no abbreviation and no unsuitable word.
    """
    text = _SPACES.sub(" ", text.translate(_QUOTES).replace("--", ", "))
    text = _LOOSE_MARK.sub(r"\1", text).strip(" ;,:-")
    if not text or not _PLAIN.fullmatch(text) or _ABBREVIATED.search(text) or _QUOTED.search(text):
        return None
    if not MIN_WORDS <= len(words(text)) <= MAX_WORDS or not is_suitable(text):
        return None
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


@lru_cache(maxsize=100_000)
def _is_unsuitable(word: str) -> bool:
    return hashlib.sha256(word.strip("'").encode()).hexdigest()[:8] in _UNSUITABLE
