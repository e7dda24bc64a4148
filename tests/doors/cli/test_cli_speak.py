"""`speak` and `convert` around the default model."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest
from cli_harness import Run, read_wav

from vivavoce.service.audio.wav import wav_header

NOTE = "note: model babble is randomly initialised: it babbles, it does not speak; use --model "


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model would load."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a model loads")

    monkeypatch.setattr("vivavoce.doors.python.load", fail)


def test_speaks_into_out_wav_and_reports(run: Run) -> None:
    result = run("speak", "Hi.")
    assert (result.code, result.out) == (0, b"")
    samples = read_wav(Path("out.wav"))
    report, note = result.err.splitlines()
    assert report.startswith(f"out.wav: {len(samples) / 24_000:.2f} s of audio, RTF ")
    for stage in ("text", "language model", "flow", "vocoder"):
        assert f"{stage} " in report
    assert note.startswith(NOTE)


def test_quiet_says_nothing(run: Run) -> None:
    result = run("speak", "Hi.", "--quiet")
    assert (result.code, result.out, result.err) == (0, b"", "")
    read_wav(Path("out.wav"))


def test_text_comes_from_argument_file_or_stdin(run: Run) -> None:
    Path("text.txt").write_text("\ufeffHi.\n", encoding="utf-8")
    run("speak", "Hi.\n", "-o", "argument.wav")
    run("speak", "--file", "text.txt", "-o", "file.wav")
    run("speak", "-f", "-", "-o", "dash.wav", stdin=b"Hi.\n")
    run("speak", "-o", "stdin.wav", stdin=b"Hi.\n")
    expected = Path("argument.wav").read_bytes()
    for name in ("file.wav", "dash.wav", "stdin.wav"):
        assert Path(name).read_bytes() == expected, name


def test_seed_and_speed_change_the_audio(run: Run) -> None:
    def samples(*options: object) -> np.ndarray:
        assert run("speak", "Hi.", *options).code == 0
        return read_wav(Path("out.wav"))

    first = samples("--seed", 7)
    assert np.array_equal(samples("--seed", 7), first)
    assert not np.array_equal(samples("--seed", 8), first)
    assert len(samples("--seed", 7, "--speed", 2)) == len(first) // 2


def test_a_stream_ends_as_a_whole_file(run: Run) -> None:
    result = run("speak", "Hello, how are you?", "--stream", "-o", "stream.wav")
    assert result.code == 0
    samples = read_wav(Path("stream.wav"))
    assert Path("stream.wav").read_bytes() == wav_header(24_000, len(samples)) + samples.tobytes()
    assert f"stream.wav: {len(samples) / 24_000:.2f} s of audio" in result.err
    assert "first audio after" in result.err


def test_a_broken_stream_leaves_what_was_spoken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, chunks: object) -> object:
        yield next(iter(chunks))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce.doors.cli.speak.StreamClock.timed", broken)
    assert run("speak", "Hello, how are you?", "--stream").code == 130
    samples = read_wav(Path("out.wav"))
    assert Path("out.wav").read_bytes() == wav_header(24_000, len(samples)) + samples.tobytes()


def test_stdout_gets_wav_and_nothing_else(run: Run) -> None:
    run("speak", "Hi.")
    whole = Path("out.wav").read_bytes()
    assert run("speak", "Hi.", "-o", "-").out == whole
    streamed = run("speak", "Hi.", "-o", "-", "--stream", "--quiet")
    assert streamed.out[:4] + streamed.out[8:12] == b"RIFFWAVE"
    assert streamed.out[4:8] == streamed.out[40:44] == b"\xff\xff\xff\xff"
    assert len(streamed.out) > 44
    assert streamed.err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_a_full_disk_is_named(run: Run, options: tuple[str, ...]) -> None:
    error = run("speak", "Hi.", "-o", "/dev/full", *options).error
    assert error.startswith("error: output: '/dev/full' cannot be written (No space left on device); choose another ")


def test_a_disk_that_fills_up_later_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Filling(io.BytesIO):
        def write(self, data: object) -> int:
            if self.tell():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)  # type: ignore[arg-type]

        def seek(self, *_: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            super().close()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vivavoce.doors.cli.output.open", lambda *_: Filling(), raising=False)
    assert "'full.wav' cannot be written (No space left" in run("speak", "Hi.", "-o", "full.wav", "--stream").error


def test_the_environment_names_the_model(run: Run, babble: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_MODEL", "nope")
    for command in (("speak", "Hi."), ("info",)):
        assert "'nope' is neither" in run(*command).error
    assert "'nope' is neither" in run("doctor").text
    assert run("info", babble).code == 0


def test_stdout_that_is_a_terminal_is_refused(run: Run, no_loading: None) -> None:
    assert "ffplay" in run("speak", "Hi.", "-o", "-", terminal=True).error


def test_a_terminal_sees_progress(run: Run) -> None:
    result = run("speak", "Hi.", terminal=True)
    assert result.code == 0
    assert "loading babble" in result.err
    assert "speaking" in result.err
    assert "loading" not in run("speak", "Hi.").err


def test_a_recording_and_a_name_are_voices(run: Run, recording: Path) -> None:
    cloned = run("speak", "Hi.", "--voice", recording, "--prompt_text", "some words", "-o", "cloned.wav")
    named = run("speak", "Hi.", "--voice", "babble-b", "-o", "named.wav")
    instructed = run("speak", "Hi.", "-v", recording, "--instruct", "slowly", "--top-k", 5, "-o", "instructed.wav")
    assert (cloned.code, named.code, instructed.code) == (0, 0, 0)
    contents = [Path(name).read_bytes() for name in ("cloned.wav", "named.wav", "instructed.wav")]
    assert len(set(contents)) == 3


def test_dashes_and_underscores_are_alike(run: Run, recording: Path) -> None:
    for mode in ("cross-lingual", "cross_lingual"):
        assert run("speak", "Hi.", "--voice", recording, "--mode", mode, "-o", f"{mode}.wav").code == 0
    assert Path("cross-lingual.wav").read_bytes() == Path("cross_lingual.wav").read_bytes()


def test_long_text_is_spoken_whole(run: Run) -> None:
    assert run("speak", "-o", "one.wav", stdin=b"Hi there. ").code == 0
    assert run("speak", "-o", "many.wav", stdin=b"Hi there. " * 20).code == 0
    assert len(read_wav(Path("many.wav"))) > 8 * len(read_wav(Path("one.wav")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "text: is empty"),
        (("  \n",), "text: is empty"),
        (("a\x07b",), "U+0007"),
        (("x" * 20_001,), "20000"),
        (("Hi.", "--speed", 3), "speed: 3.0 is outside of 0.5 … 2.0"),
        (("Hi.", "--seed", -1), "seed: -1"),
        (("Hi.", "--top-p", 1.5), "top_p: 1.5"),
        (("Hi.", "--top-k", 0), "top_k: 0"),
        (("Hi.", "--mode", "opera"), "mode: 'opera' is unknown; choose one of zero_shot, cross_lingual"),
        (("Hi.", "--file", "text.txt"), "given twice"),
        (("--file", "absent.txt"), "'absent.txt' cannot be read"),
        (("Hi.", "-o", "."), "'.' is a folder"),
        (("Hi.", "-o", "absent/out.wav"), "absent' does not exist"),
        (("Hi.", "-o", "x" * 300), "cannot be written"),
        ((), "text: none is given"),
    ],
)
def test_refused_before_any_model_loads(
    run: Run, no_loading: None, arguments: tuple[object, ...], message: str
) -> None:
    assert message in run("speak", *arguments).error


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "text: is empty"), (b"caf\xe9", "'stdin' is not UTF-8 (byte 0xe9 at position 3)"), (b"x" * 90_000, "20000")],
)
def test_piped_text_is_checked(run: Run, no_loading: None, content: bytes, message: str) -> None:
    assert message in run("speak", stdin=content).error


def test_a_protected_output_is_refused(run: Run, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("kept.wav").write_bytes(b"mine")
    monkeypatch.setattr("os.access", lambda *_: False)  # the superuser may write anything
    assert "'kept.wav' is write-protected" in run("speak", "Hi.", "-o", "kept.wav").error


def test_trying_an_output_leaves_no_trace(run: Run, no_loading: None) -> None:
    Path("kept.wav").write_bytes(b"mine")
    for name in ("kept.wav", "new.wav"):
        assert "text: is empty" in run("speak", "", "-o", name).error
    assert [path.name for path in Path().iterdir()] == ["kept.wav"]
    assert Path("kept.wav").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("...",), "nothing in '...' can be spoken"),
        (("Hi.", "--voice", "nobody"), "voice: 'nobody' is not registered (known: babble-a, babble-b)"),
        (("Hi.", "--voice", "absent.wav"), "'absent.wav' does not exist"),
        (("Hi.", "--voice", "text.wav"), "'text.wav' is not an audio file"),
        (("Hi.", "--prompt-text", "words"), "prompt_text: belongs to a recording"),
        (("Hi.", "--mode", "zero_shot"), "mode: zero_shot needs reference speech"),
        (("Hi.", "--mode", "instruct"), "mode: instruct needs an instruction"),
        (("Hi.", "--model", "nope"), "'nope' is neither a folder nor a known model"),
        (("Hi.", "--model", "CosyVoice2-0.5B"), "`vivavoce download CosyVoice2-0.5B`"),
        (("Hi.", "--model", "."), "cosyvoice2.yaml"),
        (("Hi.", "--device", "tpu"), "device: 'tpu' is unknown"),
        (("Hi.", "--dtype", "int8"), "dtype: 'int8' is unknown"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_by_the_model(run: Run, arguments: tuple[object, ...], message: str, stream: bool) -> None:
    Path("text.wav").write_text("This is no sound.")
    Path("out.wav").write_bytes(b"before")
    assert message in run("speak", *arguments, *(["--stream"] if stream else [])).error
    assert Path("out.wav").read_bytes() == b"before"


def test_converts_a_recording(run: Run, recording: Path) -> None:
    result = run("convert", recording, "--voice", "babble-b", "-o", "b.wav")
    assert result.code == 0
    assert result.err.startswith("b.wav: 1.20 s of audio, RTF ")
    assert NOTE in result.err
    assert len(read_wav(Path("b.wav"))) == 1.2 * 24_000
    assert run("convert", recording, "--voice", "babble-b", "-o", "-", "-q").out == Path("b.wav").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.wav",), "source audio: 'absent.wav' does not exist"),
        (("text.wav",), "source audio: 'text.wav' is not an audio file"),
        (("text.wav", "--speed", 3), "speed: 3.0"),
        (("text.wav", "-o", "absent/out.wav"), "does not exist"),
    ],
)
def test_convert_refuses_before_any_model_loads(
    run: Run, no_loading: None, arguments: tuple[object, ...], message: str
) -> None:
    Path("text.wav").write_text("This is no sound.")
    assert message in run("convert", *arguments).error
