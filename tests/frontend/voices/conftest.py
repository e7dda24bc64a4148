"""Small voices, and an extractor that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from tests.fleet.redis_process import RedisProcess, running_redis
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.stores import VoiceStore
from vivavoce.frontend.voices.voice import Voice
from vivavoce_fleet.redis_store import RedisStore

MODEL = "0123456789abcdef"
FIELDS = ("name", "fingerprint", "transcript", "prompt_text", "description", "licence", "consent")
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
            "consent": Consent("All but politics.", "Anna 安娜", "2026-01-31T12:00:00Z"),
        }
        return Voice(**{**fields, **changes})

    return make


@pytest.fixture
def plain_voice() -> Callable[..., Voice]:
    """With an embedding only."""
    return lambda name="bare", fingerprint=MODEL: Voice(torch.randn(192), fingerprint, name)


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
def store(folder: Path) -> FolderStore:
    return FolderStore(folder)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisProcess]:
    with running_redis(tmp_path / "redis") as process:
        yield process


@pytest.fixture
def open_place(redis_server: RedisProcess) -> Iterator[Callable[..., RedisStore]]:
    """Opens the redis as a server of its own would, without rests."""
    with ExitStack() as opened:

        def open_(options: str = "") -> RedisStore:
            return opened.enter_context(closing(RedisStore(redis_server.url + options, rest_s=0.0)))

        yield open_


@pytest.fixture(params=["folder", "redis"])
def another(request: pytest.FixtureRequest, folder: Path) -> Callable[[], VoiceStore]:
    """Opens one and the same place, a folder or a redis, as one server after the other."""
    if request.param == "folder":
        return lambda: FolderStore(folder)
    open_place: Callable[[], VoiceStore] = request.getfixturevalue("open_place")
    return open_place


@pytest.fixture
def place(another: Callable[[], VoiceStore]) -> VoiceStore:
    return another()
