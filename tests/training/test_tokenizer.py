"""The speech tokenizer: its spelling, its networks and their export, views, measures and the whole training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.capturable import uncapturable
from tests.training.tones import write_tones
from vivavoce.models.encoders import SpeechTokenizer, open_onnx
from vivavoce.models.features import whisper_log_mel
from vivavoce_training.data.spelling import NUM_CODES, SILENCE_TOKEN, digits_of, spell
from vivavoce_training.data.store import Corpus
from vivavoce_training.loop import Budget
from vivavoce_training.onnx_graph import round_to_half
from vivavoce_training.tokenizer import features as augment
from vivavoce_training.tokenizer.features import Augment, load_features
from vivavoce_training.tokenizer.measure import measure, perplexity, pitch_error, probe_accuracy, same_text_pairs
from vivavoce_training.tokenizer.model import TokenEncoder, TokenizerSizes, export_tokenizer, spelled, to_indices
from vivavoce_training.tokenizer.run import Sizes, TokenizerStep, train_tokenizer
from vivavoce_training.utterances import evenly_by_speaker, heard

CPU = torch.device("cpu")


TINY = TokenizerSizes(width=16, heads=2, blocks=2, inner=16, kernel=3, span=3)


@pytest.fixture(scope="module")
def encoder() -> TokenEncoder:
    torch.manual_seed(0)
    return TokenEncoder(TINY).eval()


def test_what_is_exported_has_at_most_1_2_million_parameters() -> None:
    assert sum(parameter.numel() for parameter in TokenEncoder(TokenizerSizes()).parameters()) <= 1_200_000


@pytest.mark.parametrize("frames", [1, 3, 4, 5, 40, 41])
def test_one_token_for_four_frames_begun(encoder: TokenEncoder, frames: int) -> None:
    digits = encoder(torch.randn(2, 128, frames))
    assert digits.shape == (2, -(-frames // 4), 8)
    assert digits.abs().max() <= 1


def test_the_distant_does_not_count(encoder: TokenEncoder) -> None:
    features = torch.randn(1, 128, 400)
    changed = features.clone()
    changed[..., 320:] = 1.0
    torch.testing.assert_close(encoder(features)[:, :60], encoder(changed)[:, :60])
    assert not torch.allclose(encoder(features)[:, 79], encoder(changed)[:, 79])


@given(st.integers(0, NUM_CODES - 1))
def test_the_first_digit_counts_least(index: int) -> None:
    digits = torch.tensor([index // 3**place % 3 - 1.0 for place in range(8)])
    assert to_indices(0.9 * digits).item() == index


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenEncoder, Path]:
    torch.manual_seed(0)
    encoder = TokenEncoder(TokenizerSizes()).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():  # fresh networks are too timid to use all values
            parameter.add_(0.02 * torch.randn_like(parameter))
        encoder.digits.weight.mul_(8)
    round_to_half(encoder)
    path = tmp_path_factory.mktemp("model") / "speech_tokenizer_v2.onnx"
    export_tokenizer(encoder, path)
    return encoder, path


@pytest.mark.parametrize("frames", [1, 4, 5, 97, 400])
@torch.no_grad()
def test_the_file_gives_the_network_s_tokens(exported: tuple[TokenEncoder, Path], frames: int) -> None:
    encoder, path = exported
    features = torch.randn(1, 128, frames, generator=torch.Generator().manual_seed(frames))
    digits = encoder(features)
    tokens = open_onnx(path, num_inputs=2).run(features.numpy(), np.array([frames], np.int32))
    settled = ((digits.abs() - 0.5).abs() > 1e-4).all(-1)[0].numpy()
    assert settled.mean() > 0.95 or frames < 97
    assert (tokens == to_indices(digits)[0].numpy())[settled].all()
    assert frames < 97 or len(set(tokens.tolist())) > 5


def test_through_the_package_s_own_front_end(exported: tuple[TokenEncoder, Path]) -> None:
    encoder, path = exported
    samples = 0.1 * torch.randn(16_000 * 3, generator=torch.Generator().manual_seed(0))
    tokens = SpeechTokenizer.from_file(path)(samples)
    assert tokens.dtype == torch.int32
    assert tokens.shape == (75,)
    with torch.no_grad():
        expected = to_indices(encoder(whisper_log_mel(samples)[None]))[0]
    assert (tokens == expected).float().mean() > 0.95


def test_features_beyond_the_length_give_no_tokens(exported: tuple[TokenEncoder, Path]) -> None:
    features = np.zeros((1, 128, 40), np.float32)
    tokens = open_onnx(exported[1], num_inputs=2).run(features, np.array([21], np.int32))
    assert tokens.shape == (6,)


def test_weights_take_two_bytes(exported: tuple[TokenEncoder, Path]) -> None:
    encoder, path = exported
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    assert path.stat().st_size < 2.02 * parameters


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is changed, but what a test sets."""
    for name in ("WARP_SHARE", "TILT_UNITS", "JITTER_UNITS", "LOW_PASS_SHARE", "BLUR_SHARE", "NOISE_TILT_UNITS"):
        monkeypatch.setattr(augment, name, 0.0)
    monkeypatch.setattr(augment, "LEVEL_UNITS", (0.0, 0.0))
    monkeypatch.setattr(augment, "FLOOR_UNITS", (-9.0, -9.0))
    return monkeypatch


def tone(hertz: float) -> torch.Tensor:
    return whisper_log_mel(torch.sin(2 * torch.pi * hertz * torch.arange(16_000) / 16_000))[None]


def test_nothing_drawn_nothing_changed(still: pytest.MonkeyPatch) -> None:
    features = tone(700)
    torch.testing.assert_close(Augment()(features), features, rtol=0, atol=1e-4)


@pytest.mark.parametrize("hertz", [400.0, 900.0, 3000.0])
@pytest.mark.parametrize("factor", [0.85, 1.18])
def test_warping_is_a_speaker_whose_tones_lie_elsewhere(still: pytest.MonkeyPatch, hertz: float, factor: float) -> None:
    still.setattr(augment, "WARP_SHARE", 1.0)
    still.setattr(augment, "WARP", (factor, factor))
    warped, moved = Augment()(tone(hertz)), tone(hertz / factor)
    assert abs(int(warped.mean(2).argmax()) - int(moved.mean(2).argmax())) <= 1


def test_low_pass_leaves_nothing_above(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "LOW_PASS_SHARE", 1.0)
    still.setattr(augment, "LOWEST_EDGE", 0.5)
    features = torch.randn(64, 128, 40).clamp(-0.9, 0.9)
    view = Augment()(features)
    cut = view < features - 1e-3
    assert not cut[:, :63].any()
    assert cut[:, 127].any(dim=1).float().mean() > 0.9


def test_level_moves_all_values_alike(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "LEVEL_UNITS", (-0.5, -0.5))
    features = tone(700)
    torch.testing.assert_close(Augment()(features), features - 0.5, rtol=0, atol=1e-4)


def test_noise_fills_what_is_quieter(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "FLOOR_UNITS", (-1.0, -1.0))
    features = tone(700)
    view = Augment()(features)
    assert view.min() == pytest.approx(float(features.max()) - 1.0, abs=1e-3)
    assert view.max() == pytest.approx(float(features.max()), abs=1e-3)


def test_views_differ_and_keep_the_range() -> None:
    features = tone(700).repeat(16, 1, 1)
    views = Augment()(features)
    assert views.shape == features.shape
    assert views.isfinite().all()
    spread = views.amax(dim=(1, 2)) - views.amin(dim=(1, 2))
    assert spread.max() <= 2.0 + 1e-4
    assert (views[1:] - views[:-1]).abs().mean(dim=(1, 2)).min() > 0.01


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
    phones = np.unique(corpus.labels, return_inverse=True)[1].astype(np.int16)
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


SMALL = TokenizerSizes(width=32, heads=2, blocks=1, inner=32, kernel=3, span=4)
SIZES = Sizes(model=SMALL, batch=8, crop_tokens=12, validation_crops=4)


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
        there, labels = features.cut(torch.tensor([at]), alone.shape[1] // 4)
        torch.testing.assert_close(there[0], alone, rtol=0, atol=1e-3)
        first, last = corpus.start[utterance], corpus.start[utterance + 1]
        assert labels[0].tolist() == corpus.labels[first:last].tolist()
        at += alone.shape[1] // 4


def test_a_step_learns_the_spelling(corpus: Corpus) -> None:
    torch.manual_seed(0)
    features = load_features(corpus, evenly_by_speaker(corpus, 1.0), CPU, 16)
    step = TokenizerStep(features, TokenEncoder(SMALL), batch=8, crop_tokens=16)
    step.optimizers["tokenizer"].set_rate(200, 0.0)
    before = [float(step(0)["loss"].detach()) for _ in range(5)]
    for _ in range(120):
        values = step(0)
    assert float(values["loss"].detach()) < 0.6 * np.mean(before)
    assert set(values) == {"loss", "digits_right", "tokens_right", "phones_right"}


def test_a_step_can_be_captured(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    features = load_features(corpus, evenly_by_speaker(corpus, 1.0), CPU, 16)
    assert uncapturable(TokenizerStep(features, TokenEncoder(SMALL), batch=2, crop_tokens=16), 0, monkeypatch) == []


def test_from_corpus_to_tokenizer_in_two_pieces(corpus: Corpus, tmp_path: Path) -> None:
    first = train_tokenizer(corpus.folder, tmp_path, Budget(steps=10), CPU, sizes=SIZES)
    before = first.read_bytes()
    assert torch.load(tmp_path / "tokenizer.state.pt", weights_only=True)["step"] == 10
    path = train_tokenizer(corpus.folder, tmp_path, Budget(steps=20), CPU, sizes=SIZES)
    assert torch.load(tmp_path / "tokenizer.state.pt", weights_only=True)["step"] == 20
    assert path.name == "speech_tokenizer_v2.onnx"
    assert path.read_bytes() != before
    assert not (corpus.folder / "tokens.npy").exists()
    exported = SpeechTokenizer.from_file(path)(heard(corpus, np.array([3]), CPU)[0])
    assert len(exported) == corpus.start[4] - corpus.start[3]
    measures = json.loads((tmp_path / "tokenizer.measures.json").read_text())
    assert measures["corpus"]["differing"] < 0.05
    assert {"perplexity", "codes", "speaker_probe", "phones_right", "semitones"} <= set(measures["corpus"])


def test_other_speakers_are_measured_too(corpus: Corpus, tmp_path: Path) -> None:
    others = write_tones(tmp_path / "others", utterances_each=5, seed=1)
    out = tmp_path / "out"
    train_tokenizer(corpus.folder, out, Budget(steps=1), CPU, others=others.folder, sizes=SIZES)
    assert set(json.loads((out / "tokenizer.measures.json").read_text())) == {"corpus", "others"}


def test_digits_of_tokens_are_those_of_the_spelling() -> None:
    tokens = np.array([0, SILENCE_TOKEN, 17, NUM_CODES - 1])
    digits = spelled(torch.from_numpy(tokens))
    assert digits.tolist() == digits_of(tokens).astype(float).tolist()
    assert to_indices(digits).tolist() == tokens.tolist()


def test_the_pitch_is_wrong_by_its_steps_where_there_is_speech() -> None:
    def tokens(*semitones: float) -> np.ndarray:
        none = np.zeros(len(semitones), np.int8)
        return spell(np.full(len(semitones), 5, np.uint8), none, np.array(semitones, np.float32), none)

    wanted, got = tokens(0, 1.7, 3.4, 0), tokens(0, 3.4, 1.7, 0)
    assert pitch_error(wanted, got) == pytest.approx(1.7 / 2**0.5)
    wanted[1] = SILENCE_TOKEN
    assert pitch_error(wanted, got) == pytest.approx(1.7 / 3**0.5)
