"""Evaluate speech: measure each utterance and compare its transcript with its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce_bench.evaluate.cases import SENTENCES, Case
from vivavoce_bench.evaluate.error_rate import Spell, align, as_written, is_unspaced, num_characters, split_like
from vivavoce_bench.evaluate.recogniser import (
    Heard,
    PocketSphinx,
    RecogniserFactory,
    Task,
    listen,
    prepare,
    unknown_words,
)
from vivavoce_bench.evaluate.report import MOST_REFERENCES, EvaluationReport, RecordingsFolder, Row, summarise
from vivavoce_bench.evaluate.sound import abruptness, abruptness_everywhere, clipping_share, join_clicks, pitch, silence
from vivavoce_bench.evaluate.speaking import (
    Clip,
    Control,
    Embed,
    Manner,
    Samples,
    VoiceLike,
    as_vector,
    cosines,
    embed_with,
    speak_all,
    spoil_audio,
    spoil_texts,
    truth_seconds,
)

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce


@dataclass(frozen=True)
class Instruments:
    """The tools and limits of an evaluation. If a tool such as the recogniser is None, its measurement is skipped."""

    recogniser: RecogniserFactory | None = None
    jobs: int = 1
    """Number of recogniser processes. 1 means that the recogniser runs in this process."""
    spell: Spell = as_written
    """Normalises texts and transcripts before they are compared."""
    embed: Embed | None = None
    judge: Callable[[Samples, int], Mapping[str, float]] | None = None
    """Predicts opinion scores: (samples, sample rate) → scores by key, see `opinion`."""
    longest_s: Callable[[str], float] | None = None
    """Text → length in seconds at which the model stops generating speech."""


def evaluate(
    tts: Vivavoce,
    voices: Mapping[str, VoiceLike],
    sentences: Sequence[str | Case] = SENTENCES,
    *,
    recogniser: RecogniserFactory | None = PocketSphinx,
    spell: Spell | None = None,
    manner: Manner = Manner(),
    control: Control | None = None,
    jobs: int = 1,
    show: Callable[[str], None] = lambda _: None,
) -> EvaluationReport:
    """Speak every sentence in every voice and measure the audio; see docs/measuring.md.

    voices maps names of your choice to voices, as in `{"me": tts.voice("me.wav", "What I say.")}`; sentences are texts
    or cases. spell normalises a text, by default as the model's `normalize`. show is called with a short progress
    message. Raises `VivavoceError` if the input is bad or the recogniser fails.
    """
    cases = [
        one if isinstance(one, Case) else Case(f"{number:04d}", one) for number, one in enumerate(sentences, start=1)
    ]
    instruments = ready(cases, Instruments(recogniser, jobs, spell or tts.normalize, embed_with(tts.embed)), control)
    clips = speak_all(tts, cases, voices, manner, show)
    settings = {**asdict(manner), "control": None if control is None else control.value}
    return assess(clips, voices, instruments, control=control, settings=settings, show=show)


def ready(cases: Sequence[Case], instruments: Instruments, control: Control | None = None) -> Instruments:
    """Test the recogniser and refuse sentences that cannot be scored, before any speech is generated.

    Returns the instruments; with one job, they keep the recogniser of the test. `InvalidText`: a text cannot be
    normalised. `InvalidRequest` or `MissingDependency`: the recogniser fails, or knows no word of a text.
    """
    spoil_texts([case.text for case in cases], control)
    texts = []
    for case in cases:
        try:
            texts.append(instruments.spell(case.text))
        except InvalidText as error:
            raise InvalidText(f"sentence {case.id}: {error}") from None
    if instruments.recogniser is None:
        return instruments
    recogniser = instruments.recogniser()
    for case, text in zip(cases, texts, strict=True):
        said = split_like(text)(text)
        if len(unknown_words(recogniser, said)) == len(said):
            raise InvalidRequest(
                f"recogniser: it knows no word of sentence {case.id}, {case.text[:40]!r}; name another "
                "recogniser, or leave the sentence out"
            )
    return instruments if instruments.jobs > 1 else replace(instruments, recogniser=lambda: recogniser)


@dataclass(frozen=True, eq=False)
class _Measured:
    row: Row
    wave: NDArray[np.int16]
    at_joins: NDArray[np.float64]
    usual: NDArray[np.float64]
    cosines: dict[str, float]


def assess(
    clips: Iterable[Clip],
    voices: Mapping[str, VoiceLike],
    instruments: Instruments = Instruments(),
    *,
    control: Control | None = None,
    folder: RecordingsFolder | None = None,
    settings: Mapping[str, Any] | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> EvaluationReport:
    """Measure each clip when it arrives, then transcribe all clips. The clips' samples are not kept in memory.

    voices: the voices that speaker similarity compares with, by name; folder: where the audio is saved; settings: shown
    in the report. `InvalidRequest`: the list of clips is empty, the recogniser fails, or a file cannot be written.
    """
    references = {name: as_vector(voice.embedding) for name, voice in voices.items()}
    measured = [_measure(clip, references, instruments, control, folder) for clip in clips]
    if not measured:
        raise InvalidRequest("sentences: the list is empty; give at least one")
    rows = [one.row for one in measured]
    usual = np.concatenate([one.usual for one in measured])

    def clicks(some: Sequence[_Measured]) -> Row:
        return join_clicks(np.concatenate([one.at_joins for one in some]), usual)._asdict() if len(usual) else {}

    _mark_runaways(rows, instruments.longest_s)
    for one in measured:
        one.row.update(clicks([one]))
    _recognise(rows, [one.wave for one in measured], instruments, control, show)
    if folder is not None:
        folder.write_table(rows)
    by_voice, matrix = {}, {}
    for voice in dict.fromkeys(row["voice"] for row in rows):
        own = [one for one in measured if one.row["voice"] == voice]
        by_voice[voice] = summarise([one.row for one in own], len(references), clicks(own))
        compared = [one.cosines for one in own if one.cosines]
        if compared and len(references) <= MOST_REFERENCES:
            matrix[voice] = {name: float(np.mean([each[name] for each in compared])) for name in references}
    summary = summarise(rows, len(references), clicks(measured))
    return EvaluationReport(settings or {}, summary, by_voice, matrix, tuple(rows))


def _measure(
    clip: Clip,
    references: Mapping[str, NDArray[np.float32]],
    instruments: Instruments,
    control: Control | None,
    folder: RecordingsFolder | None,
) -> _Measured:
    if control in (Control.SHUFFLED, Control.REVERSED):
        samples = spoil_audio(clip.samples, clip.sample_rate, control)
        clip = replace(clip, samples=samples, joins=(), whole=None)  # the joins are not at the same samples any more
    case, samples, rate = clip.case, clip.samples, clip.sample_rate
    duration, truth_s = len(samples) / rate, truth_seconds(case)
    count = num_characters(_spelled(case.text, instruments.spell))
    silence_ratio, longest_silence_s = silence(samples, rate)
    embedding = None if instruments.embed is None else instruments.embed(samples, rate)
    likeness = {} if embedding is None else cosines(embedding, references)
    row = {
        "id": case.id,
        "voice": clip.voice,
        "text": case.text,
        "seed": clip.seed,
        "audio": None if folder is None else folder.write(clip),
        "duration_s": duration,
        "num_characters": count,
        "s_per_character": duration / count if count else None,
        "length_ratio": duration / truth_s if truth_s else None,
        "silence_ratio": silence_ratio,
        "longest_silence_s": longest_silence_s,
        **pitch(samples, rate),
        "clipping_share": clipping_share(samples),
        **({} if instruments.judge is None else instruments.judge(samples, rate)),
        "rtf": clip.work_s / duration if clip.work_s is not None and duration else None,
        "first_audio_s": clip.first_audio_s,
        "speaker_similarity": likeness.get(clip.voice),
        "nearest_voice": max(likeness, key=likeness.__getitem__)
        if clip.voice in likeness and len(likeness) > 1
        else None,
    }
    return _Measured(
        row,
        prepare(samples, rate),
        abruptness(samples, rate, clip.joins),
        np.zeros(0) if clip.whole is None else abruptness_everywhere(clip.whole, rate),
        likeness if len(references) <= MOST_REFERENCES else {},  # n voices have n² cosines
    )


_TIMES = 2.0
_SLACK_S = 1.0
"""Seconds by which every utterance may exceed its expected duration, because short texts take longer per character."""
_AT_LIMIT = 0.98


def _mark_runaways(rows: Sequence[Row], longest_s: Callable[[str], float] | None) -> None:
    """Set each row's `runaway` to a reason if speech did not stop in time, else to None.

    Speech did not stop in time if it reaches the length at which generation stops, or if it lasts more than twice the
    time expected from the voice's median pace and exceeds this time by more than a second.
    """
    paces: dict[str, list[float]] = {}
    for row in rows:
        if row["s_per_character"] is not None:
            paces.setdefault(row["voice"], []).append(row["s_per_character"])
    for row in rows:
        duration, expected = row["duration_s"], 0.0
        if row["s_per_character"] is not None:
            expected = median(paces[row["voice"]]) * row["num_characters"]
        row["runaway"] = None
        if longest_s is not None and duration >= _AT_LIMIT * longest_s(row["text"]):
            row["runaway"] = "length limit"
        elif expected and duration > max(_TIMES * expected, expected + _SLACK_S):
            row["runaway"] = f"{duration / expected:.1f} times the expected length"


def _recognise(
    rows: Sequence[Row],
    waves: Sequence[NDArray[np.int16]],
    instruments: Instruments,
    control: Control | None,
    show: Callable[[str], None],
) -> None:
    """Add the recogniser's figures to each row. `prepare` made the waves. Raises the errors of `listen`."""
    if instruments.recogniser is None:
        return
    said = spoil_texts([row["text"] for row in rows], control)
    texts = [_spelled(text, instruments.spell) for text in said]
    tasks = [Task(wave, tuple(split_like(text)(text))) for text, wave in zip(texts, waves, strict=True)]
    show(f"listening to {len(tasks)} utterances …")
    found = listen(
        tasks, instruments.recogniser, instruments.jobs, lambda done: show(f"listening … {done} of {len(tasks)}")
    )
    for row, text, task, heard in zip(rows, texts, tasks, found, strict=True):
        row.update(_scores(text, task.said, heard, instruments.spell))


def _spelled(text: str, spell: Spell) -> str:
    try:
        return spell(text) if text.strip() else ""
    except InvalidText:
        return text


def _scores(text: str, said: Sequence[str], heard: Heard, spell: Spell) -> Row:
    row: Row = {
        "unit": "character" if is_unspaced(text) else "word",
        "said": " ".join(said),
        "unknown": [unit for unit in said if unit in heard.unknown],
        "heard_free": heard.free,
        "heard_closed": heard.closed,
        "heard_phones": heard.phones,
    }
    known = [unit for unit in said if unit not in heard.unknown]
    for name, transcript in (("free", heard.free), ("closed", heard.closed)):
        if transcript is not None:
            edits = align(known, split_like(text)(_spelled(transcript, spell)))
            row |= {f"{name}_{kind}": count for kind, count in edits._asdict().items()}
    if heard.phones is not None:
        row |= {"phone_errors": heard.phone_errors, "phone_total": heard.num_phones}
    return row
