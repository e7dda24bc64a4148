"""The front end: the text of a request, checked, normalised and split into segments for the language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import groupby
from threading import Lock
from typing import get_args

import regex

from vivavoce.errors import CheckpointError, InvalidRequest, InvalidText
from vivavoce.frontend.text.arriving import whole_words
from vivavoce.frontend.text.checks import check_characters, check_length, excerpt, name_some
from vivavoce.frontend.text.official import (
    WHOLE_CHARS,
    CancelCheck,
    Language,
    Languages,
    Normalization,
    Rules,
    as_trained_on,
    blocks,
    check_wanted,
    contains_chinese,
    is_only_punctuation,
    is_speakable,
    load_languages,
    never_cancelled,
    parse_language,
    spoken_form,
)
from vivavoce.frontend.text.official_processes import ReadingProcesses
from vivavoce.frontend.text.recognition import recognise
from vivavoce.frontend.text.segmentation import TextSegment, cut_long, find_spans, split_paragraph
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT, TextTokenizer
from vivavoce_textnorm.arriving import read_arriving
from vivavoce_textnorm.inline_tags import TextRun, original
from vivavoce_textnorm.markup import Settings
from vivavoce_textnorm.reader import read, read_run
from vivavoce_textnorm.ssml import find_runs
from vivavoce_textnorm.types import NormalizedText, Piece
from vivavoce_textnorm.verbalizer import MODULES

MAX_SEGMENT_TOKENS = 200
"""Tokens of a segment after which it is cut wherever it can be: about a minute of English without a full stop."""

SMALL_VOCABULARY = 32_000
MAX_SEGMENT_TOKENS_SMALL = 500
"""The same bound for a vocabulary of fewer than `SMALL_VOCABULARY` ids (the release has 151,665), which writes one
word in several tokens, or byte by byte."""

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
"""Texts that need the tables and patterns of their languages."""
_READING = Lock()
"""Held while this process reads by our own rules: many threads at once would keep the interpreter from an engine's
thread, and load the same tables, each for itself.
"""

_NAME = regex.compile(r"\w+")
_INVISIBLE = regex.compile(r"[\u00AD\u200B\u200E\u200F\u202A-\u202E\u2060-\u2069\uFEFF]")  # soft hyphens and the like
_SCRIPT: dict[Language, str] = {"zh": "Han", "ja": "Hiragana", "ko": "Hangul", "ru": "Cyrillic"}

# Symbols outside ASCII, but not modifiers such as ´, which people type for an apostrophe. Variation selectors and the
# keycap mark belong to emoji only; joiners and tags do inside a run of them.
_SYMBOL = r"[[\p{S}--[\p{ASCII}\p{Sk}]]\p{Emoji_Modifier}\uFE0E\uFE0F\u20E3]"
_SYMBOLS = regex.compile(rf"{_SYMBOL}(?:{_SYMBOL}|[\u200D\U000E0020-\U000E007F])*+", regex.V1)
_SPACES = regex.compile(r" {2,}")
_SPACE_BEFORE_MARK = regex.compile(r" (?=[.,!?;:…)”’]|\Z)|\A ")


class TextFrontEnd:
    """Text as CosyVoice2's official front end prepares it, with bad input refused and the length of segments bounded.

    Wherever the official code returns a result, so does this, the same one, with these exceptions: text in which
    nothing can be spoken is refused; pieces longer than the bound on tokens are cut; text longer than 500 characters
    is read block by block (see `reading`), the next block when its segments are asked for; text in other languages
    than English and Chinese is spoken as it is written. Safe to use from several threads.

    `normalize=False` gives text to the model as it is written, unsplit but for the bound. `scripts` names the scripts
    a model was trained on (`frozenset({"Latin"})`): letters of others are then refused, and symbols that remain after
    normalisation left out. `processes`: this many others read the texts, which holds the interpreter for up to 0.2 s a
    block; 0: this one does.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        normalize: bool = True,
        scripts: frozenset[str] | None = None,
        processes: int = 0,
    ) -> None:
        """Load the rules of the languages if `normalize`; `CheckpointError` if `scripts` holds an unknown name."""
        self._tokenizer, self.marks = tokenizer, tokenizer.marks
        self._scripts, self._known = scripts, ", ".join(sorted(scripts or ()))
        self._foreign = None if scripts is None else _letters_of_others(scripts)
        digits_in_chinese = scripts is None or "Han" in scripts
        self._languages: Languages | ReadingProcesses | None = None
        if normalize:  # also where others read: what is missing shows now
            self._languages = load_languages(digits_in_chinese=digits_in_chinese)
        if normalize and processes:
            self._languages = ReadingProcesses(processes, digits_in_chinese=digits_in_chinese)
        small = len(tokenizer) < SMALL_VOCABULARY
        self._max_tokens = MAX_SEGMENT_TOKENS_SMALL if small else MAX_SEGMENT_TOKENS

    def as_written(self) -> TextFrontEnd:
        """The same with `normalize=False`."""
        plain = copy(self)
        plain._languages = None
        return plain

    def warm_up(self) -> None:
        """Load what the rules need for a first text of each language that the model may be asked to read, here and in
        the processes that read; a second or two.
        """
        if self._languages is None:
            return
        samples = [(text, code) for code, text in _SAMPLES.items() if self._has_script(code)]
        if isinstance(self._languages, ReadingProcesses):
            self._languages.warm_up(samples, self._settings(Settings(), "en"))
        for text, code in samples:
            for reading in get_args(Normalization):
                list(self.located(text, code, reading=reading))
            "".join(words for words, _ in self.arriving(text, code, "natural"))

    def close(self) -> None:
        """End the processes that read: what comes now stays as it is written."""
        if isinstance(self._languages, ReadingProcesses):
            self._languages.close()

    def segments(self, text: str, language: str | None = None, reading: Normalization = "official") -> list[str]:
        """The text normalised and split for synthesis: at least one segment, and something to say among them.

        Text that holds both `<|` and `|>` is neither normalised nor split at sentences, as in the official code.
        language: one of nine, whose rules split it, and read it if it is "en" or "zh"; None: told from the text, which
        is English or Chinese for a model of few scripts. Raises `InvalidRequest` for another language, or one whose
        script the model does not know; `InvalidText` for text with nothing to speak, longer than `MAX_TEXT_CHARS`, with
        control characters or lone surrogates, or with characters that the model does not know.
        """
        return [one.spoken for one in self.located(text, language, reading=reading)]

    def located(
        self,
        text: str,
        language: str | None = None,
        left: CancelCheck = never_cancelled,
        reading: Normalization = "official",
        how: Settings = Settings(),
        *,
        goes_on: bool = False,
    ) -> Iterator[TextSegment]:
        """`segments`, each with the characters of the text that it speaks: all of them, in order.

        A segment is given as soon as no later text can change it. The whole text is checked before any of it is read.
        Natural rules read a text with `<|` and `|>`, too, but for what is between; how: what is chosen of them.
        goes_on: other text was spoken before this, so that it may consist of pauses.
        """
        if reading == "off" and self._languages is not None:
            yield from self.as_written().located(text, language, left)
            return
        self._check(text)
        wanted, begun = self._wanted(language), list[TextSegment]()
        # Signs are read as words in short texts: some are all that is to be said.
        if len(text) <= WHOLE_CHARS or is_speakable(text):
            if reading == "natural" and self._languages is not None:
                found = self._naturally(text, wanted, how, left)
            else:
                read_in = self._language(text, wanted)
                found = self._located(text, read_in, self._official(text, read_in, left))
            for one in found:
                begun.append(one)
                if is_speakable(one.spoken):
                    yield from begun
                    yield from found
                    return
            if goes_on and any(one.pause_s for one in begun):
                yield from begun
                return
        raise InvalidText(
            f"text: nothing in {excerpt(text)} can be spoken; write at least one word", nothing_to_say=True
        )

    def _naturally(
        self, text: str, wanted: Language | None, settings: Settings, left: CancelCheck
    ) -> Iterator[TextSegment]:
        """By rules of our own, in runs, of which those belong together between which only the language changes.

        What brings no segment counts to the one before.
        """
        runs, held = find_runs(text, self.marks), TextSegment("", 0, 0)
        if len(runs) == 1 and runs[0].plain == text:
            read_in = self._told(text, wanted)
            yield from self._located(text, read_in, self._natural(text, runs, read_in, settings, left))
            return
        for (rate, pause_s), group in groupby(runs, lambda run: (run.rate, run.pause_s)):
            together = list(group)
            pieces = [piece for run in together for piece in run.pieces]
            if pause_s:
                found = iter([TextSegment("", pieces[0].start, pieces[-1].end, pause_s=pause_s * len(together))])
            else:
                plain = "".join(piece.spoken for piece in pieces)
                named = next((run.language for run in together if run.language and run.plain.strip()), None)
                own = next((one for one in get_args(Language) if one == named and self._has_script(one)), wanted)
                read_in = self._told(plain, own)
                found = self._located(plain, read_in, self._natural(plain, together, read_in, settings, left))
            for one in found:
                start = one.start if pause_s else original(pieces, one.start)
                if held.spoken or held.pause_s:
                    yield held._replace(end=start)
                    held = one._replace(start=start, rate=rate)
                else:
                    held = one._replace(start=0, rate=rate)
        yield held._replace(end=len(text))

    def _located(self, text: str, language: Language | None, said: Iterable[tuple[str, int]]) -> Iterator[TextSegment]:
        seams: list[tuple[int, int]] = []
        return find_spans(text, self._pieces(self._words(said, seams), language), seams)

    def normalize(self, text: str, language: str | None = None) -> str:
        """The text normalised but not split, as the transcript of a prompt is; "" for empty text and white space.

        Raises as `segments` does, but not for text with nothing to speak.
        """
        self._check(text)
        system, said = self.part(text)
        read_in = self._language(said, self._wanted(language))
        return system + ("".join(self._words(self._official(said, read_in), [])) if said.strip() else "")

    def explain(
        self, text: str, language: str | None = None, reading: Normalization = "natural", how: Settings = Settings()
    ) -> NormalizedText:
        """What is said for a text, not split: by natural rules, piece by piece; by official ones it is a single piece.

        language: "yue", too, with natural rules; how: what a request chooses of these. Errors as `normalize`.
        """
        self._check(text)
        if reading == "official" and (said := self.normalize(text, language)) != text:
            return NormalizedText(text, (Piece(0, len(text), said, reading),))
        system, said = self.part(text)
        if reading != "natural" or self._languages is None:
            return NormalizedText(text, (Piece(0, len(text), text),))
        read_in = "yue" if language == "yue" else self._told(said, self._wanted(language))
        at, found = len(system), read(said, read_in, self._settings(how, read_in))
        moved = (replace(piece, start=at + piece.start, end=at + piece.end) for piece in found.pieces)
        return NormalizedText(text, (*((Piece(0, at, system),) if at else ()), *moved))

    def part(self, text: str) -> tuple[str, str]:
        """The system prompt that a text for CosyVoice3 begins with, up to the mark that ends it, and what is spoken."""
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
        """`whole_words` of a text that arrives: as they are written, or by natural rules as they are said.

        `InvalidRequest` for a language as `segments`, `InvalidText` as `whole_words` and `located`.
        """
        wanted = self._wanted(language)
        if reading != "natural" or self._languages is None:
            return whole_words(pieces)
        told: Language | None = wanted or (None if self._scripts is None else "en")
        return read_arriving(pieces, told, self._settings(how, told or "en"))

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a segment or a normalised transcript. Raises `InvalidText` for characters it cannot write."""
        return self._tokenizer.encode(text)

    def encode_piece(self, text: str) -> tuple[int, ...]:
        """The ids of words that `arriving` gave: checked as other text is, otherwise as they are."""
        self._check(text)
        return self._tokenizer.encode(text if self._scripts is None else drop_symbols(text))

    def _check(self, text: str) -> None:
        check_length(text)
        self.check(text)

    def check(self, text: str) -> None:
        """Refuse characters that no text may hold, or that the model does not know, in a text of any length.

        Raises `InvalidText`, which names them.
        """
        check_characters(text)
        foreign = [] if self._foreign is None else list(dict.fromkeys(self._foreign.findall(text)))
        if foreign:
            raise InvalidText(
                f"text: the model does not know the letters {name_some(foreign)} (it knows the script {self._known}); "
                "write them in a script that it knows or choose another model"
            )

    def _wanted(self, language: str | None) -> Language | None:
        """The language that a request names; InvalidRequest: it is unknown, or the model does not know its script."""
        wanted = None if language is None else parse_language(language)
        if wanted and not self._has_script(wanted):
            raise InvalidRequest(
                f"language: the model does not know {wanted!r} (it knows the script {self._known}); leave it out or "
                "choose another model"
            )
        return wanted

    def _has_script(self, language: Language) -> bool:
        return self._scripts is None or _SCRIPT.get(language, "Latin") in {*self._scripts, "Latin"}

    def _language(self, text: str, wanted: Language | None) -> Language | None:
        """The language to read and split the text by; None: neither."""
        if self._languages is None or ("<|" in text and "|>" in text):
            return None
        return self._told(text, wanted)

    def _told(self, text: str, wanted: Language | None) -> Language:
        return wanted or (recognise(text) if self._scripts is None else "zh" if contains_chinese(text) else "en")

    def _words(self, said: Iterable[tuple[str, int]], seams: list[tuple[int, int]]) -> Iterator[str]:
        """What is said, as the model knows it; seams: get the ends of the pieces, in the text and in what is said."""
        length = 0
        for words, end in said:
            spoken = words if self._scripts is None else drop_symbols(words)
            length += len(spoken)
            seams.append((end, length))
            yield spoken

    def _official(
        self, text: str, language: Language | None, left: CancelCheck = never_cancelled
    ) -> Iterator[tuple[str, int]]:
        """See `spoken_form`: what is said, piece by piece, each with its end in the text."""
        if not language or not self._languages:
            return iter([(text, len(text))])
        if language not in ("zh", "en"):
            return iter([(" ".join(_INVISIBLE.sub("", text).split()), len(text))])
        rules: Callable[[str, Rules], str] = partial(self._languages.read, length=len(text), left=left)
        return spoken_form(text, language, partial(self._around_tags, rules) if self._tokenizer.prompted else rules)

    def _natural(
        self, text: str, runs: Sequence[TextRun], language: Language, how: Settings, left: CancelCheck
    ) -> Iterator[tuple[str, int]]:
        """As `_official`, by rules of our own; texts of up to `WHOLE_CHARS` characters are one piece."""
        settings, end, last = self._settings(how, language), 0, " "
        for run in runs:
            code = run.language or language
            for block in blocks(run.plain, "zh" if code == "zh" else "en"):
                check_wanted(left)
                end += len(block)
                words = self._read_run(block, code, settings, run, (last != " ", end < len(text)), len(text), left)
                last = words[-1:] or last
                yield (as_trained_on(words, at_end=end == len(text)) if code == "zh" else words), end

    def _read_run(
        self,
        block: str,
        code: str,
        settings: Settings,
        run: TextRun,
        inside: tuple[bool, bool],
        length: int,
        left: CancelCheck,
    ) -> str:
        """A block of a run by our own rules; one at a time where this process reads."""
        if isinstance(self._languages, ReadingProcesses):
            words = self._languages.read_naturally(block, code, settings, run.said, inside, length, left)
            if words is not None:
                return words
        with _READING:
            return read_run(block, code, settings, run.said, inside).spoken

    def _settings(self, how: Settings, language: str) -> Settings:
        """What a request chooses, with what the model knows; one of few scripts is read in this language or English."""
        unread = frozenset() if self._scripts is None else frozenset(MODULES) - {language, "en"}
        return replace(how, marks=self.marks, unread=unread)

    def _around_tags(self, read: Callable[[str, Rules], str], block: str, rules: Rules) -> str:
        """A block as it is read but for special tokens: the digit of a phone is no number."""
        parts = enumerate(self._tokenizer.parts(block))
        return "".join(part if place % 2 or not part.strip() else read(part, rules) for place, part in parts)

    def _pieces(self, words: Iterable[str], language: Language | None) -> Iterator[tuple[list[str], str]]:
        """Segments, and what is known to follow them."""
        # Length as the splitting counts it: characters of Chinese, tokens of anything else.
        measure = len if language == "zh" else self._num_tokens
        split = split_paragraph(words, measure, language) if language else ((piece, "") for piece in words)
        for piece, following in split:
            parts = cut_long(piece, self._num_tokens, self._max_tokens)
            yield [part for part in parts if not is_only_punctuation(part)], following

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def _letters_of_others(scripts: frozenset[str]) -> regex.Pattern[str]:
    """Letters of other scripts than those of these Unicode names (`Latin`, `Han`, `Cyrillic`, …).

    A letter belongs to the scripts of its Unicode property Script_Extensions; letters common to all scripts, digits,
    punctuation and combining marks always pass.
    """
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
    """Leave out emoji and other symbols beyond ASCII; a space takes their place where words would touch.

    So goes the backslash that wetext puts before a quotation mark: such a model has never seen one.
    """
    text = text.replace('\\"', '"')
    without = _SYMBOLS.sub(" ", text)
    if without == text:
        return text
    return _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", without))
