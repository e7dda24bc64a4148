"""Recordings become a corpus, and a tuned checkpoint is the old one with its tuned parts."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.front_end import load_front_end
from vivavoce.models.build import Models, build_models
from vivavoce.models.flow.model import Flow
from vivavoce.models.generations import NETWORKS
from vivavoce_training.commands import pack, prepare_recordings
from vivavoce_training.data.store import TOKEN_SAMPLES, Corpus, Speaker
from vivavoce_training.prepare import Recording, find_recordings, prepare
from vivavoce_training.weights import load_part, save_part

SPEECH = Path(__file__).parents[1] / "data" / "audio"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two speakers in subfolders and one file beside them, all usable."""
    folder = tmp_path / "studio"
    for name, source, text in (
        ("anna/one", "speech_24k_float.wav", "I have 2 cats.\nAnd a dog.\n"),
        ("anna/two", "speech_22k_int16.wav", "Good morning."),
        ("ben/one", "speech_22k_int16.wav", "\ufeffHello there!"),
        ("loose", "speech_24k_float.wav", "Nobody's folder."),
    ):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SPEECH / source, place.with_suffix(".wav"))
        place.with_suffix(".txt").write_text(text, encoding="utf-8")
    return folder


def add(folder: Path, name: str, samples: np.ndarray, text: bytes | None) -> None:
    write_audio(folder / f"{name}.wav", samples, 24_000)
    if text is not None:
        (folder / f"{name}.txt").write_bytes(text)


def hum(seconds: float) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * 150 * np.arange(round(seconds * 24_000)) / 24_000)


def test_subfolders_are_speakers_and_all_else_is_the_checkpoints(
    recordings: Path, babble: Path, tmp_path: Path
) -> None:
    corpus, skipped = prepare(find_recordings(recordings), babble, tmp_path / "corpus")
    assert skipped == []
    assert corpus.speakers == [Speaker(name, "recorded") for name in ("anna", "ben", "studio")]
    assert corpus.speaker.tolist() == [0, 0, 1, 2]
    # What the model would be given to say.
    assert corpus.texts == ["I have two cats. And a dog.", "Good morning.", "Hello there!", "Nobody's folder."]
    assert Corpus.open(tmp_path / "corpus").texts == corpus.texts
    assert np.diff(corpus.start).tolist() == [30] * 4  # 1.2 s
    assert len(corpus.tokens) == corpus.num_tokens
    assert len(corpus.wav) == corpus.num_tokens * TOKEN_SAMPLES
    assert not (corpus.folder / "labels.npy").exists()
    extractor = load_front_end(babble).extractor
    for number, name in enumerate(("anna/one", "anna/two", "ben/one", "loose")):
        voice = extractor.extract(recordings / f"{name}.wav")
        tokens = corpus.tokens[corpus.start[number] : corpus.start[number + 1]]
        # The corpus resamples twice; a digit on the edge of two values may fall to the other side.
        assert (tokens == voice.speech_tokens.numpy()).mean() > 0.8
        embedding = torch.from_numpy(np.asarray(corpus.embeddings[number], np.float32))
        assert torch.cosine_similarity(embedding, voice.embedding, dim=0) > 0.99


def test_other_lengths_are_padded_to_the_grid(babble: Path, tmp_path: Path) -> None:
    add(tmp_path, "odd", hum(0.99), b"hm")
    corpus, _ = prepare(find_recordings(tmp_path), babble, tmp_path / "corpus")
    assert corpus.num_tokens == 25
    assert corpus.wav[23_760 - 1200 : 23_760].any()
    assert not corpus.wav[23_760:].any()


@pytest.mark.parametrize(
    ("seconds", "level", "text", "reason"),
    [
        (0.3, 1.0, b"hi", r"bad\.wav: lasts 0\.30 s; at least 0\.5 s are needed"),
        (30.5, 1.0, b"hi", r"bad\.wav.*30"),
        (1.0, 0.0, b"hi", r"bad\.wav: is silent"),
        (1.0, 1.0, None, r"transcript: bad\.txt is missing; write down what the recording says"),
        (1.0, 1.0, b" ... ", "nothing in '...' can be spoken"),
        (1.0, 1.0, b"caf\xe9", r"transcript: bad\.txt is not UTF-8"),
    ],
)
def test_what_cannot_be_used_is_left_out(
    seconds: float, level: float, text: bytes | None, reason: str, recordings: Path, babble: Path, tmp_path: Path
) -> None:
    add(recordings, "bad", level * hum(seconds), text)
    corpus, skipped = prepare(find_recordings(recordings), babble, tmp_path / "corpus")
    assert len(corpus) == 4
    (one,) = skipped
    assert one.audio == recordings / "bad.wav"
    assert re.search(reason, one.reason), one.reason
    assert "\n" not in one.reason


def test_what_is_no_audio_is_left_out(recordings: Path, babble: Path, tmp_path: Path) -> None:
    (recordings / "fake.mp3").write_bytes(b"no sound at all")
    (recordings / "fake.txt").write_text("Hello.")
    corpus, skipped = prepare(find_recordings(recordings), babble, tmp_path / "corpus")
    assert len(corpus) == 4
    assert [one.audio.name for one in skipped] == ["fake.mp3"]


def test_nothing_usable_leaves_no_corpus(babble: Path, tmp_path: Path) -> None:
    add(tmp_path, "silent", 0 * hum(1.0), b"hi")
    with pytest.raises(InvalidRequest, match=r"none of 1 can be used, the first because of silent\.wav: is silent"):
        prepare(find_recordings(tmp_path), babble, tmp_path / "corpus")
    assert list((tmp_path / "corpus").iterdir()) == []


def test_a_transcript_with_a_system_prompt_of_its_own_is_left_out(
    recordings: Path, babble_v3: Path, tmp_path: Path
) -> None:
    add(recordings, "told", hum(1.0), b"Speak fast.<|endofprompt|>Hello.")
    corpus, skipped = prepare(find_recordings(recordings), babble_v3, tmp_path / "corpus")
    assert corpus.texts == ["I have two cats. And a dog.", "Good morning.", "Hello there!", "Nobody's folder."]
    assert [(one.audio.name, "holds <|endofprompt|>" in one.reason) for one in skipped] == [("told.wav", True)]


def test_no_audio_files(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("words")
    with pytest.raises(InvalidRequest, match=r"holds no audio file; put name\.wav and name\.txt there"):
        find_recordings(tmp_path)


def test_a_folder_that_is_no_checkpoint(recordings: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        prepare([Recording(recordings / "loose.wav", "s")], tmp_path, tmp_path / "corpus")


def test_the_command_reports(recordings: Path, babble: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(recordings / "ben", "mute", 0 * hum(1.0), b"hi")
    with caplog.at_level(logging.INFO, logger="training"):
        prepare_recordings(recordings, tmp_path / "corpus", babble)
    assert "left out" in caplog.text
    assert "mute.wav: is silent" in caplog.text
    assert "4 recordings, 0.00 h, 3 speakers" in caplog.text


@pytest.fixture(params=["babble", "babble_v3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Babble, its flow as safetensors too, and with what official folders hold besides."""
    folder = tmp_path / "old"
    shutil.copytree(request.getfixturevalue(request.param), folder)
    save_file(read_tensors(folder / "flow.pt"), folder / "flow.safetensors")
    for other in ("flow.cache.pt", "flow.decoder.estimator.fp32.onnx", "flow.encoder.fp16.zip", "llm.rl.pt"):
        (folder / other).write_bytes(b"of the old weights")
    return folder


@pytest.fixture
def models(checkpoint: Path) -> Models:
    return build_models(checkpoint, torch.device("cpu"))


@pytest.fixture
def parts(models: Models, tmp_path: Path) -> Path:
    """A flow whose weights are all halved."""
    halved = {name: tensor / 2 for name, tensor in models.flow.state_dict().items()}
    save_part(tmp_path / "parts", halved, NETWORKS[models.config.generation]["flow"])
    (tmp_path / "parts" / "flow.state.pt").write_bytes(b"to continue from")
    return tmp_path / "parts"


def test_tuned_parts_replace_all_forms_of_the_old_ones(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    pack(checkpoint, parts, tmp_path / "new")
    assert find_part(tmp_path / "new", "flow").read_bytes() == (parts / "flow.pt").read_bytes()
    left = {path.name for path in checkpoint.iterdir()} - {path.name for path in (tmp_path / "new").iterdir()}
    assert left == {"flow.safetensors", "flow.cache.pt", "flow.decoder.estimator.fp32.onnx", "flow.encoder.fp16.zip"}
    for same in ("llm.pt", "hift.pt", "llm.rl.pt", "spk2info.pt", "CosyVoice-BlankEN/vocab.json"):
        assert (tmp_path / "new" / same).read_bytes() == (checkpoint / same).read_bytes()


def test_the_old_checkpoint_stays(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    pack(checkpoint, parts, tmp_path / "new")
    assert before == {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


def test_what_was_packed_is_what_runs(checkpoint: Path, parts: Path, models: Models, tmp_path: Path) -> None:
    pack(checkpoint, parts, tmp_path / "new")
    packed = build_models(tmp_path / "new", torch.device("cpu"))
    for name, tensor in models.flow.state_dict().items():
        torch.testing.assert_close(packed.flow.state_dict()[name], tensor / 2, rtol=1e-3, atol=1e-6)
    again = Flow(models.config.flow)
    load_part(again, tmp_path / "new", NETWORKS[models.config.generation]["flow"])
    torch.testing.assert_close(again.state_dict(), packed.flow.state_dict())


def test_an_existing_folder_is_refused(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(InvalidRequest, match="exists already; name a new folder"):
        pack(checkpoint, parts, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_parts_without_any_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"holds none of llm\.pt, flow\.pt, hift\.pt; train one first"):
        pack(checkpoint, tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()
