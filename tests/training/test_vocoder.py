"""The vocoder: pitch, crops and their changes, losses, its step, and the whole training."""

from __future__ import annotations

import copy
import json
import math
import shutil
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.training.capturable import uncapturable
from tests.training.tones import write_corpus
from vivavoce.checkpoint.config import CausalVocoderConfig, Generation, ModelConfig
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.models.build import build_models
from vivavoce.models.features import prompt_mel
from vivavoce.models.generations import NETWORKS, NetworkPart
from vivavoce_bench.random_checkpoint import random_state
from vivavoce_training.commands import app
from vivavoce_training.data.store import TOKEN_SAMPLES, Corpus, Speaker
from vivavoce_training.loop import Budget
from vivavoce_training.vocoder import crops as augmentation
from vivavoce_training.vocoder.crops import PIECE_TOKENS, Crop, _pitch_of, augment, load_crops, starts_apart_from
from vivavoce_training.vocoder.pitch import track_pitch
from vivavoce_training.vocoder.run import Scale, train_vocoder
from vivavoce_training.vocoder.step import (
    ALONE,
    CROP_TOKENS,
    PERIODS,
    WITH_ADVERSARY,
    Discriminators,
    SpectralLoss,
    VocoderStep,
    feature_distance,
    judged_made,
    judged_real,
)
from vivavoce_training.weights import MINI, initialise, load_part, official_state, save_part, sizes_of

CPU = torch.device("cpu")

UTTERANCES, TOKENS = 10, 10


def hum(pitch: float, samples: int) -> torch.Tensor:
    """A voice of five equal harmonics that fades in and out."""
    phase = 2 * math.pi * pitch * torch.arange(samples) / 24_000
    fade = torch.hann_window(samples, periodic=False).sqrt()
    return 0.08 * fade * sum(torch.sin(k * phase) for k in range(1, 6))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    waves = [hum(110 + 15 * i, TOKENS * TOKEN_SAMPLES) for i in range(UTTERANCES)]
    pcm = (torch.cat(waves) * 32767).round().numpy().astype(np.int16)
    folder: Path = tmp_path_factory.mktemp("corpus")
    speakers = [Speaker("hum", "hum")]
    return write_corpus(folder, pcm, None, [TOKENS] * UTTERANCES, [0] * UTTERANCES, ["hm"] * UTTERANCES, speakers)


@pytest.fixture(scope="session", params=[MINI, MINI.with_name("mini3")], ids=["v2", "v3"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    _, mini = sizes_of(None, request.param)
    return replace(mini, vocoder=replace(mini.vocoder, base_channels=16, f0_channels=64))


def part_of(config: ModelConfig) -> NetworkPart:
    return NETWORKS[config.generation]["vocoder"]


SECONDS = 0.5
TIME = torch.arange(int(SECONDS * 24_000)) / 24_000


def voice(phase, amplitudes):
    return sum(a * torch.sin(k * phase + k) for k, a in enumerate(amplitudes, 1))[None]


VOICES = {
    "sine": [0.3],
    "falling": [0.2 / k for k in range(1, 15)],
    "without fundamental": [0.0, *[0.1] * 6],
    "strong second harmonic": [0.05, 0.3, 0.05, 0.05, 0.05],
    "strong third harmonic": [0.05, 0.05, 0.3, 0.05, 0.05],
}


@pytest.mark.parametrize("amplitudes", VOICES.values(), ids=VOICES)
@given(pitch=st.floats(62, 415))
@settings(max_examples=15, deadline=None)
def test_steady_voices_are_tracked_within_half_a_percent(amplitudes, pitch):
    tracked = track_pitch(voice(2 * math.pi * pitch * TIME, amplitudes))[0, 2:-2]
    torch.testing.assert_close(tracked, torch.full_like(tracked, pitch), rtol=5e-3, atol=0)


def test_frames_are_centred_where_the_mel_has_them():
    pitch = 100 + 200 * TIME
    phase = 2 * math.pi * torch.cumsum(pitch / 24_000, 0)
    tracked = track_pitch(voice(phase, VOICES["falling"]))[0]
    expected = pitch[240::480]
    assert tracked.shape == expected.shape
    torch.testing.assert_close(tracked[2:-2], expected[2:-2], rtol=5e-3, atol=0)


def test_noise_silence_and_hum_too_soft_to_hear_are_unvoiced():
    noise = 0.1 * torch.randn(1, 48_000, generator=torch.Generator().manual_seed(0))
    assert (track_pitch(noise) > 0).float().mean() < 0.02
    assert not track_pitch(torch.zeros(1, 9_600)).any()
    assert not track_pitch(voice(2 * math.pi * 120 * TIME, [3e-4])).any()


def test_a_single_strange_frame_is_mended():
    wave = voice(2 * math.pi * 150 * TIME, VOICES["falling"])
    wave[:, 6000:6300] = 0.2 * torch.randn(300, generator=torch.Generator().manual_seed(1))
    tracked = track_pitch(wave)[0, 2:-2]
    torch.testing.assert_close(tracked, torch.full_like(tracked, 150.0), rtol=0.03, atol=0)


def test_a_crop_is_the_same_stretch_of_all_arrays(corpus, config):
    crops = load_crops(corpus, config.mel, CPU)
    crop = crops.cut(torch.tensor([3, 41]), 5)
    assert crop.wave.shape == (2, 4800)
    assert crop.mel.shape == (2, 80, 10)
    np.testing.assert_array_equal(crop.wave[1] * 32768, corpus.wav[41 * 960 : 46 * 960])
    torch.testing.assert_close(crop.mel[1], crops.mel[82:92].T.float())
    # The fifth utterance hums at 170 Hz, and the crop begins at its second token.
    torch.testing.assert_close(crop.pitch[1, 2:], torch.full((8,), 170.0), rtol=5e-3, atol=0)


def test_pitch_does_not_depend_on_the_pieces():
    generator = torch.Generator().manual_seed(0)
    samples = (PIECE_TOKENS + 30) * 960
    pitch = 150 + 40 * torch.sin(torch.arange(samples) / 5000)
    wave = 0.2 * torch.sin(2 * math.pi * torch.cumsum(pitch / 24_000, 0)) + 0.02 * torch.randn(
        samples, generator=generator
    )
    wave = (wave * 32767).short()
    torch.testing.assert_close(_pitch_of(wave)[:-1], track_pitch(wave[None] / 32768)[0, :-1], rtol=1e-4, atol=0)


def test_the_flows_mels_take_the_real_ones_place(corpus, config, tmp_path):
    path = tmp_path / "mels.npy"
    np.save(path, np.full((200, 80), -3, np.float16))
    crops = load_crops(corpus, config.mel, CPU, path)
    starts = torch.arange(40)
    assert (crops.cut(starts, 2, flow_share=1.0).mel == -3).all()
    assert not (crops.cut(starts, 2).mel == -3).all(dim=(1, 2)).any()
    torch.manual_seed(0)
    from_flow = (crops.cut(starts, 2, flow_share=0.5).mel == -3).flatten(1)
    assert 0 < from_flow.all(1).sum() < 40
    assert (from_flow.all(1) | ~from_flow.any(1)).all()


@pytest.mark.parametrize("wrong", [np.zeros((199, 80), np.float16), np.zeros((200, 80), np.float32)])
def test_mels_that_do_not_fit_are_refused(corpus, config, tmp_path, wrong):
    np.save(tmp_path / "mels.npy", wrong)
    with pytest.raises(ValueError, match=r"mels.npy.*give float16 \[200, 80\]"):
        load_crops(corpus, config.mel, CPU, tmp_path / "mels.npy")


@given(
    num_tokens=st.integers(1, 60),
    crop=st.integers(1, 12),
    held_out=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 12)), max_size=4),
)
def test_crops_stay_apart_from_what_is_held_out(num_tokens, crop, held_out):
    ranges = [(first, first + length) for first, length in held_out]
    tokens_held_out = {token for first, last in ranges for token in range(first, last)}
    expected = [
        start for start in range(num_tokens - crop + 1) if not tokens_held_out.intersection(range(start, start + crop))
    ]
    if expected:
        assert starts_apart_from(ranges, num_tokens, crop).tolist() == expected
    else:
        with pytest.raises(ValueError, match="no crop"):
            starts_apart_from(ranges, num_tokens, crop)


@pytest.fixture
def noisy_crop(config):
    wave = 0.1 * torch.randn(16, 4800, generator=torch.Generator().manual_seed(0))
    return Crop(wave, prompt_mel(wave, config.mel).transpose(1, 2), torch.zeros(16, 10))


def test_a_gain_changes_wave_and_mel_alike(noisy_crop, config, monkeypatch):
    monkeypatch.setattr(augmentation, "NOISE_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "BLUR_SHARE", 0.0)
    louder = augment(noisy_crop)
    torch.testing.assert_close(louder.mel, prompt_mel(louder.wave, config.mel).transpose(1, 2), rtol=0, atol=2e-3)
    gains = louder.wave[:, 0] / noisy_crop.wave[:, 0]
    assert gains.min() >= 0.3 - 1e-4
    assert 0 < (gains == 1).sum() < 16


def test_noise_and_blur_leave_the_wave_and_are_small(noisy_crop, monkeypatch):
    monkeypatch.setattr(augmentation, "GAIN_SHARE", 0.0)
    changed = augment(noisy_crop)
    assert torch.equal(changed.wave, noisy_crop.wave)
    difference = (changed.mel - noisy_crop.mel).std(dim=(1, 2))
    assert 0 < (difference == 0).sum() < 16
    assert 0 < difference.max() < 1


def test_blur_keeps_what_is_flat(monkeypatch):
    monkeypatch.setattr(augmentation, "NOISE_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "GAIN_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "BLUR_SHARE", 1.0)
    flat = Crop(torch.zeros(4, 480), torch.full((4, 80, 6), -2.5), torch.zeros(4, 6))
    torch.testing.assert_close(augment(flat).mel, flat.mel)
    peak = torch.zeros(4, 80, 6)
    peak[:, 40, 3] = 1
    blurred = augment(Crop(flat.wave, peak, flat.pitch)).mel
    torch.testing.assert_close(blurred.sum(dim=(1, 2)), torch.ones(4))
    assert ((blurred[:, 40, 2] > 0) & (blurred[:, 39, 3] > 0) & (blurred[:, 40, 3] < 1)).all()


@pytest.fixture(scope="module")
def spectral():
    return SpectralLoss(24_000)


def noise(seed, size=(2, 4800)):
    return 0.1 * torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def test_equal_waves_are_at_no_distance(spectral):
    stft, mel = spectral(noise(0), noise(0))
    assert stft == 0
    assert mel == 0


def test_the_distance_grows_with_the_difference_and_not_with_the_phase(spectral):
    real = noise(0)
    near, far = (spectral(factor * real, real) for factor in (0.8, 0.2))
    inverted = spectral(-real, real)
    for i in range(2):
        assert 0 < near[i] < far[i]
        assert inverted[i] < 1e-4
    # A mel at a fifth of the level is log 5 away, wherever it is above the floor.
    torch.testing.assert_close(far[1], torch.tensor(5.0).log(), rtol=0.02, atol=0)


def test_silence_has_a_finite_slope(spectral):
    silent = torch.zeros(2, 4800, requires_grad=True)
    stft, mel = spectral(silent, noise(1))
    (slope,) = torch.autograd.grad(stft + mel, silent)
    assert slope.isfinite().all()


def test_judgements():
    ones, zeros = [torch.ones(2, 3), torch.ones(5)], [torch.zeros(2, 3), torch.zeros(5)]
    assert judged_real(ones) == judged_made(zeros) == 0
    assert judged_real(zeros) == judged_made(ones) == 1
    assert feature_distance(ones, ones) == 0
    scaled = feature_distance([10 * x for x in zeros], [10 * x for x in ones])
    torch.testing.assert_close(scaled, torch.tensor(1.0), rtol=1e-3, atol=0)


def test_discriminators_use_all_of_themselves_and_all_of_the_wave():
    torch.manual_seed(0)
    judges = Discriminators((4, 8, 8), 4)
    wave = noise(2, (2, 4801)).requires_grad_()
    scores, features = judges(wave)
    assert len(scores) == len(PERIODS) + 3
    assert len(features) == 3 * len(PERIODS) + 4 * 3
    judged_real(scores).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in judges.parameters())
    assert wave.grad.isfinite().all()
    assert (wave.grad != 0).float().mean() > 0.99


@pytest.fixture(scope="module")
def crops(corpus, config):
    return load_crops(corpus, config.mel, CPU)


@pytest.fixture
def step(crops, config):
    torch.manual_seed(0)
    model, judges = part_of(config).build(config), Discriminators((4, 8), 4)
    initialise(model)
    return VocoderStep(crops, torch.arange(crops.num_tokens - CROP_TOKENS + 1), model, judges, batch=2)


def run(step, variant, count):
    values = []
    for number in range(count):
        for optimizer in step.optimizers.values():
            optimizer.set_rate(200 + number, 0.0)  # the warm-up is over
        values.append({name: float(value.detach()) for name, value in step(variant).items()})
    return values


def test_losses_of_one_batch_fall(step, config, monkeypatch):
    monkeypatch.setattr("vivavoce_training.vocoder.step.augment", lambda crop: crop)
    step._starts = torch.tensor([30])
    values = run(step, ALONE, 24)
    first, last = values[:3], values[-3:]
    # CosyVoice3's source stands still within a frame: harmonics have to be learned, which takes longer.
    slow = isinstance(config.vocoder, CausalVocoderConfig)
    most_left = {"mel": 0.95, "pitch": 0.5} if slow else {"stft": 0.85, "mel": 0.85, "pitch": 0.5}
    for name, most in most_left.items():
        before, after = (sum(value[name] for value in some) for some in (first, last))
        assert after < most * before, name


def test_a_step_moves_every_parameter(step):
    before = copy.deepcopy({name: module.state_dict() for name, module in step.modules.items()})
    values = run(step, WITH_ADVERSARY, 2)
    assert set(values[0]) == {"pitch", "stft", "mel", "adversary", "fooled", "features"}
    for name, module in step.modules.items():
        still = [key for key, tensor in module.state_dict().items() if torch.equal(tensor, before[name][key])]
        assert not still
        assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


def test_alone_leaves_the_adversary_untouched(step):
    before = copy.deepcopy(step.modules["discriminators"].state_dict())
    values = run(step, ALONE, 1)
    assert set(values[0]) == {"pitch", "stft", "mel"}
    torch.testing.assert_close(step.modules["discriminators"].state_dict(), before, rtol=0, atol=0)


def test_the_seed_decides(step):
    start = copy.deepcopy(step)
    results = []
    for one in (step, start):
        torch.manual_seed(5)
        results.append(run(one, WITH_ADVERSARY, 2))
    assert results[0] == results[1]


@pytest.mark.parametrize("variant", [ALONE, WITH_ADVERSARY])
def test_a_step_can_be_captured(step, variant, monkeypatch):
    assert uncapturable(step, variant, monkeypatch) == []


TINY = Scale(batch=1, period_channels=(4, 8), resolution_channels=4)


def entries(folder):
    return [json.loads(line) for line in (folder / "vocoder.log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("config", [MINI], ids=["v2"], indirect=True)  # the loop is that of either
def test_a_training_leaves_a_vocoder_and_is_continued(corpus, config, tmp_path, monkeypatch):
    monkeypatch.setattr("vivavoce_training.loop.AVERAGE_EVERY", 1)
    hift = train_vocoder(corpus.folder, tmp_path, Budget(steps=4), CPU, config, scale=TINY)
    assert hift == tmp_path / "hift.pt"
    log = entries(tmp_path)
    assert log[0]["step"] == 0
    assert log[1]["step"] == 4
    assert {"stft", "mel", "pitch", "adversary", "features"} < set(log[1])
    assert {"valid_stft", "valid_mel", "valid_pitch_percent", "valid_voicing_percent"} < set(log[2])
    part = part_of(config)
    load_part(part.build(config), hift, part)
    names = {path.name for path in (tmp_path / "samples").iterdir()}
    assert names == {"0.real.wav", "0.vocoded.wav"}
    with wave.open(str(tmp_path / "samples" / "0.vocoded.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 9_600)

    first = hift.read_bytes()
    train_vocoder(corpus.folder, tmp_path, Budget(steps=5), CPU, config, scale=TINY)
    assert entries(tmp_path)[-1]["step"] == 5
    assert hift.read_bytes() != first

    tuned = tmp_path / "tuned"
    train_vocoder(corpus.folder, tuned, Budget(steps=1), CPU, config, scale=TINY, init=tmp_path / "vocoder.state.pt")
    assert "adversary" in entries(tuned)[1]
    wider = replace(config, vocoder=replace(config.vocoder, base_channels=32))
    with pytest.raises(InvalidRequest, match="is of a vocoder of other sizes; name its settings by --settings"):
        train_vocoder(corpus.folder, tuned, Budget(steps=1), CPU, wider, init=tmp_path / "vocoder.state.pt")
    again = tmp_path / "again"
    train_vocoder(corpus.folder, again, Budget(steps=1), CPU, config, scale=TINY, init=hift)
    assert "adversary" not in entries(again)[1]
    ours, theirs = (part.build(config) for _ in range(2))
    load_part(ours, hift, part)
    load_part(theirs, again / "hift.pt", part)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-3 * max(1, one.abs().max())


@pytest.mark.parametrize("name", ["babble", "babble_v3"])
def test_the_export_is_what_the_loader_reads(name, request, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(request.getfixturevalue(name), folder)
    config = build_models(folder, CPU).config
    part = part_of(config)
    torch.manual_seed(0)
    trained = part.build(config).eval().requires_grad_(False)
    state = official_state(trained.state_dict(), part)
    official = random_state(part, config, 0)
    assert {key: tensor.shape for key, tensor in state.items()} == {
        key: tensor.shape for key, tensor in official.items()
    }
    save_part(folder, trained.state_dict(), part)
    loaded = build_models(folder, CPU).vocoder
    for (name, one), other in zip(trained.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-3, atol=1e-6, msg=name)
    mel = torch.randn(1, 80, 20, generator=torch.Generator().manual_seed(1))
    waves = [one.decode(mel, one.source(one.f0(mel, None), None)) for one in (loaded, trained)]
    torch.testing.assert_close(*waves, rtol=0, atol=2e-3)


def test_weights_of_another_size_are_refused(babble, config):
    with pytest.raises(CheckpointError, match="wrong shape"):
        load_part(part_of(config).build(config), babble, part_of(config))


def test_the_command_trains(corpus, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("vivavoce_training.vocoder.run.train_vocoder", lambda *args, **more: calls.append((args, more)))
    arguments = [
        "vocoder",
        str(corpus.folder),
        str(tmp_path),
        "--seconds",
        "5",
        "--piece-seconds",
        "2",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, [*arguments, "--seed", "3", "--settings", str(MINI.with_name("mini3"))])
    assert result.exit_code == 0, result.output
    ((folder, out, budget, device, sizes), options) = calls[0]
    assert (folder, out, device) == (corpus.folder, tmp_path, CPU)
    assert budget == Budget(seconds=5.0, piece_seconds=2.0)
    assert (sizes.generation, sizes.vocoder.base_channels) == (Generation.V3, 160)
    assert options == {"seed": 3, "init": None, "rate": None, "flow_mels": None}
