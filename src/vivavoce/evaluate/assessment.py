"""Measures utterances and gathers their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.controls import Control, spoil_audio
from vivavoce.evaluate.instruments import Instruments
from vivavoce.evaluate.joins import JoinClicks, abruptness, abruptness_everywhere, join_clicks
from vivavoce.evaluate.recogniser import prepare
from vivavoce.evaluate.recordings_folder import RecordingsFolder
from vivavoce.evaluate.report import Report
from vivavoce.evaluate.runaways import runaway_reasons
from vivavoce.evaluate.scoring import recognise, spelled
from vivavoce.evaluate.similarity import References
from vivavoce.evaluate.speaking import Clip, VoiceLike, truth_seconds
from vivavoce.evaluate.summary import summarise
from vivavoce.evaluate.utterance import Utterance, measure_sound


@dataclass(frozen=True, eq=False)
class _Measured:
    """An utterance before it is listened to, and what later steps need of its audio."""

    utterance: Utterance
    wave: NDArray[np.int16]
    at_joins: NDArray[np.float64]
    usual: NDArray[np.float64]


def assess(
    clips: Iterable[Clip],
    voices: Mapping[str, VoiceLike],
    instruments: Instruments = Instruments(),
    *,
    control: Control | None = None,
    folder: RecordingsFolder | None = None,
    settings: Mapping[str, Any] | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure clips, one by one as they come, then listen to all of them.

    Args:
        clips: the utterances. Their samples are dropped once they are measured.
        voices: references by name, for similarity; voices of clips may be missing.
        instruments: what to measure with.
        control: spoil audio or texts first.
        folder: keep the audio, as it is measured, in files.
        settings: for the report.
        show: called with a few words on what is being done.

    Raises:
        InvalidRequest: no clips; the recogniser fails; files cannot be written.
        InvalidAudio: a person's recording cannot be read.
    """
    references = References(voices)
    measured = [_measure(_spoiled(clip, control), references, instruments, folder) for clip in clips]
    if not measured:
        raise InvalidRequest("sentences: there are none; give at least one")
    utterances = [one.utterance for one in measured]
    found = recognise(utterances, [one.wave for one in measured], instruments, control, show)
    reasons = runaway_reasons(utterances, instruments.longest_s)
    usual = np.concatenate([one.usual for one in measured])
    utterances = [
        replace(utterance, recognition=heard, runaway=reason, joins=_clicks([one], usual))
        for utterance, heard, reason, one in zip(utterances, found, reasons, measured, strict=True)
    ]
    if folder is not None:
        folder.write_table(utterances)
    return _gather(utterances, measured, usual, settings or {})


def _spoiled(clip: Clip, control: Control | None) -> Clip:
    if control in (Control.SHUFFLED, Control.REVERSED):
        samples = spoil_audio(clip.samples, clip.sample_rate, control)
        return replace(clip, samples=samples, joins=(), whole=None)  # the joins are elsewhere now
    return clip


def _measure(
    clip: Clip, references: References, instruments: Instruments, folder: RecordingsFolder | None
) -> _Measured:
    sound = measure_sound(clip, spelled(clip.case.text, instruments.spell), truth_seconds(clip.case))
    embedding = None if instruments.embed is None else instruments.embed(clip.samples, clip.sample_rate)
    nothing = np.zeros(0)
    return _Measured(
        Utterance(
            id=clip.case.id,
            voice=clip.voice,
            text=clip.case.text,
            seed=clip.seed,
            audio=None if folder is None else folder.write(clip),
            sound=sound,
            similarities=None if embedding is None else references.similarities(embedding, clip.voice),
            joins=None,
            recognition=None,
            num_references=len(references),
        ),
        prepare(clip.samples, clip.sample_rate),
        abruptness(clip.samples, clip.sample_rate, clip.joins) if clip.joins else nothing,
        nothing if clip.whole is None else abruptness_everywhere(clip.whole, clip.sample_rate),
    )


def _clicks(measured: Sequence[_Measured], usual: NDArray[np.float64]) -> JoinClicks | None:
    if not len(usual):
        return None
    return join_clicks(np.concatenate([one.at_joins for one in measured]), usual)


def _gather(
    utterances: Sequence[Utterance],
    measured: Sequence[_Measured],
    usual: NDArray[np.float64],
    settings: Mapping[str, Any],
) -> Report:
    by_voice: dict[str, Any] = {}
    for voice in dict.fromkeys(utterance.voice for utterance in utterances):
        places = [place for place, utterance in enumerate(utterances) if utterance.voice == voice]
        clicks = _clicks([measured[place] for place in places], usual)
        by_voice[voice] = summarise([utterances[place] for place in places], clicks)
    return Report(settings, summarise(utterances, _clicks(measured, usual)), by_voice, tuple(utterances))
