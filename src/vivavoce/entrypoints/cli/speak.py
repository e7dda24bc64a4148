"""`vivavoce speak`: text in, an audio file out."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.entrypoints.cli import flags
from vivavoce.entrypoints.cli.console import Reporter, is_terminal
from vivavoce.entrypoints.cli.flags import argument, flag
from vivavoce.entrypoints.cli.model import ModelChoice, load_model, note_if_no_real_model
from vivavoce.entrypoints.cli.output import Output, check_subtitles, write_subtitles
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.service.text.checks import MAX_TEXT_CHARS, check_text

if TYPE_CHECKING:
    from vivavoce.engine.request import AudioChunk
    from vivavoce.service.synthesizer import Speech

EXAMPLES = (
    'vivavoce speak "Hello there." -o hello.wav',
    'vivavoce speak --voice me.wav --prompt-text "What I say there." "Hello there."',
    "vivavoce speak --file chapter.txt --stream -o - | ffplay -nodisp -autoexit -",
    "vivavoce speak --file chapter.txt -o chapter.wav --subtitles chapter.srt",
)
STDIN = "-"
_MAX_UTF8_BYTES = 4


@dataclass(frozen=True)
class SpeechSource:
    """What is said, and where the audio goes."""

    text: str | None = argument("What to say; without it, what is piped in.", "TEXT")
    file: str | None = flag("Read the text from a UTF-8 file; - is stdin.", "PATH|-", "-f")
    out: flags.OutOption = "out.wav"
    stream: bool = flag("Write the audio while it is made: it starts sooner and ends later.", default=False)
    subtitles: Path | None = flag("Write subtitles, too: a .srt or .vtt file, overwritten if it exists.", "PATH")


@dataclass(frozen=True)
class SpeechManner:
    """Who says it, and how."""

    voice: flags.VoiceOption = None
    prompt_text: flags.PromptTextOption = ""
    mode: str | None = flag(
        "zero_shot, cross_lingual, instruct or sft.  [default: the fullest that the voice allows]", "NAME"
    )
    instruct: str | None = flag('How to say it, such as "speak slowly and calmly".', "TEXT")
    speed: flags.SpeedOption = 1.0
    seed: flags.SeedOption = 0
    top_p: float | None = flag("0 to 1.  [default: as the model is set]", "NUMBER")
    top_k: int | None = flag("1 or more.  [default: as the model is set]", "NUMBER")

    def keywords(self) -> dict[str, Any]:
        """The keywords that `Vivavoce.speak` and `Vivavoce.stream` share; `InvalidRequest` if one is out of limits."""
        from vivavoce.engine.request import SamplingParams
        from vivavoce.service.speech import SpeakOptions, parse_mode

        mode = parse_mode(self.mode) if self.mode else None
        sampling = SamplingParams(top_p=self.top_p, top_k=self.top_k)
        SpeakOptions(mode=mode, instruct=self.instruct, speed=self.speed, seed=self.seed, sampling=sampling)
        return {
            "prompt_text": self.prompt_text,
            "mode": mode,
            "instruct": self.instruct,
            "speed": self.speed,
            "seed": self.seed,
            "sampling": sampling,
        }


def speak(source: SpeechSource, manner: SpeechManner, model: ModelChoice, quiet: flags.QuietOption = False) -> None:
    """Speak a text of up to 20,000 characters into an audio file."""
    output, reporter = Output(source.out), Reporter(quiet)
    output.check()
    subtitles = source.subtitles
    if subtitles is not None:
        check_subtitles(subtitles)
    text = read_text(source.text, source.file)
    with reporter.working("starting …"):
        keywords = manner.keywords()
    tts, load_s = load_model(model, reporter)
    if source.stream:
        chunks = functools.partial(tts.stream, text, manner.voice, **keywords)
        _stream(chunks, tts.sample_rate, load_s, output, reporter, subtitles)
    else:
        with reporter.working("speaking …"):
            speech = tts.speak(text, manner.voice, **keywords)
        output.write(speech)
        if subtitles is not None:
            write_subtitles(subtitles, speech.marks)
        report_speech(speech, output, load_s, reporter)
    note_if_no_real_model(tts.card, reporter)


def read_text(argument: str | None, file: str | None) -> str:
    """The text, checked as far as that needs no model; file: "-" is standard input, as is neither.

    `InvalidRequest`: two texts, or none; `InvalidText`: empty, too long, not UTF-8, or of unspoken characters.
    """
    if argument is not None and file is not None:
        raise InvalidRequest("text: is given twice, as an argument and with --file; leave one out")
    if argument is None and file is None and is_terminal(sys.stdin):
        raise InvalidRequest('text: none is given; type `vivavoce speak "Hello."`, or use --file, or pipe it in')
    text = argument if argument is not None else _read_file(file or STDIN)
    if not text.strip():
        raise InvalidText("text: is empty; write at least one word")
    check_text(text)
    return text


def _read_file(path: str) -> str:
    label = "stdin" if path == STDIN else path
    most = _MAX_UTF8_BYTES * (MAX_TEXT_CHARS + 1)  # and a byte order mark
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(most + 1) if sys.stdin is not None else b""
        else:
            with Path(path).open("rb") as opened:
                content = opened.read(most + 1)
    except OSError as error:
        raise InvalidRequest(f"file: {label!r} cannot be read ({error.strerror}); check the path") from None
    if len(content) > most:
        raise InvalidText(
            f"text: {label!r} is longer than the limit of {MAX_TEXT_CHARS} characters; split it into several files"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise InvalidText(
            f"text: {label!r} is not UTF-8 (byte 0x{byte:02x} at position {error.start}); save it as UTF-8 text"
        ) from None


def _stream(
    speak: Callable[[], Any], rate: int, load_s: float, output: Output, reporter: Reporter, subtitles: Path | None
) -> None:
    clock = StreamClock()
    with reporter.working("speaking …") as show:
        # Bad input is refused here, so a file that exists is overwritten only once there is something to write.
        chunks = speak()
        try:
            with output.stream(rate) as write:
                for chunk in clock.timed(chunks):
                    write(chunk.samples)
                    show(f"speaking … {clock.audio_s:.1f} s")
        finally:
            if subtitles is not None and chunks.marks:  # of what was spoken, like the audio
                write_subtitles(subtitles, chunks.marks)
    rtf = clock.work_s / clock.audio_s if clock.audio_s else 0.0
    reporter.report(
        f"{output.label}: {clock.audio_s:.2f} s of audio, RTF {rtf:.2f}, first audio after {clock.first_s:.2f} s "
        f"({clock.work_s:.2f} s in all; model loaded in {load_s:.2f} s)"
    )


class StreamClock:
    """Counts the seconds of work in a stream, without those in which the audio's reader keeps it waiting."""

    def __init__(self) -> None:
        self._resumed = time.perf_counter()
        self.first_s = 0.0
        """From the request to the first chunk."""
        self.work_s = 0.0
        self.audio_s = 0.0

    def timed(self, chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        """The same chunks, counted."""
        for chunk in chunks:
            self.work_s += time.perf_counter() - self._resumed
            self.first_s = self.first_s or self.work_s
            self.audio_s += chunk.duration_s
            yield chunk
            self._resumed = time.perf_counter()


def report_speech(speech: Speech, output: Output, load_s: float, reporter: Reporter) -> None:
    """One line: where the audio is, how long it is, and how long each stage took."""
    spent = speech.timings
    reporter.report(
        f"{output.label}: {speech.duration_s:.2f} s of audio, RTF {speech.rtf:.2f} (text {spent.text_s:.2f} s, "
        f"language model {spent.lm_s:.2f} s, flow {spent.flow_s:.2f} s, vocoder {spent.vocoder_s:.2f} s; "
        f"model loaded in {load_s:.2f} s)"
    )
