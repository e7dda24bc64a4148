from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from benchmarks.watermark import marked
from benchmarks.watermark_attacks import ATTACKS
from tests.provenance.conftest import DATA, RATE
from vivavoce.cli.main import main
from vivavoce.engine.watermark import Samples
from vivavoce.errors import InvalidAudio
from vivavoce.frontend.audio.encode import write_audio
from vivavoce_provenance import detect
from vivavoce_provenance.detector import THRESHOLD


@pytest.mark.parametrize("name", ATTACKS)
def test_the_mark_is_found_after(name: str, speech: Samples, speech_with_mark: Samples) -> None:
    chance = np.random.default_rng(0)
    begin = int(chance.integers(0, RATE))
    found, plain = (
        detect(*ATTACKS[name](samples[begin:], RATE, np.random.default_rng(1)))
        for samples in (speech_with_mark, speech)
    )
    assert found.found, found
    assert found.score >= found.threshold
    assert found.verdict == "found"
    assert not plain.found, plain
    assert plain.verdict == "not found"


def test_it_is_found_at_the_other_rate(speech: Samples) -> None:
    assert detect(marked(speech, 22_050), 22_050).found


def test_it_is_found_at_the_end_of_a_long_recording(speech: Samples, speech_with_mark: Samples) -> None:
    long = np.concatenate((speech, speech, speech_with_mark))
    found = detect(long, RATE)
    assert found.found
    assert found.threshold > THRESHOLD
    assert 15 < found.seconds < len(long) / RATE  # without its pauses
    assert not detect(long[: 2 * len(speech)], RATE).found


@pytest.mark.parametrize("seconds", [0.0, 0.001, 2.9])
def test_a_short_recording_cannot_tell(seconds: float, speech_with_mark: Samples) -> None:
    silence = np.zeros(RATE * 5, np.float32)
    found = detect(np.concatenate((silence, speech_with_mark[: int(seconds * RATE)])), RATE)
    assert (found.found, found.score, found.verdict) == (False, 0.0, "too short to tell")
    assert found.seconds <= 3
    with pytest.raises(FrozenInstanceError):
        found.found = True  # type: ignore[misc]


def test_sounds_without_speech_carry_no_mark() -> None:
    chance, seconds = np.random.default_rng(0), np.arange(5 * RATE) / RATE
    white = chance.standard_normal(len(seconds))
    hum = sum(np.sin(2 * np.pi * 117.3 * k * seconds) / k for k in range(1, 25))
    beating = 1 + 0.9 * np.sin(2 * np.pi * 12.5 * seconds)
    for sound in (white, white * beating, hum + 1e-3 * white, hum * beating, np.ones(len(seconds))):
        assert not detect(sound, RATE).found


def test_what_is_not_a_recording_is_refused(speech: Samples) -> None:
    for wrong in (speech[None], np.full(RATE * 5, np.nan, np.float32)):
        with pytest.raises(InvalidAudio, match="is not \\[n\\] of finite numbers"):
            detect(wrong, RATE)
    with pytest.raises(InvalidAudio, match="sample_rate: 6000 Hz is below 8000"):
        detect(speech, 6_000)


def test_the_command_tells_of_each_file(
    tmp_path: Path, speech_with_mark: Samples, capsys: pytest.CaptureFixture[str]
) -> None:
    made, plain = tmp_path / "made.mp3", DATA / "mini/unheard.flac"
    write_audio(made, speech_with_mark, RATE)
    assert main(["detect", str(made), str(plain)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].rstrip() for line in lines] == ["mark", "found", "not found"]
    assert main(["detect", "--json", str(made), str(plain)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["file"], row["found"], row["verdict"]) for row in rows] == [
        (str(made), True, "found"),
        (str(plain), False, "not found"),
    ]
    assert rows[0]["score"] > rows[0]["threshold"]


def test_the_command_refuses_what_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.wav"
    text.write_text("not a recording")
    assert main(["detect", str(text)]) == 2
    assert "is not an audio file" in capsys.readouterr().err
    assert main(["detect", str(tmp_path / "missing.wav")]) == 2
    assert main(["detect"]) == 2
