from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tones import write_tones
from training.tokenizer.measure import measure, probe_accuracy, same_text_pairs
from training.tokenizer.validation import perplexity

CPU = torch.device("cpu")


def test_perplexity_counts_equally_likely_codes() -> None:
    assert perplexity(torch.arange(6).repeat(10).int()) == pytest.approx(6)
    assert perplexity(torch.full((9,), 6560).int()) == pytest.approx(1)


def test_the_probe_tells_what_is_there_and_nothing_else() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (1000,))
    noise = torch.randn(1000, 20)
    told = noise + 3 * torch.nn.functional.one_hot(labels, 20)
    assert probe_accuracy(told, labels) > 0.75
    assert probe_accuracy(noise, labels) < 0.4


def test_tokens_that_are_the_phones_tell_no_speaker(tmp_path: Path) -> None:
    corpus = write_tones(tmp_path, utterances_each=40)
    phones = corpus.phones[::2].astype(np.int16)
    of_phones = measure(corpus, phones, CPU)
    assert of_phones["codes"] == 6
    assert of_phones["perplexity"] < 6
    of_speakers = measure(corpus, phones + 6 * np.repeat(corpus.speaker, np.diff(corpus.start)).astype(np.int16), CPU)
    assert of_speakers["codes"] == 18
    assert of_speakers["speaker_probe"] > 0.9 > 0.6 > of_phones["speaker_probe"]
    assert of_speakers["voice_probe"] > 0.9
    assert of_phones["pair_agreement"] > 0.9 > 0.5 > of_speakers["pair_agreement"]


def test_pairs_share_text_and_voice_but_not_the_speaker(tmp_path: Path) -> None:
    corpus = write_tones(tmp_path, utterances_each=40)
    pairs = same_text_pairs(corpus, np.random.default_rng(0))
    assert pairs
    for a, b in pairs:
        assert corpus.texts[a] == corpus.texts[b]
        one, other = (corpus.speakers[corpus.speaker[at]] for at in (a, b))
        assert one.voice == other.voice
        assert one.name != other.name
