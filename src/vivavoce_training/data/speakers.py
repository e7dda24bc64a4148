"""The speakers of the corpus: the teacher's voices, and mixes of them in timbre, in manner, or in both.

A voice is a style with two halves: timbre, and manner (timing, melody, loudness). A recipe names voices and their
shares: `af_heart*0.6+af_bella*0.4`. Test speakers and training speakers have timbres of different voices.
"""

from __future__ import annotations

import random

from vivavoce_training.data.store import Speaker

FREQUENT = (*("af_heart", "af_bella", "bf_emma", "bf_isabella"), *("am_michael", "am_fenrir", "bm_george", "bm_fable"))
"""The voices with the most utterances in the corpus."""
ENGLISH = (
    *FREQUENT,
    *("af_alloy", "af_aoede", "af_kore", "af_nova", "af_river", "af_sarah", "af_sky", "am_adam", "am_echo"),
    *("am_liam", "am_onyx", "am_puck", "bf_alice", "bm_daniel"),
)
FOREIGN = (
    *("em_alex", "hf_alpha", "hm_omega", "hm_psi", "if_sara", "im_nicola", "jm_kumo", "pf_dora"),
    *("zf_xiaobei", "zf_xiaoxiao", "zf_xiaoyi", "zm_yunjian", "zm_yunxia", "zm_yunyang"),
)
"""Voices of other languages: only their timbre is used, not their manner. This list omits voices that whisper, that are
hard to understand, or whose recordings have a licence that requires attribution (ff_siwis and all jf_ voices).
"""
KEPT = ("af_jessica", "am_eric", "bf_lily", "bm_lewis")
KEPT_FOREIGN = ("ef_dora", "zm_yunxi", "hf_beta", "pm_alex")
"""Voices whose timbres only test speakers have."""
VOICES = (*ENGLISH, *FOREIGN, *KEPT, *KEPT_FOREIGN)
MIXED = (0.25, 0.5)  # range of the second voice's share in a mix of two


def train_speakers(count: int, seed: int) -> list[Speaker]:
    """Make `count` speakers: the English voices, then mixes. With the same seed, a larger count appends speakers."""
    r = random.Random(seed)
    plain = [_speaker(name, name, name) for name in ENGLISH]
    mixes = (_mix(r, index) for index in range(max(0, count - len(plain))))
    return [*plain[:count], *mixes]


def test_speakers() -> list[Speaker]:
    """Make 20 speakers with timbres that training speakers lack. The first 8 have a voice's timbre, others mixes."""
    manners = ("af_heart", "bm_george", "bf_emma", "am_michael")
    lent = [_speaker(f"test-{name}", name, manner) for name, manner in zip(KEPT_FOREIGN, manners, strict=True)]
    r = random.Random(8)
    mixed = []
    for index in range(12):
        first, second = r.sample((*KEPT, *KEPT_FOREIGN), 2)
        mixed.append(_speaker(f"test-{index:02d}", _two(r, first, second), r.choice(KEPT)))
    return [*(_speaker(f"test-{name}", name, name) for name in KEPT), *lent, *mixed]


test_speakers.__test__ = False  # type: ignore[attr-defined]  # the name looks like a test to pytest


def shares(recipe: str) -> dict[str, float]:
    """Return the voices of a recipe, each with its share."""
    parts = (part.partition("*") for part in recipe.split("+"))
    return {name: float(share or 1) for name, _, share in parts}


def weight(speaker: Speaker) -> float:
    """Return the relative frequency with which this speaker is drawn for a line; a mix has 1."""
    return 9.0 if speaker.name in FREQUENT else 2.0 if speaker.name in ENGLISH else 1.0


def _mix(r: random.Random, index: int) -> Speaker:
    """Draw a mix: two or three voices of an accent, a voice's timbre with another's manner, or a foreign timbre."""
    accent = r.choice("aab")
    own = [name for name in ENGLISH if name[0] == accent]
    kind = r.random()
    if kind < 0.4:
        timbre = manner = _two(r, *r.sample(own, 2))
    elif kind < 0.55:
        timbre = manner = "+".join(
            f"{name}*{share}" for name, share in zip(r.sample(own, 3), (0.4, 0.3, 0.3), strict=True)
        )
    elif kind < 0.75:
        timbre, manner = r.sample(ENGLISH, 1)[0], r.choice(own)
    elif kind < 0.85:
        timbre, manner = _two(r, r.choice(own), r.choice(FOREIGN)), r.choice(own)
    else:
        timbre, manner = r.choice(FOREIGN), r.choice(own)
    return _speaker(f"mix-{index:03d}", timbre, manner)


def _two(r: random.Random, first: str, second: str) -> str:
    part = round(r.uniform(*MIXED), 2)
    return f"{first}*{1 - part:.2f}+{second}*{part:.2f}"


def _speaker(name: str, timbre: str, manner: str) -> Speaker:
    return Speaker(name, voice=manner.partition("*")[0], timbre=timbre, manner=manner)
