"""The whole evaluation in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from vivavoce.evaluate.assessment import assess
from vivavoce.evaluate.cases import Case
from vivavoce.evaluate.controls import Control
from vivavoce.evaluate.instruments import Instruments
from vivavoce.evaluate.recogniser import RecogniserFactory
from vivavoce.evaluate.report import Report
from vivavoce.evaluate.scoring import ready
from vivavoce.evaluate.sentences import SENTENCES
from vivavoce.evaluate.similarity import embed_with
from vivavoce.evaluate.speaking import Manner, Talker, VoiceLike, plan, speak_all
from vivavoce.evaluate.sphinx import PocketSphinx
from vivavoce.evaluate.wording import Spell


def evaluate(
    tts: Talker,
    voices: Mapping[str, VoiceLike],
    sentences: Sequence[str | Case] = SENTENCES,
    *,
    recogniser: RecogniserFactory | None = PocketSphinx,
    spell: Spell | None = None,
    manner: Manner = Manner(),
    control: Control | None = None,
    jobs: int = 1,
    show: Callable[[str], None] = lambda _: None,
) -> Report:
    """Let a model speak every sentence in every voice, and measure what comes out.

    Args:
        tts: what `vivavoce.load` gives.
        voices: by any name: `{"anna": tts.voice("anna"), "me": tts.voice("me.wav", "What I say.")}`.
        sentences: texts, or cases that know more.
        recogniser: makes what writes down the speech; None: nothing is written down.
        spell: writes numbers as words before texts are compared; None: the model's own `normalize`.
        manner: mode, seed, sampling, and whether to stream.
        control: spoil audio or texts, to see that bad speech gets bad figures.
        jobs: processes for the recogniser.
        show: called with a few words on what is being done.

    Raises:
        VivavoceError: bad input, or a recogniser that fails; the message says what to do.
    """
    cases = [*_as_cases(sentences)]
    instruments = Instruments(recogniser, jobs, spell or tts.normalize, embed_with(tts.embed))
    instruments = ready(cases, instruments, control)
    total = len(plan(cases, list(voices)))
    clips = speak_all(tts, cases, voices, manner, lambda number: show(f"speaking … {number} of {total}"))
    settings = {**asdict(manner), "control": None if control is None else control.value}
    return assess(clips, voices, instruments, control=control, settings=settings, show=show)


def _as_cases(sentences: Sequence[str | Case]) -> Iterator[Case]:
    for number, sentence in enumerate(sentences, start=1):
        yield sentence if isinstance(sentence, Case) else Case(f"{number:04d}", sentence)
