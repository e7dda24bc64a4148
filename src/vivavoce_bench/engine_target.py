"""Load-test a loaded model, and measure the quality of its audio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vivavoce.api import Vivavoce
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import Overloaded
from vivavoce.frontend.voices.voice import Voice
from vivavoce_bench.evaluate import Case, Clip, Instruments, PocketSphinx, assess
from vivavoce_bench.evaluate.assessment import ready
from vivavoce_bench.evaluate.cases import cases_of
from vivavoce_bench.evaluate.similarity import embed_with
from vivavoce_bench.load import Outcome, Piece, Refused, Utterance, is_audible
from vivavoce_bench.recordings import Recorded, altered

QUALITY_KEYS = ("wer_free", "wer_free_low", "wer_free_high", "wer_closed", "per", "speaker_similarity", "runaways")


@dataclass(frozen=True, eq=False)
class EngineTarget:
    """A loaded model as a `Target`.

    voices: by the names that utterances have; a recording is altered and extracted within each request. policy: None
    requests whole utterances; keep: keep the samples.
    """

    tts: Vivavoce
    voices: Mapping[str, Voice | Recorded]
    policy: ChunkPolicy | None
    sampling: SamplingParams
    keep: bool

    @property
    def sample_rate(self) -> int:
        return self.tts.sample_rate

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        voice = None if utterance.voice is None else self.voices[utterance.voice]
        if isinstance(voice, Recorded):
            content = altered(voice.content, utterance.number)
            voice = await asyncio.to_thread(self.tts.voice, content, voice.transcript)
        keywords: dict[str, Any] = {"seed": utterance.seed, "sampling": self.sampling}
        try:
            if self.policy is None:
                samples = (await self.tts.aspeak(utterance.text, voice, **keywords)).samples
                yield Piece(len(samples), samples if self.keep else None, is_audible(samples))
                return
            async for chunk in self.tts.astream(utterance.text, voice, policy=self.policy, **keywords):
                kept = chunk.samples if self.keep else None
                yield Piece(len(chunk.samples), kept, is_audible(chunk.samples))
        except Overloaded as error:
            raise Refused(error.retry_after_s) from error


def instruments_for(tts: Vivavoce, utterances: Sequence[Utterance], jobs: int) -> Instruments:
    """Make and test the recogniser and the speaker encoder before the load starts; errors as in `ready`."""
    texts = dict.fromkeys(utterance.text for utterance in utterances)
    return ready(cases_of(texts), Instruments(PocketSphinx, jobs, tts.normalize, embed_with(tts.embed)), None)


def quality(
    ok: Sequence[Outcome], voices: Mapping[str, Voice], instruments: Instruments, show: Callable[[str], None]
) -> dict[str, Any]:
    """Measure errors and speaker similarity of successful requests with samples; unmeasured values are None."""
    if not ok:
        return dict.fromkeys(QUALITY_KEYS)
    clips = (
        Clip(Case(f"{one.number:04d}", one.text), one.voice or "", outcome.samples, outcome.sample_rate, one.seed)
        for outcome in ok
        for one in [outcome.utterance]
    )
    summary = assess(clips, voices, instruments, show=show).summary
    return {key: summary.get(key) for key in QUALITY_KEYS}
