"""The suffix of `--out` chooses the format; `--subtitles` goes with it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.cli.cli_harness import AUDIO, MADE, Run, read_wav
from vivavoce.api import Vivavoce
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.tag import AudioTag
from vivavoce.frontend.speech_result import Speech, Timings

TAG = AudioTag("babble", MADE)
BEGINS = {"mp3": b"ID3", "aac": b"ID3", "opus": b"OggS", "ogg": b"OggS", "flac": b"fLaC", "wav": b"RIFF"}


def test_the_suffix_chooses(run: Run) -> None:
    assert run("speak Hi. -o speech.wav").code == 0
    spoken = read_wav(Path("speech.wav"))
    for suffix, begin in BEGINS.items():
        path = Path(f"speech.{suffix.upper()}")
        result = run("speak Hi. -o", path)
        assert result.code == 0, suffix
        assert result.err.startswith(f"{path}: {len(spoken) / 24_000:.2f} s of audio"), suffix
        assert path.read_bytes().startswith(begin), suffix
        audio = decode_audio(path)
        assert len(spoken) <= len(audio.samples) * 24_000 / audio.sample_rate <= len(spoken) + 4_000, suffix
    run("speak Hi. -o speech.pcm")
    assert Path("speech.pcm").read_bytes() == spoken.astype("<i2").tobytes()


def test_names_without_a_suffix_and_stdout_are_wav(run: Run) -> None:
    run("speak Hi. -o speech.wav")
    whole = Path("speech.wav").read_bytes()
    run("speak Hi. -o speech")
    assert Path("speech").read_bytes() == whole
    assert run("speak Hi. -o -").out == whole
    streamed = run("speak Hi. -o - --stream").out
    assert streamed.startswith(wav_header(24_000, None, TAG))
    assert soundfile.read(io.BytesIO(streamed))[0].any()


@pytest.mark.parametrize("name", ["mp3", "flac", "pcm"])
def test_stdout_takes_any_format(run: Run, name: str) -> None:
    whole, streamed = run("speak Hi. -o - --format", name), run("speak Hi. -o - --stream --format", name)
    run("speak Hi. -o speech." + name)
    assert whole.out == Path(f"speech.{name}").read_bytes()
    assert streamed.out[:2] == whole.out[:2] or name == "pcm"
    assert run("speak Hi. -o - --format xyz").error.startswith("error: format: 'xyz' is")
    assert run("speak Hi. -o speech.wav --format", name).error.startswith("error: format: is for --out -; ")


@pytest.mark.parametrize("name", ["speech.xyz", "speech.mp4", "speech.mp3.bak"])
def test_other_suffixes_are_refused_before_a_model_is_loaded(run: Run, name: str) -> None:
    for options in ((), ("--stream",)):
        result = run("speak", "Hi.", "--model", "no-such-model", "-o", name, *options)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert result.err.startswith(f"error: output: '{Path(name).suffix}' cannot be written; end ")
    assert not Path(name).exists()


@pytest.mark.parametrize("suffix", ["flac", "wav"])
def test_a_streamed_file_is_as_one_written_at_once(run: Run, suffix: str) -> None:
    path = Path(f"stream.{suffix}")
    result = run("speak", "Hello, how are you?", "--stream", "-o", path)
    assert (result.code, "first audio after" in result.err) == (0, True)
    integers, _ = soundfile.read(path, dtype="int16")
    assert soundfile.info(path).frames == len(integers) > 0
    samples = integers.astype(np.float32) / 32768
    assert path.read_bytes() == encode_whole(AudioFormat(suffix), samples, 24_000, tag=TAG)


def test_the_tag_can_be_left_out(run: Run) -> None:
    for options, tagged in (((), True), (("--no-tag",), False)):
        for way in ((), ("--stream",)):
            assert run("speak Hi. -o said.mp3", *options, *way).code == 0
            assert Path("said.mp3").read_bytes().startswith(b"ID3") == tagged
        assert run("convert --voice babble-b -o as.wav", AUDIO / "speech_24k_float.wav", *options).code == 0
        assert (b"AI-generated speech" in Path("as.wav").read_bytes()[:200]) == tagged


@pytest.mark.parametrize("suffix", ["opus", "wav", "mp3"])
def test_a_broken_stream_leaves_whole_files_of_what_was_spoken(
    run: Run, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def broken(self: object, chunks: object) -> object:
        yield next(iter(chunks))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce.cli.speak.StreamClock.timed", broken)
    options = ("--stream", "-o", f"cut.{suffix}", "--subtitles", "cut.vtt")
    assert run("speak", "Hello, how are you?", *options).code == 130
    samples, rate = soundfile.read(f"cut.{suffix}")
    assert samples.any()
    assert ends_at("cut.vtt") == pytest.approx(len(samples) / rate, abs=0.1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_named_whatever_the_format(run: Run) -> None:
    Path("full.mp3").symlink_to("/dev/full")
    for options in ((), ("--stream",)):
        error = run("speak Hi. -o full.mp3", *options).error
        assert "'full.mp3' cannot be written (No space left on device); choose another" in error


TEXT = "The ferry left at 9, and nobody was on board. It came back at noon; the sea was quiet, and so were we. "


def ends_at(name: str) -> float:
    """Seconds at which the last subtitle ends."""
    times = [line for line in Path(name).read_text(encoding="utf-8").splitlines() if " --> " in line]
    hours, minutes, seconds = times[-1].split(" --> ")[1].replace(",", ".").split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_subtitles_end_with_the_audio(run: Run, options: tuple[str, ...]) -> None:
    assert run("speak Hi. --subtitles out.VTT --quiet", *options).err == ""
    assert Path("out.VTT").read_bytes().startswith(b"WEBVTT\n\n00:00:00.000 --> 00:00:0")
    assert run("speak", TEXT, "--subtitles", "out.srt", *options).code == 0
    lines = Path("out.srt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:00,000 --> 00:00:")
    assert "2" in lines
    spoken = " ".join(line for line in lines if line and " --> " not in line and not line.isdigit())
    assert spoken == TEXT.strip(), "as it was written, not as it was read out"
    assert ends_at("out.srt") == pytest.approx(len(read_wav(Path("out.wav"))) / 24_000, abs=0.001)


@pytest.mark.slow
def test_a_book_is_spoken_in_order_with_one_line_of_subtitles_after_the_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce.cli.speak.PART_CHARS", 60)
    book = TEXT + "\n\n* * *\n\n" + TEXT
    Path("book.txt").write_text(book, encoding="utf-8")
    for options in ((), ("--stream",)):
        result = run("speak --file book.txt -o book.wav --subtitles book.srt", *options, terminal=True)
        assert result.code == 0
        assert "%" in result.err, "the share that is done"
        lines = Path("book.srt").read_text(encoding="utf-8").splitlines()
        spoken = " ".join(line for line in lines if line and " --> " not in line and not line.isdigit())
        assert [word for word in spoken.split() if word != "*"] == [word for word in book.split() if word != "*"]
        starts = [line.split(" --> ")[0] for line in lines if " --> " in line]
        assert starts == sorted(starts)
        assert len(starts) > 2
        assert ends_at("book.srt") == pytest.approx(len(read_wav(Path("book.wav"))) / 24_000, abs=0.001)


def test_ctrl_c_in_a_book_leaves_a_whole_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.cli.speak.PART_CHARS", 120)
    speak, spoken = Vivavoce.speak_many, []

    def broken(self: Vivavoce, *given: object, **manner: object) -> object:
        for speech in speak(self, *given, **manner):  # type: ignore[arg-type]
            if spoken:
                raise KeyboardInterrupt
            spoken.append(speech)
            yield speech

    monkeypatch.setattr(Vivavoce, "speak_many", broken)
    assert run("speak", TEXT * 3, "-o", "cut.flac", "--subtitles", "cut.srt").code == 130
    assert soundfile.info("cut.flac").frames == len(spoken[0].samples) > 0
    assert ends_at("cut.srt") == pytest.approx(spoken[0].duration_s, abs=0.001)


def test_of_a_book_memory_holds_little_and_its_letters_are_looked_at_first(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def fake(self: object, texts: Iterable[str], *_: object, **__: object) -> Iterator[Speech]:
        for text in texts:
            taken.append(text)
            yield Speech(np.zeros(24, np.float32), 24_000, Timings(0, 0, 0, 0, 0))

    monkeypatch.setattr(Vivavoce, "speak_many", fake)
    book = TEXT * 400
    assert len(book) > 40_000
    assert run("speak -o book.wav", stdin=book.encode()).code == 0
    assert "".join(taken).split() == book.split()
    assert max(map(len, taken)) <= 1_000
    taken.clear()
    error = run("speak --model mini -o no.wav", stdin=f"{book}希".encode()).error
    assert error.startswith("error: text: the model does not know the letters '希'")
    assert taken == []


def test_it_is_played_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.cli.speak.PART_CHARS", 60)
    played: list[int] = []
    monkeypatch.setattr(Speech, "play", lambda self: played.append(len(self.samples)))
    for text in ("Hi.", TEXT):
        played.clear()
        assert run("speak", text, "-o", "out.wav", "--play").code == 0
        assert sum(played) == len(read_wav(Path("out.wav")))
    assert len(played) > 1
    assert "play: does not go with --stream" in run("speak Hi. --play --stream").error
