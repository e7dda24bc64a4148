"""`python -m benchmarks.http_overhead.engine SETTINGS`: the engine in this process, used through the Python API.

SETTINGS: a server's settings as JSON. Its first output tells the machine, the voices, and each sentence's text tokens.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.gpu.model import origin
from benchmarks.http_overhead.loads import Load, answer_loads
from vivavoce.api import Vivavoce, load
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams
from vivavoce.engine_process.model_service import engine_settings
from vivavoce.frontend.model_choice import model_folder
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce.server.settings import ServerSettings
from vivavoce_bench.load import Piece, Utterance
from vivavoce_bench.texts import SENTENCES


@dataclass(frozen=True, eq=False)
class EngineSpeaker:
    """A `LoadTarget` with the engine in this process."""

    tts: Vivavoce
    accepted_s: dict[int, float] = field(default_factory=dict)

    def target(self, load: Load) -> EngineTarget:
        """The target for the requests of one load."""
        return EngineTarget(self, load)


@dataclass(frozen=True, eq=False)
class EngineTarget:
    """A `Target` of one load; requests begin in threads, as in a program with several users."""

    speaker: EngineSpeaker
    load: Load

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio."""
        return self.speaker.tts.sample_rate

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """Yield the pieces of the utterance's audio as they arrive."""
        sampling = SamplingParams(**self.load.sampling(utterance.text))  # type: ignore[arg-type]
        stream = await asyncio.to_thread(
            self.speaker.tts.astream,
            utterance.text,
            utterance.voice,
            seed=utterance.seed,
            sampling=sampling,
            policy=ChunkPolicy.parse(self.load.policy),
        )
        self.speaker.accepted_s[utterance.number] = asyncio.get_running_loop().time()
        async for chunk in stream:
            yield Piece(len(chunk.samples))

    async def close(self) -> None:
        """Do nothing: the engine stays loaded for the next load."""


def main() -> None:
    """Load and warm up as a server with these settings does, then answer loads."""
    settings = ServerSettings.model_validate_json(sys.argv[1])
    chosen = settings.model
    folder = model_folder(chosen.model)
    tts = load(
        folder,
        device=chosen.device,
        dtype=chosen.dtype,
        voices=settings.voices.place,
        settings=engine_settings(chosen, settings.engine),
        text_processes=chosen.text_processes,
    )
    tts.warm_up(chosen.warm_up_s)
    about = {
        **origin("benchmarks.http_overhead", tts.device),
        "model": tts.card.name,
        "dtype": str(tts.dtype).removeprefix("torch."),
        "voices": list(built_in_voices(folder)),
        "text_tokens": {text: _text_tokens(tts, text) for text in SENTENCES},
    }
    answer_loads(about, EngineSpeaker(tts), tts.close)


def _text_tokens(tts: Vivavoce, text: str) -> int:
    front_end = tts.front_end.text  # limits of length count its tokens, which the API does not show
    return sum(len(front_end.encode(segment)) for segment in front_end.segments(text, reading="natural"))


if __name__ == "__main__":
    main()
