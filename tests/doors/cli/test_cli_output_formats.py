"""The suffix of `--out` chooses the format."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from cli_harness import Run, read_wav

from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.encode_file import encode_whole
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.wav import wav_header

BEGINS = {"mp3": b"\xff\xf3", "aac": b"\xff\xf1", "opus": b"OggS", "ogg": b"OggS", "flac": b"fLaC", "wav": b"RIFF"}


def test_the_suffix_chooses(run: Run) -> None:
    assert run("speak", "Hi.", "-o", "speech.wav").code == 0
    spoken = read_wav(Path("speech.wav"))
    for suffix, begin in BEGINS.items():
        path = Path(f"speech.{suffix.upper()}")
        result = run("speak", "Hi.", "-o", path)
        assert result.code == 0, suffix
        assert result.err.startswith(f"{path}: {len(spoken) / 24_000:.2f} s of audio"), suffix
        assert path.read_bytes().startswith(begin), suffix
        audio = decode_audio(path)
        assert len(spoken) <= len(audio.samples) * 24_000 / audio.sample_rate <= len(spoken) + 4_000, suffix
    run("speak", "Hi.", "-o", "speech.pcm")
    assert Path("speech.pcm").read_bytes() == spoken.astype("<i2").tobytes()


def test_other_names_and_stdout_are_wav(run: Run) -> None:
    run("speak", "Hi.", "-o", "speech.wav")
    whole = Path("speech.wav").read_bytes()
    for name in ("speech", "speech.mp3.bak"):
        run("speak", "Hi.", "-o", name)
        assert Path(name).read_bytes() == whole
    assert run("speak", "Hi.", "-o", "-").out == whole
    streamed = run("speak", "Hi.", "-o", "-", "--stream").out
    assert streamed[:44] == wav_header(24_000, None)
    assert soundfile.read(io.BytesIO(streamed))[0].any()


@pytest.mark.parametrize("suffix", ["flac", "wav"])
def test_a_streamed_file_is_as_one_written_at_once(run: Run, suffix: str) -> None:
    path = Path(f"stream.{suffix}")
    assert run("speak", "Hello, how are you?", "--stream", "-o", path).code == 0
    integers, _ = soundfile.read(path, dtype="int16")
    assert soundfile.info(path).frames == len(integers) > 0
    samples = integers.astype(np.float32) / 32768
    assert path.read_bytes() == encode_whole(AudioFormat(suffix), samples, 24_000)


@pytest.mark.parametrize("suffix", ["opus", "flac", "mp3"])
def test_a_broken_stream_leaves_a_whole_file(run: Run, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    def broken(self: object, chunks: object) -> object:
        yield next(iter(chunks))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce.doors.cli.speak.StreamClock.timed", broken)
    assert run("speak", "Hello, how are you?", "--stream", "-o", f"cut.{suffix}").code == 130
    samples, _ = soundfile.read(f"cut.{suffix}")
    assert samples.any()


def test_converts_into_a_format(run: Run, recording: Path) -> None:
    assert run("convert", recording, "--voice", "babble-b", "-o", "b.flac").code == 0
    assert run("convert", recording, "--voice", "babble-b", "-o", "b.wav").code == 0
    np.testing.assert_array_equal(soundfile.read("b.flac", dtype="int16")[0], read_wav(Path("b.wav")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_named_whatever_the_format(run: Run) -> None:
    Path("full.mp3").symlink_to("/dev/full")
    for options in ((), ("--stream",)):
        error = run("speak", "Hi.", "-o", "full.mp3", *options).error
        assert "'full.mp3' cannot be written (No space left on device); choose another" in error
