"""`speak --subtitles`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_harness import Run, read_wav

TEXT = "The ferry left at 9, and nobody was on board. It came back at noon; the sea was quiet, and so were we. "


def ends_at(name: str) -> float:
    """Seconds at which the last subtitle ends."""
    times = [line for line in Path(name).read_text(encoding="utf-8").splitlines() if " --> " in line]
    hours, minutes, seconds = times[-1].split(" --> ")[1].replace(",", ".").split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_subtitles_end_with_the_audio(run: Run, options: tuple[str, ...]) -> None:
    assert run("speak", TEXT * 2, "--subtitles", "out.srt", *options).code == 0
    lines = Path("out.srt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:00,000 --> 00:00:")
    spoken = " ".join(line for line in lines if line and " --> " not in line and not line.isdigit())
    assert spoken == (TEXT * 2).strip(), "as it was written, not as it was read out"
    assert ends_at("out.srt") == pytest.approx(len(read_wav(Path("out.wav"))) / 24_000, abs=0.001)


def test_the_suffix_chooses_the_format(run: Run) -> None:
    assert run("speak", "Hi.", "--subtitles", "out.VTT", "--quiet").err == ""
    content = Path("out.VTT").read_bytes()
    assert content.startswith(b"WEBVTT\n\n00:00:00.000 --> 00:00:0")
    assert content.endswith(b"\nHi.\n")


def test_a_broken_stream_leaves_subtitles_of_what_was_spoken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, chunks: object) -> object:
        yield next(iter(chunks))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce.doors.cli.speak.StreamClock.timed", broken)
    assert run("speak", TEXT, "--stream", "--subtitles", "out.vtt").code == 130
    assert ends_at("out.vtt") == pytest.approx(len(read_wav(Path("out.wav"))) / 24_000, abs=0.001)


@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_a_text_that_is_refused_leaves_the_subtitles_that_were(run: Run, options: tuple[str, ...]) -> None:
    Path("out.srt").write_text("before")
    assert "can be spoken" in run("speak", "...", "--subtitles", "out.srt", *options).error
    assert Path("out.srt").read_text() == "before"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.txt", "subtitles: 'out.txt' ends with neither .srt nor .vtt; name a file that does"),
        ("-", "subtitles: '-' ends with neither"),
        ("absent/out.srt", "absent' does not exist"),
        ("x" * 300 + ".srt", "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_any_model_loads(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr("vivavoce.doors.python.load", pytest.fail)
    assert message in run("speak", "Hi.", "--subtitles", name).error
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_named_when_subtitles_are_written(run: Run) -> None:
    Path("full.srt").symlink_to("/dev/full")
    error = run("speak", "Hi.", "--subtitles", "full.srt").error
    assert "subtitles: 'full.srt' cannot be written (No space left" in error
