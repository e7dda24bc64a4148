"""The speaker encoder: what it hears, its networks, its measures, its step and its whole training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.training.capturable import uncapturable
from tests.training.tones import write_tones
from vivavoce.errors import InvalidRequest
from vivavoce.models.encoders import SpeakerEncoder, open_onnx
from vivavoce.models.features import speaker_fbank
from vivavoce_training.data.store import Corpus
from vivavoce_training.loop import Budget
from vivavoce_training.onnx_graph import round_to_half
from vivavoce_training.speaker import waves as degrade
from vivavoce_training.speaker.measure import equal_error_rate, extract_embeddings, identified
from vivavoce_training.speaker.model import MarginHead, SpeakerNet, SpeakerSizes, TraitHead, export_speaker_encoder
from vivavoce_training.speaker.run import Sizes, SpeakerStep, train_speaker
from vivavoce_training.speaker.waves import Degrade, load_waves
from vivavoce_training.utterances import evenly_by_speaker, heard

AUDIO = Path(__file__).parents[1] / "data" / "audio"


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is changed, but what a test sets."""
    for name in ("TILT_DB", "LOW_PASS_SHARE", "VOCODED_SHARE"):
        monkeypatch.setattr(degrade, name, 0.0)
    monkeypatch.setattr(degrade, "SNR_DB", (200.0, 200.0))
    monkeypatch.setattr(degrade, "LEVEL_DB", (0.0, 0.0))
    return monkeypatch


@pytest.fixture
def buzz() -> torch.Tensor:
    time = torch.arange(16_001) / 16_000
    return 0.1 * sum(torch.sin(2 * torch.pi * 120 * k * time) for k in range(1, 40)).repeat(8, 1)


def power_above(samples: torch.Tensor, hertz: float) -> torch.Tensor:
    spectrum = torch.fft.rfft(samples).abs().square()
    edge = int(hertz / 8000 * spectrum.shape[1])
    return spectrum[:, edge:].sum(1)


def test_nothing_drawn_nothing_changed(still: pytest.MonkeyPatch, buzz: torch.Tensor) -> None:
    torch.testing.assert_close(Degrade()(buzz), buzz, rtol=0, atol=1e-5)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_noise_is_as_loud_as_drawn(still: pytest.MonkeyPatch, buzz: torch.Tensor, slope: float) -> None:
    still.setattr(degrade, "SNR_DB", (20.0, 20.0))
    still.setattr(degrade, "uniform", lambda like, low, high: torch.full((len(like), 1, 1), high))
    still.setattr(degrade, "PINKEST", slope)
    noise = Degrade()(buzz) - buzz
    ratio = 10 * torch.log10(buzz.square().mean(1) / noise.square().mean(1))
    assert ratio.mean() == pytest.approx(20, abs=1.0)
    share_above = power_above(noise, 4000) / power_above(noise, 0)
    assert share_above.mean() == pytest.approx(0.5 if slope == 0 else 0.11, abs=0.03)


def test_a_vocoder_keeps_what_is_loud_where_and_loses_the_waveform(
    still: pytest.MonkeyPatch, buzz: torch.Tensor
) -> None:
    still.setattr(degrade, "VOCODED_SHARE", 1.0)
    still.setattr(degrade, "SMEAR_SHARE", 0.0)
    still.setattr(degrade, "uniform", lambda like, low, high: torch.full((len(like), 1, 1), high))
    heard = Degrade()(buzz)
    assert torch.cosine_similarity(heard, buzz).abs().max() < 0.3
    kept = 10 * torch.log10(power_above(heard, 0) / power_above(buzz, 0))
    assert kept.abs().max() < 8
    share = power_above(heard, 4000) / power_above(heard, 0)
    torch.testing.assert_close(share, power_above(buzz, 4000) / power_above(buzz, 0), rtol=0.2, atol=0)


def test_low_pass_and_tilt(still: pytest.MonkeyPatch, buzz: torch.Tensor) -> None:
    still.setattr(degrade, "LOW_PASS_SHARE", 1.0)
    still.setattr(degrade, "LOWEST_EDGE", 0.4)
    still.setattr(degrade, "uniform", lambda like, low, high: torch.full((len(like), 1, 1), low))
    heard = Degrade()(buzz)
    assert (power_above(heard, 3600) < 1e-3 * power_above(buzz, 3600)).all()
    kept = power_above(buzz, 0) - power_above(buzz, 3200)
    torch.testing.assert_close(power_above(heard, 0), kept, rtol=0.1, atol=0)


def test_all_at_once_keeps_shape_and_sense(buzz: torch.Tensor) -> None:
    heard = Degrade()(buzz)
    assert heard.shape == buzz.shape
    assert heard.isfinite().all()
    assert (heard.square().mean(1).sqrt() > 1e-4).all()
    assert not torch.equal(heard[0], heard[1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[SpeakerNet, Path]:
    torch.manual_seed(0)
    net = SpeakerNet(SpeakerSizes()).eval()
    round_to_half(net)
    path = tmp_path_factory.mktemp("model") / "campplus.onnx"
    export_speaker_encoder(net, path)
    return net, path


def test_at_most_400_thousand_parameters_of_two_bytes(exported: tuple[SpeakerNet, Path]) -> None:
    parameters = sum(parameter.numel() for parameter in exported[0].parameters())
    assert parameters <= 400_000
    assert exported[1].stat().st_size < 2.03 * parameters


@pytest.mark.parametrize("frames", [1, 2, 50, 333])
@torch.no_grad()
def test_the_file_gives_the_network_s_embedding(exported: tuple[SpeakerNet, Path], frames: int) -> None:
    net, path = exported
    energies = torch.randn(1, frames, 80, generator=torch.Generator().manual_seed(frames))
    embedding = torch.from_numpy(open_onnx(path, num_inputs=1).run(energies.numpy()))
    torch.testing.assert_close(embedding, net(energies)[0], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_through_the_package_s_own_front_end(exported: tuple[SpeakerNet, Path]) -> None:
    net, path = exported
    samples = 0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(0))
    embedding = SpeakerEncoder.from_file(path)(samples)
    assert embedding.shape == (192,)
    assert torch.cosine_similarity(embedding, net(speaker_fbank(samples[None]))[0], dim=0) > 0.9999


def test_the_margin_counts_against_the_right_answer() -> None:
    torch.manual_seed(0)
    with_margin, without = MarginHead(5), MarginHead(5, margin=0.0)
    without.load_state_dict(with_margin.state_dict())
    embeddings, speaker = torch.randn(16, 192), torch.randint(0, 5, (16,))
    cosine = functional.cosine_similarity(embeddings[:, None], without.centres[None], dim=2)
    loss, right = without(embeddings, speaker)
    torch.testing.assert_close(loss, functional.cross_entropy(30 * cosine, speaker))
    assert right == (cosine.argmax(1) == speaker).float().mean()
    assert with_margin(embeddings, speaker)[0] > loss


def test_the_margin_s_gradient_is_finite_at_the_centre() -> None:
    head = MarginHead(3)
    embeddings = head.centres.detach().clone().requires_grad_()
    head(embeddings, torch.arange(3))[0].backward()
    assert embeddings.grad.isfinite().all()


def test_traits_are_read_from_the_direction() -> None:
    torch.manual_seed(0)
    head = TraitHead(2)
    embeddings, traits = torch.randn(4, 192), torch.randn(4, 2)
    torch.testing.assert_close(head(embeddings, traits), head(7 * embeddings, traits))


def clustered(spread: float, speakers: int = 10, each: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((speakers, 32))
    speaker = np.repeat(np.arange(speakers, dtype=np.int32), each)
    noise = generator.standard_normal((len(speaker), 32))
    return (centres[speaker] + spread * noise).astype(np.float32), speaker


def test_speakers_far_apart_are_all_told() -> None:
    embeddings, speaker = clustered(0.1)
    assert identified(embeddings, embeddings, speaker) == 1.0
    assert equal_error_rate(embeddings, speaker) == 0.0


def test_noise_is_told_as_often_as_chance_has_it() -> None:
    embeddings, speaker = clustered(1e6)
    assert identified(embeddings, embeddings, speaker) == pytest.approx(1 / 8, abs=0.04)
    assert identified(embeddings, embeddings, speaker, ways=2) == pytest.approx(1 / 2, abs=0.06)
    assert equal_error_rate(embeddings, speaker) == pytest.approx(0.5, abs=0.05)


def test_between_the_two() -> None:
    errors = [equal_error_rate(*clustered(spread)) for spread in (0.5, 1.0, 2.0)]
    assert errors == sorted(errors)
    assert 0 < errors[1] < 0.4


def test_what_is_heard_is_held_against_what_was_enrolled() -> None:
    embeddings, speaker = clustered(0.1)
    swapped = embeddings[::-1].copy()
    assert identified(embeddings, swapped, speaker) < 0.1


def test_two_speakers_with_two_utterances_are_needed() -> None:
    with pytest.raises(InvalidRequest, match="make a longer corpus"):
        identified(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32), np.array([0, 0, 1], np.int32))


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
    step = SpeakerStep(corpus, waves, SpeakerNet(TINY), batch=8, crop_samples=(3200, 4800))
    step.optimizers["speaker"].set_rate(200, 0.0)
    before = np.mean([float(step(variant)["margin"].detach()) for variant in (0, 1)])
    for number in range(60):
        values = step(step.variant(number, 0.0))
    assert float(values["margin"].detach()) < 0.6 * before
    assert float(values["right"]) > 0.6


def test_a_step_can_be_captured(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    waves = load_waves(corpus, evenly_by_speaker(corpus, 1.0), CPU, 4800)
    step = SpeakerStep(corpus, waves, SpeakerNet(TINY), batch=4, crop_samples=(3200, 4800))
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
