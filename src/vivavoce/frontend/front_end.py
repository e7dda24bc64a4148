"""The front end: text, a voice and options become sequences for the engine. It needs no engine and loads no network.

Which features of a voice reach which stage is the table of `modes`. A text, transcript or instruction for CosyVoice3
may bring a system prompt of its own, as scripts for the official code do: what stands up to `<|endofprompt|>`, the mark
included, is then given to the language model in place of ours, and is not spoken.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from weakref import WeakKeyDictionary

from vivavoce.checkpoint import folder as official
from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import ModelCard, TextStream
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.engine.request import MAX_SPEED, MIN_SPEED, Conditioning, InputMode, SegmentRequest
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.frontend.modes import CONVERSION, MODES, GenerationModes, choose_mode, condition
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, Mode, SpeakOptions, without_instructions
from vivavoce.frontend.text.sentence_stream import sentence_stream
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT, TextTokenizer
from vivavoce.frontend.voices.extract import AudioSource, VoiceExtractor
from vivavoce.frontend.voices.voice import Voice, check_fits
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce_textnorm import CancelCheck, check_paused, is_speakable, never_cancelled

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PlannedSegment:
    """A sequence for the engine; it speaks the characters start … end − 1 of the input."""

    request: SegmentRequest
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """Plans what the engine is to speak. Safe to use from several threads.

    What a voice brings to the engine is worked out once for each voice in use: it lasts as long as the voice does.
    """

    config: ModelConfig
    card: ModelCard
    text: TextFrontEnd
    _known: WeakKeyDictionary[Voice, dict[Mode, Conditioning]] = field(init=False, default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _warned: threading.Event = field(init=False, default_factory=threading.Event)

    def plan(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[PlannedSegment]:
        """The segments of a whole text: contiguous, in order, with seeds that follow one another.

        InvalidText: there is nothing to speak, it is too long, or the model lacks characters of it; InvalidRequest: the
        voice does not fit the model, or lacks what the mode needs; the language is unknown.
        """
        return list(self.plan_as_read(text, voice, options))

    def plan_as_read(
        self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions(), left: CancelCheck = never_cancelled
    ) -> Iterator[PlannedSegment]:
        """`plan`, segment by segment: of a long text, the next block is read when its segments are asked for.

        What can be refused is refused before the first one, but for characters that the vocabulary cannot write.
        """
        system, spoken = self.text.part(text)
        yield from self._segments(spoken, self.conditioning(voice, options, system), options, left, len(system))

    def requests(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[SegmentRequest]:
        """`plan` without the characters."""
        return [segment.request for segment in self.plan(text, voice, options)]

    @property
    def arrival(self) -> InputMode:
        """How `plan_arriving` brings its text to the engine: by sentences or by words, as the model's card says; by
        sentences to CosyVoice 1.
        """
        by_words = self._modes.by_words and self.card.text_stream is TextStream.INTERLEAVED
        return InputMode.TOKENS if by_words else InputMode.SEGMENTS

    def plan_arriving(
        self,
        pieces: Iterable[str],
        voice: Voice,
        options: SpeakOptions = SpeakOptions(),
        left: CancelCheck = never_cancelled,
    ) -> Iterator[PlannedSegment]:
        """The segments of a text that arrives in pieces, each as soon as the pieces show that it is complete.

        By sentences: what `plan` makes of each sentence. By words: requests of one and the same segment, whose text ids
        follow one another, of words as they are written or, by the natural reading, as they are said; start and end are
        then the characters that have been read so far. A system prompt comes with the first piece. Errors as `plan`,
        when a piece is read.
        """
        conditioning, begin = self.conditioning(voice, options), 0
        if self._modes.system:
            pieces = iter(pieces)
            system, first = self.text.part(next(pieces, ""))
            pieces, begin = chain((first,), _unmarked(pieces)), len(system)
            conditioning = self.conditioning(voice, options, system)
        if self.arrival is InputMode.TOKENS:
            yield from self._words(pieces, conditioning, options, begin)
            return
        place, paused_s, natural = 0, 0.0, options.reading == "natural"
        for sentence in sentence_stream(pieces, self.text.marks if natural else None):
            if is_speakable(sentence.text):  # a line of dashes is not: the text around it is spoken
                told = options.language or (sentence.language if self.card.scripts is None else None)
                named, start = replace(options, language=told), begin + sentence.start
                for segment in self._segments(sentence.text, conditioning, named, left, start, place):
                    place += 1
                    check_paused(paused_s := paused_s + segment.request.pause_s)
                    yield segment

    @property
    def _modes(self) -> GenerationModes:
        return MODES[self.config.generation]

    def conditioning(self, voice: Voice, options: SpeakOptions = SpeakOptions(), system: str = "") -> Conditioning:
        """What a voice brings to the engine, by the table of modes; errors as `plan`.

        Instructions that the model cannot follow are left out, which the log says once. system: the system prompt that
        the text brought, see `TextFrontEnd.part`.
        """
        if options.instruct and not self.card.instructions:
            options = without_instructions(options)
            if not self._warned.is_set():
                self._warned.set()
                log.warning("instructions: %(note)s", {"note": INSTRUCTIONS_LEFT_OUT.removeprefix("instructions: ")})
        with self._lock:
            if voice not in self._known:
                check_fits(voice, self.config)
                self._known[voice] = {}
            known = self._known[voice]
        mode, instruct = choose_mode(voice, self.config.generation, options.instruct, options.mode), options.instruct
        if instruct and system:
            raise InvalidRequest(f"instruct: the text brings a prompt of its own before {END_OF_PROMPT}; leave one out")
        if instruct or system:
            return self._condition(voice, mode, instruct, system)
        return known.get(mode) or known.setdefault(mode, self._condition(voice, mode))

    def _condition(self, voice: Voice, mode: Mode, instruct: str | None = None, system: str = "") -> Conditioning:
        route = self._modes.routes[mode]
        if not self._modes.system:
            return condition(voice, route, self.instruction(instruct) if instruct else voice.prompt_text)
        text = self.instruction(instruct) if instruct else voice.prompt_text if route.lm_text else ()
        default = self.text.encode(self.text.normalize(system or self._modes.prompt()))
        if default[-1] not in text:
            return condition(voice, route, text, default)
        end = len(text) - text[::-1].index(default[-1])  # the instruction's, or what a transcript was written with
        return condition(voice, route, text[end:], default if system else text[:end])

    def instruction(self, instruct: str) -> tuple[int, ...]:
        """Text ids of an instruction as the model was trained to be given it, with the mark at its end."""
        return self.text.encode(self.text.normalize(self._modes.prompt(instruct)))

    def _segments(
        self,
        text: str,
        conditioning: Conditioning,
        options: SpeakOptions,
        left: CancelCheck,
        start: int = 0,
        place: int = 0,
    ) -> Iterator[PlannedSegment]:
        """Of a text that begins at a character of the input, its first one at a place among all segments."""
        found = self.text.located(text, options.language, left, options.reading, options.natural, goes_on=place > 0)
        for seed, one in enumerate(found, options.seed + place):
            ids, speed = self.text.encode(one.spoken), min(max(options.speed * one.rate, MIN_SPEED), MAX_SPEED)
            request = SegmentRequest(conditioning, ids, None, options.sampling, seed, speed, one.pause_s)
            yield PlannedSegment(request, start + one.start, start + one.end)

    def _words(
        self, pieces: Iterable[str], conditioning: Conditioning, options: SpeakOptions, begin: int
    ) -> Iterator[PlannedSegment]:
        come = self.text.arriving(pieces, options.language, options.reading, options.natural)
        for words, read in come:
            if ids := self.text.encode_piece(words):
                request = SegmentRequest(
                    conditioning, ids, sampling=options.sampling, seed=options.seed, speed=options.speed
                )
                yield PlannedSegment(request, begin, begin + read)


def _unmarked(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str) and END_OF_PROMPT in piece:
            raise InvalidText(f"text: {END_OF_PROMPT} came after the first piece; send all that it ends in that one")
        yield piece


@dataclass(frozen=True, eq=False)
class ModelFrontEnd(FrontEnd):
    """The front end of a model folder, with the encoders that make voices of recordings."""

    folder: Path
    extractor: VoiceExtractor

    def plan_conversion(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> SegmentRequest:
        """The request of a voice conversion: the source's speech tokens, conditioned on the voice, which has to fit."""
        tokens = tuple(self.extractor.speech_tokens(source).tolist())
        return SegmentRequest(condition(voice, CONVERSION), speech_tokens=tokens, speed=speed, seed=seed)


def load_front_end(folder: Path, config: ModelConfig | None = None, text_processes: int = 0) -> ModelFrontEnd:
    """Load the tokenizer, the text rules and the two encoders of an official folder; errors as `read_config`.

    config: sizes, where they have been read already; text_processes: others that read texts, see `TextFrontEnd`.
    """
    # Weights are mapped, not read: the sizes need their names only.
    config = config or read_config(folder, read_tensors(find_part(folder, "flow")))
    card = official.read_card(folder)
    text = TextFrontEnd(
        TextTokenizer.from_folder(folder / official.BACKBONE), scripts=card.scripts, processes=text_processes
    )
    extractor = VoiceExtractor(
        config,
        SpeechTokenizer.from_file(folder / official.speech_tokenizer_of(config.generation)),
        SpeakerEncoder.from_file(folder / official.SPEAKER_ENCODER),
        text,
        official.fingerprint(folder),
    )
    return ModelFrontEnd(config, card, text, folder, extractor)
