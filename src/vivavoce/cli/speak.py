"""`vivavoce speak` and `vivavoce convert`: text or a recording in, an audio file out."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, is_terminal, print_error, progress
from vivavoce.cli.flags import REQUIRED, argument, flag
from vivavoce.cli.model import BackendChoice, EngineChoice, ModelChoice, load_model, note_if_no_real_model
from vivavoce.cli.output import JSON, Output, check_subtitles, write_subtitles
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.frontend.speech_options import (
    CODE,
    EMOJIS,
    FLOW_STEPS,
    GUARD,
    INSTRUCTIONS,
    LANGUAGE,
    LEXICON,
    MODE,
    READING,
    REASONING,
    TOP_K,
    TOP_P,
    WORD_TIMES,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vivavoce.api import ChunkStream, Vivavoce
    from vivavoce.engine.request import Word
    from vivavoce.frontend.speech import Mark
    from vivavoce.frontend.speech_result import Speech
    from vivavoce.frontend.voices.voice import Voice

EXAMPLES = (
    'vivavoce speak "Hello there." -o hello.wav --play',
    'vivavoce speak --voice me.wav --transcript "What I say there." "Hello there."',
    "vivavoce speak --file chapter.txt --stream -o - | ffplay -nodisp -autoexit -",
    "vivavoce speak --file book.txt -o book.mp3 --subtitles book.srt",
)
CONVERT_EXAMPLES = (
    "vivavoce convert me.wav --voice friend.wav -o as-friend.wav",
    "vivavoce convert me.wav --voice storyteller --speed 0.9",
)
STDIN = "-"
MAX_TEXT_BYTES = 50_000_000
PART_CHARS = 1_000
"""Characters in each part of a longer text, about a minute of speech. Parts limit the memory and show progress."""
_NOT_AS_GIVEN = {"voice", "transcript", "mode", "lexicon", "adapter", "top_p", "top_k"}
"""Fields of `SpeechManner` that `keywords` converts or leaves out."""
READING_FIELDS = ("language", "reading", "lexicon", "emojis", "code", "reasoning")
_PACED_S = 10.0
"""Seconds of audio below which no real-time factor is shown, because the time to the first chunk would dominate it."""


@dataclass(frozen=True)
class SpeechSource:
    text: str | None = argument("The text to speak; if it is missing or -, stdin is read.", "TEXT")
    file: str | None = flag("Read the text, a book even, from a UTF-8 file; - is stdin.", "PATH|-", "-f")
    out: flags.OutOption = "out.wav"
    format: flags.FormatOption = None
    tag: flags.TagOption = True
    watermark: flags.WatermarkOption = False
    stream: bool = flag("Write the audio while it is made: it starts sooner and ends later.", default=False)
    subtitles: Path | None = flag(
        "Write subtitles, too: a .srt or .vtt file, or the times of words as .json; overwritten if it exists.", "PATH"
    )
    play: bool = flag("Also play the audio, with sounddevice, ffplay, aplay or afplay.", default=False)


@dataclass(frozen=True)
class SpeechManner:
    voice: flags.VoiceOption = None
    transcript: flags.TranscriptOption = ""
    mode: str | None = flag(MODE.flag_help, "NAME")
    instructions: str | None = flag(INSTRUCTIONS.flag_help, "TEXT")
    speed: flags.SpeedOption = 1.0
    seed: flags.SeedOption = 0
    language: str | None = flag(LANGUAGE.flag_help, "CODE")
    reading: str = flag(READING.flag_help, "RULES", default=READING.default)
    lexicon: Path | None = flag(LEXICON.flag_help, "FILE")
    emojis: str = flag(EMOJIS.flag_help, "CHOICE", default=EMOJIS.default)
    code: str = flag(CODE.flag_help, "CHOICE", default=CODE.default)
    reasoning: str = flag(REASONING.flag_help, "CHOICE", default=REASONING.default)
    word_times: bool = flag("Time each word: subtitles then follow the words.", default=WORD_TIMES.default)
    guard: bool | None = flag(GUARD.flag_help, None, "--guard/--no-guard", default=GUARD.default)
    flow_steps: str | None = flag(FLOW_STEPS.flag_help, "CHOICE")
    adapter: Path | None = flag("Folder of a LoRA adapter of the language model, which PEFT has written.", "FOLDER")
    top_p: float | None = flag(TOP_P.flag_help, "NUMBER")
    top_k: int | None = flag(TOP_K.flag_help, "NUMBER")

    def keywords(self) -> dict[str, Any]:
        from vivavoce.engine.request import SamplingParams
        from vivavoce.frontend.speech import SpeakOptions, parse_mode
        from vivavoce_textnorm import NO_WORDS, read_lexicon

        how: dict[str, Any] = {
            "mode": parse_mode(self.mode) if self.mode else None,
            **{name: value for name, value in vars(self).items() if name not in _NOT_AS_GIVEN},
            "lexicon": read_lexicon(self.lexicon) if self.lexicon else NO_WORDS,
            "adapter": None if self.adapter is None else self.adapter.absolute().name,
            "sampling": SamplingParams(top_p=self.top_p, top_k=self.top_k),
        }
        SpeakOptions(instruct=self.instructions, **{name: how[name] for name in how if name != "instructions"})
        return how


def speak(
    source: SpeechSource,
    manner: SpeechManner,
    model: ModelChoice,
    backends: BackendChoice,
    quiet: flags.QuietOption = False,
) -> None:
    """Speak a text of any length into an audio file.

    A long text is written part by part, each when it is spoken; with --stream, the audio is written while it is made.
    Ctrl-C leaves a complete file of what was written until then, or none.
    """
    output, reporter, subtitles = Output(source.out, source.format, source.tag), Reporter(quiet), source.subtitles
    output.check()
    if source.play and source.stream:
        raise InvalidRequest("play: does not go with --stream; leave --stream out, or pipe the stream into a player")
    if subtitles is not None:
        check_subtitles(subtitles)
    text = read_text(source.text, source.file)
    with reporter.working("starting …"):
        keywords = manner.keywords()
        if subtitles is not None and subtitles.suffix.lower() == JSON:
            keywords["word_times"] = True
        from vivavoce.frontend.speech import warnings_of
        from vivavoce.frontend.text.text_input import TextFilter

        reasoning, begins = TextFilter(keywords["reasoning"]), range(0, len(text), PART_CHARS)
        text = "".join(reasoning.add(text[at : at + PART_CHARS], is_last=at == begins[-1]) for at in begins)
    engine = EngineChoice(watermark=source.watermark)
    tts, load_s = load_model(model, reporter, engine, backends, adapter=manner.adapter)
    with reporter.working("listening …" if manner.transcript else "starting …"):
        tts.check(text)
        voice = tts.voice(manner.voice, manner.transcript)
    for warning in warnings_of(text, keywords["language"], tts.card.languages):
        reporter.note(warning)
    parts = parts_of(text, natural=keywords.get("reading") == "natural")
    if len(parts) == 1 and not tts.normalize(text, **{name: keywords[name] for name in READING_FIELDS}):
        reporter.note("text: nothing in it can be spoken, so the audio is silence; write at least one word")
    if source.stream or len(parts) > 1:
        speech = PartwiseSpeech(tts, parts, voice, keywords, source.stream)
        _write_as_made(speech, text, load_s, output, reporter, source)
    else:
        with reporter.working("speaking …"), _telling_if_interrupted(output, source.stream):
            whole = tts.speak(text, voice, **keywords)
        output.write(whole)
        if subtitles is not None:
            write_subtitles(subtitles, text, whole.marks, whole.words)
        report_speech(whole, output, load_s, reporter)
        if source.play:
            whole.play()
    note_if_no_real_model(tts.card, reporter)


def convert(
    *,
    source: Path = argument("A recording of 0.5 to 30 s of speech.", "RECORDING", default=REQUIRED),
    model: ModelChoice,
    out: flags.OutOption = "out.wav",
    format: flags.FormatOption = None,
    tag: flags.TagOption = True,
    watermark: flags.WatermarkOption = False,
    voice: flags.VoiceOption = None,
    transcript: flags.TranscriptOption = "",
    speed: flags.SpeedOption = 1.0,
    seed: flags.SeedOption = 0,
    quiet: flags.QuietOption = False,
) -> None:
    """Say the words of a recording in another voice."""
    output, reporter = Output(out, format, tag), Reporter(quiet)
    output.check()
    with reporter.working("starting …"):
        from vivavoce.frontend.audio.decode import decode_audio
        from vivavoce.frontend.audio.samples import MAX_REFERENCE_S
        from vivavoce.frontend.speech import SpeakOptions

        SpeakOptions(speed=speed, seed=seed)
        audio = decode_audio(source, field="source audio", max_seconds=MAX_REFERENCE_S)
    tts, load_s = load_model(model, reporter, EngineChoice(watermark=watermark))
    with reporter.working("converting …"):
        speech = tts.convert(audio, tts.voice(voice, transcript), speed=speed, seed=seed)
    output.write(speech)
    report_speech(speech, output, load_s, reporter)
    note_if_no_real_model(tts.card, reporter)


def read_text(argument: str | None, file: str | None) -> str:
    """Return `argument`, or the content of `file`, or stdin ("-", or neither). InvalidRequest: two texts, or none."""
    if argument is not None and file is not None:
        raise InvalidRequest("text: is given twice, as an argument and with --file; leave one out")
    if argument == STDIN:
        argument, file = None, STDIN
    if argument is None and file is None and is_terminal(sys.stdin):
        raise InvalidRequest('text: none is given; type `vivavoce speak "Hello."`, or use --file, or pipe it in')
    if argument is not None and os.path.isfile(argument):
        raise InvalidRequest(
            f"text: {argument!r} is a file; read it with `--file {shlex.quote(argument)}`, or say its name with "
            f"`echo {shlex.quote(argument)} | vivavoce speak`"
        )
    text = argument if argument is not None else _read_file(file or STDIN)
    if not text.strip():
        raise InvalidText("text: is empty; write at least one word")
    return text


def _read_file(path: str) -> str:
    label = "stdin" if path == STDIN else path
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1) if sys.stdin is not None else b""
        else:
            with Path(path).open("rb") as opened:
                content = opened.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"file: {label!r} cannot be read ({error.strerror}); check the path") from None
    if b"\0" in content and not content.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16 has zero bytes, too
        raise InvalidText(f"file: {label!r} is not text; give a UTF-8 text, and a recording with --voice")
    if len(content) > MAX_TEXT_BYTES:
        raise InvalidText(
            f"text: {label!r} is longer than the limit of {MAX_TEXT_BYTES} bytes; split it into several files"
        )
    return flags.utf8(f"text: {label!r}", content)


def parts_of(text: str, natural: bool = False) -> list[tuple[int, str]]:
    """Return a text's parts, each with the position of its first character. natural: with natural rules, which read
    SSML, a text in SSML is one part.
    """
    from vivavoce_textnorm import blocks, contains_chinese, is_speakable, is_ssml

    if natural and is_ssml(text):
        return [(0, text)]
    parts = list(blocks(text, "zh" if contains_chinese(text) else "en", PART_CHARS))
    starts = accumulate(map(len, parts), initial=0)
    return [(start, part) for start, part in zip(starts, parts, strict=False) if is_speakable(part)] or [(0, text)]


@dataclass(eq=False)
class PartwiseSpeech:
    """Speaks a text part by part, so that memory holds only the audio of a few parts."""

    tts: Vivavoce
    parts: Sequence[tuple[int, str]]
    voice: Voice
    keywords: dict[str, Any]
    streamed: bool
    marks: list[Mark] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    last: Speech | None = None

    def pieces(self) -> Generator[NDArray[np.float32], None, None]:
        """Yield the samples in order; closing the generator ends the speech."""
        speeches = self.tts.speak_many((part for _, part in self.parts), self.voice, **self.keywords)
        for start, part in self.parts:
            before, begins_s = (len(self.marks), len(self.words)), self.marks[-1].end_s if self.marks else 0.0
            if not self.streamed:
                self.last = next(speeches)
                self._keep(before, self.last, start, begins_s)
                yield self.last.samples
                continue
            with closing(self.tts.stream(part, self.voice, **self.keywords)) as stream:
                for chunk in stream:
                    self._keep(before, stream, start, begins_s)
                    yield chunk.samples

    def _keep(self, before: tuple[int, int], speech: Speech | ChunkStream, start: int, begins_s: float) -> None:
        from vivavoce.frontend.speech import moved

        self.marks[before[0] :] = [moved(mark, start, begins_s) for mark in speech.marks]
        self.words[before[1] :] = [moved(word, start, begins_s) for word in speech.words]


def _write_as_made(
    speech: PartwiseSpeech, text: str, load_s: float, output: Output, reporter: Reporter, source: SpeechSource
) -> None:
    clock, subtitles, length = StreamClock(speech.tts.sample_rate), source.subtitles, len(text)
    with closing(speech.pieces()) as pieces, progress(reporter, share=True, transient=True) as show:
        show("speaking", 0, length, "")
        try:
            timed = clock.timed(pieces)
            # Invalid input fails here, before an existing file is overwritten.
            with _telling_if_interrupted(output, source.stream):
                first = next(timed)
            with output.stream(speech.tts.sample_rate, speech.tts.card.name) as write:
                for samples in chain([first], timed):
                    write(samples)
                    show("speaking", speech.marks[-1].end_character if speech.marks else 0, length, "")
                    if source.play and speech.last is not None:
                        speech.last.play()
        finally:
            if subtitles is not None and speech.marks:  # also after an interruption, like the audio
                write_subtitles(subtitles, text, speech.marks, speech.words)
    reporter.report(
        f"{output.label}: {clock.audio_s:.2f} s of audio in {clock.work_s:.2f} s{_pace(clock.work_s, clock.audio_s)}, "
        f"first audio after {clock.first_s:.2f} s (model loaded in {load_s:.2f} s)"
    )


@contextmanager
def _telling_if_interrupted(output: Output, stream: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        advice = "" if stream else "; with --stream, audio is written while it is made"
        print_error(f"interrupted: {output.label} was not written{advice}")
        raise


class StreamClock:
    def __init__(self, sample_rate: int) -> None:
        self._rate, self._resumed = sample_rate, time.perf_counter()
        self.first_s = self.work_s = self.audio_s = 0.0

    def timed(self, pieces: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        for samples in pieces:
            self.work_s += time.perf_counter() - self._resumed
            self.first_s = self.first_s or self.work_s
            self.audio_s += len(samples) / self._rate
            yield samples
            self._resumed = time.perf_counter()


def report_speech(speech: Speech, output: Output, load_s: float, reporter: Reporter) -> None:
    spent = speech.timings
    reporter.report(
        f"{output.label}: {speech.duration_s:.2f} s of audio in {spent.total_s:.2f} s"
        f"{_pace(spent.total_s, speech.duration_s)} (text {spent.text_s:.2f} s, "
        f"language model {spent.lm_s:.2f} s, flow {spent.flow_s:.2f} s, vocoder {spent.vocoder_s:.2f} s; "
        f"model loaded in {load_s:.2f} s)"
    )


def _pace(work_s: float, audio_s: float) -> str:
    return f", RTF {work_s / audio_s:.2f}" if audio_s >= _PACED_S else ""
