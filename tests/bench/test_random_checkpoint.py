"""The babble checkpoint: official names and shapes, bounded signals, files that their readers accept."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import detect_generation, fingerprint, speech_tokenizer_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import fold_weight_norm, read_tensors
from vivavoce.errors import CheckpointError
from vivavoce.models.generations import NETWORKS
from vivavoce_bench.random_checkpoint import TINY, make_babble_checkpoint, random_state
from vivavoce_inspect.model import inspect_model

DATA = Path(__file__).parents[1] / "data"
QWEN2_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PARTS = ("llm", "flow", "hift")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_babble_checkpoint(tmp_path_factory.mktemp("models") / "babble")


@pytest.fixture(scope="module")
def folder_v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_babble_checkpoint(tmp_path_factory.mktemp("models") / "babble", Generation.V1)


@pytest.fixture(scope="module")
def folder_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_babble_checkpoint(tmp_path_factory.mktemp("models") / "babble", Generation.V3)


@pytest.fixture(params=list(Generation))
def any_folder(request: pytest.FixtureRequest, folder: Path, folder_v1: Path, folder_v3: Path) -> Path:
    return {Generation.V1: folder_v1, Generation.V2: folder, Generation.V3: folder_v3}[request.param]


def official_parameters(generation: Generation, part: str) -> dict[str, tuple[int, ...]]:
    if generation is not Generation.V2:
        path = DATA / "parity" / "manifests" / f"{generation.value}-tiny.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {row["key"]: tuple(row["shape"]) for row in manifest["files"][f"{part}.pt"]}
    listed = (DATA / "checkpoint" / "v2_tiny_parameters.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in listed.splitlines() if not line.startswith("#")]
    return {name: tuple(map(int, shape.split("x"))) for owner, name, shape in rows if owner == part}


@pytest.mark.parametrize("part", PARTS)
def test_names_and_shapes_are_the_official_ones(any_folder: Path, part: str) -> None:
    folder, generation = any_folder, detect_generation(any_folder)
    state = read_tensors(folder / f"{part}.pt")
    text = {"llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight"} & state.keys()
    expected = official_parameters(generation, part)
    assert state.keys() == expected.keys()
    assert {key: tuple(state[key].shape) for key in expected.keys() - text} == {
        key: expected[key] for key in expected.keys() - text
    }
    assert {state[key].shape for key in text} <= {(TINY[generation].text_vocabulary, 64)}
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_signals_keep_their_size(any_folder: Path) -> None:
    """A matrix times a vector of unit variance gives about unit variance: nothing dies out, nothing explodes."""
    folder = any_folder
    state = read_tensors(folder / "flow.pt") | fold_weight_norm(read_tensors(folder / "hift.pt"))
    matrices = {key: tensor for key, tensor in state.items() if tensor.dim() >= 2 and tensor.numel() > 10_000}
    gains = {
        key: float(tensor.std()) * math.sqrt(tensor[0].numel())
        for key, tensor in matrices.items()
        if "embedding" not in key and not key.startswith("ups.")
    }
    assert len(gains) > 15
    assert all(0.4 < gain < 2.5 for gain in gains.values()), gains


def test_only_the_end_can_stop_an_utterance(folder: Path, folder_v1: Path) -> None:
    for place, first in ((folder, 6561), (folder_v1, 4096)):
        state = read_tensors(place / "llm.pt")
        bias = state["llm_decoder.bias"][first:]
        assert not state["llm_decoder.weight"][first:].any()
        assert bias[0] > 0
        assert (bias[1:] < -50).all()


def test_where_the_head_has_no_bias_the_end_comes_now_and_then(folder_v3: Path) -> None:
    weight = read_tensors(folder_v3 / "llm.pt")["llm_decoder.weight"]
    hidden = torch.nn.functional.normalize(torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))) * 8
    best = (hidden @ weight.T).argmax(dim=1)
    assert not weight[6561:][torch.arange(200) != 1].any()
    assert set(best[best >= 6561].tolist()) == {6562}
    assert 0.02 < (best == 6562).float().mean() < 0.3


def open_model(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_the_speaker_encoder_runs(folder: Path) -> None:
    encoder = open_model(folder / "campplus.onnx")
    for num_frames in (1, 50, 333):
        features = np.random.default_rng(0).standard_normal((1, num_frames, 80)).astype(np.float32)
        (embedding,) = encoder.run(None, {encoder.get_inputs()[0].name: features})
        (other,) = encoder.run(None, {encoder.get_inputs()[0].name: features[:, ::-1] * 2})
        assert embedding.shape == (1, 192)
        assert np.isfinite(embedding).all()
        np.testing.assert_allclose(other, 2 * embedding, rtol=1e-4, atol=1e-5)


def test_the_speech_tokenizer_makes_one_token_of_some_frames(any_folder: Path) -> None:
    tokenizer = open_model(any_folder / speech_tokenizer_of(detect_generation(any_folder)))
    names = [port.name for port in tokenizer.get_inputs()]
    first = detect_generation(any_folder) is Generation.V1
    for num_frames in (1, 3, 4, 5, 100, 101):
        features = np.random.default_rng(1).standard_normal((1, 128, num_frames)).astype(np.float32)
        length = np.array([num_frames], np.int32)
        (tokens,) = tokenizer.run(None, dict(zip(names, (features, length), strict=True)))
        assert tokens.dtype == np.int32
        assert tokens.shape == (1, math.ceil(num_frames / (2 if first else 4))), num_frames
        assert tokens.min() >= 0
        assert tokens.max() < (4096 if first else 6561)
        assert num_frames < 100 or len(set(tokens[0].tolist())) > 10


def test_one_token_per_byte_of_text(folder: Path) -> None:
    backbone = folder / "CosyVoice-BlankEN"
    vocabulary = json.loads((backbone / "vocab.json").read_text(encoding="utf-8"))
    added = json.loads((backbone / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["!"], vocabulary["Ġ"], vocabulary["Ċ"]) == (0, 220, 198)
    assert [added[str(number)]["content"] for number in (256, 257, 258)] == QWEN2_TOKENS


@pytest.mark.parametrize("name", ["lm", "flow", "vocoder"])
def test_a_seed_says_everything(any_folder: Path, name: str) -> None:
    folder = any_folder
    config = read_config(folder, read_tensors(folder / "flow.pt"))
    first, again, other = (random_state(NETWORKS[config.generation][name], config, seed) for seed in (7, 7, 8))
    assert all(torch.equal(first[key], again[key]) for key in first)
    same = [key for key in first if torch.equal(first[key], other[key])]
    assert same == [key for key in first if key.endswith("inv_freq")]


def test_the_same_checkpoint_is_left_as_it_is(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert make_babble_checkpoint(folder) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_was_made_is_a_model_in_its_inspection(any_folder: Path) -> None:
    assert not inspect_model(any_folder).problems


def test_another_seed_is_another_model(folder: Path, tmp_path: Path) -> None:
    other = make_babble_checkpoint(tmp_path / "new" / "babble", seed=1)
    assert fingerprint(other) != fingerprint(folder)
    with pytest.raises(CheckpointError, match="in use for something else"):
        make_babble_checkpoint(other, seed=2)


def test_nothing_of_the_user_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "llm.pt").write_text("precious")
    with pytest.raises(CheckpointError, match="choose a folder that does not exist yet"):
        make_babble_checkpoint(tmp_path / "mine")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"mine", "mine/llm.pt"}


@pytest.mark.parametrize(
    ("step", "error"),
    [("write_spk2info", OSError(28, "No space left on device")), ("os.replace", PermissionError(13, "No"))],
)
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: OSError
) -> None:
    def fail(source: Path, target: object) -> None:
        if step == "write_spk2info" or target == tmp_path / "babble":
            raise error
        source.rename(target)

    monkeypatch.setattr(f"vivavoce_bench.random_checkpoint.{step}", fail)
    with pytest.raises(CheckpointError, match=rf"cannot be written \({error.strerror}\)"):
        make_babble_checkpoint(tmp_path / "babble")
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes just before the folder gets its name."""
    first = make_babble_checkpoint(tmp_path / "first")

    def overtaken(source: Path, target: Path) -> None:
        if target == tmp_path / "babble":
            shutil.copytree(first, target)
        source.rename(target)

    monkeypatch.setattr("os.replace", overtaken)
    assert make_babble_checkpoint(tmp_path / "babble") == tmp_path / "babble"
    assert {path.name for path in tmp_path.iterdir()} == {"first", "babble"}
