"""The flow's mels lie where their tokens lie, behind a prompt that keeps its own; the mean of weights is a mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tones import write_corpus, write_tones
from vivavoce.checkpoint.config import Generation
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.generations import NETWORKS
from vivavoce_training import mels
from vivavoce_training.data.store import Corpus, Speaker, write_array
from vivavoce_training.flow import SpeakerMajor
from vivavoce_training.utterances import mels_of
from vivavoce_training.weights import average_files, load_part, new_config, save_part

CPU = torch.device("cpu")


def test_each_mel_lies_where_its_token_lies(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    r = np.random.default_rng(0)
    lengths = [*r.integers(5, 20, 11).tolist(), 7]
    wave = r.integers(-3000, 3000, sum(lengths) * 960).astype(np.int16)
    speakers = [Speaker(f"s{number}", "recorded") for number in range(4)]
    taking_turns = [*(number % 3 for number in range(11)), 3]
    corpus = write_corpus(tmp_path, wave, None, lengths, taking_turns, ["hm"] * 12, speakers)
    write_array(tmp_path / "tokens.npy", np.zeros(sum(lengths), np.int16))
    write_array(tmp_path / "embeddings.npy", np.zeros((12, 192), np.float16))
    corpus = Corpus.open(tmp_path)
    monkeypatch.setattr(mels, "WINDOW_TOKENS", 12)
    monkeypatch.setattr(mels, "PROMPT_TOKENS", 4)

    def marked(flow: object, speech: SpeakerMajor, starts: np.ndarray) -> torch.Tensor:
        made = speech.mels.clone()
        for start in starts:
            made[2 * (start + 4) : 2 * (start + 12)] += 100
        return made

    real = mels_of(corpus, models.config.mel, CPU)
    monkeypatch.setattr(mels, "flow_mels", marked)
    mels.write_flow_mels(tmp_path, models.flow, models.config, tmp_path / "mels.npy", CPU)
    found = torch.from_numpy(np.load(tmp_path / "mels.npy"))
    raised = (found - real).float().mean(1).view(-1, 2)[:, 0] > 50
    torch.testing.assert_close(found[~raised.repeat_interleave(2)], real[~raised.repeat_interleave(2)])
    speaker = np.repeat(corpus.speaker, np.diff(corpus.start))
    for one in np.unique(speaker):
        own = raised.numpy()[speaker == one]
        assert not own[:4].any(), "the prompt keeps its own mel"
        assert own[4:].all() == (len(own) >= 12)


@torch.no_grad()
def test_a_flow_hears_its_prompt(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_tones(tmp_path)
    embeddings = np.random.default_rng(0).standard_normal((len(corpus), 192)).astype(np.float16)
    write_array(tmp_path / "embeddings.npy", embeddings)
    monkeypatch.setattr(mels, "WINDOW_TOKENS", 12)
    monkeypatch.setattr(mels, "PROMPT_TOKENS", 4)
    speech = SpeakerMajor.load(corpus, models.config.mel, CPU)
    made = mels.flow_mels(models.flow, speech, np.array([3]))
    assert torch.equal(made[: 2 * 7], speech.mels[: 2 * 7])
    assert torch.equal(made[2 * 15 :], speech.mels[2 * 15 :])
    new = made[2 * 7 : 2 * 15]
    assert new.isfinite().all()
    assert not torch.allclose(new, speech.mels[2 * 7 : 2 * 15], atol=0.1)
    speech.mels[6:14] += 1
    again = mels.flow_mels(models.flow, speech, np.array([3]))[2 * 7 : 2 * 15]
    assert not torch.allclose(new, again, atol=1e-3)


def test_the_mean_of_weights(tmp_path: Path) -> None:
    config = new_config()
    part = NETWORKS[Generation.V2]["vocoder"]
    states = []
    for number in range(2):
        torch.manual_seed(number)
        states.append(part.build(config).state_dict())
        save_part(tmp_path / str(number), states[-1], part)
    files = [tmp_path / str(number) / "hift.pt" for number in range(2)]
    assert average_files(files, tmp_path / "mean", config) == tmp_path / "mean" / "hift.pt"
    module = part.build(config)
    load_part(module, tmp_path / "mean" / "hift.pt", part)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, (states[0][name] + states[1][name]) / 2, atol=2e-3, rtol=2e-3)
    with pytest.raises(InvalidRequest, match=r"files: hift\.pt; give two or more"):
        average_files(files[:1], tmp_path, config)
    files[1].write_bytes(b"nothing")
    with pytest.raises(CheckpointError):
        average_files(files, tmp_path, config)
