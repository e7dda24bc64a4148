"""The text front end: checks, normalises and splits the text of a request into segments for the language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import get_args

import regex

from vivavoce.errors import CheckpointError, InvalidRequest, InvalidText, check_kind
from vivavoce.frontend.text.segmentation import TextSegment, cut_long, find_spans, is_only_punctuation, split_paragraph
from vivavoce.frontend.text.text_input import Normalization, Reasoning, TextFilter, parse_language
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT, TextTokenizer
from vivavoce.frontend.text.word_spans import WordSpan, words_of
from vivavoce_textnorm import (
    AS_WRITTEN,
    MAX_BLOCK_CHARS,
    CancelCheck,
    Language,
    LoadedOnUse,
    NaturalNormalizer,
    NormalizedText,
    Normalizer,
    OfficialNormalizer,
    Piece,
    ReadingProcesses,
    Settings,
    Stretch,
    as_trained_on,
    check_characters,
    check_length,
    check_official_rules,
    contains_chinese,
    detect_language,
    excerpt,
    has_official_rules,
    is_speakable,
    name_some,
    never_cancelled,
)

MAX_SEGMENT_TOKENS = 200
"""Maximum number of text tokens in a segment, up to a minute of English; a longer segment is cut. The speech may have
20 speech tokens per text token, and must fit into a slot of the language model together with the prompt."""

_SAMPLES: dict[Language, str] = {
    "en": "It is 11:42, and 3 km cost $4.50.",
    "zh": "现在是11:42，3公里花了4.50元。",
    "ja": "今は11:42で、3キロは450円です。",
    "ko": "지금은 11:42이고 3km에 450원입니다.",
    "de": "Es ist 11:42 Uhr, und 3 km kosten 4,50 €.",
    "es": "Son las 11:42, y 3 km cuestan 4,50 €.",
    "fr": "Il est 11:42, et 3 km coûtent 4,50 €.",
    "it": "Sono le 11:42, e 3 km costano 4,50 €.",
    "ru": "Сейчас 11:42, и 3 км стоят 450 рублей.",
}

_NAME = regex.compile(r"\w+")
_SCRIPT: dict[Language, str] = {"zh": "Han", "ja": "Hiragana", "ko": "Hangul", "ru": "Cyrillic"}

# Symbols outside ASCII, without modifiers such as ´, which people type instead of an apostrophe. Variation selectors
# and the keycap mark occur only in emoji. Joiners and tag characters count only after another symbol.
_SYMBOL = r"[[\p{S}--[\p{ASCII}\p{Sk}]]\p{Emoji_Modifier}\uFE0E\uFE0F\u20E3]"
_SYMBOLS = regex.compile(rf"{_SYMBOL}(?:{_SYMBOL}|[\u200D\U000E0020-\U000E007F])*+", regex.V1)
_SPACES = regex.compile(r" {2,}")
_SPACE_BEFORE_MARK = regex.compile(r" (?=[.,!?;:…)”’]|\Z)|\A ")
_UNITS = regex.compile(r"(?<=\p{N}\s?[kMG]?)[\u03A9\u2126]|(?<=\p{N}\s?)\u03BC(?=\p{Latin}|\u03A9)")
"""Greek letters in units (10 Ω, 5 μg). Normalisation replaces them with words, so a model need not know them."""


class TextFrontEnd:
    """Prepares text as CosyVoice2's official front end does, but refuses bad input and limits the length of segments.

    With official rules, the results equal those of the official code, except that: a text with nothing to speak is
    refused; segments with too many tokens are cut; a text longer than 500 characters is normalised block by block, each
    block only when its segments are needed; text in languages other than English and Chinese is not normalised.
    Thread-safe.

    scripts: the scripts that a model was trained on, such as `frozenset({"Latin"})`; letters of other scripts are
    refused, and symbols that remain after normalisation are left out. None means all scripts. processes:
    number of further processes that normalise texts, because a block can hold the GIL for up to 0.2 s; with 0, this
    process normalises them."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        scripts: frozenset[str] | None = None,
        processes: int = 0,
    ) -> None:
        """Raises `CheckpointError` if `scripts` contains an unknown name."""
        self._tokenizer, self.marks = tokenizer, tokenizer.marks
        self.encode = tokenizer.encode
        """Encode a segment or a normalised transcript, see `TextTokenizer.encode`."""
        self._scripts, self._known = scripts, ", ".join(sorted(scripts or ()))
        self._foreign = None if scripts is None else _letters_of_others(scripts)
        digits_in_chinese = scripts is None or "Han" in scripts
        self._processes = ReadingProcesses(processes, digits_in_chinese=digits_in_chinese) if processes else None
        parts = tokenizer.parts if tokenizer.prompted else None
        self._official: OfficialNormalizer | None = OfficialNormalizer(
            self._processes or LoadedOnUse(digits_in_chinese), parts
        )
        self._max_tokens = MAX_SEGMENT_TOKENS

    def as_written(self) -> TextFrontEnd:
        """Return a copy that does not normalise texts, and splits them only if they have too many tokens."""
        plain = copy(self)
        plain._official = plain._processes = None
        return plain

    def warm_up(self) -> None:
        """Load the rules of the model's languages, also in the text processes; this takes one or two seconds."""
        if self._official is None:
            return
        samples = [
            (text, code)
            for code, text in _SAMPLES.items()
            if self._has_script(code) and not (self._foreign and self._foreign.search(text))
        ]
        if self._processes:
            self._processes.warm_up(samples, Settings(marks=self.marks))
        for text, code in samples:
            for reading in get_args(Normalization):
                if reading != "official" or has_official_rules():
                    list(self.located(text, code, reading=reading))
            "".join(words for words, _ in self.arriving(text, code, "natural"))

    def close(self) -> None:
        if self._processes:
            self._processes.close()

    def segments(self, text: str, language: str | None = None, reading: Normalization = "official") -> list[str]:
        """Normalise a text and split it into segments; at least one segment has something to speak.

        With official rules, text that contains both `<|` and `|>` is neither normalised nor split into sentences, as in
        the official code. language: a language or tag that `parse_language` knows; its rules split and normalise the
        text (official rules normalise only "en" and "zh"). If None, the language is detected (only English or Chinese
        if there are `scripts`). Raises `InvalidRequest` for another language, or if the model does not know its script.
        Raises `InvalidText` if the text has nothing to speak, is longer than `MAX_TEXT_CHARS`, or has control
        characters, lone surrogates or characters that the model lacks."""
        return [one.spoken for one in self.located(text, language, reading=reading)]

    def located(
        self,
        text: str,
        language: str | None = None,
        cancelled: CancelCheck = never_cancelled,
        reading: Normalization = "official",
        how: Settings = Settings(),
    ) -> Iterator[TextSegment]:
        """Yield the segments of `segments`, each with the range of characters that it speaks. The ranges are in order
        and cover the text.

        A segment is yielded as soon as no later text can change it. The whole text is checked before the first segment.
        Natural rules also normalise a text with `<|` and `|>`, but not the part between them. A text may consist of
        pauses only. how: options of natural rules. Raises RequestCancelled if `cancelled` returns True."""
        self._check(text)
        wanted, begun = self._wanted(language), list[TextSegment]()
        # The rules may replace signs with words, so a text of signs may be speakable: try this if the text is short.
        if len(text) <= MAX_BLOCK_CHARS or is_speakable(text):
            found = self._segments(text, wanted, self._normalizer(reading, text, how), cancelled)
            for one in found:
                begun.append(one)
                if is_speakable(one.spoken):
                    yield from begun
                    yield from found
                    return
            if any(one.pause_s for one in begun):
                yield from begun
                return
        raise InvalidText(
            f"text: nothing in {excerpt(text)} can be spoken; write at least one word", nothing_to_say=True
        )

    def _normalizer(self, reading: Normalization, text: str = "", how: Settings = Settings()) -> Normalizer:
        if self._official is None or reading == "off":
            return AS_WRITTEN
        if reading == "natural":
            settings, one_language = replace(how, marks=self.marks), self._scripts is not None
            if self._processes is None:
                return NaturalNormalizer(settings, one_language, as_trained_on)
            return NaturalNormalizer(settings, one_language, as_trained_on, self._processes.read_block)
        check_official_rules()
        return AS_WRITTEN if "<|" in text and "|>" in text else self._official

    def _segments(
        self, text: str, wanted: Language | None, normalizer: Normalizer, cancelled: CancelCheck
    ) -> Iterator[TextSegment]:
        start = 0
        held: TextSegment | None = None
        for stretch in normalizer.stretches(text):
            length = len(stretch.plain)
            for one in self._in_stretch(stretch, wanted, normalizer, cancelled):
                if held:
                    begin = stretch.original(one.start)
                    yield held._replace(start=start, end=begin)
                    start = begin
                held = one._replace(rate=stretch.rate)
                if one.end < length:  # the stretch goes on, so the segment's end is known
                    end = stretch.original(one.end)
                    yield held._replace(start=start, end=end)
                    start, held = end, None
        if held:
            yield held._replace(start=start, end=len(text))

    def _in_stretch(
        self, stretch: Stretch, wanted: Language | None, normalizer: Normalizer, cancelled: CancelCheck
    ) -> Iterator[TextSegment]:
        if stretch.pause_s:
            return iter([TextSegment("", 0, 0, pause_s=stretch.pause_s)])
        plain, said = stretch.plain, list[tuple[int, str]]()
        own = _code(stretch.language) if stretch.language else None
        named = own if own and self._has_script(own) else wanted
        language = self._told(plain, named)
        words = self._words(normalizer.pieces(stretch, language, cancelled), said)
        return find_spans(plain, self._pieces(words, None if normalizer is AS_WRITTEN else language), said)

    def normalize(self, text: str, language: str | None = None) -> str:
        """Normalise a text, such as a transcript, without splitting it. Return "" if it is only white space.

        Uses the official rules, or the natural rules if the official rules are not installed."""
        text = TextFilter("read").add(text, is_last=True)
        self._check(text)
        system, said = self.part(text)
        read_in = self._told(said, self._wanted(language))
        reading: Normalization = "official" if has_official_rules() else "natural"
        pieces = self._normalizer(reading, said).pieces(Stretch.whole(said), read_in)
        return system + ("".join(self._words(pieces, [])) if said.strip() else "")

    def explain(
        self,
        text: str,
        language: str | None = None,
        reading: Normalization = "natural",
        how: Settings = Settings(),
        reasoning: Reasoning = "silent",
    ) -> NormalizedText:
        """Normalise a text into pieces, each with the rule that changed it; official rules give a single piece.

        language: as in `segments`; with natural rules also "yue". how: options of natural rules. reasoning: see
        `TextFilter`; if only this filter removed characters of a piece, the piece has the rule "left out". Raises the
        errors of `normalize`."""
        text_filter = TextFilter(reasoning)
        found = self._explain(text_filter.add(text, is_last=True), language, reading, how).pieces
        ends = [0, *(text_filter.original(one.end) for one in found)]
        pieces = (
            Piece(start, end, one.spoken, one.rule or ("left out" if end - start > one.end - one.start else None))
            for one, start, end in zip(found, ends, ends[1:], strict=False)
        )
        return NormalizedText(text, tuple(pieces))

    def _explain(self, text: str, language: str | None, reading: Normalization, how: Settings) -> NormalizedText:
        self._check(text)
        normalizer = self._normalizer(reading, how=how)
        if not isinstance(normalizer, NaturalNormalizer):
            said = self.normalize(text, language) if reading == "official" else text
            return NormalizedText(text, (Piece(0, len(text), said, None if said == text else reading),))
        system, said = self.part(text)
        at, read_in = len(system), "yue" if language == "yue" else self._told(said, self._wanted(language))
        found = normalizer.read(said, read_in).pieces
        moved = (replace(piece, start=at + piece.start, end=at + piece.end) for piece in found)
        return NormalizedText(text, (*((Piece(0, at, system),) if at else ()), *moved))

    def part(self, text: str) -> tuple[str, str]:
        """Split a text into its system prompt with the end mark ("" without one or if not CosyVoice3) and the rest."""
        if not self._tokenizer.prompted:
            return "", text
        check_length(text)
        system, mark, spoken = text.rpartition(END_OF_PROMPT)
        return system + mark, spoken

    def arriving(
        self,
        pieces: Iterable[str],
        language: str | None = None,
        reading: Normalization = "official",
        how: Settings = Settings(),
    ) -> Iterator[tuple[str, int]]:
        """Yield the next words of a text that arrives in pieces, each time with the number of characters read so far.
        Only natural rules normalise the words."""
        return self._normalizer(reading, how=how).words(pieces, self._wanted(language))

    def words(self, text: str, spoken: str, start: int = 0) -> tuple[WordSpan, ...]:
        """Return the words of a segment's written text, each with its ids in `encode(spoken)`, see `words_of`."""
        return words_of(text, spoken, self._tokenizer.places(spoken), start)

    def encode_piece(self, text: str) -> tuple[int, ...]:
        self._check(text)
        return self._tokenizer.encode(self.piece(text))

    def piece(self, text: str) -> str:
        """Return the text that `encode_piece` encodes: without symbols if the model has `scripts`."""
        return text if self._scripts is None else drop_symbols(text)

    def _check(self, text: str) -> None:
        check_length(text)
        check_characters(text)
        self.check(text)

    def check(self, text: str) -> None:
        """Raise `InvalidText` if the model does not know a letter's script. The text may have any length."""
        check_kind("text", text, str, "give a string")
        foreign = [] if self._foreign is None else list(dict.fromkeys(self._foreign.findall(_UNITS.sub("", text))))
        if foreign:
            raise InvalidText(
                f"text: the model does not know the letters {name_some(foreign)} (it knows the script {self._known}); "
                "write them in a script that it knows or choose another model"
            )

    def _wanted(self, language: str | None) -> Language | None:
        wanted = _code(parse_language(language)) if language else None
        if wanted and not self._has_script(wanted):
            meant = "'zh' (which yue is taken for)" if wanted == "zh" else repr(wanted)
            raise InvalidRequest(
                f"language: the model does not know {meant} (it knows the script {self._known}); leave it out or "
                "choose another model"
            )
        return wanted

    def _has_script(self, language: Language) -> bool:
        return self._scripts is None or _SCRIPT.get(language, "Latin") in {*self._scripts, "Latin"}

    def _told(self, text: str, wanted: Language | None) -> Language:
        return wanted or (detect_language(text) if self._scripts is None else "zh" if contains_chinese(text) else "en")

    def _words(self, pieces: Iterable[Piece], said: list[tuple[int, str]]) -> Iterator[str]:
        for piece in pieces:
            spoken = piece.spoken if self._scripts is None else drop_symbols(piece.spoken)
            said.append((piece.end, spoken))
            yield spoken

    def _pieces(self, words: Iterable[str], language: Language | None) -> Iterator[tuple[list[str], str]]:
        # The length is counted in characters for Chinese and in tokens for other languages.
        measure = len if language == "zh" else self._num_tokens
        split = split_paragraph(words, measure, language) if language else ((piece, "") for piece in words)
        for piece, following in split:
            parts = cut_long(piece, self._num_tokens, self._max_tokens)
            yield [part for part in parts if not is_only_punctuation(part)], following

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def _code(tag: str | None) -> Language | None:
    """Return the language code of a tag such as en-GB; None for a language without rules."""
    return next((one for one in get_args(Language) if one == (tag or "").partition("-")[0]), None)


def _letters_of_others(scripts: frozenset[str]) -> regex.Pattern[str]:
    """Compile a pattern for letters outside these scripts. scripts: Unicode names such as `Latin`, `Han` or `Cyrillic`.

    A letter belongs to the scripts in its Unicode property Script_Extensions. The pattern does not match letters common
    to all scripts, digits, punctuation and combining marks."""
    own = "".join(rf"\p{{Script_Extensions={name}}}" for name in (*sorted(scripts), "Common", "Inherited"))
    try:
        if all(_NAME.fullmatch(name) for name in scripts):
            return regex.compile(rf"[[\p{{L}}\p{{Nl}}]--[{own}]]", regex.V1)
    except regex.error:
        pass
    raise CheckpointError(
        f"scripts: {sorted(scripts)} holds a name that Unicode does not know; use names such as Latin or Han"
    )


def drop_symbols(text: str) -> str:
    """Remove emoji and other symbols outside ASCII, and insert a space where two words would touch.

    The backslash that wetext writes before a quotation mark is removed, too, because models were trained without it."""
    text = text.replace('\\"', '"')
    without = _SYMBOLS.sub(" ", text)
    if without == text:
        return text
    return _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", without))
