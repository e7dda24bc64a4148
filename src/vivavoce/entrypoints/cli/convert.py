"""`vivavoce convert`: a recording into another voice or, where the first word says so, a model into another form.

A conversion of models is added with one line, at the end of this file; it and its first two examples are shown in the
group's help.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from vivavoce.entrypoints.cli import convert_trtllm, flags
from vivavoce.entrypoints.cli.console import Reporter, size_text
from vivavoce.entrypoints.cli.flags import REQUIRED, argument, command, examples, flag
from vivavoce.entrypoints.cli.model import ModelChoice, load_model, note_if_no_real_model
from vivavoce.entrypoints.cli.output import Output
from vivavoce.entrypoints.cli.speak import report_speech

_RECORDING = "recording"
"""The hidden command that stands for every first word which names no other command."""
_MOST_EXAMPLES = 2
"""Of each command in the group's help."""


class ConvertGroup(TyperGroup):
    """A group that is the voice conversion itself unless its first word is one of its commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        lines: list[str] = []
        for one in self.commands.values():
            shown = [line.strip() for line in (one.epilog or "").splitlines()]
            lines += [line for line in shown if line.startswith("vivavoce ")][:_MOST_EXAMPLES]
        self.epilog = examples(*lines)

    # click's types have lived in two packages, so they are not named here.
    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The group's own context for its help and its commands, else the voice conversion's."""
        first = args[0] if args else ""
        if first in ("-h", "--help") or (first in self.commands and first != _RECORDING):
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[_RECORDING].make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage of the voice conversion; the other commands have their own help."""
        return self.commands[_RECORDING].collect_usage_pieces(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The voice conversion's arguments and options, then the other commands."""
        self.commands[_RECORDING].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def convert(
    *,
    source: Path = argument("A recording of 0.5 to 30 s of speech.", "SOURCE", default=REQUIRED),
    model: ModelChoice,
    out: flags.OutOption = "out.wav",
    voice: flags.VoiceOption = None,
    prompt_text: flags.PromptTextOption = "",
    speed: flags.SpeedOption = 1.0,
    seed: flags.SeedOption = 0,
    quiet: flags.QuietOption = False,
) -> None:
    """Say the words of a recording in another voice."""
    output, reporter = Output(out), Reporter(quiet)
    output.check()
    with reporter.working("starting …"):
        from vivavoce.service.audio.decode import decode_audio
        from vivavoce.service.audio.samples import MAX_REFERENCE_S
        from vivavoce.service.speech import SpeakOptions

        SpeakOptions(speed=speed, seed=seed)
        audio = decode_audio(source, field="source audio", max_seconds=MAX_REFERENCE_S)
    tts, load_s = load_model(model, reporter)
    with reporter.working("converting …"):
        speech = tts.convert(audio, voice, transcript=prompt_text, speed=speed, seed=seed)
    output.write(speech)
    report_speech(speech, output, load_s, reporter)
    note_if_no_real_model(tts.card, reporter)


def convert_hf(
    out: Path = flag("The folder to make.", "FOLDER", "-o", default=REQUIRED),
    model: flags.ModelOption = None,
    dtype: str = flag("auto (the model's own), float32, float16 or bfloat16.", "NAME", default="auto"),
    variant: flags.VariantOption = None,
    force: bool = flag("Take the place of an earlier export.", default=False),
    quiet: flags.QuietOption = False,
) -> None:
    """Write the language model for transformers, vLLM and the like.

    Text and speech become one vocabulary of one Hugging Face Qwen2 model.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce.checkpoint.folder import BACKBONE
        from vivavoce.export.hf_folder import export_hf
        from vivavoce.service.model_choice import model_folder
        from vivavoce.service.text.tokenizer import TextTokenizer

        folder = model_folder(model)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
    with reporter.working("converting …"):
        export = export_hf(folder, out, tokenizer.to_json(), dtype=dtype, variant=variant, force=force)
    reporter.report(
        f"{out}: {export.vocabulary.padded_size:,} ids ({export.vocabulary.text_size:,} of text), "
        f"{str(export.dtype).removeprefix('torch.')}, {size_text(export.num_bytes)}"
    )
    reporter.note("the speech head's bias is in embedding_bias.npy: what serves the folder must add it to the logits")


EXAMPLES = (
    "vivavoce convert me.wav --voice friend.wav -o as-friend.wav",
    "vivavoce convert me.wav --voice storyteller --speed 0.9",
)
HF_EXAMPLES = (
    "vivavoce convert hf --model CosyVoice2-0.5B --out ./cosyvoice2_llm",
    "vivavoce convert hf --model ./CosyVoice2-0.5B --out ./llm16 --dtype bfloat16 --force",
)
app = typer.Typer(
    cls=ConvertGroup,
    help=(
        "Say the words of a recording in another voice.\n\n"
        "With one of the commands below as its first word: write a model in the form of another runtime. A recording "
        "of such a name is given as ./NAME."
    ),
)
command(app, *EXAMPLES, name=_RECORDING, hidden=True)(convert)
command(app, *HF_EXAMPLES, name="hf")(convert_hf)
command(app, *convert_trtllm.EXAMPLES, name="trtllm")(convert_trtllm.convert_trtllm)
