"""One loaded model behind every entry point: text, a voice and options in, audio out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import EngineRequest, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import build_models
from vivavoce.service.audio.encode import write_audio
from vivavoce.service.front_end import ModelFrontEnd, PlannedSegment, load_front_end
from vivavoce.service.session import RequestSession
from vivavoce.service.speech import Mark, SpeakOptions, check_seed, marks_of
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.voice import Voice, check_fits


@dataclass(frozen=True)
class Timings:
    """Seconds spent, by stage, and in all; extracting the voice comes before and is not counted."""

    text_s: float
    lm_s: float
    flow_s: float
    vocoder_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Speech:
    """Finished audio; samples: [n] float32 in [−1, 1].

    marks: for each segment of the text which of its characters it speaks, and when; () where there was no text.
    """

    samples: NDArray[np.float32]
    sample_rate: int
    timings: Timings
    marks: tuple[Mark, ...] = ()

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.timings.total_s / self.duration_s

    def save(self, path: str | Path) -> None:
        """Write a file in the format that its suffix names (.wav, .mp3, .opus …); errors as `write_audio`."""
        write_audio(path, self.samples, self.sample_rate)


class Synthesizer:
    """An engine and the front end of its model."""

    def __init__(self, engine: Engine, front_end: ModelFrontEnd) -> None:
        self.engine, self.front_end = engine, front_end

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        variant: str | None = None,
        settings: EngineSettings = EngineSettings(),
        text_processes: int = 0,
    ) -> Synthesizer:
        """Load an official folder; see `build_models` and `TextFrontEnd` for the arguments and errors."""
        models = build_models(folder, device, dtype, variant)
        return cls(Engine(models, settings), load_front_end(folder, models.config, text_processes))

    def close(self) -> None:
        """Finish what was asked for, and stop."""
        self.engine.close()
        self.front_end.text.close()

    def speak(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> Speech:
        """The whole text; its segments are spoken side by side and joined. Errors as `RequestSession.start`."""
        started = time.perf_counter()
        self.engine.check_load(streaming=False)
        planned = self.front_end.plan(text, voice, options)
        return self._finish([one.request for one in planned], started, text, planned)

    def convert(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> Speech:
        """The words of a recording in another voice; InvalidAudio, InvalidRequest: what cannot be used."""
        started = time.perf_counter()
        check_seed(seed)
        check_fits(voice, self.front_end.config)
        return self._finish([self.front_end.plan_conversion(source, voice, speed, seed)], started)

    def stream(
        self,
        text: str | Iterable[str],
        voice: Voice,
        options: SpeakOptions = SpeakOptions(),
        policy: ChunkPolicy | None = None,
    ) -> RequestSession:
        """Audio in chunks as it is made, see `RequestSession.start`; a segment holds 300 s, its reference included."""
        session = RequestSession(self.engine, self.front_end, policy)
        session.start(text, voice, options)
        return session

    def _finish(
        self, requests: list[SegmentRequest], started: float, text: str = "", planned: Sequence[PlannedSegment] = ()
    ) -> Speech:
        text_s = time.perf_counter() - started
        spoken = self.engine.submit(EngineRequest(tuple(requests))).result()
        spent, rate = spoken.timings, self.front_end.config.rates.sample_rate
        timings = Timings(text_s, spent.lm_s, spent.flow_s, spent.vocoder_s, time.perf_counter() - started)
        spans = [(one.start, one.end) for one in planned]
        return Speech(spoken.samples, rate, timings, marks_of(text, spans, spoken.segment_samples, rate, spoken.cut))
