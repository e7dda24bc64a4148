"""What a request is checked for before the loop sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.engine_helpers import VOICE, given, offline, segment
from vivavoce.errors import InvalidRequest


def of(**features):
    """A segment in a voice with these features in place of its own."""
    return segment(voice=replace(VOICE, **features))


def flow_tokens(wrong):
    tokens = VOICE.flow_tokens.clone()
    tokens[3] = wrong
    return tokens


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            lambda end: segment(text=(65, end, 66)),
            r"^text: id {end} is outside of 0 … {last}; it belongs to another model$",
        ),
        (lambda end: segment(text=(-1, end)), r"^text: id -1 is outside of 0 … {last}; "),
        (lambda end: segment(text=(65, 2**70)), r"^text: id 1180591620717411303424 is outside of"),
        (lambda end: of(lm_prompt_text=(65, end)), r"^text: id {end} is outside of"),
        (lambda end: of(lm_prompt_tokens=(6560, 6561)), r"^speech tokens: id 6561 is outside of 0 … 6560; "),
        (lambda end: of(flow_tokens=flow_tokens(6561)), r"^speech tokens: id 6561 is outside of 0 … 6560; "),
        (lambda end: replace(given(3), speech_tokens=(1, -2, 3)), r"^speech tokens: id -2 is outside of 0 … 6560; "),
    ],
)
def test_ids_that_the_tables_lack_are_refused(engine, models, asked, message):
    end = models.config.lm.text_vocab_size
    request = asked(end)
    for _ in range(2):  # a voice that was refused is refused again
        with pytest.raises(InvalidRequest, match=message.format(end=end, last=end - 1)):
            engine.submit(offline(request))


def test_the_largest_ids_are_taken_and_flow_tokens_below_zero(engine, models):
    last = models.config.lm.text_vocab_size - 1
    engine.submit(offline(segment(text=(0, last))))
    engine.submit(offline(of(flow_tokens=flow_tokens(-5), lm_prompt_text=(0, last), lm_prompt_tokens=())))
    engine.submit(offline(replace(given(2), speech_tokens=(0, 6560))))


def test_a_voice_is_checked_once_and_its_texts_always(engine, models):
    voice = replace(VOICE)
    engine.submit(offline(segment(voice=voice)))
    assert voice.fits
    with pytest.raises(InvalidRequest, match=r"^text: id"):
        engine.submit(offline(segment(text=(models.config.lm.text_vocab_size,), voice=voice)))
    with pytest.raises(InvalidRequest, match=r"^speech tokens: id"):
        engine.submit(offline(replace(given(2, voice=voice), speech_tokens=(6561,))))


def test_what_the_flow_hears_makes_a_voice_s_key():
    assert replace(VOICE, lm_prompt_text=()).flow_key == VOICE.flow_key
    assert replace(VOICE, flow_mel=VOICE.flow_mel + 1).flow_key != VOICE.flow_key
    assert replace(VOICE, embedding=VOICE.embedding.flip(0)).flow_key != VOICE.flow_key
    assert replace(VOICE, flow_tokens=VOICE.flow_tokens.flip(0)).flow_key != VOICE.flow_key
    assert VOICE.flow_prompt == tuple(VOICE.flow_tokens.tolist())
    assert replace(VOICE, flow_tokens=torch.zeros(0, dtype=torch.int64)).flow_prompt == ()
