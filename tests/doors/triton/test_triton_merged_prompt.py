from __future__ import annotations

import pytest
import torch

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.merged_prompt import merged_prompt, output_length, spoken_tokens
from vivavoce.engine.request import Conditioning, SynthesisRequest

RELEASE = MergedVocabulary(151_663, 6_561)


def segment(length: int) -> SynthesisRequest:
    voice = Conditioning(torch.zeros(192), lm_prompt_text=(7, 8), lm_prompt_tokens=(0, 6_560))
    return SynthesisRequest(voice, text=tuple(range(100, 100 + length)))


def test_order() -> None:
    sos = 151_663 + 6_561 + 3
    assert merged_prompt(RELEASE, segment(2)) == (sos, 7, 8, 100, 101, sos + 1, 151_663, 151_663 + 6_560)


@pytest.mark.parametrize(
    ("length", "least", "most"),
    [(1, 2, 20), (37, 74, 740), (38, 76, 750), (75, 150, 750), (76, 152, 760), (200, 400, 2_000)],
)
def test_output_length(length: int, least: int, most: int) -> None:
    found = output_length(segment(length))
    assert (found.least, found.most) == (least, most)


def test_what_is_speech() -> None:
    speech, end = 151_663, RELEASE.eos_ids[0]
    assert spoken_tokens(RELEASE, [speech, speech + 6_560]) == ((0, 6_560), None)
    assert spoken_tokens(RELEASE, [speech + 4, end, speech]) == ((4,), end)
    assert spoken_tokens(RELEASE, [end + 2, speech]) == ((), end + 2)
    assert spoken_tokens(RELEASE, [speech, 5]) == ((0,), 5)
    assert spoken_tokens(RELEASE, []) == ((), None)
