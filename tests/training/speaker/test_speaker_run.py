from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.capturable import uncapturable
from tests.training.tones import write_tones
from training.data.store import Corpus
from training.loop import Budget
from training.speaker.extract import extract_embeddings
from training.speaker.model import SpeakerNet, SpeakerSizes
from training.speaker.run import Sizes, train_speaker
from training.speaker.step import Step
from training.speaker.waves import load_waves
from training.utterances import evenly_by_speaker, heard
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder

CPU = torch.device("cpu")
TINY = SpeakerSizes(width=16, dilations=(1, 2), gate=4, pooled=16)
SIZES = Sizes(model=TINY, batch=4, crop_samples=(3200, 4800))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_tones(tmp_path_factory.mktemp("corpus"), utterances_each=8)


def test_waves_are_the_utterances_one_after_another(corpus: Corpus) -> None:
    utterances = evenly_by_speaker(corpus, 1.0)
    waves = load_waves(corpus, utterances, CPU, 3200)
    alone = torch.cat([heard(corpus, utterances[[row]], CPU)[0] for row in range(len(utterances))])
    torch.testing.assert_close(waves.samples.float() / 32768, alone, rtol=0, atol=1e-4)
    crops, speaker = waves.draw(50, 3200)
    assert crops.shape == (50, 3200)
    assert crops.abs().max() <= 1
    assert set(speaker.tolist()) == {0, 1, 2}


def test_a_step_learns_the_speakers(corpus: Corpus) -> None:
    torch.manual_seed(0)
    waves = load_waves(corpus, evenly_by_speaker(corpus, 1.0), CPU, 4800)
    step = Step(corpus, waves, SpeakerNet(TINY), batch=8, crop_samples=(3200, 4800))
    step.optimizers["speaker"].set_rate(200, 0.0)
    before = np.mean([float(step(variant)["margin"].detach()) for variant in (0, 1)])
    for number in range(60):
        values = step(step.variant(number, 0.0))
    assert float(values["margin"].detach()) < 0.6 * before
    assert float(values["right"]) > 0.6


def test_a_step_can_be_captured(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    waves = load_waves(corpus, evenly_by_speaker(corpus, 1.0), CPU, 4800)
    step = Step(corpus, waves, SpeakerNet(TINY), batch=4, crop_samples=(3200, 4800))
    assert uncapturable(step, 1, monkeypatch) == []


@torch.no_grad()
def test_each_utterance_is_heard_alone(corpus: Corpus) -> None:
    net = SpeakerNet(TINY)
    chosen = np.array([7, 2, 20])
    some = extract_embeddings(corpus, net, CPU, utterances=chosen)
    everything = extract_embeddings(corpus, net, CPU, batch_tokens=30)
    np.testing.assert_allclose(some, everything[chosen], rtol=0, atol=1e-3)
    muted = extract_embeddings(corpus, net, CPU, utterances=chosen, change=torch.zeros_like)
    assert np.abs(muted - muted[0]).max() < 0.02 < np.abs(some - muted).max()


def test_from_corpus_to_embeddings_in_two_pieces(corpus: Corpus, tmp_path: Path) -> None:
    others = write_tones(tmp_path / "others", utterances_each=4, seed=1)
    out = tmp_path / "out"
    train_speaker(corpus.folder, out, Budget(steps=10), CPU, others=others.folder, sizes=SIZES)
    path = train_speaker(corpus.folder, out, Budget(steps=20), CPU, others=others.folder, sizes=SIZES)
    assert torch.load(out / "speaker.state.pt", weights_only=True)["step"] == 20
    assert path.name == "campplus.onnx"
    encoder = SpeakerEncoder.from_file(path)
    for one in (corpus, others):
        assert one.embeddings.dtype == np.float16
        assert one.embeddings.shape == (len(one), 192)
        stored = torch.from_numpy(np.array(one.embeddings[3])).float()
        assert torch.cosine_similarity(stored, encoder(heard(one, np.array([3]), CPU)[0]), dim=0) > 0.999
    measures = json.loads((out / "speaker.measures.json").read_text())
    assert set(measures) == {"corpus", "others"}
    assert measures["others"]["lowest_cosine_to_onnx"] > 0.999
