"""Spells speech tokens: a phone, its place in the token, pitch and loudness, in eight ternary digits.

    digits 1–4   the phone, by articulatory features: similar sounds have similar digits
    digit 5      -1: the first half belongs to the previous phone; 0: the phone fills the token; 1: the second half
                 belongs to the next phone
    digits 6–7   pitch relative to the speaker's median, nine steps of 1.7 semitones
    digit 8      loudness of the neighbourhood: soft, usual, loud

All digits of silence are 0. Neighbouring steps of the pitch differ in one digit (a reflected Gray code). So if a
tokenizer cannot decide between two steps, its error is at most one step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_DIGITS, BASE = 8, 3
NUM_CODES = BASE**NUM_DIGITS
PHONE_DIGITS = 4

_SPELLED = {
    "pau": "1111",
    "i": "0001", "ɪ": "0000", "ɛ": "0010", "A": "0012", "æ": "0020", "a": "0021", "I": "0022",
    "ə": "0110", "ɜ": "0111", "ʌ": "0120", "W": "0122", "Q": "0112",
    "u": "0201", "ʊ": "0200", "O": "0212", "Y": "0211", "ɔ": "0210", "ɑ": "0220", "ɒ": "0221",
    "m": "1000", "n": "1100", "ŋ": "1200", "l": "1120", "ɹ": "1122", "w": "1022", "j": "1222",
    "p": "2000", "b": "2002", "t": "2100", "T": "2101", "d": "2102", "k": "2200", "ɡ": "2202", "ʔ": "2201",
    "f": "2010", "v": "2012", "s": "2110", "z": "2112", "ʃ": "2210", "ʒ": "2212", "h": "2211",
    "θ": "2020", "ð": "2022", "ʧ": "2220", "ʤ": "2222",
}  # fmt: skip
PHONES = tuple(_SPELLED)
"""American and British phones as Kokoro writes them: A I O Q W Y are diphthongs, T the flap; the first is silence."""
PHONE_INDEX = {phone: index for index, phone in enumerate(PHONES)}
SILENCE = 0
SILENCE_TOKEN = (NUM_CODES - 1) // 2

BEFORE, WHOLE, NEXT = -1, 0, 1
PITCH_STEP = 1.7  # semitones
PITCH_LEVELS = 9
_MIDDLE = PITCH_LEVELS // 2
_GRAY = ("00", "01", "02", "12", "11", "10", "20", "21", "22")


def _digits(spelled: str) -> list[int]:
    return [int(digit) - 1 for digit in spelled]


_PHONE_TABLE = np.array([_digits(spelled) for spelled in _SPELLED.values()], np.int8)
_PITCH_TABLE = np.array([_digits(spelled) for spelled in _GRAY], np.int8)
_WEIGHTS = BASE ** np.arange(NUM_DIGITS)
_LEVEL_OF = np.zeros(BASE**2, np.int8)
_LEVEL_OF[(_PITCH_TABLE + 1) @ _WEIGHTS[:2]] = np.arange(PITCH_LEVELS)


def spell(
    phones: NDArray[np.uint8], places: NDArray[np.int8], semitones: NDArray[np.float32], loudness: NDArray[np.int8]
) -> NDArray[np.int16]:
    """Spell tokens in [0, 6561). phones: indices of `PHONES`; places: BEFORE, WHOLE or NEXT; semitones: pitch relative
    to the speaker's median; loudness: -1, 0 or 1. All arrays have one shape; silence ignores the last three.
    """
    level = np.clip(np.rint(semitones / PITCH_STEP), -_MIDDLE, _MIDDLE).astype(np.int64) + _MIDDLE
    rest = np.concatenate([places[..., None], _PITCH_TABLE[level], loudness[..., None]], -1)
    rest = rest * (phones != SILENCE)[..., None]
    digits = np.concatenate([_PHONE_TABLE[phones], rest], -1).astype(np.int64)
    tokens: NDArray[np.int16] = ((digits + 1) @ _WEIGHTS).astype(np.int16)
    return tokens


def digits_of(tokens: NDArray[np.integer]) -> NDArray[np.int8]:
    """Return the digits [.., 8] of tokens [..], each -1, 0 or 1."""
    found: NDArray[np.int8] = (tokens.astype(np.int64)[..., None] // _WEIGHTS % BASE - 1).astype(np.int8)
    return found


def level_of(digits: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the pitch steps, in [-4, 4], that digits [.., 8] spell."""
    both = (digits[..., PHONE_DIGITS + 1 : PHONE_DIGITS + 3].astype(np.int64) + 1) @ _WEIGHTS[:2]
    return (_LEVEL_OF[both] - _MIDDLE).astype(np.int8)


def placed(halves: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Choose each token's phone and its place, both [batch, tokens]. halves: [batch, tokens, 2], phones of half tokens.

    If two phones meet in a token, the token takes the first phone, unless the previous token has this phone already; it
    then takes the second phone. So a short phone is not lost.
    """
    first, second = halves[..., 0], halves[..., 1]
    phone, place = second.copy(), np.zeros(second.shape, np.int8)
    before = np.full(len(halves), SILENCE, np.uint8)
    for token in range(halves.shape[1]):
        meet = first[:, token] != second[:, token]
        is_new = meet & (first[:, token] != before)
        phone[:, token] = np.where(is_new, first[:, token], second[:, token])
        place[:, token] = np.where(is_new, NEXT, np.where(meet, BEFORE, WHOLE))
        before = phone[:, token]
    return phone, place
