"""`vivavoce voice`: the voices that are kept by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, is_terminal, print_table
from vivavoce.doors.cli.model import note_if_no_real_model
from vivavoce.doors.cli.output import Output
from vivavoce.errors import InvalidRequest, VivavoceError, VoiceExists, VoiceNotFound

if TYPE_CHECKING:
    from vivavoce.service.inspection import ModelNames
    from vivavoce.service.voices.stores.protocol import NamedVoices
    from vivavoce.service.voices.voice import Voice

app = typer.Typer(
    help="Keep voices by name: add, list, show, remove, import, export.",
    epilog=options.examples("vivavoce voice add me me.wav --text 'What I say there.'", "vivavoce voice list"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The voice's name.")]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Take the place of a voice of that name.")]
MatchOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="NAME|FOLDER", help="Compare with this model only.  [default: all there are]"
    ),
]

_TOKENS_PER_SECOND = 25
"""Speech tokens per second of every model that this version runs; a stored voice does not repeat it."""
_TRANSCRIPT_CHARS = 40
_ANY_MODEL = "any"


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    epilog=options.examples(
        'vivavoce voice add me me.wav --text "What I say there." --model CosyVoice2-0.5B',
        'vivavoce speak --voice me --model CosyVoice2-0.5B "Hello there."',
    )
)
def add(
    name: NameArgument,
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="0.5 to 30 s of clear speech.")],
    text: Annotated[
        str,
        typer.Option("--text", "--prompt-text", metavar="TEXT", help="What it says; helps to clone the manner too."),
    ] = "",
    description: Annotated[str, typer.Option(metavar="TEXT", help="A note of your own.")] = "",
    licence: Annotated[str, typer.Option(metavar="TEXT", help="Under which terms the voice may be used.")] = "",
    replace: ReplaceOption = False,
    model: options.ModelOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Extract a voice from a recording and keep it."""
    import dataclasses

    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce.service.audio.checks import MAX_REFERENCE_S
        from vivavoce.service.audio.decode import decode_audio
        from vivavoce.service.voices.names import check_voice_name

        name = check_voice_name(name)
        store = _store(voices)
        _refuse_taken([name], store, replace)
        audio = decode_audio(recording, max_seconds=MAX_REFERENCE_S)
    with reporter.working("extracting …"):
        from vivavoce.service.default_model import model_folder
        from vivavoce.service.front_end import load_front_end

        front_end = load_front_end(model_folder(model))
        extracted = front_end.extractor.extract(audio, text).named(name)
        store.save(dataclasses.replace(extracted, description=description, licence=licence), replace=replace)
    reporter.report(f"voice {name!r} is kept ({_seconds(extracted):.1f} s of speech); use it with --voice {name}")
    note_if_no_real_model(front_end.card, reporter)


@app.command("list", epilog=options.examples("vivavoce voice list", "vivavoce voice list --voices ./team-voices"))
def list_(model: MatchOption = None, voices: options.VoicesOption = None) -> None:
    """List the stored voices.

    For each: its name, the seconds of speech it was taken from, what they say, and the model it was made for.
    """
    store, reporter, rows = _store(voices), Reporter(), []
    models = _model_names(model)
    for name in store.names():
        try:
            voice = store.load(name)
        except VivavoceError as error:  # one damaged file must not hide the others
            reporter.note(str(error))
            continue
        rows.append(
            (
                name,
                f"{_seconds(voice):.1f} s" if voice.has_prompt else "–",
                _start(voice.transcript),
                _model_of(voice, models),
            )
        )
    if rows:
        print_table(rows, ("name", "speech", "transcript", "model"))
    else:
        reporter.report("no voice is stored; `vivavoce voice add NAME RECORDING` adds one")


@app.command(epilog=options.examples("vivavoce voice show me"))
def show(name: NameArgument, model: MatchOption = None, voices: options.VoicesOption = None) -> None:
    """Show all about a stored voice."""
    voice = _store(voices).load(name)
    frames, bins = voice.mel.shape
    rows = {
        "name": voice.name,
        "speech": f"{_seconds(voice):.1f} s" if voice.has_prompt else "none, a speaker embedding only",
        "transcript": voice.transcript or ("unknown" if not voice.prompt_text else "in token ids only"),
        "description": voice.description,
        "licence": voice.licence,
        "model": _model_of(voice, _model_names(model)),
        "fingerprint": voice.fingerprint,
        "holds": f"{len(voice.prompt_text)} text tokens, {len(voice.speech_tokens)} speech tokens, "
        f"{frames} × {bins} mel, embedding of {len(voice.embedding)}",
    }
    print_table([(field, text) for field, text in rows.items() if text])


@app.command(epilog=options.examples("vivavoce voice remove me", "vivavoce voice remove me --yes"))
def remove(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Delete a stored voice."""
    store = _store(voices)
    store.load(name)
    if not yes:
        if not is_terminal(sys.stdin):
            raise InvalidRequest(f"voice: removing {name!r} cannot be undone; confirm it with --yes")
        if not typer.confirm(f"Remove the voice {name!r} for good?", err=True):
            raise typer.Exit(1)
    store.remove(name)
    Reporter(quiet).report(f"voice {name!r} is removed")


@app.command(
    "import",
    epilog=options.examples(
        "vivavoce voice import spk2info.pt", "vivavoce voice import spk2info.pt --only 中文女 --only 英文男"
    ),
)
def import_(
    spk2info: Annotated[Path, typer.Argument(metavar="SPK2INFO", help="A spk2info.pt of the official code.")],
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Take this voice; may be repeated.")] = None,
    replace: ReplaceOption = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME|FOLDER",
            help="The model they were made for.  [default: any, for speakers without reference speech]",
        ),
    ] = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Take over the voices of a spk2info.pt file."""
    from vivavoce.checkpoint.fingerprint import fingerprint
    from vivavoce.service.default_model import model_folder
    from vivavoce.service.voices.names import check_voice_name
    from vivavoce.service.voices.portable import voices_from_spk2info

    store = _store(voices)
    found = {
        voice.name: voice for voice in voices_from_spk2info(spk2info, fingerprint(model_folder(model)) if model else "")
    }
    if unknown := [name for name in only or () if name not in found]:
        raise VoiceNotFound(f"voice: {unknown[0]!r} is not in {spk2info.name}; it holds {', '.join(found) or 'none'}")
    chosen = [voice for name, voice in found.items() if not only or name in only]
    # All voices are looked at before anything is written: a refused import leaves the store as it was.
    if not model:
        _refuse_reference_speech(chosen)
    _refuse_taken([check_voice_name(voice.name) for voice in chosen], store, replace)
    for voice in chosen:
        store.save(voice, replace=replace)
    Reporter(quiet).report(f"kept: {', '.join(voice.name for voice in chosen)}")


@app.command(epilog=options.examples("vivavoce voice export me you -o spk2info.pt"))
def export(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The voices' names.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PATH", help="The file to write, overwritten if it exists.")
    ] = Path("spk2info.pt"),
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Write voices into a spk2info.pt file.

    The official code reads such files.
    """
    from vivavoce.service.voices.portable import voices_to_spk2info

    Output(str(out)).check()
    store = _store(voices)
    voices_to_spk2info([store.load(name) for name in names], out)
    Reporter(quiet).report(f"{out}: {', '.join(names)}")


def _store(place: str | None) -> NamedVoices:
    from vivavoce.service.voices.stores.opening import open_voice_store

    return open_voice_store(place, None).of("")


def _refuse_taken(names: list[str], store: NamedVoices, replace: bool) -> None:
    taken = [name for name in names if name in store]
    if taken and not replace:
        raise VoiceExists(f"voice: {', '.join(taken)} stored already; add --replace, or choose another name")


def _refuse_reference_speech(voices: list[Voice]) -> None:
    """An embedding fits any model; tokens and mel frames only the one whose tokenizer and rates made them."""
    for voice in voices:
        if voice.has_prompt:
            raise InvalidRequest(f"voice: {voice.name!r} holds reference speech; name its model with --model")


def _model_names(model: str | None) -> ModelNames:
    from vivavoce.service.default_model import model_folder
    from vivavoce.service.inspection import ModelNames, local_models

    return ModelNames([model_folder(model)] if model else local_models())


def _model_of(voice: Voice, models: ModelNames) -> str:
    if not voice.fingerprint:
        return _ANY_MODEL
    return models.of(voice.fingerprint) or "another one"


def _seconds(voice: Voice) -> float:
    return len(voice.speech_tokens) / _TOKENS_PER_SECOND


def _start(text: str) -> str:
    return text if len(text) <= _TRANSCRIPT_CHARS else text[: _TRANSCRIPT_CHARS - 1] + "…"
