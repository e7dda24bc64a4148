"""The front end: text, a voice and options become sequences for the engine. It needs no engine and loads no network.

Which features of a voice reach which stage depends on the mode:

| mode          | LM prompt text | LM prompt speech | flow prompt      |
|---------------|----------------|------------------|------------------|
| zero_shot     | transcript     | reference tokens | tokens and mel   |
| cross_lingual | –              | –                | tokens and mel   |
| instruct      | instruction    | –                | tokens and mel   |
| sft           | –              | –                | –                |

The speaker embedding reaches the flow in every mode. Voice conversion conditions like cross_lingual and takes its
speech tokens from the source recording.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from vivavoce.checkpoint import folder as official
from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import ModelCard, TextStream
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.engine.request import Arrival, Conditioning, SegmentRequest
from vivavoce.errors import InvalidRequest
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce.service.speech import INSTRUCTIONS_LEFT_OUT, Mode, SpeakOptions, without_instructions
from vivavoce.service.text.arriving import located_sentences, whole_words
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.reading import Left, is_speakable, stays
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.extract import AudioSource, VoiceExtractor
from vivavoce.service.voices.voice import Voice, check_fits

log = logging.getLogger(__name__)

END_OF_PROMPT = "<|endofprompt|>"
"""Ends an instruction; CosyVoice2 was trained with it."""


def choose_mode(voice: Voice, instruct: str | None, wanted: Mode | str | None = None) -> Mode:
    """The mode that was asked for, or the fullest one that the voice allows; InvalidRequest names what a mode lacks."""
    mode = None if wanted is None else Mode(wanted)
    if mode is Mode.INSTRUCT and not instruct:
        raise InvalidRequest("mode: instruct needs an instruction; give one with instruct")
    if instruct and mode not in (None, Mode.INSTRUCT):
        raise InvalidRequest(f"instruct: is not used in mode {mode.value}; leave the mode out")
    if mode in (Mode.ZERO_SHOT, Mode.CROSS_LINGUAL) and not voice.has_prompt:
        raise InvalidRequest(f"mode: {mode.value} needs reference speech, this voice has an embedding only; use sft")
    if mode is Mode.ZERO_SHOT and not voice.prompt_text:
        raise InvalidRequest("mode: zero_shot needs the reference's transcript; give prompt_text or use cross_lingual")
    if mode is not None or instruct:
        return mode or Mode.INSTRUCT
    if not voice.has_prompt:
        return Mode.SFT
    return Mode.ZERO_SHOT if voice.prompt_text else Mode.CROSS_LINGUAL


def condition(voice: Voice, mode: Mode, instruction: tuple[int, ...] = ()) -> Conditioning:
    """Route a voice's features by the table above; `instruction`: text ids, for instruct only."""
    tokens, mel = voice.speech_tokens.long(), voice.mel
    if mode is Mode.SFT:
        tokens, mel = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0)
    prompt_text = {Mode.ZERO_SHOT: voice.prompt_text, Mode.INSTRUCT: instruction}.get(mode, ())
    return Conditioning(
        embedding=voice.embedding,
        lm_prompt_text=prompt_text,
        lm_prompt_tokens=tuple(tokens.tolist()) if mode is Mode.ZERO_SHOT else (),
        flow_tokens=tokens,
        flow_mel=mel,
    )


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
        self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions(), left: Left = stays
    ) -> Iterator[PlannedSegment]:
        """`plan`, segment by segment: of a long text, the next block is read when its segments are asked for.

        What can be refused is refused before the first one, but for characters that the vocabulary cannot write.
        """
        yield from self._segments(text, self.conditioning(voice, options), options, left)

    def requests(self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions()) -> list[SegmentRequest]:
        """`plan` without the characters."""
        return [segment.request for segment in self.plan(text, voice, options)]

    @property
    def arrival(self) -> Arrival:
        """How `plan_arriving` brings its text to the engine: by sentences or by words, as the model's card says."""
        return Arrival.SEGMENTS if self.card.text_stream is TextStream.SENTENCES else Arrival.TOKENS

    def plan_arriving(
        self, pieces: Iterable[str], voice: Voice, options: SpeakOptions = SpeakOptions(), left: Left = stays
    ) -> Iterator[PlannedSegment]:
        """The segments of a text that arrives in pieces, each as soon as the pieces show that it is complete.

        By sentences: what `plan` makes of each sentence. By words: requests of one and the same segment, whose text ids
        follow one another; start and end are then the characters that have come so far. Errors as `plan`, when a piece
        is read.
        """
        conditioning = self.conditioning(voice, options)
        if self.arrival is Arrival.TOKENS:
            yield from self._words(pieces, conditioning, options)
            return
        place = 0
        for sentence in located_sentences(pieces):
            if is_speakable(sentence.text):  # a line of dashes is not: the text around it is spoken
                for segment in self._segments(sentence.text, conditioning, options, left, sentence.start, place):
                    place += 1
                    yield segment

    def conditioning(self, voice: Voice, options: SpeakOptions = SpeakOptions()) -> Conditioning:
        """What a voice brings to the engine, by the table above; errors as `plan`.

        Instructions that the model cannot follow are left out, which the log says once.
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
        mode = choose_mode(voice, options.instruct, options.mode)
        if options.instruct:
            return condition(voice, mode, self.instruction(options.instruct))
        return known.get(mode) or known.setdefault(mode, condition(voice, mode))

    def instruction(self, instruct: str) -> tuple[int, ...]:
        """Text ids of an instruction, its end mark added where it is missing."""
        ended = instruct if END_OF_PROMPT in instruct else instruct + END_OF_PROMPT
        return self.text.encode(self.text.normalize(ended))

    def _segments(
        self, text: str, conditioning: Conditioning, options: SpeakOptions, left: Left, start: int = 0, place: int = 0
    ) -> Iterator[PlannedSegment]:
        """Of a text that begins at a character of the input, its first one at a place among all segments."""
        for seed, one in enumerate(self.text.located(text, options.language, left), options.seed + place):
            ids = self.text.encode(one.spoken)
            request = SegmentRequest(conditioning, ids, sampling=options.sampling, seed=seed, speed=options.speed)
            yield PlannedSegment(request, start + one.start, start + one.end)

    def _words(
        self, pieces: Iterable[str], conditioning: Conditioning, options: SpeakOptions
    ) -> Iterator[PlannedSegment]:
        for words, read in whole_words(pieces):
            if ids := self.text.encode_piece(words):
                request = SegmentRequest(
                    conditioning, ids, sampling=options.sampling, seed=options.seed, speed=options.speed
                )
                yield PlannedSegment(request, 0, read)


@dataclass(frozen=True, eq=False)
class ModelFrontEnd(FrontEnd):
    """The front end of a model folder, with the encoders that make voices of recordings."""

    folder: Path
    extractor: VoiceExtractor

    def plan_conversion(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> SegmentRequest:
        """The request of a voice conversion: the source's speech tokens, conditioned on the voice, which has to fit."""
        tokens = tuple(self.extractor.speech_tokens(source).tolist())
        mode = Mode.CROSS_LINGUAL if voice.has_prompt else Mode.SFT
        return SegmentRequest(condition(voice, mode), speech_tokens=tokens, speed=speed, seed=seed)


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
