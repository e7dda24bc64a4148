"""One loaded model behind every door: text, a voice and options in, audio out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.pipeline import Pipeline
from vivavoce.engine.request import (
    AudioChunk,
    SamplingParams,
    StageTimings,
    StreamRequest,
    SynthesisRequest,
    check_speed,
)
from vivavoce.errors import InvalidText
from vivavoce.models.build import build_models
from vivavoce.service.audio.wav import write_wav
from vivavoce.service.front_end import FrontEnd, load_front_end
from vivavoce.service.limits import MAX_BATCH_SEGMENTS, check_seed
from vivavoce.service.modes import END_OF_PROMPT, Mode, choose_mode, condition
from vivavoce.service.text.pieces import whole_words
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.fit import check_fits
from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True)
class SpeakOptions:
    """How a text is to be spoken; the voice comes beside it."""

    mode: Mode | None = None
    """None: the fullest mode that the voice allows."""
    instruct: str | None = None
    """How to speak, in words, as the model was trained to follow ("speak Sichuanese")."""
    speed: float = 1.0
    seed: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        check_speed(self.speed)
        check_seed(self.seed)


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
    """Finished audio; samples: [n] float32 in [−1, 1]."""

    samples: NDArray[np.float32]
    sample_rate: int
    timings: Timings

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.timings.total_s / self.duration_s

    def save(self, path: str | Path) -> None:
        """Write a 16-bit WAV file; InvalidRequest if the place cannot be written."""
        write_wav(path, self.samples, self.sample_rate)


class Synthesizer:
    """The facade over front ends and engine of one model."""

    def __init__(self, pipeline: Pipeline, front_end: FrontEnd) -> None:
        self.pipeline, self.folder, self.card = pipeline, front_end.folder, front_end.card
        self.text, self.extractor = front_end.text, front_end.extractor

    @classmethod
    def load(
        cls, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32, variant: str | None = None
    ) -> Synthesizer:
        """Load an official folder; see `build_models` for the arguments and errors."""
        models = build_models(folder, device, dtype, variant)
        return cls(Pipeline(models), load_front_end(folder, models.config))

    @property
    def config(self) -> ModelConfig:
        """Sizes and rates of the model."""
        return self.pipeline.models.config

    def requests(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[SynthesisRequest]:
        """One request per segment of the text; the segments' seeds follow one another."""
        first, *others = map(self.text.encode, self.text.segments(text))
        request = self._request(first, voice, options)
        return [request] + [
            replace(request, text=ids, seed=options.seed + place) for place, ids in enumerate(others, start=1)
        ]

    def speak(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> Speech:
        """The whole text; its segments are spoken side by side and joined in order."""
        started = time.perf_counter()
        requests = self.requests(text, voice, options)
        return self._finish(requests, started)

    def convert(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> Speech:
        """The words of a recording in another voice."""
        started = time.perf_counter()
        check_seed(seed)
        check_fits(voice, self.config)
        return self._finish([self.conversion(source, voice, speed, seed)], started)

    def conversion(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> SynthesisRequest:
        """The request of a voice conversion: the source's speech tokens, conditioned on the voice."""
        tokens = tuple(self.extractor.speech_tokens(source).tolist())
        mode = Mode.CROSS_LINGUAL if voice.has_prompt else Mode.SFT
        return SynthesisRequest(condition(voice, mode), speech_tokens=tokens, speed=speed, seed=seed)

    def stream(
        self,
        text: str | Iterable[str],
        voice: Voice,
        options: SpeakOptions = SpeakOptions(),
        policy: ChunkPolicy | None = None,
    ) -> Iterator[AudioChunk]:
        """Audio in chunks as it is made. What can be refused is refused before the first chunk.

        text: a text, or an iterable of pieces of it (from a language model, say) that is read as speech goes on;
        pieces are spoken as they are, without normalisation, word by word as they become whole, and each is checked
        when it arrives. Such a stream holds as much speech as the flow has noise for: 300 s, the voice's reference
        included.
        """
        policy = policy or ChunkPolicy.seamless()
        if isinstance(text, str):
            streams = [StreamRequest(request, policy) for request in self.requests(text, voice, options)]
        elif isinstance(text, Iterable) and not isinstance(text, bytes):
            streams = [self._text_stream(text, voice, options, policy)]
        else:
            raise InvalidText(f"text: {type(text).__name__} is no text; give a string or an iterable of strings")
        return self._chunks(streams)

    def _chunks(self, streams: list[StreamRequest]) -> Iterator[AudioChunk]:
        index = 0
        for place, stream in enumerate(streams):
            last = place == len(streams) - 1
            for chunk in self.pipeline.stream(stream):
                yield replace(chunk, index=index, final=chunk.final and last)
                index += 1

    def _text_stream(
        self, pieces: Iterable[str], voice: Voice, options: SpeakOptions, policy: ChunkPolicy
    ) -> StreamRequest:
        arriving = (ids for ids in map(self.text.encode_piece, whole_words(pieces)) if ids)
        first = next(arriving, None)
        if first is None:
            raise InvalidText("text: all pieces are empty; send some text")

        def all_pieces() -> Iterator[tuple[int, ...]]:
            yield first
            yield from arriving

        return StreamRequest(self._request(first, voice, options), policy, all_pieces())

    def _request(self, ids: tuple[int, ...], voice: Voice, options: SpeakOptions) -> SynthesisRequest:
        check_fits(voice, self.config)
        mode = choose_mode(voice, options.instruct, options.mode)
        instruction = self.instruction(options.instruct) if options.instruct else ()
        return SynthesisRequest(
            condition(voice, mode, instruction),
            text=ids,
            sampling=options.sampling,
            seed=options.seed,
            speed=options.speed,
        )

    def instruction(self, instruct: str) -> tuple[int, ...]:
        """Text ids of an instruction, its end mark added where it is missing."""
        ended = instruct if END_OF_PROMPT in instruct else instruct + END_OF_PROMPT
        return self.text.encode(self.text.normalize(ended))

    def _finish(self, requests: list[SynthesisRequest], started: float) -> Speech:
        text_s = time.perf_counter() - started
        samples, stages = [], []
        for first in range(0, len(requests), MAX_BATCH_SEGMENTS):
            batch = self.pipeline.run(requests[first : first + MAX_BATCH_SEGMENTS])
            samples += [utterance.samples for utterance in batch.utterances]
            stages.append(batch.timings)
        spent = StageTimings.total(stages)
        timings = Timings(text_s, spent.lm_s, spent.flow_s, spent.vocoder_s, time.perf_counter() - started)
        return Speech(np.concatenate(samples), self.config.rates.sample_rate, timings)
