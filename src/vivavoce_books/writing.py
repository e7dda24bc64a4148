"""Writes audio files with chapters, tags and a cover from a ledger, and files of subtitles and of sentences' times."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce.files import replace_file, replacing
from vivavoce_books.book import Cover
from vivavoce_books.ledger import Ledger, Piece
from vivavoce_books.plan import Check, Plan, Segment, check_spoken

Blocks = Iterator[NDArray[np.int16]]


class Kind(NamedTuple):
    """An audio format in FFmpeg's terms: container, codec, bits per second, and options of the container."""

    container: str
    codec: str
    bitrate: int
    options: Mapping[str, str] = {}


KINDS = {
    ".m4b": Kind("mp4", "aac", 64_000, {"brand": "M4B "}),
    ".m4a": Kind("mp4", "aac", 64_000, {"brand": "M4A "}),
    ".mp3": Kind("mp3", "libmp3lame", 64_000),
    ".opus": Kind("opus", "libopus", 32_000),
}
_PICTURES = {b"\xff\xd8\xff": ("mjpeg", "jpeg_pipe", "image/jpeg"), b"\x89PNG": ("png", "png_pipe", "image/png")}
MAX_PEAK = 10 ** (-1 / 20)
"""Maximum true peak of a chapter after a gain for loudness: -1 dBTP, as a factor."""
_QUIETEST = -69.0
_SILENT_TAG = regex.compile(r"\[(?:pause|/?voice)\b[^\[\]\n]*\]|</?[\p{L}|!][^<>\n]*>", regex.I)
_SAID_TAG = regex.compile(r"\[[a-z]{4,8}: ?([^\[\]\n]{1,100})\]")
_OPUS_RATE = 48_000


@dataclass(frozen=True)
class Heard:
    """A piece of a segment in an audio file. at: the first sample; pause: samples of silence after the piece."""

    segment: Segment
    piece: Piece
    at: int
    pause: int
    rate: int

    @property
    def start(self) -> int:
        """Index of the piece's first character in the text of the chapter."""
        return self.segment.start + self.piece.start

    @property
    def end(self) -> int:
        return self.segment.start + self.piece.end

    @property
    def start_s(self) -> float:
        return self.at / self.rate

    @property
    def end_s(self) -> float:
        return (self.at + self.piece.frames) / self.rate

    @property
    def after(self) -> int:
        return self.at + self.piece.frames + self.pause

    @property
    def text(self) -> str:
        return self.segment.text[self.piece.start : self.piece.end]


@dataclass(frozen=True)
class Picture:
    """A cover that FFmpeg can attach. codec: FFmpeg's name of its codec; media_type: as in `Cover`; sizes in pixels."""

    content: bytes
    codec: str
    media_type: str
    width: int
    height: int


def timeline(plan: Plan, ledger: Ledger, chapters: Iterable[int], rate: int) -> list[Heard]:
    """Return the pieces of these chapters, one after the other, with their pauses."""
    heard = list[Heard]()
    for segment in (one for chapter in chapters for one in plan.of(chapter)):
        heard += heard_of(segment, plan, ledger, heard[-1].after if heard else 0, rate)
    return heard


def heard_of(segment: Segment, plan: Plan, ledger: Ledger, at: int, rate: int) -> list[Heard]:
    """Return the pieces of a segment that begins at sample `at`."""
    heard, pieces = list[Heard](), ledger.pieces(segment.index)
    for piece in pieces:
        inside_s = plan.pauses.sentence_s if piece.closes else 0.0
        pause_s = segment.pause_after_s if piece is pieces[-1] else inside_s
        heard.append(Heard(segment, piece, at, round(rate * pause_s), rate))
        at = heard[-1].after
    return heard


def audio(heard: Iterable[Heard], ledger: Ledger, gains: Mapping[int, float] = {}) -> Blocks:
    """Yield the samples of a timeline, piece by piece; gains: chapter → factor for the chapter's samples."""
    for _, group in groupby(heard, key=lambda one: one.segment.index):
        pieces, at = list(group), 0
        samples, gain = ledger.samples(pieces[0].segment.index), gains.get(pieces[0].segment.chapter)
        if gain is not None:
            samples = np.clip(np.rint(samples * gain), -32767, 32767).astype(np.int16)
        for one in pieces:
            yield samples[at : at + one.piece.frames]
            yield np.zeros(one.pause, np.int16)
            at += one.piece.frames


def loudness_gain(blocks: Blocks, rate: int, target: float) -> float:
    """Return the factor that brings audio to `target` LUFS (EBU R128), or a smaller factor that keeps `MAX_PEAK`."""
    from av.error import BlockingIOError, EOFError
    from av.filter import Graph

    graph, measured = Graph(), dict[str, str]()
    source = graph.add_abuffer(sample_rate=rate, format="s16", layout="mono", time_base=Fraction(1, rate))
    meter, sink = graph.add("ebur128", "metadata=1:peak=true"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    for frame in chain(_frames(blocks, rate), [None]):
        graph.push(frame)
        with suppress(BlockingIOError, EOFError):
            while True:
                measured = dict(graph.pull().metadata) or measured
    loudness, peak = float(measured.get("lavfi.r128.I", -70)), float(measured.get("lavfi.r128.true_peak", 0))
    return 1.0 if loudness <= _QUIETEST else min(10 ** ((target - loudness) / 20), MAX_PEAK / max(peak, 1e-6))


def _frames(blocks: Blocks, rate: int) -> Iterator[Any]:
    from av import AudioFrame

    at = 0
    for block in blocks:
        for part in (block[begin : begin + rate] for begin in range(0, len(block), rate)):
            frame = AudioFrame.from_ndarray(np.ascontiguousarray(part[None]), format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
            at += len(part)
            yield frame


def read_picture(cover: Cover) -> Picture | None:
    """Return the cover's picture, unchanged, if it is a JPEG or PNG file; otherwise return None."""
    import av

    sign = next((sign for sign in _PICTURES if cover.content.startswith(sign)), None)
    if sign is None:
        return None
    codec, form, media_type = _PICTURES[sign]
    try:
        with av.open(io.BytesIO(cover.content), format=form) as opened:  # FFmpeg tries this format only
            stream = opened.streams.video[0]
            sizes = stream.width, stream.height
            return Picture(cover.content, codec, media_type, *sizes) if all(sizes) else None
    except (av.FFmpegError, IndexError, ValueError):
        return None


def write_audio(
    path: Path, rate: int, blocks: Blocks, marks: Sequence[tuple[str, int, int]], tags: Mapping[str, str],
    picture: Picture | None,
) -> None:  # fmt: skip
    """Write a complete file, or no file. marks: title, first sample and end of each chapter.

    Raises InvalidRequest if the path cannot be written, or the disk is full.
    """
    import av

    kind, base = KINDS[path.suffix.lower()], Fraction(1, rate)
    with explained(path), replacing(path) as file, _Sink(file) as sink, av.open(
        sink, "w", format=kind.container, options=dict(kind.options)
    ) as output:  # fmt: skip
        stream = output.add_stream(kind.codec, rate=_OPUS_RATE if kind.codec == "libopus" else rate, layout="mono")
        stream.bit_rate = kind.bitrate
        cover = None
        if kind.codec == "libopus":
            stream.metadata.update(tags if picture is None else {**tags, "METADATA_BLOCK_PICTURE": _block(picture)})
        else:
            output.metadata.update(tags)
            if picture is not None:
                cover = output.add_mux_stream(picture.codec, width=picture.width, height=picture.height)
                cover.disposition = av.stream.Disposition.attached_pic
        output.set_chapters(
            [
                {"id": number, "start": start, "end": end, "time_base": base, "metadata": {"title": title}}
                for number, (title, start, end) in enumerate(marks)
            ]
        )
        output.start_encoding()
        if cover is not None and picture is not None:
            packet = av.Packet(picture.content)
            packet.stream, packet.pts, packet.dts, packet.time_base = cover, 0, 0, Fraction(1, 90_000)
            packet.is_keyframe = True
            output.mux(packet)
        for frame in _frames(blocks, rate):
            output.mux(stream.encode(frame))
            sink.check()
        output.mux(stream.encode(None))


class _Sink:
    """A file for PyAV. It raises its first OSError in `check` or at the end of its context, instead of in `write`.

    PyAV prints a stack trace to stderr if a file raises more than one error, as a file on a full disk does.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._error: OSError | None = None

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def write(self, data: bytes) -> int:
        self._tried(self._file.write, data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._tried(self._file.seek, offset, whence)

    def tell(self) -> int:
        return self._tried(self._file.tell)

    def _tried(self, call: Callable[..., int], *arguments: Any) -> int:
        try:
            return call(*arguments)
        except OSError as error:
            self._error = self._error or error
            return 0


def _block(picture: Picture) -> str:
    """Encode a picture for an Ogg comment, in the form that RFC 9639 defines for FLAC; type 3 is the front cover."""
    name = picture.media_type.encode()
    sizes = (picture.width, picture.height, 24, 0, len(picture.content))
    head = struct.pack(f">II{len(name)}sI5I", 3, len(name), name, 0, *sizes)
    return base64.b64encode(head + picture.content).decode()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    from av import FFmpegError

    try:
        yield
    except (OSError, FFmpegError) as error:
        raise InvalidRequest(
            f"output: {str(path)!r} cannot be written ({error.strerror}); free space or choose another place, "
            "and the same command goes on"
        ) from None


def readable_text(text: str, marks: Iterable[str] = ()) -> str:
    """Return the text without tags that control speech; marks: tags of the model, such as "[laughter]"."""
    for mark in marks:
        text = text.replace(mark, " ")
    return " ".join(_SAID_TAG.sub(r"\1", _SILENT_TAG.sub(" ", text)).split())


@dataclass(frozen=True)
class Track:
    """An audio file to write; chapters: the indices of its chapters."""

    path: Path
    title: str
    chapters: tuple[int, ...]


@dataclass(frozen=True)
class Extras:
    """Further results of `vivavoce read`; each field has the value of the command's option of that name."""

    subtitles: str | None = None
    times: bool = False
    loudness: float | None = None


def write_track(
    track: Track, plan: Plan, ledger: Ledger, rate: int, extras: Extras, marks: Iterable[str]
) -> Iterator[str]:
    """Write an audio file and its extras; yields lines of text for the user. marks: as in `readable_text`."""
    from vivavoce.frontend.audio.tag import COMMENT, SOFTWARE
    from vivavoce.frontend.subtitles import Cue, to_srt, to_vtt

    heard = timeline(plan, ledger, track.chapters, rate)
    if not heard:
        yield f"note: {track.path}: nothing in it can be spoken; it was not written"
        return
    of_chapter = {chapter: list(pieces) for chapter, pieces in groupby(heard, key=lambda one: one.segment.chapter)}
    gains = {}
    if extras.loudness is not None:
        gains = {one: loudness_gain(audio(pieces, ledger), rate, extras.loudness) for one, pieces in of_chapter.items()}
    book = plan.book
    titles = {one: book.chapters[one].title or f"{one + 1}" for one in of_chapter}
    bounds = [(titles[one], pieces[0].at, pieces[-1].after) for one, pieces in of_chapter.items()]
    single = len(track.chapters) == 1
    tags = {"title": titles[track.chapters[0]] if single else book.title, "artist": book.author, "album": book.title}
    tags |= {"genre": "Audiobook", "media_type": "2", "comment": f"{COMMENT}, {SOFTWARE}"}
    tags |= {"track": str(track.chapters[0] + 1)} if single else {}
    picture = read_picture(book.cover) if book.cover else None
    if book.cover and picture is None:
        yield f"note: cover: {book.cover.media_type} is neither JPEG nor PNG; the audio has no cover"
    write_audio(track.path, rate, audio(heard, ledger, gains), bounds, tags, picture)
    if extras.subtitles:
        cues = [Cue(one.start_s, one.end_s, readable_text(one.text, marks)) for one in heard]
        content = (to_srt if extras.subtitles == "srt" else to_vtt)(one for one in cues if one.text)
        with explained(path := track.path.with_suffix(f".{extras.subtitles}")):
            replace_file(path, content)
    check = check_spoken(plan, {at: [(one.start, one.end) for one in pieces] for at, pieces in of_chapter.items()})
    if extras.times:
        with explained(path := track.path.with_suffix(".json")):
            replace_file(path, json.dumps(_times(track, plan, of_chapter, rate, check), ensure_ascii=False, indent=1))
    duration = timedelta(seconds=round(heard[-1].after / rate))
    yield f"{track.path}: {duration} of audio in {len(of_chapter)} chapters; {told(check)}"
    cut = [one for one in heard if one.piece.cut]
    if cut:
        yield (
            f"note: {len(cut)} sentences were stopped at the length limit, words may be missing; the first: "
            f"chapter {cut[0].segment.chapter + 1}, character {cut[0].start:,}"
        )


def told(check: Check) -> str:
    left_out = {**check.not_read, **({"labels and signs": check.left_out} if check.left_out else {})}
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
    line = f"{check.spoken:,} characters were spoken once"
    line += f", {sum(left_out.values()):,} left out on purpose ({reasons})" if left_out else ""
    return line + (f", {check.lost:,} LOST, {check.doubled:,} DOUBLED" if not check.whole else ", none was lost")


def _times(
    track: Track, plan: Plan, of_chapter: Mapping[int, Sequence[Heard]], rate: int, check: Check
) -> dict[str, Any]:
    chapters = [
        {
            "number": number + 1,
            "title": plan.book.chapters[number].title,
            "start_s": pieces[0].start_s,
            "end_s": pieces[-1].after / rate,
            "segments": [
                {
                    "start_character": one.start,
                    "end_character": one.end,
                    "start_s": one.start_s,
                    "end_s": one.end_s,
                    "text": one.text.strip(),
                    "role": one.segment.role,
                    "cut": one.piece.cut,
                }
                for one in pieces
            ],
            "left_out": [
                *(
                    {"start_character": span.start, "end_character": span.end, "reason": span.reason}
                    for span in plan.left_out[number]
                ),
                *({"text": one.text, "reason": one.reason} for one in plan.book.chapters[number].left_out),
            ],
        }
        for number, pieces in of_chapter.items()
    ]
    head = {"file": track.path.name, "title": plan.book.title, "author": plan.book.author, "sample_rate": rate}
    return {**head, "check": {**asdict(check), "whole": check.whole}, "chapters": chapters}
