"""`vivavoce speak`: text in, an audio file out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import EngineChoice, LoadedModel, ModelChoice, load_model, note_if_no_real_model
from vivavoce.doors.cli.output import Output
from vivavoce.doors.cli.source_text import read_text
from vivavoce.doors.cli.subtitle_file import SubtitleFile

if TYPE_CHECKING:
    from vivavoce.engine.request import AudioChunk, SamplingParams
    from vivavoce.service.modes import Mode
    from vivavoce.service.synthesizer import Speech

EXAMPLES = options.examples(
    'vivavoce speak "Hello there." -o hello.wav',
    'vivavoce speak --voice me.wav --prompt-text "What I say there." "Hello there."',
    "vivavoce speak --file chapter.txt --stream -o - | ffplay -nodisp -autoexit -",
    "vivavoce speak --file chapter.txt -o chapter.wav --subtitles chapter.srt",
)


class Manner(TypedDict):
    """How to speak: the keywords that `Vivavoce.speak` and `Vivavoce.stream` share."""

    prompt_text: str
    mode: Mode | None
    instruct: str | None
    speed: float
    seed: int
    sampling: SamplingParams


def speak(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What to say; without it, what is piped in.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH|-", help="Read the text from a UTF-8 file; - is stdin.")
    ] = None,
    out: options.OutOption = "out.wav",
    voice: options.VoiceOption = None,
    prompt_text: options.PromptTextOption = "",
    model: options.ModelOption = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="zero_shot, cross_lingual, instruct or sft.  [default: the fullest that the voice allows]",
        ),
    ] = None,
    instruct: Annotated[
        str | None, typer.Option(metavar="TEXT", help='How to say it, such as "speak slowly and calmly".')
    ] = None,
    speed: options.SpeedOption = 1.0,
    seed: options.SeedOption = 0,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="NUMBER", help="0 to 1.  [default: as the model is set]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="NUMBER", help="1 or more.  [default: as the model is set]")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write the audio while it is made: it starts sooner and ends later.")
    ] = False,
    subtitles: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write subtitles, too: a .srt or .vtt file, overwritten if it exists."),
    ] = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    int8_lm: options.Int8LmOption = False,
    fp8_flow: options.Fp8FlowOption = False,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Speak a text of up to 20,000 characters into an audio file."""
    output, reporter = Output(out), Reporter(quiet)
    output.check()
    titles = None if subtitles is None else SubtitleFile(subtitles)
    if titles is not None:
        titles.check()
    said = read_text(text, file)
    with reporter.working("starting …"):
        manner = check_manner(prompt_text, mode, instruct, speed, seed, top_p, top_k)
    engine = EngineChoice(int8_lm=int8_lm, fp8_flow=fp8_flow)
    loaded = load_model(ModelChoice(model, device, dtype, variant, voices), reporter, engine)
    if stream:
        _stream(said, voice, manner, loaded, output, reporter, titles)
    else:
        with reporter.working("speaking …"):
            speech = loaded.tts.speak(said, voice, **manner)
        output.write(speech)
        if titles is not None:
            titles.write(speech.marks)
        report_speech(speech, output, loaded, reporter)
    note_if_no_real_model(loaded.tts.card, reporter)


def check_manner(
    prompt_text: str,
    mode: str | None,
    instruct: str | None,
    speed: float,
    seed: int,
    top_p: float | None,
    top_k: int | None,
) -> Manner:
    """The options as the engine takes them, refused before a model loads if they are out of their limits.

    Raises:
        InvalidRequest: an unknown mode, or a number out of its limits.
    """
    from vivavoce.engine.request import SamplingParams
    from vivavoce.service.modes import parse_mode
    from vivavoce.service.synthesizer import SpeakOptions

    chosen = parse_mode(mode) if mode else None
    sampling = SamplingParams(top_p=top_p, top_k=top_k)
    SpeakOptions(chosen, instruct, speed, seed, sampling)
    return Manner(prompt_text=prompt_text, mode=chosen, instruct=instruct, speed=speed, seed=seed, sampling=sampling)


def _stream(
    text: str,
    voice: str | None,
    manner: Manner,
    loaded: LoadedModel,
    output: Output,
    reporter: Reporter,
    titles: SubtitleFile | None,
) -> None:
    clock = StreamClock()
    with reporter.working("speaking …") as show:
        # Bad input is refused here, so a file that exists is overwritten only once there is something to write.
        chunks = loaded.tts.stream(text, voice, **manner)
        try:
            with output.stream(loaded.tts.sample_rate) as write:
                for chunk in clock.timed(chunks):
                    write(chunk.samples)
                    show(f"speaking … {clock.audio_s:.1f} s")
        finally:
            if titles is not None and chunks.marks:  # of what was spoken, like the audio
                titles.write(chunks.marks)
    reporter.report(
        f"{output.label}: {clock.audio_s:.2f} s of audio, RTF {clock.rtf:.2f}, first audio after {clock.first_s:.2f} s "
        f"({clock.work_s:.2f} s in all; model loaded in {loaded.seconds:.2f} s)"
    )


class StreamClock:
    """Counts the seconds of work in a stream, without those in which the audio's reader keeps it waiting."""

    def __init__(self) -> None:
        self._resumed = time.perf_counter()
        self.first_s = 0.0
        """From the request to the first chunk."""
        self.work_s = 0.0
        self.audio_s = 0.0

    @property
    def rtf(self) -> float:
        """Seconds of work per second of audio."""
        return self.work_s / self.audio_s if self.audio_s else 0.0

    def timed(self, chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        """The same chunks, counted."""
        for chunk in chunks:
            self.work_s += time.perf_counter() - self._resumed
            self.first_s = self.first_s or self.work_s
            self.audio_s += chunk.duration_s
            yield chunk
            self._resumed = time.perf_counter()


def report_speech(speech: Speech, output: Output, loaded: LoadedModel, reporter: Reporter) -> None:
    """One line: where the audio is, how long it is, and what took how long."""
    spent = speech.timings
    reporter.report(
        f"{output.label}: {speech.duration_s:.2f} s of audio, RTF {speech.rtf:.2f} (text {spent.text_s:.2f} s, "
        f"language model {spent.lm_s:.2f} s, flow {spent.flow_s:.2f} s, vocoder {spent.vocoder_s:.2f} s; "
        f"model loaded in {loaded.seconds:.2f} s)"
    )
