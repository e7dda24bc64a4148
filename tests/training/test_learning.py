"""The language model and the flow learn from a corpus of a few utterances, and their files load as any checkpoint's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from training.data.store import Corpus, Speaker, write_array, write_corpus
from training.flow.command import flow
from training.flow.train import FlowRecipe, flow_losses
from training.flow.windows import SpeakerMajor
from training.lm.command import lm
from training.lm.sequences import SPEECH
from training.lm.train import with_noise
from vivavoce.checkpoint.weights import read_tensors
from vivavoce.models.build import Models

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    r = np.random.default_rng(0)
    lengths = r.integers(30, 60, 24)
    total = int(lengths.sum())
    texts = [f"A sentence about number {number} and its garden." for number in range(24)]
    made = write_corpus(
        folder,
        r.integers(-3000, 3000, total * 960).astype(np.int16),
        np.zeros(total * 2, np.uint8),
        lengths,
        np.arange(24) % 3,
        texts,
        [Speaker(f"s{number}", "slt") for number in range(3)],
    )
    write_array(folder / "tokens.npy", r.integers(0, 50, total).astype(np.int16))
    write_array(folder / "embeddings.npy", r.standard_normal((24, 192)).astype(np.float16))
    return made


def losses(folder: Path, part: str, name: str) -> list[float]:
    entries = [json.loads(line) for line in (folder / f"{part}.log.jsonl").read_text().splitlines()]
    return [entry[name] for entry in entries if name in entry]


def test_fine_tuning_lowers_both_losses(corpus: Corpus, babble: Path, tmp_path: Path) -> None:
    for steps in (1, 16):  # the state of the first call is continued by the second
        lm(corpus.folder, tmp_path, steps=steps, device="cpu", init=babble, rate=3e-3, sequences=60, positions=400)
        flow(corpus.folder, tmp_path, steps=steps, device="cpu", init=babble, rate=3e-3, batch=0.02)
    for part, loss in (("lm", "ce"), ("flow", "cfm")):
        first, *_, last = losses(tmp_path, part, loss)
        assert last < first
        official = read_tensors(babble / {"lm": "llm.pt", "flow": "flow.pt"}[part])
        tuned = read_tensors(tmp_path / {"lm": "llm.pt", "flow": "flow.pt"}[part])
        assert {name: tensor.shape for name, tensor in tuned.items()} == {
            name: tensor.shape for name, tensor in official.items() if "lm_head" not in name
        }
        assert all(tensor.dtype == torch.float16 for tensor in tuned.values())


def test_windows_stay_within_a_speaker(corpus: Corpus, models: Models) -> None:
    speech = SpeakerMajor.load(corpus, models.config.mel, CPU)
    torch.manual_seed(0)
    spoken = np.repeat(corpus.speaker, np.diff(corpus.start))
    blocks = [np.asarray(corpus.tokens)[spoken == speaker].tolist() for speaker in range(3)]
    embeddings = np.asarray(corpus.embeddings, np.float32)
    for _ in range(20):
        tokens, mel, embedding = speech.draw(8, 40)
        assert mel.shape == (8, 80, 80)
        for row, vector in zip(tokens.tolist(), embedding, strict=True):
            (home,) = [place for place, block in enumerate(blocks) if _holds(block, row)]
            (owner,) = np.flatnonzero((embeddings == vector.numpy()).all(axis=1))
            assert corpus.speaker[owner] == home


def _holds(block: list[int], row: list[int]) -> bool:
    return any(block[first : first + len(row)] == row for first in range(len(block) - len(row) + 1))


@pytest.mark.parametrize("chunked", [False, True])
def test_every_weight_of_the_flow_learns(corpus: Corpus, models: Models, chunked: bool) -> None:
    import copy

    flow_model = copy.deepcopy(models.flow).requires_grad_(True)
    speech = SpeakerMajor.load(corpus, models.config.mel, CPU)
    torch.manual_seed(0)
    values = flow_losses(flow_model, *speech.draw(4, 40), FlowRecipe(), chunked=chunked)
    (values["cfm"] + values["mu"]).backward()
    for name, parameter in flow_model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "attention.key.bias" not in name:  # a constant added to all scores of a query changes nothing
            assert parameter.grad.abs().max() > 0, name


def test_noise_touches_speech_only() -> None:
    torch.manual_seed(0)
    ids, kinds = torch.full((50, 40), 3), torch.randint(0, 4, (50, 40))
    noisy = with_noise(ids, kinds, 0.5, 1000)
    changed = noisy != ids
    assert changed.any()
    assert not (changed & (kinds != SPEECH)).any()
    assert changed.float().sum() / (kinds == SPEECH).sum() < 0.35
    assert torch.equal(with_noise(ids, kinds, 0.0, 1000), ids)
