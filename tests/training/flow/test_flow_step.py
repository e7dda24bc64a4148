"""One step of the flow's training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.training.capturable import uncapturable
from tests.training.tones import write_tones
from training.data.store import write_array
from training.flow.train import FlowRecipe, Step, start_at_mean
from training.flow.windows import SpeakerMajor
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.model import Flow

CPU = torch.device("cpu")
WINDOWS = ((20, 3), (40, 2))


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory, models: Models) -> SpeakerMajor:
    corpus = write_tones(tmp_path_factory.mktemp("corpus"))
    generator = np.random.default_rng(0)
    write_array(corpus.folder / "tokens.npy", generator.integers(0, 6561, corpus.num_tokens).astype(np.int16))
    write_array(corpus.folder / "embeddings.npy", generator.standard_normal((len(corpus), 192)).astype(np.float16))
    return SpeakerMajor.load(corpus, models.config.mel, CPU)


@pytest.mark.parametrize("variant", [0, 1, 2, 3])
def test_a_step_can_be_captured(
    variant: int, speech: SpeakerMajor, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(copy.deepcopy(models.flow), speech, FlowRecipe(windows=WINDOWS))
    assert uncapturable(step, variant, monkeypatch) == []


def test_a_corpus_shorter_than_a_window(speech: SpeakerMajor, models: Models) -> None:
    longer = len(speech.tokens) + 1
    with pytest.raises(InvalidRequest, match=f"{longer} are needed; add recordings"):
        Step(copy.deepcopy(models.flow), speech, FlowRecipe(windows=((20, 3), (longer, 2))))


def test_an_untrained_flow_starts_at_the_mean_mel(speech: SpeakerMajor, models: Models) -> None:
    flow = Flow(models.config.flow)
    start_at_mean(flow, speech)
    torch.testing.assert_close(flow.estimator.out.bias.detach(), speech.mels.float().mean(0), rtol=0, atol=0.05)
