"""Features against the official front end's and by definition; the encoders of stand-in checkpoints over them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from vivavoce.checkpoint.config import MelConfig
from vivavoce.errors import CheckpointError, InvalidAudio
from vivavoce.models import encoders
from vivavoce.models.encoders import OnnxModel, SpeakerEncoder, SpeechTokenizer, open_onnx
from vivavoce.models.features import prompt_mel, slaney_filterbank, speaker_fbank, whisper_log_mel
from vivavoce_runtimes.onnx_writer import FLOAT, INT64, Port, _field, node, onnx_model

BOOL = 9  # TensorProto.DataType
NAMES = pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])


SIZES = [(24_000, 1920, 80, 0.0, 8_000.0), (24_000, 1920, 80, 0.0, 12_000.0), (16_000, 400, 128, 0.0, 8_000.0)]


@pytest.mark.parametrize("size", SIZES)
def test_filterbank_shape_and_support(size):
    sample_rate, n_fft, num_bins, fmin_hz, fmax_hz = size
    filters = slaney_filterbank(*size)
    assert filters.shape == (num_bins, n_fft // 2 + 1)
    assert filters.dtype == torch.float32
    assert filters.min() == 0
    frequencies = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    used = frequencies[filters.sum(0) > 0]
    assert used.min() > fmin_hz
    assert used.max() < fmax_hz


def test_filterbank_unit_area_where_frequencies_are_dense():
    filters = slaney_filterbank(24_000, 1 << 16, 40, 0.0, 8_000.0)
    areas = filters.double().sum(1) * (24_000 / (1 << 16))
    torch.testing.assert_close(areas, torch.ones_like(areas), rtol=1e-3, atol=0)


def test_filterbank_centres_are_linear_below_1_khz_and_logarithmic_above():
    filters = slaney_filterbank(24_000, 1 << 16, 40, 0.0, 8_000.0)
    centres = filters.argmax(1).double() * (24_000 / (1 << 16))
    low, high = centres[centres < 900], centres[centres > 1_100]
    torch.testing.assert_close(low.diff(), low.diff()[:1].expand(len(low) - 1), rtol=5e-3, atol=0)
    ratios = high[1:] / high[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-3, atol=0)


V2 = MelConfig(24_000, n_fft=1920, win_size=1920, hop=480, num_bins=80, fmin_hz=0.0, fmax_hz=8_000.0)
V3 = replace(V2, fmax_hz=12_000.0)
V1 = MelConfig(22_050, n_fft=1024, win_size=1024, hop=256, num_bins=80, fmin_hz=0.0, fmax_hz=8_000.0)


@NAMES
@pytest.mark.parametrize(
    ("feature", "config", "last", "step"), [("mel_v1", V1, 110, 5), ("mel_v2", V2, 58, 3), ("mel_v3", V3, 58, 3)]
)
def test_prompt_mel_equals_the_official_values(speech, stored, name, feature, config, last, step):
    mel = prompt_mel(speech(name, 24_000)[None], config)[0, :last:step].numpy()
    theirs = stored(name, feature)
    # Mels below 1e-3 are the sum of an FFT's rounding, which differs between processors: no logarithm of them.
    np.testing.assert_allclose(np.maximum(mel, np.log(1e-3)), np.maximum(theirs, np.log(1e-3)), rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.exp(mel), np.exp(theirs), rtol=0, atol=5e-6)


def test_prompt_mel_batch_equals_single(speech):
    whole = speech("speech_24k_float", 24_000)
    batch = torch.stack([whole[:12_000], whole[12_000:24_000]])
    together = prompt_mel(batch, V2)
    for row, samples in zip(together, batch, strict=True):
        torch.testing.assert_close(row, prompt_mel(samples[None], V2)[0], rtol=0, atol=1e-5)


def test_prompt_mel_part_equals_whole_away_from_its_edges(speech):
    whole = speech("speech_24k_float", 24_000)
    part = prompt_mel(whole[None, 10 * V2.hop : 40 * V2.hop], V2)[0]
    torch.testing.assert_close(part[2:-2], prompt_mel(whole[None], V2)[0, 12:38], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [721, 960, 959, 24_000, 24_479])
def test_prompt_mel_one_frame_per_hop(num_samples):
    assert prompt_mel(torch.zeros(2, num_samples), V2).shape == (2, num_samples // 480, 80)


def test_prompt_mel_silence_is_the_floor():
    # sqrt(1e-9) of magnitude in every bin: the floor of 1e-5 lies above what the filters make of it.
    assert prompt_mel(torch.zeros(1, 4_800), V2).max() == pytest.approx(np.log(1e-5), abs=1e-6)


@NAMES
def test_whisper_mel_equals_the_official_values_above_the_floor(speech, stored, name):
    ours = whisper_log_mel(speech(name, 16_000))[:, :115:5].numpy()
    theirs = stored(name, "whisper")
    # The floor follows the loudest value, which the whole recording has elsewhere.
    above = theirs > max(ours.min(), theirs.min()) + 1e-3
    assert above.mean() > 0.4
    np.testing.assert_allclose(ours[above], theirs[above], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [201, 319, 320, 16_000, 16_159])
def test_whisper_mel_one_frame_per_10_ms(num_samples):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert whisper_log_mel(samples).shape == (128, num_samples // 160)
    assert whisper_log_mel(samples, num_bins=80).shape == (80, num_samples // 160)


def test_whisper_mel_range_is_eight_decades_below_the_loudest(speech):
    features = whisper_log_mel(speech("speech_24k_float", 16_000))
    assert features.max() - features.min() == pytest.approx(2.0, abs=1e-6)


def test_whisper_mel_level_shifts_all_values_alike(speech):
    samples = speech("speech_24k_float", 16_000)
    difference = whisper_log_mel(samples) - whisper_log_mel(samples / 10)
    torch.testing.assert_close(difference, torch.full_like(difference, 0.5), rtol=0, atol=1e-4)


def test_whisper_mel_recordings_side_by_side_are_computed_alone(speech):
    samples = speech("speech_24k_float", 16_000)[:16_000]
    together = whisper_log_mel(torch.stack([samples, samples / 100, samples.flip(0)]).view(3, 1, -1))
    assert together.shape == (3, 1, 128, 100)
    for row, alone in zip(together, (samples, samples / 100, samples.flip(0)), strict=True):
        torch.testing.assert_close(row[0], whisper_log_mel(alone), rtol=0, atol=1e-5)


@NAMES
def test_fbank_equals_the_official_values(speech, stored, name):
    ours = speaker_fbank(speech(name, 16_000))[:115:5].numpy()
    theirs = stored(name, "fbank")
    # Both lack the mean of their own recording, so compare without that of these frames.
    np.testing.assert_allclose(ours - ours.mean(0), theirs - theirs.mean(0), rtol=0, atol=2e-3)


def test_fbank_mean_over_time_is_zero(speech):
    features = speaker_fbank(speech("speech_24k_float", 16_000))
    torch.testing.assert_close(features.mean(0), torch.zeros(80), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("num_samples", "num_frames"), [(400, 1), (559, 1), (560, 2), (16_000, 98)])
def test_fbank_whole_frames_only(num_samples, num_frames):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert speaker_fbank(samples).shape == (num_frames, 80)


def test_fbank_of_several_recordings_is_that_of_each(speech):
    samples = speech("speech_24k_float", 16_000)[:16_000]
    together = speaker_fbank(torch.stack([samples, samples / 100]))
    for row, alone in zip(together, (samples, samples / 100), strict=True):
        torch.testing.assert_close(row, speaker_fbank(alone), rtol=0, atol=1e-4)


def test_fbank_of_silence_is_zero():
    torch.testing.assert_close(speaker_fbank(torch.zeros(4000)), torch.zeros(23, 80), rtol=0, atol=1e-5)


def test_fbank_same_audio_same_features(speech):
    samples = speech("speech_24k_float", 16_000)
    assert torch.equal(speaker_fbank(samples), speaker_fbank(samples))


@pytest.mark.parametrize(
    ("feature", "least", "sizes"),
    [
        (lambda samples: prompt_mel(samples[None], V2), 721, (0, 1, 479, 720)),
        (whisper_log_mel, 201, (0, 200)),
        (speaker_fbank, 400, (399,)),
    ],
    ids=["prompt_mel", "whisper", "fbank"],
)
def test_too_short(feature, least, sizes, encoder, tokenizer):
    for size in sizes:
        with pytest.raises(InvalidAudio, match=rf"{size} samples .* at least {least} .*; use a longer recording"):
            feature(torch.zeros(size))
    for one in (encoder, tokenizer):
        with pytest.raises(InvalidAudio, match="too few"):
            one(torch.zeros(100))


@pytest.fixture
def encoder(audio_data):
    return SpeakerEncoder.from_file(audio_data / "campplus.onnx")


@pytest.fixture
def tokenizer(audio_data):
    return SpeechTokenizer.from_file(audio_data / "speech_tokenizer_v2.onnx")


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"campplus\.onnx is missing in .*; download"):
        SpeakerEncoder.from_file(tmp_path / "campplus.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model" * 50, None])
def test_corrupt_file(tmp_path, audio_data, content, capfd):
    path = tmp_path / "campplus.onnx"
    whole = (audio_data / "campplus.onnx").read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(
        CheckpointError, match=r"campplus\.onnx in .* is not a usable ONNX model .*; download"
    ) as caught:
        SpeakerEncoder.from_file(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def onnx(*nodes: bytes, more: bytes = b"") -> bytes:
    """A model from one number, `in`, to one number, `out`."""
    ports = [Port("in", FLOAT, (1,))], [Port("out", FLOAT, (1,))]
    return onnx_model(nodes, {}, *ports) + more


def outside(key: str | bytes) -> bytes:
    """The weight of a model as bytes 0 to 4 of ../secret.bin."""
    entry = (_field(1, key) if isinstance(key, str) else key) + _field(2, "../secret.bin")
    weight = _field(1, 1) + _field(2, FLOAT) + _field(8, "weight") + _field(13, entry) + _field(14, 1)
    constant = (
        _field(2, "weight") + _field(4, "Constant") + _field(5, _field(1, "value") + _field(5, weight) + _field(20, 4))
    )
    return onnx(constant, node("Add", ["in", "weight"], "out"))


def nested_functions(depth: int) -> bytes:
    """Each function calls the one before it twice, so that 2^depth operators are run."""
    content = _field(8, _field(1, "own") + _field(2, 1))
    for level in range(depth + 1):
        called = _field(4, "Abs") if level == 0 else _field(4, f"f{level - 1}") + _field(7, "own")
        nodes = b"".join(_field(7, _field(1, x) + _field(2, y) + called) for x, y in (("a", "b"), ("b", "c")))
        opsets = _field(9, _field(1, "") + _field(2, 13)) + _field(9, _field(1, "own") + _field(2, 1))
        content += _field(
            25, _field(1, f"f{level}") + _field(4, "a") + _field(5, "c") + nodes + opsets + _field(10, "own")
        )
    return onnx(node(f"f{depth}", ["in"], "out") + _field(7, "own"), more=content)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (outside("location"), "keeps tensors in other files"),
        (outside(b"\x0a\x88\x80\x00location"), "keeps tensors in other files"),
        (onnx(more=_field(7, outside("location"))), "keeps tensors in other files"),
        (nested_functions(40), "functions of its own"),
        (onnx(more=bytes([8, 1]) * 20_000), "more than a model's fields"),
        (b"\x3a" + b"\xff" * 20_000, "is not a usable ONNX model"),
    ],
)
def test_a_file_that_reads_others_or_grows_is_refused(tmp_path, content, word):
    (tmp_path / "secret.bin").write_bytes(bytes(4))
    path = tmp_path / "model" / "campplus.onnx"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=word) as caught:
        SpeakerEncoder.from_file(path)
    assert "\n" not in str(caught.value)


def test_the_word_location_alone_refuses_no_model(tmp_path):
    path = tmp_path / "campplus.onnx"
    path.write_bytes(onnx(node("Abs", ["in"], "the location"), node("Identity", ["the location"], "out")))
    assert open_onnx(path, num_inputs=1).run(np.array([-2], np.float32)).tolist() == [2]


def test_a_run_without_end_is_ended(tmp_path, monkeypatch):
    def value(name: str, data_type: int, *shape: int) -> bytes:
        sizes = b"".join(_field(1, _field(1, size)) for size in shape)
        return _field(1, name) + _field(2, _field(1, _field(1, data_type) + _field(2, sizes)))

    nodes = [_field(1, node("Identity", [one], f"{one} after")) for one in ("again", "number")]
    inputs = [value("count", INT64), value("again", BOOL), value("number", FLOAT, 1)]
    outputs = [value("again after", BOOL), value("number after", FLOAT, 1)]
    body = b"".join([*nodes, _field(2, "body"), *(_field(11, one) for one in inputs)])
    body += b"".join(_field(12, one) for one in outputs)
    loop = node("Loop", ["", "true", "in"], "out") + _field(5, _field(1, "body") + _field(6, body) + _field(20, 5))
    yes = _field(1, "value") + _field(5, _field(2, BOOL) + _field(9, b"\1")) + _field(20, 4)
    path = tmp_path / "campplus.onnx"
    path.write_bytes(onnx(_field(2, "true") + _field(4, "Constant") + _field(5, yes), loop))
    monkeypatch.setattr(encoders, "MAX_RUN_S", 0.2)
    with pytest.raises(CheckpointError, match=r"campplus\.onnx in .* takes more than 0\.2 s"):
        open_onnx(path, num_inputs=1).run(np.ones(1, np.float32))


def test_a_run_that_fails_names_the_file(audio_data):
    with pytest.raises(CheckpointError, match=r"campplus\.onnx in .* fails \(.*\); download it again"):
        open_onnx(audio_data / "campplus.onnx", num_inputs=1).run(np.ones(1, np.float32))


def test_swapped_files(audio_data):
    with pytest.raises(CheckpointError, match=r"speech_tokenizer_v2\.onnx .* takes 2 inputs, not 1"):
        SpeakerEncoder.from_file(audio_data / "speech_tokenizer_v2.onnx")
    with pytest.raises(CheckpointError, match=r"campplus\.onnx .* takes 1 inputs, not 2"):
        SpeechTokenizer.from_file(audio_data / "campplus.onnx")


def test_threads_may_share_a_model(audio_data):
    model = open_onnx(audio_data / "campplus.onnx", num_inputs=1)
    inputs = [np.random.default_rng(seed).standard_normal((1, 50, 80)).astype(np.float32) for seed in range(8)]
    alone = [model.run(features) for features in inputs]
    with ThreadPoolExecutor(4) as pool:
        for expected, found in zip(alone, pool.map(model.run, inputs), strict=True):
            np.testing.assert_array_equal(found, expected)


@NAMES
def test_stored_embedding(encoder, speech, stored, name):
    embedding = encoder(speech(name))
    assert embedding.shape == (192,)
    assert embedding.dtype == torch.float32
    np.testing.assert_allclose(embedding.numpy(), stored(name, "embedding"), rtol=0, atol=1e-4)


def test_speakers_differ_and_runs_do_not(encoder, speech):
    first, second = encoder(speech("speech_24k_float")), encoder(speech("speech_22k_int16"))
    assert (first - second).abs().max() > 0.1
    assert torch.equal(first, encoder(speech("speech_24k_float")))


def test_output_of_another_size_names_the_file(audio_data, speech):
    class Short(OnnxModel):
        def run(self, *inputs: np.ndarray) -> np.ndarray:
            return super().run(*inputs)[:100]

    opened = open_onnx(audio_data / "campplus.onnx", num_inputs=1)
    encoder = SpeakerEncoder(Short(opened.path, opened.session))
    with pytest.raises(CheckpointError, match=r"campplus\.onnx .* gives 100 numbers, not 192"):
        encoder(speech("speech_24k_float"))


@NAMES
def test_stored_tokens(tokenizer, speech, stored, name):
    tokens = tokenizer(speech(name))
    assert tokens.dtype == torch.int32
    # The stand-in rounds, so another FFT may flip a value that lies on the edge.
    assert np.count_nonzero(tokens.numpy() != stored(name, "tokens")) <= 1


@pytest.mark.parametrize(("num_samples", "num_tokens"), [(640, 1), (641, 1), (800, 2), (480_000, 750)])
def test_one_token_per_40_ms(tokenizer, num_samples, num_tokens):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert tokenizer(samples).shape == (num_tokens,)


def test_more_than_30_s_is_refused(tokenizer):
    with pytest.raises(InvalidAudio, match=r"lasts 31\.00 s; .* 30 s at most; cut it"):
        tokenizer(torch.zeros(31 * 16_000))
