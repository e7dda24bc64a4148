"""What benchmarks/door_listeners says of a door."""

from __future__ import annotations

import pytest

from benchmarks import door_listeners


@pytest.mark.parametrize("name", ["pcm", "mp3"])
def test_each_listener_is_counted(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["door_listeners", "--format", name, "--listeners", "3", "--seconds", "1"])
    door_listeners.main()
    line = capsys.readouterr().out
    assert line.startswith(f"{name}, 3 listeners: first pieces late by ")
    assert "nan" not in line
