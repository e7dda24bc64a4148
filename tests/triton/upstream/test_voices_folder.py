"""Recordings in a folder as voices."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vivavoce.errors import InvalidAudio, InvalidRequest, VoiceNotFound
from vivavoce.frontend.voices.names import NameRules
from vivavoce_triton.upstream.voices_folder import VoicesFolder, usable_reference


def write(file: Path | io.BytesIO, seconds: float = 1.0, rate: int = 24_000) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(round(seconds * rate)) / rate)
    soundfile.write(file, tone.astype(np.float32), rate, format="WAV" if isinstance(file, io.BytesIO) else None)


def found(folder: VoicesFolder, name: str) -> tuple[np.ndarray, str]:
    voice = folder.find(name)
    assert voice is not None
    return voice


def test_pairs_of_recordings_and_texts(tmp_path: Path) -> None:
    write(tmp_path / "anna.wav")
    (tmp_path / "anna.txt").write_text("\ufeffWhat Anna says. \n", encoding="utf-8")
    write(tmp_path / "Bert B.flac")
    (tmp_path / "notes.txt").write_text("no recording")
    (tmp_path / "cover.png").write_bytes(b"")
    folder = VoicesFolder(tmp_path)
    told = [(voice.name, voice.transcript) for voice in folder.voices() if voice.kind != "alias"]
    assert told == [("Bert B", ""), ("anna", "What Anna says.")]
    samples, transcript = found(folder, "anna")
    assert (samples.dtype, samples.shape, transcript) == (np.float32, (16_000,), "What Anna says.")
    assert folder.find(None) is None
    with pytest.raises(VoiceNotFound, match="known: Bert B, anna"):
        folder.find("nobody")


def test_openai_names_and_an_operators_are_recordings_too(tmp_path: Path) -> None:
    for seconds, name in ((1.0, "anna"), (2.0, "bert")):
        write(tmp_path / f"{name}.wav", seconds)
    folder = VoicesFolder(tmp_path, NameRules(aliases={"me": "ash"}, default="bert", unknown="default"))
    for name, recording in (("alloy", "anna"), ("ash", "bert"), ("me", "bert"), ("nobody", "bert"), (None, "bert")):
        assert folder.find(name) == found(folder, recording)
    listed = {voice.name: voice.stands_for for voice in folder.voices() if voice.kind == "alias"}
    assert (len(listed), listed["alloy"], listed["me"]) == (14, "anna", "bert")
    write(tmp_path / "alloy.wav", 1.5)
    assert len(found(folder, "alloy")[0]) == 24_000


def test_openai_names_mean_the_servers_own_voice_where_there_is_no_other(tmp_path: Path) -> None:
    folder = VoicesFolder(tmp_path)
    assert folder.find("alloy") is None
    with pytest.raises(VoiceNotFound):
        folder.find("nobody")


def test_the_folder_is_read_again_when_it_changes(tmp_path: Path) -> None:
    write(tmp_path / "anna.wav", 1.0)
    folder = VoicesFolder(tmp_path)
    first = found(folder, "anna")[0]
    assert found(folder, "anna")[0] is first
    write(tmp_path / "anna.wav", 2.0)
    (tmp_path / "anna.txt").write_text("New.")
    assert len(found(folder, "anna")[0]) == 32_000
    assert found(folder, "anna")[1] == "New."
    os.remove(tmp_path / "anna.wav")
    assert folder.voices() == []


def test_names_that_are_none_and_names_that_are_there_twice_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "anna.wav", 1.0)
    write(tmp_path / "anna.flac", 2.0)
    write(tmp_path / "ANNA.flac", 2.0)
    write(tmp_path / ".hidden.wav")
    write(tmp_path / "a+b.wav")
    folder = VoicesFolder(tmp_path)
    assert [voice.name for voice in folder.voices() if voice.kind != "alias"] == ["anna"]
    assert len(found(folder, "anna")[0]) == 16_000


def test_a_manifest_alone_says_which_voices_there_are(tmp_path: Path) -> None:
    write(tmp_path / "anna.wav")
    (tmp_path / "takes").mkdir()
    write(tmp_path / "takes" / "7.wav", 2.0)
    line = {"name": "bert", "reference_audio": "takes/7.wav", "reference_text": "What Bert says."}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(line) + "\n\n")
    folder = VoicesFolder(tmp_path)
    assert [voice.name for voice in folder.voices() if voice.kind != "alias"] == ["bert"]
    assert len(found(folder, "bert")[0]) == 32_000


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{", "line 1 .* is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"name": "anna"}', "lacks name or reference_audio"),
        ('{"name": "anna", "reference_audio": "gone.wav"}', "'gone.wav', which is not there"),
        ('{"name": "../anna", "reference_audio": "anna.wav"}', "voice name"),
    ],
)
def test_a_manifest_that_cannot_be_used(tmp_path: Path, lines: str, words: str) -> None:
    write(tmp_path / "anna.wav")
    (tmp_path / "manifest.jsonl").write_text(lines)
    with pytest.raises(InvalidRequest, match=words):
        VoicesFolder(tmp_path)


def test_a_slip_in_a_manifest_takes_no_voice_away(tmp_path: Path) -> None:
    write(tmp_path / "anna.wav")
    folder = VoicesFolder(tmp_path)
    (tmp_path / "manifest.jsonl").write_text("{")
    assert [voice.name for voice in folder.voices() if voice.kind != "alias"] == ["anna"]


def test_of_long_silence_no_more_is_decoded_than_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some formats hold hours of it in kilobytes; all of them in memory would end the server."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(600 * 8_000, np.float32), 8_000, format="FLAC")
    assert len(file.getvalue()) < 100_000

    def read(*_: object, **__: object) -> None:
        raise AssertionError("all of it was decoded")

    monkeypatch.setattr(soundfile, "read", read)
    with pytest.raises(InvalidAudio, match=r"^reference audio: .* lasts 600\.0 s; the limit is 30 s"):
        usable_reference(file.getvalue(), "reference audio")
