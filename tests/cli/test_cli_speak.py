"""`speak` and `convert` around the default model."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.adapters import write_adapter
from tests.cli.cli_harness import Run, read_wav
from vivavoce.cli.speak import SpeechManner
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.models.build import Models
from vivavoce_textnorm.lexicon import Lexicon

NOTE = "note: model babble is randomly initialised: it babbles, it does not speak; use --model "


def test_speaks_into_out_wav_and_reports(run: Run) -> None:
    result = run("speak Hi.")
    assert (result.code, result.out) == (0, b"")
    samples = read_wav(Path("out.wav"))
    report, note = result.err.splitlines()
    assert report.startswith(f"out.wav: {len(samples) / 24_000:.2f} s of audio in ")
    for stage in ("text", "language model", "flow", "vocoder"):
        assert f"{stage} " in report
    assert note.startswith(NOTE)


def test_text_comes_from_argument_file_or_stdin(run: Run) -> None:
    Path("text.txt").write_text("\ufeffHi.\n", encoding="utf-8")
    run("speak", "Hi.\n", "-o", "argument.wav")
    run("speak --file text.txt -o file.wav")
    run("speak -f - -o dash.wav", stdin=b"Hi.\n")
    run("speak -o stdin.wav", stdin=b"Hi.\n")
    run("speak - -o lone-dash.wav", stdin=b"Hi.\n")
    expected = Path("argument.wav").read_bytes()
    for name in ("file.wav", "dash.wav", "stdin.wav", "lone-dash.wav"):
        assert Path(name).read_bytes() == expected, name


def test_reasoning_before_a_lone_closing_tag_is_silent(run: Run) -> None:
    run("speak", "Hello.", "-o", "answer.wav")
    run("speak", "I should be brief.</think>\nHello.", "-o", "reasoned.wav")
    assert np.array_equal(read_wav(Path("reasoned.wav")), read_wav(Path("answer.wav")))


@pytest.mark.parametrize(("text", "options"), [("😀", []), ("`x = 1`", ["--code", "silent"]), ("***", ["--stream"])])
def test_a_text_without_words_is_silence_and_a_note(run: Run, text: str, options: list[str]) -> None:
    result = run("speak", text, *options)
    assert (result.code, "note: text: nothing in it can be spoken" in result.err) == (0, True)
    assert Path("out.wav").exists()
    assert "nothing in it" not in run("speak", f"{text} Hi.", *options).err


def test_seed_and_speed_change_the_audio(run: Run) -> None:
    def samples(*options: object) -> np.ndarray:
        assert run("speak Hi.", *options).code == 0
        return read_wav(Path("out.wav"))

    first = samples("--seed", 7)
    assert np.array_equal(samples("--seed", 7), first)
    assert not np.array_equal(samples("--seed", 8), first)
    assert len(samples("--seed", 7, "--speed", 2)) == len(first) // 2


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

    monkeypatch.setattr("vivavoce.cli.output.open", lambda *_: Filling(), raising=False)
    assert "'full.wav' cannot be written (No space left" in run("speak Hi. -o full.wav --stream").error


@pytest.mark.slow
def test_the_other_generations_go_through_every_command(run: Run, other_babble: Path, recording: Path) -> None:
    model, rate = ("--model", other_babble), 22_050 if other_babble.name == "babble-v1" else 24_000
    Path("said.txt").write_text("Hi you.")
    for line in (
        ("voice add me", recording, "--transcript", "some words"),
        ("speak Hi. -v me -o whole.wav",),
        ("speak Hi. -v me --stream -o stream.wav",),
        ("speak Hi. -v babble-a -o speaker.wav",),
        ("speak Hi. -v babble-a --mode instruct --instructions slowly -o told.wav",),
        ("convert", recording, ["-v", "me", "-o", "other.wav"]),
        ("bench -n 2 --concurrency 2 --warmup 0 -v me --json bench.json",),
        ("bench offline -n 1 --backend torch --batch-size 1",),
        ("eval --recogniser none -v me --sentences said.txt --json",),
    ):
        words = [word for part in line[1:] for word in (part if isinstance(part, list) else [part])]
        result = run(line[0], *words, *model)
        assert result.code == 0, (line, result.err)
    for name in ("whole", "stream", "speaker", "told", "other"):
        audio = decode_audio(Path(f"{name}.wav"))
        assert audio.sample_rate == rate
        assert len(audio.samples) > 1_000
    assert decode_audio(Path("other.wav")).duration_s == pytest.approx(1.2, abs=0.05)
    assert json.loads(Path("bench.json").read_text())["requests"] == 2
    assert json.loads(run("voice list --json").text)[0]["speech_s"] == pytest.approx(1.2, abs=0.02)
    assert run("speak Hi. -v me -o v2.wav").code == 0, "another model speaks with the same voice"


@pytest.mark.slow
def test_the_environment_names_the_model(run: Run, babble: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_MODEL", "nope")
    for command in ("speak Hi.", "info"):
        assert "'nope' is neither" in run(command).error
    assert "'nope' is neither" in run("doctor").text
    assert run("info", babble).code == 0


def test_a_terminal_sees_progress_and_no_audio(run: Run) -> None:
    assert "ffplay" in run("speak Hi. -o -", terminal=True).error
    result = run("speak Hi.", terminal=True)
    assert result.code == 0
    assert "loading babble" in result.err
    assert "speaking" in result.err
    assert "loading" not in run("speak Hi.").err


def test_a_recording_and_a_name_are_voices(run: Run, recording: Path) -> None:
    cloned = run("speak Hi. --voice", recording, "--transcript", "some words", "-o", "cloned.wav")
    named = run("speak Hi. --voice babble-b -o named.wav")
    instructed = run("speak Hi. -v", recording, "--instructions", "slowly", "--top-k", 5, "-o", "instructed.wav")
    assert (cloned.code, named.code, instructed.code) == (0, 0, 0)
    contents = [Path(name).read_bytes() for name in ("cloned.wav", "named.wav", "instructed.wav")]
    assert len(set(contents)) == 3


def test_dashes_and_underscores_are_alike(run: Run, recording: Path) -> None:
    for mode in ("cross-lingual", "cross_lingual"):
        assert run("speak Hi. --voice", recording, "--mode", mode, "-o", f"{mode}.wav").code == 0
    assert Path("cross-lingual.wav").read_bytes() == Path("cross_lingual.wav").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text: is empty"),
        (b"caf\xe9", "'stdin' is not UTF-8 (byte 0xe9 at position 3)"),
        (b"ID3\0\0", "file: 'stdin' is not text"),
    ],
)
def test_piped_text_is_checked(run: Run, no_loading: None, content: bytes, message: str) -> None:
    assert message in run("speak", stdin=content).error


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("speak", "text"),
        ("normalize", "text"),
        ("speak Hi. --instructions", "instructions"),
        ("speak Hi. --transcript", "transcript"),
        ("eval --transcript", "transcript"),
    ],
)
def test_a_text_as_an_argument_is_checked_like_piped_text(run: Run, no_loading: None, line: str, name: str) -> None:
    words = [*line.split(), os.fsdecode("é caf".encode() + b"\xe9 au lait")]
    assert f"{name}: is not UTF-8 (byte 0xe9 at position 6)" in run("", *words).error
    assert not Path("out.wav").exists()


def test_a_text_that_the_locale_cannot_decode_is_read_as_utf_8(run: Run) -> None:
    assert run("normalize", "café 5".encode().decode("ascii", "surrogateescape")).out == "café five\n".encode()


def test_a_protected_output_is_refused(run: Run, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("kept.wav").write_bytes(b"mine")
    monkeypatch.setattr("os.access", lambda *_: False)  # the superuser may write anything
    assert "'kept.wav' is write-protected" in run("speak Hi. -o kept.wav").error


def test_trying_an_output_leaves_no_trace(run: Run, no_loading: None) -> None:
    Path("kept.wav").write_bytes(b"mine")
    for name in ("kept.wav", "new.wav"):
        assert "text: is empty" in run("speak", "", "-o", name).error
    assert [path.name for path in Path().iterdir()] == ["kept.wav"]
    assert Path("kept.wav").read_bytes() == b"mine"


def test_words_and_rules_reach_the_speech(tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    file.write_text("Nguyen\twin\n", encoding="utf-8")
    assert SpeechManner().keywords()["reading"] == "natural"
    assert SpeechManner(language="en-GB").keywords()["language"] == "en-GB"
    with pytest.raises(InvalidRequest, match="language: 'tlh' is not one of"):
        SpeechManner(language="tlh").keywords()
    assert SpeechManner(lexicon=file, reading="off").keywords().items() >= {
        ("lexicon", Lexicon({"Nguyen": "win"})),
        ("reading", "off"),
    }
    file.write_text("Nguyen win\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"line 1 of .*words.tsv"):
        SpeechManner(lexicon=file).keywords()


@pytest.mark.parametrize("name", ["t.txt", "my book.md"])
def test_the_name_of_a_file_is_not_spoken_by_mistake(run: Run, name: str) -> None:
    Path(name).write_text("Hello there.", encoding="utf-8")
    refused = run("speak", name)
    quoted = name if " " not in name else f"'{name}'"
    assert refused.error == (
        f"error: text: '{name}' is a file; read it with `--file {quoted}`, or say its name with "
        f"`echo {quoted} | vivavoce speak`\n"
    )
    assert not Path("out.wav").exists()
    assert run("speak --file", name).code == 0


def test_an_adapter_speaks(run: Run, tmp_path: Path, models: Models) -> None:
    write_adapter(tmp_path / "brand", models.lm)
    plain, adapted = (
        run("speak Hi.", *options) for options in ((), ("--adapter", tmp_path / "brand", "-o", "own.wav"))
    )
    assert (plain.code, adapted.code) == (0, 0)
    assert not np.array_equal(*(read_wav(Path(name))[:2_000] for name in ("out.wav", "own.wav")))
    assert "adapter: 'no folder' is not a name" in run("speak Hi. --adapter", "no folder").error
    assert "adapter_config.json: is missing in absent" in run("speak Hi. --adapter absent").error
