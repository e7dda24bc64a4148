"""One step of the language model's training."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.capturable import uncapturable
from training.lm.sequences import CONTROL, IGNORED, PAD, SPEECH, TEXT, Rows
from training.lm.train import LMRecipe, Step
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.qwen2 import SpeechLM

CPU = torch.device("cpu")
RECIPE = LMRecipe(positions_per_step=48)


def rows(length: int, largest_text: int = 200) -> Rows:
    """Three rows: text, speech and padding."""
    kinds = np.full((3, length), SPEECH, np.uint8)
    kinds[:, 0], kinds[:, 1:5], kinds[:, 5], kinds[:, -2:] = CONTROL, TEXT, CONTROL, PAD
    ids = np.arange(3 * length, dtype=np.int32).reshape(3, length)
    ids[kinds == TEXT] = largest_text
    ids[kinds == CONTROL] = 1
    targets = np.where(kinds == SPEECH, ids % 100, IGNORED).astype(np.int16)
    return Rows(kinds, ids, targets)


def test_a_step_can_be_captured(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(copy.deepcopy(models.lm), [rows(12), rows(24)], RECIPE, CPU)
    for variant in (0, 1):
        assert uncapturable(step, variant, monkeypatch) == []


def test_a_text_vocabulary_may_be_larger_than_the_speech_tokens(models: Models) -> None:
    large = replace(models.config.lm, text_vocab_size=20_000)
    torch.manual_seed(0)
    lm = SpeechLM(large)
    values = Step(lm, [rows(12, 19_999)], RECIPE, CPU)(0)
    assert values["loss"].isfinite()


def test_lengths_without_rows_are_no_variants(models: Models) -> None:
    none = Rows(*(np.zeros((0, 8), kind) for kind in (np.uint8, np.int32, np.int16)))
    assert Step(copy.deepcopy(models.lm), [none, rows(12)], RECIPE, CPU).positions == [36]
    with pytest.raises(InvalidRequest, match="no utterance fits into a training row"):
        Step(copy.deepcopy(models.lm), [none], RECIPE, CPU)
