"""The speakers of the corpus: the teacher's voices, and mixes of them in timbre, in manner, or in both.

A voice is a style of two halves: timbre, and manner (timing, melody, loudness). A recipe names voices and their shares:
`af_heart*0.6+af_bella*0.4`. Test speakers have timbres that no training speaker has any part of.
"""

from __future__ import annotations

import random

from vivavoce_training.data.store import Speaker

FREQUENT = (*("af_heart", "af_bella", "bf_emma", "bf_isabella"), *("am_michael", "am_fenrir", "bm_george", "bm_fable"))
"""The voices of which the corpus has most."""
ENGLISH = (
    *FREQUENT,
    *("af_alloy", "af_aoede", "af_kore", "af_nova", "af_river", "af_sarah", "af_sky", "am_adam", "am_echo"),
    *("am_liam", "am_onyx", "am_puck", "bf_alice", "bm_daniel"),
)
FOREIGN = (
    *("em_alex", "hf_alpha", "hm_omega", "hm_psi", "if_sara", "im_nicola", "jm_kumo", "pf_dora"),
    *("zf_xiaobei", "zf_xiaoxiao", "zf_xiaoyi", "zm_yunjian", "zm_yunxia", "zm_yunyang"),
)
"""Lent for their timbre alone: their manner is another language's. Left out are voices that whisper, that are heard
badly, or that were made of recordings under a licence that asks for names (ff_siwis, the jf_ ones).
"""
KEPT = ("af_jessica", "am_eric", "bf_lily", "bm_lewis")
KEPT_FOREIGN = ("ef_dora", "zm_yunxi", "hf_beta", "pm_alex")
"""Timbres of the test speakers."""
VOICES = (*ENGLISH, *FOREIGN, *KEPT, *KEPT_FOREIGN)
MIXED = (0.25, 0.5)  # the smaller part of a mix of two


def train_speakers(count: int, seed: int) -> list[Speaker]:
    """`count` speakers: the English voices as they are, then mixes; the first n of more speakers are the same n."""
    r = random.Random(seed)
    plain = [_speaker(name, name, name) for name in ENGLISH]
    mixes = (_mix(r, index) for index in range(max(0, count - len(plain))))
    return [*plain[:count], *mixes]


def test_speakers() -> list[Speaker]:
    """20 speakers with timbres that no training knows; the first 8 have one timbre each."""
    manners = ("af_heart", "bm_george", "bf_emma", "am_michael")
    lent = [_speaker(f"test-{name}", name, manner) for name, manner in zip(KEPT_FOREIGN, manners, strict=True)]
    r = random.Random(8)
    mixed = []
    for index in range(12):
        first, second = r.sample((*KEPT, *KEPT_FOREIGN), 2)
        mixed.append(_speaker(f"test-{index:02d}", _two(r, first, second), r.choice(KEPT)))
    return [*(_speaker(f"test-{name}", name, name) for name in KEPT), *lent, *mixed]


test_speakers.__test__ = False  # type: ignore[attr-defined]  # a name that pytest would collect


def shares(recipe: str) -> dict[str, float]:
    """The voices of a recipe and how much of each."""
    parts = (part.partition("*") for part in recipe.split("+"))
    return {name: float(share or 1) for name, _, share in parts}


def weight(speaker: Speaker) -> float:
    """The share of utterances by this speaker, against a mix."""
    return 9.0 if speaker.name in FREQUENT else 2.0 if speaker.name in ENGLISH else 1.0


def _mix(r: random.Random, index: int) -> Speaker:
    """Mixes: two or three voices of an accent, one voice's timbre with another's manner, or a foreign timbre."""
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
