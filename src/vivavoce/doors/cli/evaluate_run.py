"""The work of `vivavoce eval`: speech or recordings in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.evaluate_voices import (
    PromptVoices,
    Voices,
    longest_speech,
    prompt_references,
    text_front_end,
)
from vivavoce.doors.cli.model import ModelChoice, load_model, note_if_no_real_model
from vivavoce.version import __version__

if TYPE_CHECKING:
    from vivavoce.evaluate.cases import Case
    from vivavoce.evaluate.controls import Control
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.evaluate.recogniser import RecogniserFactory
    from vivavoce.evaluate.recordings_folder import RecordingsFolder
    from vivavoce.evaluate.report import Report
    from vivavoce.evaluate.speaking import Clip, Manner, VoiceLike
    from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """What is evaluated and how, checked as far as that needs no model."""

    choice: ModelChoice
    cases: Sequence[Case]
    source: str
    """Where the cases are from, for the report."""
    one_voice_each: bool
    """Every case names a prompt recording."""
    voices: Sequence[str]
    prompt_texts: Sequence[str]
    manner: Manner
    control: Control | None
    recogniser: RecogniserFactory | None
    recogniser_name: str
    jobs: int
    folder: RecordingsFolder | None
    """Where the audio is kept."""


def speak_and_score(request: EvaluationRequest, reporter: Reporter) -> Report:
    """Let the model speak all cases, and measure."""
    with reporter.working("starting …"):
        from vivavoce.evaluate.similarity import embed_with
        from vivavoce.evaluate.speaking import plan, speak_all
        from vivavoce.service.default_model import model_folder

        place = model_folder(request.choice.model)
        text = text_front_end(place)
        # What cannot be scored is refused before the networks load.
        instruments = _ready_instruments(request, text.normalize)
    tts = load_model(request.choice, reporter).tts
    with reporter.working("preparing …") as show:
        voices = _voices_to_speak(request, Voices(place, tts.voices(), tts.voice))
        references = prompt_references(request.cases, tts.embed, show) if request.one_voice_each else voices
        instruments = replace(
            instruments,
            embed=embed_with(tts.embed),
            longest_s=longest_speech(place, text, request.manner.sampling.max_ratio),
        )
        total = len(plan(request.cases, list(voices)))
        clips = speak_all(
            tts, request.cases, voices, request.manner, lambda number: show(f"speaking … {number} of {total}")
        )
        settings = {"model": tts.card.name, "trained": tts.card.trained, **_manner_json(request.manner)}
        report = _assess(request, clips, references, instruments, settings, show)
    note_if_no_real_model(tts.card, reporter)
    return report


def score_recordings(request: EvaluationRequest, reporter: Reporter) -> Report:
    """Measure the cases' recordings; of the model only its text rules and encoders are loaded."""
    with reporter.working("starting …") as show:
        from vivavoce.checkpoint.folder import read_card
        from vivavoce.evaluate.speaking import UNNAMED, read_all
        from vivavoce.service.default_model import model_folder

        place = model_folder(request.choice.model)
        instruments = _ready_instruments(request, text_front_end(place).normalize)
        references: Mapping[str, VoiceLike] = {}
        if request.voices or any(case.voice for case in request.cases):
            instruments, references = _compare_with(request, place, instruments, show)
        label = request.voices[0] if request.voices else UNNAMED
        total = len(request.cases)
        clips = read_all(request.cases, label, lambda number: show(f"measuring … {number} of {total}"))
        return _assess(request, clips, references, instruments, {"model": read_card(place).name}, show)


def _ready_instruments(request: EvaluationRequest, spell: Callable[[str], str]) -> Instruments:
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.evaluate.scoring import ready

    return ready(request.cases, Instruments(request.recogniser, request.jobs, spell), request.control)


def _voices_to_speak(request: EvaluationRequest, found: Voices) -> Mapping[str, Voice]:
    if request.one_voice_each:
        return PromptVoices(request.cases, found.resolve)
    if not request.voices:
        return found.of_the_model()
    return found.named_or_recorded(request.voices, request.prompt_texts)


def _compare_with(
    request: EvaluationRequest, place: Path, instruments: Instruments, show: Callable[[str], None]
) -> tuple[Instruments, Mapping[str, VoiceLike]]:
    """(the instruments with a speaker encoder, the speakers that recordings are compared with)."""
    from vivavoce.evaluate.similarity import embed_with
    from vivavoce.service.front_end import load_front_end
    from vivavoce.service.voices.built_in import built_in_voices
    from vivavoce.service.voices.registry import VoiceRegistry
    from vivavoce.service.voices.stores.opening import open_voice_store

    extractor = load_front_end(place).extractor
    instruments = replace(instruments, embed=embed_with(extractor.embedding))
    if request.one_voice_each:
        return instruments, prompt_references(request.cases, extractor.embedding, show)
    store = open_voice_store(request.choice.voices, None).of("")
    registry = VoiceRegistry(extractor, store, built_in_voices(place), extractor.fingerprint)
    of_cases = dict.fromkeys(case.voice for case in request.cases if case.voice is not None)
    found = Voices(place, registry.names(), registry.resolve)
    return instruments, found.named_or_recorded([*request.voices, *of_cases], request.prompt_texts)


def _assess(
    request: EvaluationRequest,
    clips: Iterable[Clip],
    references: Mapping[str, VoiceLike],
    instruments: Instruments,
    settings: Mapping[str, Any],
    show: Callable[[str], None],
) -> Report:
    from vivavoce.evaluate.assessment import assess

    control = request.control
    described = {
        "vivavoce": __version__,
        **settings,
        "sentences": request.source,
        "recogniser": request.recogniser_name,
        "control": control.value if control is not None else None,
    }
    return assess(clips, references, instruments, control=control, folder=request.folder, settings=described, show=show)


def _manner_json(manner: Manner) -> dict[str, Any]:
    return {
        "mode": manner.mode.value if manner.mode is not None else None,
        "instruct": manner.instruct,
        "seed": manner.seed,
        "top_p": manner.sampling.top_p,
        "top_k": manner.sampling.top_k,
        "stream": manner.stream,
    }
