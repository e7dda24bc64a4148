import pytest
import torch

from vivavoce.errors import InvalidRequest
from vivavoce.service.modes import Mode, choose_mode, condition
from vivavoce.service.voices.voice import Voice

EMBEDDING = torch.arange(192.0)
FULL = Voice(
    EMBEDDING, "f", prompt_text=(1, 2), speech_tokens=torch.arange(5, dtype=torch.int32), mel=torch.ones(10, 80)
)
WORDLESS = Voice(EMBEDDING, "f", speech_tokens=FULL.speech_tokens, mel=FULL.mel)
BARE = Voice(EMBEDDING, "f")


@pytest.mark.parametrize(
    ("voice", "instruct", "mode"),
    [
        (FULL, None, Mode.ZERO_SHOT),
        (WORDLESS, None, Mode.CROSS_LINGUAL),
        (BARE, None, Mode.SFT),
        (FULL, "slowly", Mode.INSTRUCT),
        (BARE, "slowly", Mode.INSTRUCT),
    ],
)
def test_the_fullest_mode_is_chosen(voice, instruct, mode):
    assert choose_mode(voice, instruct) is mode


@pytest.mark.parametrize(
    ("voice", "instruct", "wanted", "word"),
    [
        (BARE, None, Mode.ZERO_SHOT, "reference speech"),
        (BARE, None, Mode.CROSS_LINGUAL, "reference speech"),
        (WORDLESS, None, Mode.ZERO_SHOT, "transcript"),
        (FULL, None, Mode.INSTRUCT, "instruction"),
        (FULL, "slowly", Mode.ZERO_SHOT, "instruct"),
    ],
)
def test_what_a_mode_lacks_is_named(voice, instruct, wanted, word):
    with pytest.raises(InvalidRequest, match=word):
        choose_mode(voice, instruct, wanted)


@pytest.mark.parametrize(
    ("mode", "text", "speech", "frames"),
    [
        (Mode.ZERO_SHOT, (1, 2), (0, 1, 2, 3, 4), 10),
        (Mode.CROSS_LINGUAL, (), (), 10),
        (Mode.INSTRUCT, (8, 9), (), 10),
        (Mode.SFT, (), (), 0),
    ],
)
def test_the_table(mode, text, speech, frames):
    routed = condition(FULL, mode, (8, 9))
    assert routed.lm_prompt_text == text
    assert routed.lm_prompt_tokens == speech
    assert len(routed.flow_tokens) == frames // 2
    assert len(routed.flow_mel) == frames
    assert torch.equal(routed.embedding, EMBEDDING)


@pytest.mark.parametrize(("tokens", "frames", "kept"), [(5, 10, 5), (5, 13, 5), (9, 11, 5), (5, 0, 0)])
def test_alignment(tokens, frames, kept):
    voice = Voice(EMBEDDING, "f", speech_tokens=torch.arange(tokens), mel=torch.ones(frames, 80)).aligned(2)
    assert (len(voice.speech_tokens), len(voice.mel)) == (kept, 2 * kept)
