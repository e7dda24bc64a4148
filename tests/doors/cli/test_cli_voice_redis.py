"""`voice` with a store that is no folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Run

from tests.service.voices.redis_process import BINARY, RedisProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not installed")
    (tmp_path / "redis").mkdir()
    process = RedisProcess(tmp_path / "redis")
    yield process
    process.close()


def test_voices_in_a_redis(run: Run, babble: Path, server: RedisProcess, home: Path) -> None:
    place = ["--voices", server.url]
    assert run("voice", "import", babble / "spk2info.pt", *place).code == 0
    assert run("voice", "list", *place).text.split("\n")[1].startswith("babble-a")
    assert "embedding of 192" in run("voice", "show", "babble-b", *place).text
    assert run("voice", "remove", "babble-a", "--yes", *place).code == 0
    assert run("voice", "export", "babble-b", "-o", "b.pt", *place).code == 0
    assert not (home / "voices").exists()
    server.kill()
    away = run("voice", "list", *place)
    assert away.code == 2
    assert "is away since" in away.err


def test_other_addresses_are_one_line(run: Run) -> None:
    result = run("voice", "list", "--voices", "http://user:hunter2@host/voices")
    assert result.code == 2
    assert "http:// is no place for voices; give a folder's path, or a URL with redis:// or rediss://" in result.err
    assert "hunter2" not in result.err
