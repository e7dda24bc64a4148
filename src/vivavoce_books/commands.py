"""The command `vivavoce read`, which makes an audiobook from a book; a new run continues an interrupted run."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, print_table, progress, size_text
from vivavoce.cli.flags import REQUIRED, argument, flag
from vivavoce.cli.model import EngineChoice, ModelChoice, load_model, note_if_no_real_model
from vivavoce.cli.output import check_writable, explaining
from vivavoce.errors import InvalidRequest
from vivavoce_books.book import Book, BookOptions, Choice, open_book
from vivavoce_books.cast import Cast, Part, read_cast
from vivavoce_books.chapters import one_line
from vivavoce_books.ledger import Ledger, open_ledger
from vivavoce_books.plan import Pauses, Plan, Segment, fingerprints_of, parse_chapters, parts_of, plan_book
from vivavoce_books.speaking import AT_ONCE_ON_CPU, MAX_AT_ONCE, Job, check_texts, place_of, speak_missing
from vivavoce_books.writing import KINDS, Extras, Track, write_track

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce
    from vivavoce.frontend.voices.voice import Voice

EXAMPLES = (
    "vivavoce read book.epub -o book.m4b",
    "vivavoce read book.epub --list",
    "vivavoce read play.txt --cast anna=bright --cast tom=tom.wav -o play.mp3 --subtitles srt",
    "vivavoce read book.epub --chapters 1-3,5 --split -o 'chapters/{number} {title}.mp3'",
)
_WEIGHTS = ("llm*.pt", "flow*.pt", "hift*.pt", "*.yaml")


@dataclass(frozen=True)
class Source:
    book: Path = argument("An EPUB, HTML, Markdown or text file.", "BOOK", default=REQUIRED)  # noqa: RUF009
    out: str | None = flag(
        "File to write: .m4b, .m4a, .mp3 or .opus; with --split a folder or a name with {number} and {title}."
        "  [default: the book's name with .m4b]",
        *("PATH", "--out", "-o"),
    )
    chapters: str | None = flag("Chapters to speak, such as 1-3,5.  [default: all]", "NUMBERS")
    list: bool = flag("List the chapters with their characters and estimated lengths; speak nothing.", default=False)
    restart: bool = flag("Begin again, without the speech of earlier runs.", default=False)
    footnotes: Choice = flag("Footnotes: skip or speak.", "CHOICE", default="skip")
    tables: Choice = flag("Tables: skip or speak.", "CHOICE", default="skip")
    front_matter: Choice = flag("Title page, contents and the like: skip or speak.", "CHOICE", default="skip")
    code: Choice = flag("Listings of programs: skip or speak.", "CHOICE", default="skip")

    def options(self) -> BookOptions:
        return BookOptions(self.footnotes, self.tables, self.front_matter, self.code)


@dataclass(frozen=True)
class Manner:
    voice: flags.VoiceOption = None
    transcript: flags.TranscriptOption = ""
    cast: list[str] | None = flag("Voices of the cast: a file, or NAME=VOICE; may be repeated.", "FILE|ENTRY")
    speed: flags.SpeedOption = 1.0
    seed: flags.SeedOption = 0
    pause_sentence: float = flag("Seconds of silence between sentences.", "SECONDS", default=0.25)
    pause_paragraph: float = flag("Seconds of silence between paragraphs.", "SECONDS", default=0.6)
    pause_heading: float = flag("Seconds of silence around headings, and after a chapter.", "SECONDS", default=1.5)
    pause_scene: float = flag("Seconds of silence where the scene changes.", "SECONDS", default=2.0)

    def pauses(self) -> Pauses:
        return Pauses(self.pause_sentence, self.pause_paragraph, self.pause_heading, self.pause_scene)


@dataclass(frozen=True)
class Results:
    split: bool = flag("Write a file for each chapter.", default=False)
    subtitles: Literal["srt", "vtt"] | None = flag("Write subtitles beside the audio: srt or vtt.", "FORMAT")
    times: bool = flag("Write the times of chapters and sentences beside the audio, as JSON.", default=False)
    loudness: float | None = flag("Bring each chapter to this loudness (EBU R128), such as -18.", "LUFS")


def read(
    source: Source, manner: Manner, results: Results, model: ModelChoice, quiet: flags.QuietOption = False
) -> None:
    """Speak a book into an audiobook with chapters.

    After Ctrl-C or a crash, the same command goes on; it speaks again only the segments that were not complete.
    """
    from vivavoce.frontend.speech import SpeakOptions

    reporter = Reporter(quiet)
    SpeakOptions(speed=manner.speed, seed=manner.seed)
    cast = read_cast(manner.cast or [], Part(manner.voice, manner.transcript))
    with reporter.working("reading the book …"):
        book = open_book(source.book, source.options())
        book = replace(book, title=book.title or source.book.stem)
        plan = plan_book(book, cast, manner.pauses())
    chosen = parse_chapters(source.chapters, len(book.chapters))
    if source.list:
        list_chapters(plan, chosen)
        return
    if results.loudness is not None and not -40 <= results.loudness <= -5:
        raise InvalidRequest(f"loudness: {results.loudness:g} LUFS is outside of -40 … -5; audiobooks have -18 to -23")
    out = source.out or str(source.book.with_suffix(".m4b").name)
    tracks = tracks_of(out, results.split, book, chosen)
    ledger_path = ledger_of(out, results.split, source.book)
    for path in (ledger_path, *(track.path for track in tracks)):
        with explaining("output", str(path)):
            check_writable(path)
    wanted = [one for one in plan.segments if one.chapter in chosen]
    extras = Extras(results.subtitles, results.times, results.loudness)
    with open_ledger(ledger_path, restart=source.restart) as ledger:
        choices = {f"choice of {name}": value for name, value in vars(source.options()).items()}
        ledger.agree({**choices, "speed": str(manner.speed), "seed": str(manner.seed)})
        ledger.agree(fingerprints_of(plan), shown=False)
        try:
            tts = _loaded(model, reporter)
            job = Job(plan, {}, {"speed": manner.speed, "reasoning": "read"}, manner.seed)
            _speak(tts, job, cast, wanted, ledger, reporter)
            with reporter.working("writing …"):
                for track in tracks:
                    for line in write_track(track, plan, ledger, tts.sample_rate, extras, tts.front_end.text.marks):
                        reporter.report(line)
        except KeyboardInterrupt:
            left = [one for one in wanted if one.index not in ledger.places()]
            place = place_of(plan, left[0]) if left else "the writing of the audio"
            reporter.report(f"stopped at {place}; the same command goes on")
            raise
        size = size_text(ledger_path.stat().st_size)
        reporter.report(f"{ledger_path}: {size} of spoken segments; remove it when the book is as you want it")
    note_if_no_real_model(tts.card, reporter)


def tracks_of(out: str, split: bool, book: Book, chosen: Sequence[int]) -> list[Track]:
    """Return the files to write. InvalidRequest: a suffix is not supported, or several chapters get one name."""
    if not split:
        tracks = [Track(Path(out), book.title, tuple(chosen))]
    else:
        pattern = out if "{" in Path(out).name else str(Path(out) / "{number} {title}.m4b")
        for field in re.findall(r"\{[^{}]*\}", Path(pattern).name):
            if field not in ("{number}", "{title}"):
                raise InvalidRequest(f"output: {field} in {out!r} is unknown; use {{number}} and {{title}}")
        if "{number}" not in pattern and len(chosen) > 1:
            raise InvalidRequest(f"output: {out!r} gives several chapters one name; put {{number}} into it")
        width = max(2, len(str(len(book.chapters))))
        tracks = []
        for one in chosen:
            title = book.chapters[one].title
            safe = "".join(" " if char in '/\\:*?"<>|' or not char.isprintable() else char for char in title)
            name = pattern.replace("{number}", f"{one + 1:0{width}}").replace("{title}", one_line(safe)[:80])
            path = Path(name)
            tracks.append(Track(path.with_name(f"{path.stem.strip()}{path.suffix}"), title, (one,)))
        folder = tracks[0].path.parent
        if not folder.exists() and folder.parent.is_dir():
            with explaining("output", str(folder)):
                folder.mkdir()
    for track in tracks:
        if track.path.suffix.lower() not in KINDS:
            raise InvalidRequest(f"output: {str(track.path)!r} cannot be written; end it with {', '.join(KINDS)}")
    return tracks


def ledger_of(out: str, split: bool, book: Path) -> Path:
    place = Path(out.partition("{")[0].rstrip("/ ") if split else out)
    place = place / book.stem if place.name in ("", "..") else place
    return place.with_name(f"{place.name}.ledger")


def list_chapters(plan: Plan, chosen: Sequence[int]) -> None:
    parts, rows = parts_of(plan, chosen), []
    for one in parts:
        left_out = sum(len(part.text) for part in plan.book.chapters[one.number - 1].left_out)
        rows.append((str(one.number), f"{one.characters:,}", f"{left_out:,}", _clock(one.seconds), one.title))
    total, total_s = sum(one.characters for one in parts), sum(one.seconds for one in parts)
    rows.append(("", f"{total:,}", "", _clock(total_s), f"{plan.book.title}, {plan.book.author}".strip(", ")))
    print_table(rows, ("chapter", "characters", "left out", "about", "title"))


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{max(1, minutes)} min"


USUAL_SHAPES = "128"  # as `vivavoce` sets it when it is imported


def keep_fewer_shapes() -> None:
    """Lower the number of compiled primitives that torch keeps, unless the user has set another number.

    Torch compiles one for each length, and a book's segments have many lengths. With this limit, mini needs less than
    1.2 GB on a CPU for a book of any length.
    """
    if os.environ.get("LRU_CACHE_CAPACITY") == USUAL_SHAPES:
        os.environ["LRU_CACHE_CAPACITY"] = "48"


def _loaded(choice: ModelChoice, reporter: Reporter) -> Vivavoce:
    """Load the model, on a GPU in deterministic mode, so that a continued book equals an uninterrupted one."""
    from vivavoce.frontend.model_choice import choose_device

    keep_fewer_shapes()
    if choose_device(choice.device).type == "cuda":
        try:
            return load_model(choice, reporter, EngineChoice(deterministic=True))[0]
        except InvalidRequest as error:
            if not str(error).startswith(("kernels:", "deterministic:")):
                raise
            reporter.note("the model has no deterministic mode here; a resumed book may sound a little different")
    return load_model(choice, reporter)[0]


def _speak(tts: Vivavoce, job: Job, cast: Cast, wanted: Sequence[Segment], ledger: Ledger, reporter: Reporter) -> None:
    from vivavoce.frontend.speech import foreign_to

    plan = job.plan
    with reporter.working("listening to the voices …"):
        roles = sorted({one.role for one in plan.segments})
        voices = {role: tts.voice(cast[role].voice, cast[role].transcript) for role in roles}
        for role, part in cast.items():
            # Check the voice's name, which may be misspelt, although the book does not need the voice.
            if role not in voices and part.voice and not os.path.isfile(os.path.expanduser(part.voice)):
                tts.voice(part.voice)
        prints = {f"voice of {role}": _fingerprint_of_voice(voice) for role, voice in voices.items()}
        ledger.agree({"model": tts.card.name, "device": tts.device.type, "dtype": str(tts.dtype)})
        ledger.agree({"file of weights": _fingerprint_of_model(tts), **prints}, shown=False)
        there = ledger.places()
        missing = [one for one in wanted if one.index not in there]
        check_texts(tts, plan, missing)
    for line in foreign_to(" ".join(one.text for one in wanted)[:10_000], plan.book.language, tts.card.languages):
        reporter.note(line)
    if there and missing:
        reporter.report(f"going on at {place_of(plan, missing[0])}")
    total = sum(len(one.text) for one in wanted)
    before = spoken = total - sum(len(one.text) for one in missing)
    started = time.monotonic()
    with progress(reporter, share=True, transient=True) as show:
        show("speaking", before, total, "")

        def done(segment: Segment) -> None:
            nonlocal spoken
            spoken += len(segment.text)
            rate = (spoken - before) / max(1e-3, time.monotonic() - started)
            left = f"{_clock((total - spoken) / rate)} left"
            part = f"chapter {segment.chapter + 1} of {len(plan.texts)}, {rate:.0f} characters/s, {left}"
            show(part, spoken, total, "")

        at_once = AT_ONCE_ON_CPU if tts.device.type == "cpu" else min(MAX_AT_ONCE, tts.engine.memory.slots)
        speak_missing(tts, Job(plan, voices, job.manner, job.seed), missing, ledger, at_once, done)


def _fingerprint_of_voice(voice: Voice) -> str:
    found = hashlib.sha256(repr(voice.prompt_text).encode())
    for tensor in (voice.embedding, voice.speech_tokens, voice.mel):
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def _fingerprint_of_model(tts: Vivavoce) -> str:
    from vivavoce.checkpoint.folder import sha256_of

    found = hashlib.sha256()
    for path in sorted(path for pattern in _WEIGHTS for path in tts.front_end.folder.glob(pattern)):
        sha256_of(path, found)
    return found.hexdigest()
