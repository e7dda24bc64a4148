"""Turns a text, a voice and options into requests for the engine, without the engine or the models that it runs.

The table in `modes.py` says which stage gets which features of a voice. A text, transcript or instruction for
CosyVoice3 may begin with its own system prompt, as in scripts for the official code. Everything up to and including
`<|endofprompt|>` is then used instead of the system prompt in `modes.py`, and is not spoken.
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
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S
from vivavoce.frontend.modes import CONVERSION, MODES, GenerationModes, choose_mode, condition
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, SILENCE_S, Mode, SpeakOptions, without_instructions
from vivavoce.frontend.text.sentence_stream import KeptPieces, sentence_stream
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.text_input import TextFilter
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT, TextTokenizer
from vivavoce.frontend.text.word_spans import WordSpan
from vivavoce.frontend.voices.extract import AudioSource, VoiceExtractor
from vivavoce.frontend.voices.voice import Voice, check_fits
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce_textnorm import CancelCheck, check_paused, is_speakable, never_cancelled

log = logging.getLogger(__name__)

DEMO_REFERENCE_S = 12.0
"""Longest advised reference for a demo model, in seconds: with 17 s of reference, mini loses words of short texts."""


@dataclass(frozen=True, eq=False)
class PlannedSegment:
    """A segment that speaks the characters start … end − 1 of the input. words: its words, or () if not tracked."""

    request: SegmentRequest
    start: int
    end: int
    words: tuple[WordSpan, ...] = ()

    def moved(self, text_filter: TextFilter) -> PlannedSegment:
        """Return the segment with its positions converted to positions in the text before filtering."""
        at = text_filter.original
        words = tuple(one._replace(start=at(one.start), end=at(one.end)) for one in self.words)
        return replace(self, start=at(self.start), end=at(self.end), words=words)


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """Plans the segments that the engine speaks. Thread-safe.

    extractor: extracts voices from recordings. The conditionings of a voice are cached until the voice is freed."""

    config: ModelConfig
    card: ModelCard
    text: TextFrontEnd
    folder: Path
    extractor: VoiceExtractor
    _known: WeakKeyDictionary[Voice, dict[Mode | str | None, Conditioning]] = field(
        init=False, default_factory=WeakKeyDictionary
    )
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _warned: threading.Event = field(init=False, default_factory=threading.Event)

    def plan(
        self,
        text: str,
        voice: Voice,
        options: SpeakOptions = SpeakOptions(),
        is_cancelled: CancelCheck = never_cancelled,
        silent: bool = False,
    ) -> Iterator[PlannedSegment]:
        """Yield the segments of a whole text, in order and without gaps. Their seeds are `options.seed` and following.

        Each block of the text is normalised when the iteration needs the block's segments. All errors are raised before
        the first segment, except the error for characters that the vocabulary cannot encode.

        silent: speak a text without words as `SILENCE_S` of silence; an empty text is still refused.

        Raises:
            InvalidText: the text has nothing to speak, is too long, or has characters that the model lacks.
            InvalidRequest: the voice does not fit the model, or lacks what the mode needs; the language is unknown.
            RequestCancelled: `is_cancelled` returned True.
        """
        text_filter, options = TextFilter(options.reasoning), _adapted(options, voice)
        filtered = text_filter.add(text, is_last=True)
        system, spoken = self.text.part(filtered)
        conditioning = self.conditioning(voice, options, system)
        try:
            for one in self._segments(spoken, conditioning, options, is_cancelled, len(system)):
                yield one if filtered == text else one.moved(text_filter)
        except InvalidText as error:
            if not (silent and text and error.nothing_to_say):
                raise
            yield PlannedSegment(SegmentRequest(conditioning, (), pause_s=SILENCE_S), 0, len(text))

    def requests(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[SegmentRequest]:
        return [segment.request for segment in self.plan(text, voice, options)]

    @property
    def arrival(self) -> InputMode:
        """How `plan_arriving` plans: by words (TOKENS) if generation and card allow this, else by sentences."""
        by_words = self._modes.by_words and self.card.text_stream is TextStream.INTERLEAVED
        return InputMode.TOKENS if by_words else InputMode.SEGMENTS

    def plan_arriving(
        self,
        pieces: Iterable[str],
        voice: Voice,
        options: SpeakOptions = SpeakOptions(),
        is_cancelled: CancelCheck = never_cancelled,
        silent: bool = False,
    ) -> Iterator[PlannedSegment]:
        """Yield the segments of a text that arrives in pieces; each segment follows as soon as its text is complete.

        If `arrival` is SEGMENTS, each sentence is planned as in `plan`. If it is TOKENS, the text is a single segment:
        each yielded request adds the text ids of the next words, and its start and end cover all text read so far; only
        natural rules normalise the words. The first piece must contain all of a system prompt. Each piece may raise the
        errors of `plan`."""
        text_filter, options = TextFilter(options.reasoning), _adapted(options, voice)
        one = None
        for one in self._plan_arriving(text_filter.stream(pieces), voice, options, is_cancelled):
            yield one.moved(text_filter)
        if silent and text_filter.taken and one is None:
            request = SegmentRequest(self.conditioning(voice, options), (), pause_s=SILENCE_S)
            yield PlannedSegment(request, 0, text_filter.taken)

    def _plan_arriving(
        self, pieces: Iterator[str], voice: Voice, options: SpeakOptions, is_cancelled: CancelCheck
    ) -> Iterator[PlannedSegment]:
        conditioning, begin = self.conditioning(voice, options), 0
        if self._modes.system:
            system, first = self.text.part(next(pieces, ""))
            pieces, begin = chain((first,), _unmarked(pieces)), len(system)
            conditioning = self.conditioning(voice, options, system)
        if self.arrival is InputMode.TOKENS:
            yield from self._words(pieces, conditioning, options, begin)
            return
        index, paused_s, natural = 0, 0.0, options.reading == "natural"
        for sentence in sentence_stream(pieces, self.text.marks if natural else None):
            if not is_speakable(sentence.text):  # there is nothing to speak, such as in a line of dashes
                continue
            language = options.language or (sentence.language if self.card.scripts is None else None)
            named, start = replace(options, language=language), begin + sentence.start
            try:
                for segment in self._segments(sentence.text, conditioning, named, is_cancelled, start, index):
                    index += 1
                    check_paused(paused_s := paused_s + segment.request.pause_s)
                    yield segment
            except InvalidText as error:  # there is nothing to speak, such as in silent code
                if not error.nothing_to_say:
                    raise

    @property
    def _modes(self) -> GenerationModes:
        return MODES[self.config.generation]

    def conditioning(self, voice: Voice, options: SpeakOptions = SpeakOptions(), system: str = "") -> Conditioning:
        """Select the features of a voice by the table of modes. Raises the errors of `plan`.

        If the model cannot follow instructions, they are left out, and the first time a warning is logged. system: the
        system prompt at the beginning of the text, see `TextFrontEnd.part`."""
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
        instruct = options.instruct
        if not instruct and not system and options.mode in known:
            return known[options.mode]
        mode = choose_mode(voice, self.config.generation, instruct, options.mode)
        if instruct and system:
            raise InvalidRequest(f"instruct: the text brings a prompt of its own before {END_OF_PROMPT}; leave one out")
        if instruct or system:
            return self._condition(voice, mode, instruct, system)
        if mode not in known:
            known.setdefault(mode, self._condition(voice, mode))
        return known.setdefault(options.mode, known[mode])

    def _condition(self, voice: Voice, mode: Mode, instruct: str | None = None, system: str = "") -> Conditioning:
        route = self._modes.routes[mode]
        if not self._modes.system:
            return condition(voice, route, self.instruction(instruct) if instruct else voice.prompt_text)
        text = self.instruction(instruct) if instruct else voice.prompt_text if route.lm_text else ()
        default = self.text.encode(self.text.normalize(system or self._modes.prompt()))
        if default[-1] not in text:
            return condition(voice, route, text, default)
        end = len(text) - text[::-1].index(default[-1])  # the instruction or transcript may begin with a prompt
        return condition(voice, route, text[end:], default if system else text[:end])

    def instruction(self, instruct: str) -> tuple[int, ...]:
        """Return the text ids of an instruction in its form in training, with the end-of-prompt mark at the end."""
        return self.text.encode(self.text.normalize(self._modes.prompt(instruct)))

    def plan_conversion(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> SegmentRequest:
        """Plan a voice conversion: the voice speaks the source's speech tokens. The voice must fit the model."""
        tokens = tuple(self.extractor.speech_tokens(source).tolist())
        return SegmentRequest(condition(voice, CONVERSION), speech_tokens=tokens, speed=speed, seed=seed)

    def resolved(self, options: SpeakOptions) -> SpeakOptions:
        """Return the options; if `guard` is None, it is replaced with the model's default."""
        return replace(options, guard=self.card.guarded) if options.guard is None else options

    def _segments(
        self,
        text: str,
        conditioning: Conditioning,
        options: SpeakOptions,
        is_cancelled: CancelCheck,
        start: int = 0,
        index: int = 0,
    ) -> Iterator[PlannedSegment]:
        """Plan a text. start: position of its first character in the input; index: index of its first segment."""
        found = self.text.located(text, options.language, is_cancelled, options.reading, options.natural)
        for seed, one in enumerate(found, options.seed + index):
            ids, speed = self.text.encode(one.spoken), min(max(options.speed * one.rate, MIN_SPEED), MAX_SPEED)
            watched, low, high = options.follows and bool(ids), start + one.start, start + one.end
            words = self.text.words(text[one.start : one.end], one.spoken, low) if watched else ()
            guarded = tuple(dict.fromkeys(word.first for word in words)) if options.guard and words else None
            how = options.sampling, seed, speed, one.pause_s, watched, guarded, options.steps, options.adapter_of("")
            request = SegmentRequest(conditioning, ids, None, *how)
            yield PlannedSegment(request, low, high, words)

    def _words(
        self, pieces: Iterable[str], conditioning: Conditioning, options: SpeakOptions, begin: int
    ) -> Iterator[PlannedSegment]:
        text, past, given = KeptPieces(pieces), 0, 0
        for words, read in self.text.arriving(text, options.language, options.reading, options.natural):
            if ids := self.text.encode_piece(words):
                request = SegmentRequest(
                    conditioning, ids, sampling=options.sampling, seed=options.seed, speed=options.speed,
                    watched=options.follows, flow_steps=options.steps, adapter=options.adapter_of(""),
                )  # fmt: skip
                said = self.text.piece(words)
                found = self.text.words(text.between(past, read), said, begin + past) if options.follows else ()
                spans = tuple(one._replace(first=one.first + given, last=one.last + given) for one in found)
                yield PlannedSegment(request, begin, begin + read, spans)
                past, given = read, given + len(ids)


def _adapted(options: SpeakOptions, voice: Voice) -> SpeakOptions:
    """Return the options with the voice's LoRA adapter, unless the options name an adapter."""
    return replace(options, adapter=options.adapter_of(voice.adapter) or None) if voice.adapter else options


def _unmarked(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str) and END_OF_PROMPT in piece:
            raise InvalidText(f"text: {END_OF_PROMPT} came after the first piece; send the whole prompt in the first")
        yield piece


def load_front_end(folder: Path, config: ModelConfig | None = None, text_processes: int = 0) -> FrontEnd:
    """Load the tokenizer, text rules and two encoders of an official folder. Raises the errors of `read_config`.

    config: the model's sizes, read from the folder if None. text_processes: `processes` of `TextFrontEnd`.
    """
    # The weights are only memory-mapped: `read_config` needs their names and shapes.
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
        advised_s=DEMO_REFERENCE_S if card.demo else MAX_REFERENCE_S,
    )
    return FrontEnd(config, card, text, folder, extractor)
