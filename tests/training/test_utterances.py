from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tones import SPEAKERS, write_tones
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.models.features import prompt_mel
from vivavoce_training.data.store import MELS_PER_TOKEN, SAMPLE_RATE, TOKEN_SAMPLES, Corpus
from vivavoce_training.utterances import (
    HEARD_SAMPLES,
    equal_length_batches,
    evenly_by_speaker,
    exact_float32,
    find_speakers,
    heard,
    held_out,
    mels_of,
    placed_tokens,
    steps_in,
)
from vivavoce_training.weights import new_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_tones(tmp_path_factory.mktemp("corpus"))


def test_evenly_by_speaker_takes_as_much_from_each(corpus: Corpus) -> None:
    all_of_them = evenly_by_speaker(corpus, 1.0)
    assert sorted(all_of_them) == list(range(len(corpus)))
    half = evenly_by_speaker(corpus, corpus.hours / 2)
    counts = np.bincount(corpus.speaker[half], minlength=len(SPEAKERS))
    assert counts.tolist() == [3, 3, 3]
    assert (np.diff(corpus.speaker[half]) >= 0).all()


def test_evenly_by_speaker_takes_what_is_allowed(corpus: Corpus) -> None:
    kept = held_out(corpus, every=4)
    assert kept.sum() == len(corpus) // 4
    chosen = evenly_by_speaker(corpus, 1.0, ~kept)
    assert sorted([*chosen, *np.flatnonzero(kept)]) == list(range(len(corpus)))


@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_batches_hold_each_utterance_once_and_one_length(corpus: Corpus, batch_tokens: int) -> None:
    utterances = np.arange(len(corpus))[::-1]
    lengths = np.diff(corpus.start)
    batches = list(equal_length_batches(corpus, utterances, batch_tokens))
    assert sorted(np.concatenate(batches)) == list(range(len(corpus)))
    for batch in batches:
        assert len(set(lengths[utterances[batch]])) == 1
        assert len(batch) == 1 or lengths[utterances[batch]].sum() <= batch_tokens


def test_no_utterances_no_batches(corpus: Corpus) -> None:
    assert list(equal_length_batches(corpus, np.array([], np.int64))) == []


def test_heard_is_each_utterance_resampled_alone(corpus: Corpus) -> None:
    batch = next(equal_length_batches(corpus, np.arange(len(corpus))))
    waves = heard(corpus, batch, CPU)
    for wave, utterance in zip(waves, batch, strict=True):
        samples = corpus.wav[corpus.start[utterance] * TOKEN_SAMPLES : corpus.start[utterance + 1] * TOKEN_SAMPLES]
        alone = resample_sinc(np.asarray(samples, np.float32) / 32768, SAMPLE_RATE, 16_000)
        torch.testing.assert_close(wave, alone, rtol=0, atol=1e-6)
    assert waves.shape[1] == (corpus.start[batch[0] + 1] - corpus.start[batch[0]]) * HEARD_SAMPLES


def test_crops_lie_within_their_speaker(corpus: Corpus) -> None:
    utterances = evenly_by_speaker(corpus, 1.0)
    speakers = find_speakers(corpus, utterances, 20, CPU, per_token=10)
    starts, speaker = speakers.draw(500, 200)
    placed = placed_tokens(corpus, utterances) * 10
    speaker_at = np.repeat(corpus.speaker[utterances], np.diff(placed))
    assert (speaker_at[starts] == speaker.numpy()).all()
    assert (speaker_at[starts + 199] == speaker.numpy()).all()
    assert set(speaker.tolist()) == {0, 1, 2}
    assert starts.unique().numel() > 100


def test_crops_longer_than_any_speaker(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="no speaker has 9999 tokens; make a longer corpus"):
        find_speakers(corpus, np.arange(len(corpus)), 9999, CPU)


def test_exact_float32_restores_the_precision() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with exact_float32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_steps_in_a_saved_state(tmp_path: Path) -> None:
    assert steps_in(tmp_path, "part") == 0
    torch.save({"step": 7}, tmp_path / "part.state.pt")
    assert steps_in(tmp_path, "part") == 7


def test_mels_are_each_utterances_own(corpus: Corpus) -> None:
    config = new_config().mel
    mels = mels_of(corpus, config, CPU)
    assert mels.shape == (corpus.num_tokens * MELS_PER_TOKEN, config.num_bins)
    assert mels.dtype == torch.float16
    for utterance in range(len(corpus)):
        first, last = corpus.start[utterance : utterance + 2]
        wave = np.asarray(corpus.wav[first * TOKEN_SAMPLES : last * TOKEN_SAMPLES], np.float32) / 32768
        alone = prompt_mel(torch.from_numpy(wave)[None], config)[0]
        found = mels[first * MELS_PER_TOKEN : last * MELS_PER_TOKEN].float()
        torch.testing.assert_close(found, alone, rtol=0, atol=0.01)
