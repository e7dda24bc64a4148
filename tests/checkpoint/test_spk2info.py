"""spk2info.pt: both kinds of speakers, there and back, and everything that a bad file can hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.errors import CheckpointError


def official_speaker(num_text: int = 21, num_tokens: int = 87, num_frames: int = 174) -> dict[str, torch.Tensor]:
    """What the original saves of a zero-shot speaker."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> torch.Tensor:
        return torch.randint(0, 500, (1, count), generator=generator, dtype=torch.int32)

    embedding = torch.randn(1, 192, generator=generator)
    tensors = {
        "prompt_text": ids(num_text),
        "llm_prompt_speech_token": ids(num_tokens),
        "flow_prompt_speech_token": ids(num_tokens),
        "prompt_speech_feat": torch.randn(1, num_frames, 80, generator=generator),
    }
    lengths = {f"{key}_len": torch.tensor([value.shape[1]], dtype=torch.int32) for key, value in tensors.items()}
    return {**tensors, **lengths, "llm_embedding": embedding, "flow_embedding": embedding}


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_spk2info(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_built_in_speakers(tmp_path: Path) -> None:
    embedding = torch.arange(192.0).reshape(1, 192)
    path = save(tmp_path / "spk2info.pt", {"中文女": {"embedding": embedding}, "b": {"embedding": embedding.half()}})
    speakers = read_spk2info(path)
    assert list(speakers) == ["中文女", "b"]
    for entry in speakers.values():
        assert entry.embedding.dtype == torch.float32
        assert torch.equal(entry.embedding, embedding[0])
        assert entry.prompt is None


def test_a_saved_zero_shot_speaker(tmp_path: Path) -> None:
    official = official_speaker()
    entry = read_spk2info(save(tmp_path / "spk2info.pt", {"me": official}))["me"]
    assert torch.equal(entry.embedding, official["flow_embedding"][0])
    assert torch.equal(entry.prompt.text_ids, official["prompt_text"][0])
    assert torch.equal(entry.prompt.llm_speech_tokens, official["llm_prompt_speech_token"][0])
    assert torch.equal(entry.prompt.flow_speech_tokens, official["flow_prompt_speech_token"][0])
    assert torch.equal(entry.prompt.mel, official["prompt_speech_feat"][0])
    assert [tensor.dtype for tensor in vars(entry.prompt).values()] == [torch.int32] * 3 + [torch.float32]


def test_writing_gives_back_the_official_file(tmp_path: Path) -> None:
    official = {"me": official_speaker(), "you": {"embedding": torch.randn(1, 192)}}
    first, second = save(tmp_path / "first.pt", official), tmp_path / "second.pt"
    write_spk2info(second, read_spk2info(first))
    written = torch.load(second, weights_only=True)
    for name, fields in official.items():
        assert written[name].keys() == fields.keys()
        for key, tensor in fields.items():
            assert written[name][key].dtype == tensor.dtype, key
            assert torch.equal(written[name][key], tensor), key


def test_a_view_is_written_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    path = tmp_path / "spk2info.pt"
    write_spk2info(path, {"me": SpeakerEntry(torch.zeros(10_000, 192)[7])})
    assert path.stat().st_size < 10_000


def test_writing_is_private_and_spares_the_files_beside_it(tmp_path: Path) -> None:
    path, beside = tmp_path / "spk2info.pt", tmp_path / "spk2info.pt.new"
    beside.write_text("precious")
    path.write_text("old")
    path.chmod(0o644)
    write_spk2info(path, {"me": SpeakerEntry(torch.zeros(192))})
    assert path.stat().st_mode & 0o777 == 0o600
    assert beside.read_text() == "precious"


@settings(max_examples=20, deadline=None)
@given(text=st.integers(0, 30), tokens=st.integers(0, 60), frames=st.integers(0, 90))
def test_any_length_comes_back(tmp_path_factory: pytest.TempPathFactory, text: int, tokens: int, frames: int) -> None:
    path = tmp_path_factory.mktemp("speakers") / "spk2info.pt"
    prompt = SavedPrompt(
        text_ids=torch.arange(text),
        llm_speech_tokens=torch.arange(tokens),
        flow_speech_tokens=torch.arange(tokens) + 1,
        mel=torch.randn(frames, 80),
    )
    write_spk2info(path, {"me": SpeakerEntry(torch.ones(192), prompt)})
    back = read_spk2info(path)["me"].prompt
    for name, tensor in vars(prompt).items():
        assert getattr(back, name).tolist() == tensor.tolist(), name


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("flow_embedding", torch.zeros(192)),
        ("flow_embedding", torch.zeros(1, 256)),
        ("flow_embedding", torch.full((1, 192), float("nan"))),
        ("flow_embedding", [0.0] * 192),
        ("prompt_text", torch.zeros(1, 21)),
        ("prompt_text", torch.full((1, 21), -1, dtype=torch.int32)),
        ("prompt_text", None),
        ("llm_prompt_speech_token", torch.zeros(87, dtype=torch.int32)),
        ("prompt_speech_feat", torch.zeros(1, 174, 128)),
        ("prompt_speech_feat", torch.zeros(1, 174, 80, dtype=torch.int32)),
        ("prompt_speech_feat_len", torch.tensor([173])),
        ("prompt_text_len", torch.tensor([21, 21])),
        ("prompt_text_len", torch.tensor([float("nan")])),
        ("prompt_text", torch.zeros(1, 4001, dtype=torch.int32)),
        ("prompt_speech_feat", torch.zeros(1, 4001, 80)),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, key: str, bad: Any) -> None:
    message = refusal(save(tmp_path / "spk2info.pt", {"me": {**official_speaker(), key: bad}}))
    assert "'me'" in message
    assert key in message


@pytest.mark.parametrize(
    "content", [[1, 2], {"me": torch.zeros(1, 192)}, {3: {"embedding": torch.zeros(1, 192)}}, {"me": {}}]
)
def test_what_is_no_speaker_file(tmp_path: Path, content: Any) -> None:
    assert "make " in refusal(save(tmp_path / "spk2info.pt", content))


class _Exploit:
    """Touches a file when a pickle is loaded carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("dump", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))])
def test_code_in_the_file_is_not_run(tmp_path: Path, dump: Any) -> None:
    path, touched = tmp_path / "spk2info.pt", tmp_path / "touched"
    dump({"me": {"embedding": _Exploit(touched)}}, path)
    assert "nothing of it was run" in refusal(path)
    assert not touched.exists()
