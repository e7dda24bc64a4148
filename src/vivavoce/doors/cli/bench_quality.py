"""What the audio of a load is like, by the instruments of `vivavoce eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vivavoce.bench.outcome import Outcome
    from vivavoce.doors.cli.bench_engine import Talker
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.service.voices.voice import Voice

KEPT = ("wer_free", "wer_free_low", "wer_free_high", "wer_closed", "per", "speaker_similarity", "runaways")
"""Keys of an evaluation's summary that stand beside the latencies."""


def ready_instruments(tts: Talker, texts: Sequence[str], jobs: int) -> Instruments:
    """A recogniser and a speaker encoder, tried out before the load is put on.

    Raises:
        TalkerError: the recogniser is not installed, or a text leaves nothing to hear.
    """
    from vivavoce.evaluate.cases import cases_of
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.evaluate.scoring import ready
    from vivavoce.evaluate.similarity import embed_with
    from vivavoce.evaluate.sphinx import PocketSphinx

    return ready(cases_of(texts), Instruments(PocketSphinx, jobs, tts.normalize, embed_with(tts.embed)), None)


def quality(
    ok: Sequence[Outcome], voices: Mapping[str, Voice], instruments: Instruments, show: Callable[[str], None]
) -> dict[str, Any]:
    """Flat keys; None where nothing could be measured. `ok`: requests with their samples."""
    from vivavoce.evaluate.assessment import assess
    from vivavoce.evaluate.cases import Case
    from vivavoce.evaluate.speaking import Clip

    if not ok:
        return dict.fromkeys(KEPT)
    clips = (
        Clip(
            Case(f"{outcome.utterance.number:04d}", outcome.utterance.text),
            outcome.utterance.voice or "",
            outcome.samples,
            outcome.sample_rate,
            outcome.utterance.seed,
        )
        for outcome in ok
    )
    summary = assess(clips, voices, instruments, show=show).summary
    return {key: summary.get(key) for key in KEPT}
