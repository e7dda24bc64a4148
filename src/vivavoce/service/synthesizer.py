"""One loaded model behind every door: text, a voice and options in, audio out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import Arrival, Conditioning, SamplingParams, SpeechRequest, SynthesisRequest, check_speed
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidText
from vivavoce.models.build import build_models
from vivavoce.service.audio.encode_file import write_audio
from vivavoce.service.conditionings import Conditionings
from vivavoce.service.feeding import Parts, feed
from vivavoce.service.front_end import FrontEnd, load_front_end
from vivavoce.service.limits import check_seed
from vivavoce.service.marks import Mark, StreamMarks, marks_of
from vivavoce.service.modes import Mode, choose_mode, condition, ended
from vivavoce.service.text.normalize import parse_language
from vivavoce.service.text.pieces import whole_words
from vivavoce.service.text.rules import is_speakable
from vivavoce.service.text.sentences import located_sentences
from vivavoce.service.text.spans import TextSegment, locate
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
    language: str | None = None
    """Whose rules read the text, "en" or "zh"; None: those of Chinese where it holds a Chinese character. What arrives
    word by word is read as it is."""

    def __post_init__(self) -> None:
        check_speed(self.speed)
        check_seed(self.seed)
        if self.language is not None:
            parse_language(self.language)


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
        """Write a file in the format that its suffix names (.mp3, .opus …; else WAV); errors as `write_audio`."""
        write_audio(path, self.samples, self.sample_rate)


class Synthesizer:
    """The facade over front ends and engine of one model."""

    def __init__(self, engine: Engine, front_end: FrontEnd) -> None:
        self.engine, self.folder, self.card = engine, front_end.folder, front_end.card
        self.text, self.extractor = front_end.text, front_end.extractor
        self._conditionings = Conditionings(self.config)

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
        self.text.close()

    @property
    def config(self) -> ModelConfig:
        """Sizes and rates of the model."""
        return self.engine.models.config

    def requests(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[SynthesisRequest]:
        """One request per segment of the text; the segments' seeds follow one another."""
        return self.segment_requests(self.text.segments(text, options.language), voice, options)

    def segments(self, text: str, language: str | None = None) -> list[TextSegment]:
        """The segments in which a text is spoken, each with the characters that it speaks: all of them, in order.

        Raises:
            InvalidText, InvalidRequest: as `TextFrontEnd.segments`.
        """
        return locate(text, self.text.segments(text, language))

    def segment_requests(
        self, segments: Sequence[str], voice: Voice, options: SpeakOptions = SpeakOptions()
    ) -> list[SynthesisRequest]:
        """`requests` of a text whose segments `text.segments` gave."""
        conditioning = self._conditioning(voice, options)
        return [
            _request(conditioning, self.text.encode(segment), options, options.seed + place)
            for place, segment in enumerate(segments)
        ]

    def word_requests(
        self, pieces: Iterable[str], voice: Voice, options: SpeakOptions = SpeakOptions()
    ) -> Iterator[SynthesisRequest]:
        """Requests whose texts follow one another word by word, of a text that arrives in pieces."""
        conditioning = self._conditioning(voice, options)
        for ids in map(self.text.encode_piece, whole_words(pieces)):
            if ids:
                yield _request(conditioning, ids, options, options.seed)

    def speak(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> Speech:
        """The whole text; its segments are spoken side by side and joined in order."""
        started = time.perf_counter()
        self.engine.check_load(streaming=False)
        segments = self.segments(text, options.language)
        requests = self.segment_requests([segment.spoken for segment in segments], voice, options)
        return self._finish(requests, started, segments)

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
        marks: StreamMarks | None = None,
    ) -> Handle:
        """Audio in chunks as it is made: iterate the handle. What can be refused is refused here.

        text: a text, or an iterable of pieces of it (from a language model, say), which a thread reads as speech goes
        on; each piece is checked when it is read. Pieces are spoken as they are, word by word, or, where the model's
        card says so, sentence by sentence and normalised. A stream holds as much speech as the flow has noise for:
        300 s a segment, the voice's reference included. marks: learns of the segments; who listens tells it the chunks.
        """
        self.engine.check_load(streaming=True)
        policy, marks = policy or ChunkPolicy.low_latency(), marks or StreamMarks()
        if isinstance(text, str):
            requests = self._located_requests(self.segments(text, options.language), voice, options, marks)
            return self.engine.submit(SpeechRequest(tuple(requests), policy))
        if not isinstance(text, Iterable) or isinstance(text, bytes):
            raise InvalidText(f"text: {type(text).__name__} is no text; give a string or an iterable of strings")
        by_sentences = self.card.text_stream is TextStream.SENTENCES
        if by_sentences:
            segments = self._sentences(text, voice, options, marks)
        else:
            segments = self.word_requests(marks.expect_more(text), voice, options)
        first = next(segments, None)
        if first is None:
            raise InvalidText("text: all pieces are empty; send some text")
        arrival = Arrival.SEGMENTS if by_sentences else Arrival.TOKENS
        handle = self.engine.submit(SpeechRequest((first,), policy, arrival))
        parts: Parts = segments if by_sentences else (segment.text for segment in segments)
        feed(handle.text, parts)
        return handle

    def instruction(self, instruct: str) -> tuple[int, ...]:
        """Text ids of an instruction, its end mark added where it is missing."""
        return self.text.encode(self.text.normalize(ended(instruct)))

    def _sentences(
        self, pieces: Iterable[str], voice: Voice, options: SpeakOptions, marks: StreamMarks
    ) -> Iterator[SynthesisRequest]:
        """Requests of one segment each, as soon as a sentence is whole."""
        seed = options.seed
        for sentence in located_sentences(pieces):
            if not is_speakable(sentence.text):
                continue  # a line of dashes, say: the text around it is spoken
            segments = locate(sentence.text, self.text.segments(sentence.text, options.language), sentence.start)
            yield from self._located_requests(segments, voice, replace(options, seed=seed), marks)
            seed += len(segments)

    def _located_requests(
        self, segments: Sequence[TextSegment], voice: Voice, options: SpeakOptions, marks: StreamMarks
    ) -> list[SynthesisRequest]:
        requests = self.segment_requests([segment.spoken for segment in segments], voice, options)
        for segment in segments:
            marks.expect(segment)
        return requests

    def _conditioning(self, voice: Voice, options: SpeakOptions) -> Conditioning:
        if not options.instruct:
            return self._conditionings.of(voice, options.mode)
        check_fits(voice, self.config)
        return condition(voice, choose_mode(voice, options.instruct, options.mode), self.instruction(options.instruct))

    def _finish(self, requests: list[SynthesisRequest], started: float, segments: Sequence[TextSegment] = ()) -> Speech:
        text_s = time.perf_counter() - started
        spoken = self.engine.submit(SpeechRequest(tuple(requests))).result()
        spent = spoken.timings
        timings = Timings(text_s, spent.lm_s, spent.flow_s, spent.vocoder_s, time.perf_counter() - started)
        rate = self.config.rates.sample_rate
        return Speech(spoken.samples, rate, timings, marks_of(segments, spoken.segment_samples, rate, spoken.cut))


def _request(conditioning: Conditioning, ids: tuple[int, ...], options: SpeakOptions, seed: int) -> SynthesisRequest:
    return SynthesisRequest(conditioning, text=ids, sampling=options.sampling, seed=seed, speed=options.speed)
