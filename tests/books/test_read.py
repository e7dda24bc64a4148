"""`vivavoce read` with a speaker that makes tones: files, times, failures, and runs that go on."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch

from tests.books.make_book import make_book, png
from vivavoce.cli.main import main
from vivavoce.errors import InvalidRequest, StageFailed, VoiceNotFound
from vivavoce.frontend.speech import Mark
from vivavoce.frontend.speech_result import Speech, Timings
from vivavoce.frontend.text.sentence_stream import sentence_stream
from vivavoce_books import commands, writing
from vivavoce_books.book import Cover
from vivavoce_books.ledger import open_ledger
from vivavoce_books.writing import loudness_gain, read_picture, readable_text, write_audio

RATE = 24_000
PLAY = """They met at the quay. It was late. [pause 0.5s] A bell rang.

Anna: Is it cold?

Tom: It is. And [voice:anna] so say I.

* * *

Then they left.
"""
CAST = ("--cast", "anna=bright", "--cast", "tom=robot")


class Tones:
    """Speaks each sentence as a tone of 10 ms a character, with 0.1 s of silence before and after it."""

    sample_rate, device, dtype = RATE, torch.device("cpu"), torch.float32

    def __init__(self, folder: Path) -> None:
        self.front_end = SimpleNamespace(folder=folder, text=SimpleNamespace(marks=frozenset({"[laughter]"})))
        self.card = SimpleNamespace(name="tones", languages=("en",), trained=True, demo=False)
        self.spoken: list[tuple[str, str, int]] = []
        self.before: Callable[[str], None] = lambda text: None
        self._lock = threading.Lock()

    def voice(self, name: str | None = None, transcript: str = "") -> Any:
        if name == "nobody":
            raise VoiceNotFound("voice: 'nobody' is unknown; name another")
        some = torch.full((3,), float(len(name or "")))
        return SimpleNamespace(prompt_text=(), embedding=some, speech_tokens=some, mel=some, name=name)

    def check(self, text: str) -> None:
        if "λ" in text:
            raise InvalidRequest("text: the model does not know the letters 'λ'; leave them out")

    def normalize(self, text: str, **manner: Any) -> str:
        if manner["language"] == "zh":
            raise InvalidRequest("language: unknown")
        return text

    def speak(self, text: str, voice: Any = None, *, cancel: Any = None, **manner: Any) -> Speech:
        self.before(text)
        with self._lock:
            self.spoken.append((text, voice.name, manner["seed"]))
        silence, parts, marks = np.zeros(RATE // 10, np.float32), list[Any](), list[Mark]()
        starts = [one.start for one in sentence_stream([text])]
        for start, end in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
            times = np.arange(RATE // 100 * (end - start))
            tone = 0.1 * np.sin(2 * np.pi * (200 + manner["seed"] % 100) / RATE * times + 0.5).astype(np.float32)
            before_s = sum(map(len, parts)) / RATE
            parts += [silence, tone, silence]
            marks.append(Mark(text[start:end], start, end, before_s, sum(map(len, parts)) / RATE))
        return Speech(np.concatenate(parts), RATE, Timings(0, 0, 0, 0, 0), tuple(marks))


@pytest.fixture
def tones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tones:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("play.txt").write_text(PLAY, encoding="utf-8")
    speaker = Tones(tmp_path)
    monkeypatch.setattr(commands, "_loaded", lambda *_: speaker)
    monkeypatch.setattr(commands, "AT_ONCE_ON_CPU", 1)
    return speaker


def read(*arguments: object) -> int:
    return main(["read", *map(str, arguments)])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    return err


def decoded(path: Path) -> np.ndarray[Any, Any]:
    with av.open(str(path)) as opened:
        return np.concatenate([frame.to_ndarray().ravel() for frame in opened.decode(audio=0)])


def kept(path: str) -> dict[int, bytes]:
    with open_ledger(Path(path)) as ledger:
        return {place: ledger.samples(place).tobytes() for place in ledger.places()}


def test_an_audiobook_has_chapters_tags_and_the_cover(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_book(Path("book.epub"), chars=2_000, chapters=3)
    assert read("book.epub", "-o", "book.m4b", "--times", "--subtitles", "srt") == 0
    times = json.loads(Path("book.json").read_text(encoding="utf-8"))
    with av.open("book.m4b") as opened:
        chapters = opened.chapters()
        assert [one["metadata"]["title"] for one in chapters] == list(made.titles)
        assert opened.metadata["title"] == times["title"] == "The Long Way"
        assert opened.metadata["artist"] == times["author"]
        assert opened.metadata["major_brand"] == "M4B "
        (cover,) = opened.streams.video
        assert cover.disposition == av.stream.Disposition.attached_pic
        assert bytes(next(packet for packet in opened.demux(cover) if packet.size)) == png()
    ends = [float(one["end"] * one["time_base"]) for one in chapters]
    assert ends == pytest.approx([one["end_s"] for one in times["chapters"]], abs=1e-3)
    assert len(decoded(Path("book.m4b"))) / RATE == pytest.approx(ends[-1], abs=0.06)
    assert times["check"]["whole"]
    assert times["check"]["lost"] == 0
    err = capsys.readouterr().err
    assert f"{times['check']['spoken']:,} characters were spoken once" in err
    assert "none was lost" in err
    assert "\n1\n" in "\n" + Path("book.srt").read_text(encoding="utf-8")


def test_sentences_are_where_the_times_say_and_pauses_are_exact(tones: Tones) -> None:
    assert read("play.txt", "-o", "play.mp3", "--times", *CAST, "--pause-sentence", 0.5, "--subtitles", "vtt") == 0
    (chapter,) = json.loads(Path("play.json").read_text(encoding="utf-8"))["chapters"]
    sentences = chapter["segments"]
    assert [one["role"] for one in sentences][-4:] == ["anna", "tom", "anna", "anna"]
    texts = [one["text"] for one in sentences]
    assert texts[-4:] == ["Is it cold?", "It is. And", "so say I.", "Then they left."]
    gaps = [b["start_s"] - a["end_s"] for a, b in pairwise(sentences)]
    assert gaps[-4:] == pytest.approx([0.6, 0.6, 0.0, 2.0])
    first = sentences[0]
    samples = decoded(Path("play.mp3"))
    assert first["end_s"] - first["start_s"] == pytest.approx(
        0.01 * (first["end_character"] - first["start_character"]), abs=0.01
    )
    quiet = samples[round(RATE * (first["end_s"] + 0.1)) : round(RATE * (sentences[1]["start_s"] - 0.1))]
    assert np.abs(quiet).max() < 0.01
    subtitles = Path("play.vtt").read_text(encoding="utf-8")
    assert "[" not in subtitles
    assert "Anna:" not in subtitles
    assert "Is it cold?" in subtitles
    assert {voice for text, voice, _ in tones.spoken if text == "Is it cold?"} == {"bright"}


def test_a_run_that_was_ended_goes_on_to_the_same_samples(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    assert read("play.txt", "-o", "whole.m4b", *CAST) == 0
    all_spoken, tones.spoken = tones.spoken, []

    def stop(text: str) -> None:
        if len(tones.spoken) == 2:
            raise KeyboardInterrupt

    tones.before = stop
    capsys.readouterr()
    assert read("play.txt", "-o", "play.m4b", *CAST) == 130
    assert capsys.readouterr().err == "stopped at chapter 1, character 86; the same command goes on\n"
    assert not Path("play.m4b").exists()
    tones.before = lambda _: None
    assert read("play.txt", "-o", "play.m4b", *CAST) == 0
    assert "going on at chapter 1, character 86" in capsys.readouterr().err
    assert sorted(tones.spoken) == sorted(all_spoken)
    assert kept("play.m4b.ledger") == kept("whole.m4b.ledger")
    np.testing.assert_array_equal(decoded(Path("play.m4b")), decoded(Path("whole.m4b")))


def test_chapters_first_and_the_rest_later_are_the_same_book(tones: Tones) -> None:
    make_book(Path("book.epub"), chars=2_000, chapters=3)
    assert read("book.epub", "-o", "book.m4b", "--chapters", "2", "-q") == 0
    first = list(tones.spoken)
    assert read("book.epub", "-o", "book.m4b", "-q", "--pause-heading", 3) == 0
    assert len(set(tones.spoken)) == len(tones.spoken) > len(first)
    both = kept("book.m4b.ledger")
    assert read("book.epub", "-o", "other.m4b", "-q") == 0
    assert kept("other.m4b.ledger") == both


def test_a_file_for_each_chapter(tones: Tones) -> None:
    make_book(Path("book.epub"), chars=2_000, chapters=3)
    assert read("book.epub", "--split", "-o", "parts/{number} {title}.opus", "--chapters", "1-2", "-q") == 0
    names = sorted(path.name for path in Path("parts").iterdir())
    assert [name[:13] for name in names] == ["01 Chapter 1 ", "02 Chapter 2 "]
    with av.open(str(Path("parts") / names[1])) as opened:
        assert opened.streams.audio[0].metadata["track"] == "2"
        assert opened.streams.video[0].disposition == av.stream.Disposition.attached_pic
    assert Path("parts.ledger").exists()


def test_a_chapter_without_words_has_no_file(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.md").write_text("# One\n\nIt rained.\n\n# …\n\n— — …\n\n# Three\n\nIt stopped.\n", encoding="utf-8")
    assert read("book.md", "--split", "-o", "parts") == 0
    assert sorted(path.name for path in Path("parts").iterdir()) == ["01 One.m4b", "03 Three.m4b"]
    assert "nothing in it can be spoken" in capsys.readouterr().err


def test_the_ledger_lies_beside_the_output() -> None:
    book = Path("some/book.epub")
    names = ("a/book.m4b", "a/parts/", "a/{number}.mp3", "{number}.mp3", ".", "..")
    found = [str(commands.ledger_of(name, split=at > 0, book=book)) for at, name in enumerate(names)]
    assert found == ["a/book.m4b.ledger", "a/parts.ledger", "a.ledger", "book.ledger", "book.ledger", "../book.ledger"]


def test_another_voice_is_refused_and_begun_again_on_demand(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    assert read("play.txt", "-o", "play.m4b", *CAST, "-q") == 0
    capsys.readouterr()
    other = ("--cast", "anna=calm", "--cast", "tom=robot")
    assert read("play.txt", "-o", "play.m4b", *other) == 2
    assert "another voice of anna; use the former one, or begin again with --restart" in one_line(capsys)
    assert read("play.txt", "-o", "play.m4b", *CAST, "--speed", 1.5) == 2
    assert "another speed (1.0, now 1.5)" in one_line(capsys)
    (tones.front_end.folder / "llm.pt").write_bytes(b"tuned")
    assert read("play.txt", "-o", "play.m4b", *CAST) == 2
    assert "another file of weights;" in one_line(capsys)
    tones.card.name = "bells"
    assert read("play.txt", "-o", "play.m4b", *CAST) == 2
    assert "another model (tones, now bells)" in one_line(capsys)
    assert read("play.txt", "-o", "play.m4b", *other, "--restart", "-q") == 0


def test_a_segment_that_fails_is_tried_again_and_then_named(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    failures = [StageFailed("flow: it broke")]

    def fail(text: str) -> None:
        if text.startswith("Is it") and failures:
            raise failures.pop()

    tones.before = fail
    assert read("play.txt", "-o", "play.m4b", *CAST, "-q", "--restart") == 0
    failures[:] = [StageFailed("flow: it broke")] * 2
    assert read("play.txt", "-o", "play.m4b", *CAST, "-q", "--restart") == 1
    line = one_line(capsys)
    assert "segment 2 (chapter 1, character 68) failed: flow: it broke; the same command goes on there" in line
    assert len(kept("play.m4b.ledger")) == 1


def test_a_text_that_the_model_cannot_speak_is_named_before_the_first_word(
    tones: Tones, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("greek.txt").write_text("It rained.\n\nThe λ went by.\n", encoding="utf-8")
    assert read("greek.txt", "-o", "greek.m4b") == 2
    assert "segment 2 (chapter 1, character 12): text: the model does not know" in one_line(capsys)
    assert not tones.spoken


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("-o none/play.m4b", "folder"),
        ("-o play.doc", "end it with .m4b"),
        ("-o . ", "end it with .m4b"),
        ("-o play.m4b --chapters 2", "outside of 1 … 1"),
        ("-o play.m4b --chapters one", "neither a number nor a range"),
        ("-o play.m4b --loudness 3", "outside of -40"),
        ("-o play.m4b --pause-scene 99", "outside of 0 … 60"),
        ("-o play.m4b --speed 9", "speed"),
        ("-o none/deep/parts --split", "does not exist"),
        ("-o play.m4b --cast who", "cannot be read"),
        (
            "--split -o {number}{number:03d}.mp3",
            "{number:03d} in '{number}{number:03d}.mp3' is unknown; use {number} and",
        ),
        ("--split -o {foo}.mp3", "output: {foo} in '{foo}.mp3' is unknown; use {number} and {title}"),
    ],
)
def test_mistakes_are_told_before_a_model_loads(
    arguments: str, told: str, tones: Tones, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a model loads")

    monkeypatch.setattr(commands, "_loaded", fail)
    assert read("play.txt", *CAST, *arguments.split()) == 2
    assert told in one_line(capsys)
    assert [path.name for path in Path().iterdir()] == ["play.txt"]


def test_a_voice_that_is_missing_leaves_nothing_to_begin_again(
    tones: Tones, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read("play.txt", "-o", "play.m4b", "--cast", "anna=nobody") == 2
    assert "'nobody' is unknown" in one_line(capsys)
    assert read("play.txt", "-o", "play.m4b", *CAST, "--cast", "not in it=nobody") == 2
    assert "'nobody' is unknown" in one_line(capsys)
    assert not tones.spoken
    assert read("play.txt", "-o", "play.m4b", "--seed", 5, *CAST, "-q") == 0


def test_the_list_speaks_nothing(tones: Tones, capsys: pytest.CaptureFixture[str]) -> None:
    make_book(Path("book.epub"), chars=30_000, chapters=3)
    assert read("book.epub", "--list", "--chapters", "1,3") == 0
    head, first, third, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["chapter", "characters", "left", "out", "about", "title"]
    assert first.split()[0] == "1"
    assert third.split()[0] == "3"
    assert "The Long Way" in total
    assert 10 <= int(total.split()[1]) <= 40  # minutes of 20,000 characters
    assert sorted(path.name for path in Path().iterdir()) == ["book.epub", "play.txt"]


def test_loudness_is_brought_to_the_target(tones: Tones) -> None:
    Path("long.txt").write_text("The sea was calm that day. " * 30, encoding="utf-8")
    assert read("long.txt", "-o", "long.m4b", "--loudness", -27, "-q") == 0
    samples = decoded(Path("long.m4b"))
    blocks = iter([np.rint(32767 * samples).astype(np.int16)])
    assert loudness_gain(blocks, RATE, -27.0) == pytest.approx(1.0, abs=0.06)


def test_a_gain_stops_before_the_peaks_clip_and_silence_stays() -> None:
    tone = np.rint(16_000 * np.hanning(RATE * 2) * np.sin(np.arange(RATE * 2) / 10)).astype(np.int16)
    assert loudness_gain(iter([tone]), RATE, -5.0) == pytest.approx(32768 / 16_000 * 10 ** (-1 / 20), rel=0.02)
    assert loudness_gain(iter([np.zeros(RATE * 2, np.int16)]), RATE, -18.0) == 1.0


class Disk(io.RawIOBase):
    """A file on a disk with room for some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def room_for(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.room_for(len(data))
        return int(self.file.write(data))

    def seek(self, *to: int) -> int:
        self.room_for(0)  # it writes what a buffer holds
        return int(self.file.seek(*to))

    def tell(self) -> int:
        return int(self.file.tell())


@pytest.mark.parametrize("suffix", [".m4b", ".mp3", ".opus"])
def test_a_full_disk_is_one_line_and_leaves_the_file_that_was_there(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path, real = tmp_path / f"book{suffix}", writing.replacing

    def write() -> None:
        noise = np.random.default_rng(0).integers(-9_000, 9_000, RATE * 3).astype(np.int16)
        write_audio(path, RATE, iter([noise]), [("One", 0, RATE)], {"title": "T"}, None)

    write()
    whole = path.read_bytes()
    for room in (0, 100, len(whole) // 2, len(whole) - 1):

        @contextmanager
        def full(target: Path, room: int = room) -> Iterator[Disk]:
            with real(target) as file:
                yield Disk(file, room)

        monkeypatch.setattr(writing, "replacing", full)
        with pytest.raises(InvalidRequest, match=r"cannot be written \(No space left on device\); free space"):
            write()
        assert path.read_bytes() == whole
        assert list(tmp_path.iterdir()) == [path]
        assert not capfd.readouterr().err


def test_a_cover_is_read_by_what_it_is() -> None:
    picture = read_picture(Cover(png(30, 20), "image/jpeg"))
    assert picture is not None
    assert (picture.codec, picture.width, picture.height) == ("png", 30, 20)
    assert read_picture(Cover(b"#EXTM3U\n/etc/passwd\n", "image/png")) is None
    assert read_picture(Cover(png()[:40], "image/png")) is None


def test_subtitles_have_words_only() -> None:
    text = "Hm [laughter] it is [spell: NASA], [pause 2s] <strong>no</strong> <break time='1s'/> 3 < 4 [sic]."
    assert readable_text(text, {"[laughter]"}) == "Hm it is NASA, no 3 < 4 [sic]."


@pytest.mark.parametrize(("set_before", "kept"), [(commands.USUAL_SHAPES, "48"), ("32", "32"), ("1024", "1024")])
def test_a_book_keeps_fewer_shapes_unless_the_user_says_otherwise(
    set_before: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", set_before)
    commands.keep_fewer_shapes()
    assert os.environ["LRU_CACHE_CAPACITY"] == kept
