"""How a token spells what is spoken: four digits of three values for each half of its 40 ms.

The digits are articulatory features, so phones that sound alike differ in few of them, and a digit that is misheard
gives a neighbour and not some other sound. What a speaker adds to a phone has no digit.

    sound class   0 vowel          1 sonorant or silence   2 obstruent
    vowels        front … back,    high … low,             lax, tense, diphthong
    consonants    front … back,    manner,                 voiceless … voiced
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.data.store import MELS_PER_TOKEN, PHONES

DIGITS_PER_PHONE = 4

_SPELLED = {
    "pau": "1111",
    "iy": "0001", "ih": "0000", "eh": "0010", "ey": "0012", "ae": "0020", "ay": "0022",
    "ax": "0110", "er": "0111", "ah": "0120", "aw": "0122",
    "uw": "0201", "uh": "0200", "ow": "0212", "oy": "0211", "ao": "0210", "aa": "0220",
    "m": "1000", "n": "1100", "ng": "1200", "l": "1120", "r": "1122", "w": "1022", "y": "1222",
    "p": "2000", "b": "2002", "t": "2100", "d": "2102", "k": "2200", "g": "2202",
    "f": "2010", "v": "2012", "s": "2110", "z": "2112", "sh": "2210", "zh": "2212", "hh": "2211",
    "th": "2020", "dh": "2022", "ch": "2220", "jh": "2222",
}  # fmt: skip


def spelling(device: torch.device | None = None) -> Tensor:
    """[phones, 4] float32 of -1, 0 and 1: the digits of each phone of `PHONES`."""
    return torch.tensor([[int(digit) - 1.0 for digit in _SPELLED[phone]] for phone in PHONES], device=device)


def spell(phones: Tensor, spellings: Tensor) -> Tensor:
    """Phones [batch, tokens · 2] int64 → digits [batch, tokens, 8] float32: the first half's, then the second's.

    spellings: of `spelling`, on the device of the phones; a captured step may not bring them there.
    """
    digits = spellings[phones]
    return digits.view(len(phones), -1, MELS_PER_TOKEN * DIGITS_PER_PHONE)
