"""`vivavoce voice`: manage stored voices."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, confirm_removal, print_json, print_table, size_text
from vivavoce.cli.flags import REQUIRED, argument, command, flag, group
from vivavoce.cli.model import note_if_no_real_model
from vivavoce.cli.output import check_writable, explaining
from vivavoce.errors import InvalidRequest, VivavoceError, VoiceExists, VoiceNotFound

if TYPE_CHECKING:
    from vivavoce.frontend.voices.stores import VoiceStore
    from vivavoce.frontend.voices.voice import Voice
    from vivavoce_inspect.model import ModelNames

app = group(
    "Store voices by name: add, check, list, show, remove, import, export.",
    "vivavoce voice add me me.wav --transcript 'What I say there.'",
    "vivavoce voice list",
)

_NAME = argument("The voice's name.", "NAME", default=REQUIRED)
_REPLACE = flag("Replace a stored voice of that name.", default=False)
_MATCH = flag("Consider only this model.  [default: all local models]", "NAME|FOLDER", "-m")

_TRANSCRIPT_CHARS = 40
_ABOUT = ("language", "sex", "description")
_NO_MODEL = ("another one", "any")


@dataclasses.dataclass(frozen=True)
class _About:
    """Notes that a stored voice keeps, besides its recording."""

    description: str = flag("A note of your own.", "TEXT", default="")
    licence: str = flag("Terms of use for the voice.", "TEXT", default="")
    consent: str = flag("The uses that the recorded person allows.", "TEXT", default="")
    consent_by: str = flag("The person who gave the consent.", "TEXT", default="")
    adapter: str = flag("LoRA adapter of the voice, for requests that name no adapter.", "NAME", default="")


@command(
    app,
    'vivavoce voice add me me.wav --transcript "What I say there." --model CosyVoice2-0.5B',
    'vivavoce speak --voice me --model CosyVoice2-0.5B "Hello there."',
)
def add(
    name: str = _NAME,
    recording: Path = argument("0.5 to 30 s of clear speech.", "RECORDING", default=REQUIRED),
    *,
    transcript: flags.TranscriptOption = "",
    about: _About,
    as_recorded: bool = flag("Keep the recording's silent ends and level, as the official code does.", default=False),
    replace: bool = _REPLACE,
    model: flags.ModelOption = None,
    voices: flags.VoicesOption = None,
    quiet: flags.QuietOption = False,
) -> None:
    """Extract a voice from a recording and store it."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce.engine.adapters import check_adapter_name
        from vivavoce.frontend.audio.decode import decode_audio
        from vivavoce.frontend.audio.samples import MAX_REFERENCE_S
        from vivavoce.frontend.voices.consent import given_consent
        from vivavoce.frontend.voices.names import check_voice_name

        name, allowed = check_voice_name(name), given_consent(about.consent, about.consent_by)
        if about.adapter:
            check_adapter_name(about.adapter)
        store = _store(voices)
        _refuse_taken([name], store, replace)
        decode_audio(recording, max_seconds=MAX_REFERENCE_S)  # a bad file fails before a model loads
    with reporter.working("extracting …"):
        from vivavoce.frontend.front_end import load_front_end
        from vivavoce.frontend.model_choice import model_folder

        front_end = load_front_end(model_folder(model))
        extractor = dataclasses.replace(front_end.extractor, as_recorded=as_recorded)
        extracted = extractor.extract_to_keep(recording, transcript).named(name)
        noted = dataclasses.replace(
            extracted, description=about.description, licence=about.licence, consent=allowed, adapter=about.adapter
        )
        store.save(noted, replace=replace)
    reporter.report(
        f"voice {name!r} is kept ({_seconds(extracted):.1f} s of speech); use it with --voice {shlex.quote(name)}"
    )
    note_if_no_real_model(front_end.card, reporter)


@command(
    app,
    'vivavoce voice check me.wav --transcript "What I say there."',
    "vivavoce voice check *.wav --json",
)
def check(
    recordings: list[Path] = argument("Recordings to be used as voices.", "RECORDING", default=REQUIRED),
    *,
    transcript: flags.TranscriptOption = "",
    listen: bool = flag("Recognise the words, too (English only; needs the pip extra eval).", default=False),
    as_json: flags.JsonOption = False,
) -> None:
    """Tell how good recordings are as voices, and how to record better ones. Needs no model."""
    from vivavoce.frontend.audio.audit import audit
    from vivavoce.frontend.audio.decode import decode_audio
    from vivavoce.frontend.audio.samples import check_reference

    told = []
    with Reporter().working("listening …"):
        for one in recordings:
            audio = decode_audio(one, field=f"recording {str(one)!r}")
            check_reference(audio, field=f"recording {str(one)!r}")
            found = dataclasses.asdict(audit(audio, transcript))
            if listen:
                from vivavoce_bench.evaluate import heard_otherwise

                found["heard"], otherwise = heard_otherwise(audio.samples, audio.sample_rate, transcript)
                found["warnings"] += (otherwise,) * bool(otherwise)
            told.append({"file": str(one), **found})
    if as_json:
        print_json(told)
        return
    rows = [
        (found["file"], f"{found['speech_s']:.1f} s", *(f"{found[name]:.0f} dB" for name in ("level_db", "noise_db")))
        for found in told
    ]
    print_table(rows, ("file", "speech", "level", "noise"))
    for found in told:
        for warning in found["warnings"]:
            print(f"{found['file']}: {warning}")


@command(app, "vivavoce voice list", "vivavoce voice list --voices ./team-voices", name="list")
def list_(model: str | None = _MATCH, voices: flags.VoicesOption = None, as_json: flags.JsonOption = False) -> None:
    """List the stored voices, and those that are built into the local models.

    Each line has a voice's name, the seconds of speech in its recording, its transcript, the model for which the voice
    was extracted, and notes about it.
    """
    from vivavoce_inspect.model import ModelNames

    store, reporter, found = _store(voices), Reporter(), []
    folders = _folders(model)
    models = ModelNames(folders)
    for name in store.names():
        try:
            found.append(_described(store.load(name), models))
        except VivavoceError as error:  # one damaged file must not hide the others
            reporter.note(str(error))
    if not found and not as_json:
        reporter.report("no voice is stored; `vivavoce voice add NAME RECORDING` adds one")
    for folder in folders:
        try:
            found += [_described(voice, models, card) for voice, card in _built_in(folder)]
        except VivavoceError as error:
            reporter.note(str(error))
    if as_json:
        print_json(found)
    elif found:
        print_table([_row(voice) for voice in found], ("name", "speech", "transcript", "model", "about"))


@command(app, "vivavoce voice show me", "vivavoce voice show me --json")
def show(
    name: str = _NAME,
    model: str | None = _MATCH,
    voices: flags.VoicesOption = None,
    as_json: flags.JsonOption = False,
) -> None:
    """Show all fields of a stored voice, or of one that is built into a local model."""
    from vivavoce.frontend.voices.names import unknown_voice
    from vivavoce_inspect.model import ModelNames

    folders, store = _folders(model), _store(voices)
    try:
        voice, card = store.load(name), ""
    except VoiceNotFound:
        built_in = {voice.name: (voice, card) for folder in folders for voice, card in _built_in(folder)}
        if name not in built_in:
            raise unknown_voice(name, [*store.names(), *built_in]) from None
        voice, card = built_in[name]
    about = _described(voice, ModelNames(folders), card)
    if as_json:
        print_json(about)
        return
    frames, bins = voice.mel.shape
    rows = {
        **about,
        "speech": f"{about['speech_s']:.1f} s" if voice.has_prompt else "none, a speaker embedding only",
        "transcript": voice.transcript or ("unknown" if not voice.prompt_text else "in token ids only"),
        "model": about["model"] or _NO_MODEL[not voice.fingerprint],
        "recording": ""
        if card
        else size_text(len(voice.recording))
        if voice.recording
        else "not kept; it fits no other model",
        "holds": f"{len(voice.prompt_text)} text tokens, {len(voice.speech_tokens)} speech tokens, "
        f"{frames} × {bins} mel, embedding of {len(voice.embedding)}",
        "sample": f"vivavoce speak --voice {shlex.quote(name)} --model {card} 'Hello there.'" if card else "",
    }
    print_table(
        [(field, text) for field, text in rows.items() if text and field not in ("speech_s", "recording_bytes")]
    )


@command(app, "vivavoce voice remove me", "vivavoce voice remove me --yes")
def remove(
    name: str = _NAME,
    yes: bool = flag("Do not ask.", None, "-y", default=False),
    voices: flags.VoicesOption = None,
    quiet: flags.QuietOption = False,
) -> None:
    """Delete a stored voice."""
    store = _store(voices)
    if name not in store:
        raise VoiceNotFound(f"voice: {name!r} is not stored; `vivavoce voice list` shows the stored ones")
    if not yes:
        confirm_removal("voice", name, "voice")
    store.remove(name)
    Reporter(quiet).report(f"voice {name!r} is removed")


@command(
    app,
    "vivavoce voice import spk2info.pt",
    "vivavoce voice import spk2info.pt --only 中文女 --only 英文男",
    name="import",
)
def import_(
    spk2info: Path = argument("A spk2info.pt of the official code.", "SPK2INFO", default=REQUIRED),
    only: list[str] | None = flag("Import only this voice; may be repeated.", "NAME"),
    replace: bool = _REPLACE,
    model: str | None = flag(
        "The model that the voices were made for; not needed without reference speech.", "NAME|FOLDER", "-m"
    ),
    voices: flags.VoicesOption = None,
    quiet: flags.QuietOption = False,
) -> None:
    """Import the voices of a spk2info.pt file."""
    from vivavoce.checkpoint.folder import fingerprint
    from vivavoce.frontend.model_choice import model_folder
    from vivavoce.frontend.voices.names import check_voice_name
    from vivavoce.frontend.voices.voice import voices_from_spk2info

    store = _store(voices)
    found = {
        voice.name: voice for voice in voices_from_spk2info(spk2info, fingerprint(model_folder(model)) if model else "")
    }
    if unknown := [name for name in only or () if name not in found]:
        raise VoiceNotFound(f"voice: {unknown[0]!r} is not in {spk2info.name}; it holds {', '.join(found) or 'none'}")
    chosen = [voice for name, voice in found.items() if not only or name in only]
    # All voices are checked before anything is written: a refused import leaves the store unchanged.
    for voice in chosen:
        if voice.has_prompt and not model:  # its tokens and mel frames fit only the model that made them
            raise InvalidRequest(f"voice: {voice.name!r} holds reference speech; name its model with --model")
    _refuse_taken([check_voice_name(voice.name) for voice in chosen], store, replace)
    for voice in chosen:
        store.save(voice, replace=replace)
    Reporter(quiet).report(f"kept: {', '.join(voice.name for voice in chosen)}")


@command(app, "vivavoce voice export me you -o spk2info.pt")
def export(
    names: list[str] = argument("The voices' names.", "NAME", default=REQUIRED),
    out: Path = flag("The file to write, overwritten if it exists.", "PATH", "-o", default=Path("spk2info.pt")),
    voices: flags.VoicesOption = None,
    quiet: flags.QuietOption = False,
) -> None:
    """Write voices into a spk2info.pt file, which the official code reads."""
    from vivavoce.frontend.voices.voice import voices_to_spk2info

    with explaining("output", str(out)):
        check_writable(out)
    store = _store(voices)
    voices_to_spk2info([store.load(name) for name in names], out)
    Reporter(quiet).report(f"{out}: {', '.join(names)}")


def _store(location: str | None) -> VoiceStore:
    from vivavoce.frontend.voices.stores import open_voice_store

    return open_voice_store(location)


def _refuse_taken(names: list[str], store: VoiceStore, replace: bool) -> None:
    taken = [name for name in names if name in store]
    if taken and not replace:
        raise VoiceExists(f"voice: {', '.join(taken)} stored already; add --replace, or choose another name")


def _folders(model: str | None) -> list[Path]:
    from vivavoce.frontend.model_choice import model_folder
    from vivavoce_inspect.model import local_models

    return [model_folder(model)] if model else local_models()


def _built_in(folder: Path) -> list[tuple[Voice, str]]:
    """Return the voices that are built into a model, each with the model's name."""
    from vivavoce.checkpoint.folder import read_card
    from vivavoce.frontend.voices.voice import built_in_voices

    return [(voice, read_card(folder).name) for voice in built_in_voices(folder).values()]


def _described(voice: Voice, models: ModelNames, card: str = "") -> dict[str, Any]:
    """Return a voice as JSON values. card: the name of the model that the voice is built into. The value `model` is a
    local model that the voice fits, or None if no local model fits or the voice fits any model.
    """
    from vivavoce.frontend.voices.voice import optional_fields

    known = ((models.of(one.fingerprint), one.fingerprint) for one in (voice, *voice.others) if one.fingerprint)
    model, fingerprint = next((one for one in known if one[0]), (None, voice.fingerprint))
    return {
        "name": voice.name,
        "kind": "built_in" if card else "stored",
        "speech_s": _seconds(voice),
        "transcript": voice.transcript,
        "description": voice.description,
        "language": voice.language,
        "sex": voice.sex,
        "licence": voice.licence,
        **dict.fromkeys(("consent", "consent_by", "consent_at", "adapter"), ""),
        **optional_fields(voice),
        "model": card or model,
        "fingerprint": fingerprint,
        "recording_bytes": len(voice.recording),
    }


def _row(about: dict[str, Any]) -> tuple[str, ...]:
    said = about["transcript"]
    return (
        about["name"],
        f"{about['speech_s']:.1f} s" if about["speech_s"] else "–",
        said if len(said) <= _TRANSCRIPT_CHARS else said[: _TRANSCRIPT_CHARS - 1] + "…",
        about["model"] or _NO_MODEL[not about["fingerprint"]],
        ", ".join(filter(None, (*_states(about), *map(about.get, _ABOUT)))),
    )


def _states(about: dict[str, Any]) -> tuple[str, str]:
    return "built in" * (about["kind"] == "built_in"), "with consent" * bool(about["consent"])


def _seconds(voice: Voice) -> float:
    """Return the seconds of the speech tokens. A token of 1/25 s has two or more mel frames, one of 1/50 s fewer."""
    tokens = len(voice.speech_tokens)
    return tokens / (25 if len(voice.mel) >= 2 * tokens else 50)
