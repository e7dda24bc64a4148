"""`vivavoce convert`: a recording's words in another voice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import ModelChoice, load_model, note_if_no_real_model
from vivavoce.doors.cli.output import Output
from vivavoce.doors.cli.speak import report_speech

EXAMPLES = options.examples(
    "vivavoce convert me.wav --voice friend.wav -o as-friend.wav",
    "vivavoce convert me.wav --voice storyteller --speed 0.9",
)


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A recording of 0.5 to 30 s of speech.")],
    out: options.OutOption = "out.wav",
    voice: options.VoiceOption = None,
    prompt_text: options.PromptTextOption = "",
    model: options.ModelOption = None,
    speed: options.SpeedOption = 1.0,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Say the words of a recording in another voice."""
    output, reporter = Output(out), Reporter(quiet)
    output.check()
    with reporter.working("starting …"):
        from vivavoce.service.audio.checks import MAX_REFERENCE_S
        from vivavoce.service.audio.decode import decode_audio
        from vivavoce.service.synthesizer import SpeakOptions

        SpeakOptions(speed=speed, seed=seed)
        audio = decode_audio(source, field="source audio", max_seconds=MAX_REFERENCE_S)
    loaded = load_model(ModelChoice(model, device, dtype, variant, voices), reporter)
    with reporter.working("converting …"):
        speech = loaded.tts.convert(audio, voice, prompt_text=prompt_text, speed=speed, seed=seed)
    output.write(speech)
    report_speech(speech, output, loaded, reporter)
    note_if_no_real_model(loaded.tts.card, reporter)
