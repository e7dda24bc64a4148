"""Requests for speech and their answers: plain values that cross processes and need no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, pairwise
from typing import TypeVar

import regex

from vivavoce.engine.adapters import NO_ADAPTER, check_adapter_name
from vivavoce.engine.request import AS_CONFIGURED, AudioChunk, FlowSteps, SamplingParams, Word, check_speed, is_number
from vivavoce.errors import InvalidRequest, check_kind
from vivavoce.frontend.speech_options import (
    ADAPTER,
    CHUNK_POLICY,
    CODE,
    EMOJIS,
    FLOW_STEPS,
    GUARD,
    INSTRUCTIONS,
    LANGUAGE,
    MAX_SEED,
    MODE,
    PRIORITY,
    READING,
    REASONING,
    SEED,
    SPEED,
    WORD_TIMES,
)
from vivavoce.frontend.text.text_input import Code, Emojis, Normalization, Reasoning, one_of, parse_language, readable
from vivavoce_textnorm import DAY_FIRST, NO_WORDS, Lexicon, Settings, detect_language, excerpt, is_speakable

Options = TypeVar("Options", bound="SpeakOptions")


class Mode(str, Enum):
    """The way in which a voice is used; the table in `modes.py` shows which stage gets which features of the voice."""

    ZERO_SHOT = "zero_shot"
    CROSS_LINGUAL = "cross_lingual"
    INSTRUCT = "instruct"
    SFT = "sft"


def parse_mode(name: str) -> Mode:
    """Return the mode of this name, with dashes or underscores. Raises InvalidRequest if the name is unknown."""
    try:
        return Mode(str(name).replace("-", "_"))
    except ValueError:
        raise InvalidRequest(f"mode: {name!r} is unknown; choose one of {', '.join(Mode)}") from None


def check_seed(seed: int) -> None:
    """Raise InvalidRequest if the seed is not a whole number in 0 … 2⁵³."""
    if not is_number(seed, whole=True) or not 0 <= seed <= MAX_SEED:
        raise InvalidRequest(f"seed: {seed!r} is not a whole number in 0 … {MAX_SEED}; choose one")


@dataclass(frozen=True, kw_only=True)
class SpeakOptions:
    """Options of speech, which `speech_options.py` explains. Raises InvalidRequest if a value exceeds its limits.

    The constructor converts its arguments: the name of a mode to a `Mode`, the code, tag or name of a language to a
    code ("en", "en-GB"), and a mapping to a `Lexicon`.
    """

    mode: Mode | str | None = MODE.default
    instruct: str | None = INSTRUCTIONS.default
    speed: float = SPEED.default
    seed: int = SEED.default
    sampling: SamplingParams = AS_CONFIGURED
    language: str | None = LANGUAGE.default
    reading: Normalization = READING.default
    lexicon: Mapping[str, str] = NO_WORDS
    emojis: Emojis = EMOJIS.default
    code: Code = CODE.default
    reasoning: Reasoning = REASONING.default
    word_times: bool = WORD_TIMES.default
    guard: bool | None = GUARD.default
    flow_steps: str | None = FLOW_STEPS.default
    adapter: str | None = ADAPTER.default

    def __post_init__(self) -> None:
        if self.mode is not None and not isinstance(self.mode, Mode):
            object.__setattr__(self, "mode", parse_mode(self.mode))
        check_speed(self.speed)
        check_seed(self.seed)
        object.__setattr__(self, "seed", int(self.seed))  # may be an integer of NumPy
        check_kind("sampling", self.sampling, SamplingParams, "such as vivavoce.SamplingParams(top_k=5)")
        check_kind("instructions", self.instruct, str | None, "say in words how to speak")
        if len(self.instruct or "") > (most := INSTRUCTIONS.max_chars or 0):
            raise InvalidRequest(f"instructions: {len(self.instruct or '')} characters exceed {most}; shorten them")
        if self.language is not None:
            object.__setattr__(self, "language", parse_language(self.language))
        check_kind("word_times", self.word_times, bool, "choose True or False")
        check_kind("guard", self.guard, bool | None, "choose True or False, or leave it out")
        if self.flow_steps is not None:
            one_of(FLOW_STEPS.choices, FLOW_STEPS.name, self.flow_steps)
        if self.adapter is not None:
            check_kind("adapter", self.adapter, str, "give the name of a loaded adapter")
            check_adapter_name(self.adapter)
        for option in (READING, EMOJIS, CODE, REASONING):
            one_of(option.choices, option.name, getattr(self, option.name))
        if not isinstance(self.lexicon, Lexicon):
            object.__setattr__(self, "lexicon", Lexicon(self.lexicon))

    @property
    def follows(self) -> bool:
        """Whether the engine must track which part of the text is being spoken (for `word_times` or `guard`)."""
        return self.word_times or bool(self.guard)

    @property
    def steps(self) -> FlowSteps | None:
        """The steps of the flow's solver; None means the engine's setting."""
        return None if self.flow_steps is None else FlowSteps(self.flow_steps)

    def adapter_of(self, own: str) -> str:
        """Return the name of the LoRA adapter to use, or "" for none; own: the voice's adapter, or ""."""
        return "" if self.adapter == NO_ADAPTER else self.adapter or own

    @property
    def natural(self) -> Settings:
        """The settings of the natural text normalisation."""
        assert isinstance(self.lexicon, Lexicon)
        day_first = self.language == DAY_FIRST
        return Settings(self.emojis == "named", self.code == "silent", lexicon=self.lexicon, day_first=day_first)


SILENCE_S = 0.2
"""Seconds of silence that replace a text without speakable words."""
INSTRUCTIONS_LEFT_OUT = "instructions: the model that speaks cannot follow them; they were left out"


def without_instructions(options: Options) -> Options:
    """Return the options without instructions, for a model that would read the instructions aloud."""
    return replace(options, instruct=None, mode=None if options.mode is Mode.INSTRUCT else options.mode)


@dataclass(frozen=True)
class Recording:
    """A reference recording from a client. content: bytes of the audio file; transcript: its text, "" if unknown."""

    content: bytes
    transcript: str = ""


@dataclass(frozen=True)
class SpeechRequest(SpeakOptions):
    """One request for speech, sent by a server's protocols to the engine's process.

    text: the whole text, or None if it arrives piece by piece. voice: a name, a recording, or None for the default
    voice. owner: the request may use this owner's voices and the public voices; with "", only public voices. policy:
    name of a chunk policy. priority: "live" or "batch". notes: an ASCII line for each difference from the options that
    the client sent. model: the name of another model of the server, or "" for the default model.
    """

    text: str | None
    voice: str | Recording | None = None
    owner: str = ""
    policy: str | None = CHUNK_POLICY.default
    priority: str = PRIORITY.default
    notes: tuple[str, ...] = ()
    model: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(PRIORITY.choices, PRIORITY.name, self.priority)


@dataclass(frozen=True)
class SegmentText:
    """Announces segment number `place` before its audio. It speaks the characters start … end − 1 of the input.

    A text that arrives word by word is a single segment; each time it grows, it is announced again.
    """

    place: int
    start: int
    end: int


SpeechEvent = SegmentText | AudioChunk


class FinishReason(str, Enum):
    """The reason why the audio ended."""

    STOP = "stop"
    """The speech ended by itself, and no word is known to be missing."""
    LENGTH = "length"
    """A segment reached its limit of speech tokens and was cut there; the other segments were spoken in full."""
    INCOMPLETE = "incomplete"
    """The speech ended by itself, and some words of the text seem not to be spoken (`Delivery.missing`)."""
    CANCELLED = "cancelled"
    """The caller ended the request, or the listener disconnected."""
    ERROR = "error"
    """The request failed; the listener has got the audio that was made before."""


@dataclass(frozen=True)
class Delivery:
    """How well the text was spoken; known only with `word_times` or `guard`.

    spoken: fraction of the words that were spoken. missing: words that seem not to be spoken. faults: errors that the
    guard found and could not repair; mended: errors that the guard repaired (`stands`, `repeats`, `skips`,
    `early_end`, `loops`, `silence`, `leak`). pause_s: seconds of the longest silence inside a segment. length: ratio of
    the speech's length to the usual length for its text; None if unknown.
    """

    spoken: float
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    pause_s: float = 0.0
    length: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The end of one stream.

    audio_s: seconds of audio that the listener received. segments_spoken: number of segments that the listener received
    in full; segments_given: number of all segments. error: a message of one line, and error_code: its stable code; both
    only with reason ERROR. text_tokens, speech_tokens: number of tokens that the language model read and made, or None
    if unknown. warnings: possible faults of speech that ended without an error, one line for each. delivery: how well
    the text was spoken; only with `word_times` or `guard`."""

    reason: FinishReason
    audio_s: float = 0.0
    segments_spoken: int = 0
    segments_given: int = 0
    error: str | None = None
    error_code: str | None = None
    text_tokens: int | None = None
    speech_tokens: int | None = None
    warnings: tuple[str, ...] = ()
    delivery: Delivery | None = None


def joined(deliveries: Sequence[Delivery]) -> Delivery | None:
    """Combine the deliveries of consecutive texts into one; None if the list is empty."""
    if len(deliveries) < 2:
        return deliveries[0] if deliveries else None
    lengths = [one.length for one in deliveries if one.length is not None]
    return Delivery(
        round(sum(one.spoken for one in deliveries) / len(deliveries), 4),
        tuple(word for one in deliveries for word in one.missing),
        tuple(fault for one in deliveries for fault in one.faults),
        tuple(fault for one in deliveries for fault in one.mended),
        max(one.pause_s for one in deliveries),
        round(sum(lengths) / len(lengths), 3) if lengths else None,
    )


_REPEATED = regex.compile(
    r"\b(\p{L}[\p{L}\p{M}'’]*)(?:[\s,，、.!?。！？-]+\1\b){3}|([\p{Han}\p{Hiragana}\p{Katakana}])\2{3}"
    r"|(\d)\3{4}|\d{7,}",
    regex.IGNORECASE,
)
_THREE_ALIKE = regex.compile(r"(.)\1\1")


def warnings_of(text: str, language: str | None, languages: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if words repeat (a model may skip some), and one if the model does not speak the language.

    language: code of the text's language, or None to detect it. languages: codes of the model's languages.
    """
    warnings = []
    repeated = next((one[0] for one in _REPEATED.finditer(text) if _THREE_ALIKE.search(one[0]) or one[1]), None)
    if repeated:
        warnings.append(
            f"text: {excerpt(repeated)} repeats itself; models may lose or add repeats, and the words were not checked"
        )
    return (*warnings, *foreign_to(text, language, languages))


def foreign_to(text: str, language: str | None, languages: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if the model does not speak the text's language; for the arguments see `warnings_of`."""
    told = language.partition("-")[0] if language else (detect_language(text) if is_speakable(text) else None)
    if told is None or told in languages:
        return ()
    told = "zh (which yue is taken for)" if language == "zh" else told
    return (f"text: its language seems to be {told}, and the model speaks {', '.join(languages)} only",)


@dataclass(frozen=True)
class Mark:
    """A segment of a text and the times of its audio. The times are exact, because they are counted in samples.

    text: the characters start_character … end_character − 1 of the input. start_s, end_s: seconds from the beginning of
    the audio; each mark starts where the previous mark ends. cut: whether the segment reached its limit of speech
    tokens, so that words may be missing.
    """

    text: str
    start_character: int
    end_character: int
    start_s: float
    end_s: float
    cut: bool = False


TimedPart = TypeVar("TimedPart", Mark, Word)


def moved(one: TimedPart, characters: int, seconds: float) -> TimedPart:
    """Shift a mark or a word by this number of characters and seconds."""
    return replace(
        one,
        start_character=one.start_character + characters,
        end_character=one.end_character + characters,
        start_s=one.start_s + seconds,
        end_s=one.end_s + seconds,
    )


def marks_of(
    text: str, spans: Sequence[tuple[int, int]], samples: Sequence[int], sample_rate: int, cut: Sequence[bool] = ()
) -> tuple[Mark, ...]:
    """Return the marks of a text's segments that have audio.

    spans: for each segment, its first character and the character after its last. samples: for each of the first
    segments, which have audio, the number of its samples. cut: whether each segment was cut; () if not known yet."""
    times = pairwise(end / sample_rate for end in accumulate(samples, initial=0))
    return tuple(
        Mark(readable(text[start:end]), start, end, start_s, end_s, place < len(cut) and cut[place])
        for place, ((start, end), (start_s, end_s)) in enumerate(zip(spans, times, strict=False))
    )


@dataclass(frozen=True)
class HeardText:
    """The part of a text that a listener has heard at a certain time.

    character: number of the input's characters that were heard. text: the last word or segment that has begun. seconds:
    the time, at most the length of the audio."""

    character: int
    text: str
    seconds: float


def heard_until(seconds: float, words: Sequence[Word], marks: Sequence[Mark]) -> HeardText:
    """Return the text heard in the first `seconds`: in whole words; if `words` is empty, up to a character of the last
    segment, in proportion to the segment's time."""
    seconds = min(seconds, marks[-1].end_s if marks else 0.0)
    begun = [one for one in (words or marks) if one.start_s < seconds]
    if not begun:
        return HeardText(marks[0].start_character if marks else 0, "", seconds)
    last = begun[-1]
    if words:
        return HeardText(last.end_character, last.text, seconds)
    share = min(1.0, (seconds - last.start_s) / max(1e-9, last.end_s - last.start_s))
    reached = last.start_character + round(share * (last.end_character - last.start_character))
    return HeardText(reached, last.text, seconds)
