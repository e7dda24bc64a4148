"""Small voices, and an extractor that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.service.voices.redis_process import BINARY, RedisProcess
from vivavoce.service.voices.store import VoiceStore
from vivavoce.service.voices.stores.redis_place import RedisPlace
from vivavoce.service.voices.voice import Voice

MODEL = "0123456789abcdef"
FIELDS = ("name", "fingerprint", "transcript", "prompt_text", "description", "licence")
TENSORS = ("embedding", "speech_tokens", "mel")


@pytest.fixture
def full_voice() -> Callable[..., Voice]:
    def make(name: str = "anna", **changes: object) -> Voice:
        fields = {
            "embedding": torch.randn(192),
            "fingerprint": MODEL,
            "name": name,
            "transcript": "Hello, 你好\n— said she.",
            "prompt_text": (3, 151_664, 0),
            "speech_tokens": torch.randint(0, 6561, (25,), dtype=torch.int32),
            "mel": torch.randn(50, 80),
            "description": "a calm voice",
            "licence": "CC-BY-4.0",
        }
        return Voice(**{**fields, **changes})

    return make


@pytest.fixture
def plain_voice() -> Callable[..., Voice]:
    """With an embedding only."""

    def make(name: str = "bare", fingerprint: str = MODEL) -> Voice:
        return Voice(embedding=torch.randn(192), fingerprint=fingerprint, name=name)

    return make


@pytest.fixture
def same() -> Callable[[Voice, Voice], None]:
    """Asserts that two voices agree in every field and every bit."""

    def check(one: Voice, other: Voice) -> None:
        for field in FIELDS:
            assert getattr(one, field) == getattr(other, field), field
        for field in TENSORS:
            left, right = getattr(one, field), getattr(other, field)
            assert (left.dtype, left.shape) == (right.dtype, right.shape), field
            assert left.contiguous().numpy().tobytes() == right.contiguous().numpy().tobytes(), field

    return check


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def store(folder: Path) -> VoiceStore:
    return VoiceStore(folder)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisProcess]:
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not installed")
    (tmp_path / "redis").mkdir()
    process = RedisProcess(tmp_path / "redis")
    yield process
    process.close()


@pytest.fixture
def open_place(redis_server: RedisProcess, tmp_path: Path) -> Iterator[Callable[..., RedisPlace]]:
    """Opens the redis as a server of its own would: with copies in a folder of the given name, and no rests."""
    opened = []

    def open_(copies: str | None = "copies", rest_s: float = 0.0, **options: object) -> RedisPlace:
        cache = None if copies is None else tmp_path / copies
        opened.append(RedisPlace(redis_server.url, cache, rest_s=rest_s, **options))
        return opened[-1]

    yield open_
    for place in opened:
        place.close()
