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
from training.tokenizer.features import load_features
from training.tokenizer.model import TokenEncoder, TokenizerSizes
from training.tokenizer.run import Sizes, train_tokenizer
from training.tokenizer.step import Step
from training.utterances import evenly_by_speaker, heard
from vivavoce.models.features.whisper_mel import whisper_log_mel
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer

CPU = torch.device("cpu")
TINY = TokenizerSizes(width=32, heads=2, blocks=1, inner=32, kernel=3, span=4)
SIZES = Sizes(model=TINY, batch=8, crop_tokens=12, validation_crops=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_tones(tmp_path_factory.mktemp("corpus"), utterances_each=30)


def test_features_are_those_of_each_utterance_alone(corpus: Corpus) -> None:
    utterances = evenly_by_speaker(corpus, 1.0)
    features = load_features(corpus, utterances, CPU, 16)
    assert features.mel.shape == (corpus.num_tokens * 4, 128)
    at = 0
    for utterance in utterances[:5]:
        alone = whisper_log_mel(heard(corpus, np.array([utterance]), CPU)[0])
        there, phones = features.cut(torch.tensor([at]), alone.shape[1] // 4)
        torch.testing.assert_close(there[0], alone, rtol=0, atol=1e-3)
        first, last = corpus.start[utterance] * 2, corpus.start[utterance + 1] * 2
        assert phones[0].tolist() == corpus.phones[first:last].tolist()
        at += alone.shape[1] // 4


def test_a_step_learns_the_spelling(corpus: Corpus) -> None:
    torch.manual_seed(0)
    features = load_features(corpus, evenly_by_speaker(corpus, 1.0), CPU, 16)
    step = Step(features, TokenEncoder(TINY), batch=8, crop_tokens=16)
    step.optimizers["tokenizer"].set_rate(200, 0.0)
    before = [float(step(0)["loss"].detach()) for _ in range(5)]
    for _ in range(120):
        values = step(0)
    assert float(values["loss"].detach()) < 0.6 * np.mean(before)
    assert set(values) == {"loss", "digits_right", "tokens_right"}


def test_a_step_can_be_captured(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    features = load_features(corpus, evenly_by_speaker(corpus, 1.0), CPU, 16)
    assert uncapturable(Step(features, TokenEncoder(TINY), batch=2, crop_tokens=16), 0, monkeypatch) == []


def test_from_corpus_to_tokens_in_two_pieces(corpus: Corpus, tmp_path: Path) -> None:
    first = train_tokenizer(corpus.folder, tmp_path, Budget(steps=10), CPU, sizes=SIZES)
    before = first.read_bytes()
    assert torch.load(tmp_path / "tokenizer.state.pt", weights_only=True)["step"] == 10
    path = train_tokenizer(corpus.folder, tmp_path, Budget(steps=20), CPU, sizes=SIZES)
    assert torch.load(tmp_path / "tokenizer.state.pt", weights_only=True)["step"] == 20
    assert path.name == "speech_tokenizer_v2.onnx"
    assert path.read_bytes() != before
    tokens = Corpus.open(corpus.folder).tokens
    assert tokens.dtype == np.int16
    assert tokens.shape == (corpus.num_tokens,)
    first_token, end = corpus.start[3], corpus.start[4]
    exported = SpeechTokenizer.from_file(path)(heard(corpus, np.array([3]), CPU)[0])
    assert (exported.numpy() == tokens[first_token:end]).mean() > 0.8
    measures = json.loads((tmp_path / "tokenizer.measures.json").read_text())
    assert measures["corpus"]["differing"] < 0.05
    assert {"perplexity", "codes", "speaker_probe", "speaker_chance"} <= set(measures["corpus"])


def test_other_speakers_get_tokens_too(corpus: Corpus, tmp_path: Path) -> None:
    others = write_tones(tmp_path / "others", utterances_each=5, seed=1)
    out = tmp_path / "out"
    train_tokenizer(corpus.folder, out, Budget(steps=1), CPU, others=others.folder, sizes=SIZES)
    assert others.tokens.shape == (others.num_tokens,)
    assert set(json.loads((out / "tokenizer.measures.json").read_text())) == {"corpus", "others"}
