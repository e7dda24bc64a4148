"""What voices bring to the engine is worked out once."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from vivavoce.errors import InvalidRequest
from vivavoce.service.conditionings import Conditionings
from vivavoce.service.modes import Mode, condition
from vivavoce.service.voices.voice import Voice


@pytest.fixture
def conditionings(models):
    return Conditionings(models.config)


def a_voice(**features) -> Voice:
    tokens = torch.arange(5, dtype=torch.int32)
    voice = Voice(torch.ones(192), "f", prompt_text=(1, 2), speech_tokens=tokens, mel=torch.ones(10, 80))
    return replace(voice, **features)


def test_a_voice_is_routed_once_for_each_mode(conditionings):
    voice = a_voice()
    full = conditionings.of(voice)
    assert conditionings.of(voice, Mode.ZERO_SHOT) is full
    timbre = conditionings.of(voice, Mode.CROSS_LINGUAL)
    assert timbre.lm_prompt_tokens == ()
    assert conditionings.of(voice, Mode.CROSS_LINGUAL) is timbre
    assert full.flow_key == condition(voice, Mode.ZERO_SHOT).flow_key
    assert full.lm_prompt_tokens == (0, 1, 2, 3, 4)


def test_voices_do_not_mix(conditionings):
    one, other = a_voice(), a_voice(mel=torch.zeros(10, 80))
    assert conditionings.of(one).flow_key != conditionings.of(other).flow_key


@pytest.mark.parametrize("features", [{"embedding": torch.ones(5)}, {"mel": torch.ones(9, 80)}])
def test_a_voice_that_does_not_fit_is_refused_each_time(conditionings, features):
    voice = a_voice(**features)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="does not fit this model"):
            conditionings.of(voice)


def test_a_mode_that_a_voice_does_not_allow_is_refused_though_the_voice_is_known(conditionings):
    voice = a_voice(prompt_text=())
    conditionings.of(voice)
    with pytest.raises(InvalidRequest, match="transcript"):
        conditionings.of(voice, Mode.ZERO_SHOT)
    with pytest.raises(InvalidRequest, match="instruction"):
        conditionings.of(voice, Mode.INSTRUCT)


def test_voices_that_nobody_uses_are_forgotten(conditionings):
    conditionings.of(a_voice())
    gc.collect()
    assert len(conditionings._known) == 0
