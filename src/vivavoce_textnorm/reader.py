"""Reads a text by the natural rules: first its markup, then numbers, dates and so on in each sentence's language."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import regex

from vivavoce_textnorm import addresses
from vivavoce_textnorm import semiotic_classes as classes
from vivavoce_textnorm.grammar import CJK, Grammar, Match, any_of, compiled, load_grammar
from vivavoce_textnorm.inline_tags import put_in_words
from vivavoce_textnorm.language_id import DAY_FIRST, FREQUENT_WORDS, detect_sentence_language
from vivavoce_textnorm.lexicon import NO_WORDS
from vivavoce_textnorm.markup import strip_markup
from vivavoce_textnorm.semiotic_classes import Cursor, Found
from vivavoce_textnorm.ssml import find_runs
from vivavoce_textnorm.types import NormalizedText, Piece, Say, Settings
from vivavoce_textnorm.verbalizer import Verbalizer, load_verbalizer

_LETTER = rf"(?<![[\p{{L}}\p{{M}}\p{{N}}_]--[{CJK}]])[\p{{L}}--[{CJK}]]"
# Symbols with which an item of the rules may begin in any language; `_candidate` adds the symbols of the locale.
_SIGNS = "-−–—～+#@~/.(（*_|\\^`{}[]<>:·※■●◆★☆▲△½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒"
# A word, but not a roman numeral, before a blank or a mark.
_PLAIN_WORD = compiled(
    r"(?!(?=\p{Lu})[IVXLC]+\b)(?:[\p{Latin}\p{Cyrillic}\p{M}]+|\p{Hangul}+)(?=[\s,;!?)”\"…。，！？；：、]|\.?(?:\s|\Z))"
)
_LONG_NUMBER = compiled(r"(?:\d{1,40}[.,:/eE-]){0,3}\d{1000,}")
_WORD_REST = compiled(rf"[[\p{{L}}\p{{M}}\p{{N}}'’]--[{CJK}\p{{N}}]]+")
_SENTENCE = compiled(r"[^。！？\n]*[。！？\n]*")
# Latin text, with the model's tags that stand before it, such as [laughter].
_LATIN_RUN = compiled(
    rf"(?:(?:\[[^\s\[\]]{{1,40}}\]|</?\w{{1,40}}>)\s*)*+[A-Za-zÀ-ɏ][^{CJK}\p{{Hangul}}。，；：！？、“”‘’（）【】《》]*"
)
_LATIN_WORD = compiled(r"(?<![\p{L}\p{N}./:@_#\[</-])\p{Latin}+(?:['’-]\p{Latin}+)?(?![\p{L}\p{N}@_]|[./:-]\w)")
# Addresses and single letters of formulas show no language.
_ADDRESS = compiled(
    r"(?<!\S)(?:\S{1,100}@\S|\S{0,20}//|(?i:www\.))\S*|(?<![\p{L}'’])\p{Latin}(?=\s?[=+*/<>→≤≥≈±×÷^²³₀-₉])"
    r"|(?<=[=+*/<>→≤≥≈±×÷|]\s?)\p{Latin}(?![\p{L}'’])"
)
_TIGHT = frozenset(("zh", "yue", "ja", "ko"))
_HAN, _KANA, _HANGUL = compiled(r"\p{Han}"), compiled(r"[\p{Hiragana}\p{Katakana}--の・]"), compiled(r"\p{Hangul}")
_CANTONESE, _WIDE_MARK = compiled("[佢哋喺嘢嘅咗冇啲嗰咁嚟唔睇]"), compiled("[，。；：！？、（）《》「」]")
_WORD, _OTHER = compiled(r"[\p{Latin}\p{Cyrillic}]{2}"), compiled(r"[\p{L}--[\p{Latin}\p{Cyrillic}\p{Greek}]]")
_LAST_WORD = compiled(r"(?<![\p{L}\p{N}.'’-])(\p{Latin}{2,12}) \Z")
_CUES = frozenset(("in", "on", "since", "until", "till", "before", "after", "during", "was", "were", "is", "are"))
_COUNTED = compiled(rf"[\d.,:/%$€£¥￥+-]+\s?[{CJK}\p{{Hangul}}]")
_FREQUENT = {str(language): words for language, words in FREQUENT_WORDS.items()}
_GLUED = compiled(rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{CJK}]]")

# Spoken text that a further pass of the rules may change, such as a symbol, or a mark without a space after it.
_ODD = compiled(
    r"[^\p{L}\p{M}\s,.!?;:'\"’“”‘。，！？、；：…（）()—~～–-]|[.:](?=\S)|(?<!\S)[-–~]|\p{Lu}\.|[-–]\p{Lu}|\s\s|[\t\n\u00a0\u3000]"
    rf"|(?<![\p{{L}}--[{CJK}]])[IVX]{{2,}}(?![\p{{L}}--[{CJK}]])"
)
_OPENS, _CLOSES = compiled(rf"[\s(“\"‘{CJK}]"), compiled(rf"[\s,;:!?)…”\"’。，！？；：、）{CJK}]")
_MOST_PASSES = 6
"""Maximum number of passes: the text is read again if another rule may apply to the words that a rule produced."""

Reader = Callable[[Cursor], Found]

# Kind of an item's first character → the readers, in the order in which they are tried.
BY_FIRST: dict[str, tuple[Reader, ...]] = {
    "digit": (
        addresses.read_address, classes.read_date, classes.read_named_date, classes.read_time, classes.read_phone,
        classes.read_version, classes.read_digit_groups, classes.read_ratio, classes.read_fraction,
        classes.read_dimensions, classes.read_amount,
    ),
    "letter": (
        addresses.read_address, addresses.read_acronym, addresses.read_roman,
        classes.read_version, classes.read_amount, addresses.read_sign,
    ),
    "sign": (
        classes.read_phone, addresses.read_key_code, addresses.read_tagged, addresses.read_address,
        addresses.read_roman, classes.read_fraction, classes.read_amount, addresses.read_sign,
    ),
}  # fmt: skip


def read(text: str, language: str | None = None, settings: Settings | None = None) -> NormalizedText:
    """Read a text, and apply its tags or SSML except for pauses and rates.

    language: the language of sentences that show no language; if None, it is detected from the text. In a language
    without a verbalizer, only markup is removed. Raises InvalidText as `find_runs` does.
    """
    settings = settings or Settings()
    runs, pieces = find_runs(text, settings.marks), list[Piece]()
    for place, run in enumerate(runs):
        last = next((one.spoken[-1] for one in reversed(pieces) if one.spoken), " ")
        inside = last != " ", place + 1 < len(runs)
        found = read_run(run.plain, run.language or language, settings, run.said, inside)
        pieces += _compose(run.pieces, list(found.pieces))
    for place in reversed(range(len(pieces))):  # drop the space before markup at the end of the text
        one, said = pieces[place], pieces[place].spoken.rstrip(" ")
        if one.rule or one.spoken == said:
            pieces[place] = replace(one, spoken=said)
        else:
            end = one.start + len(said)
            pieces[place : place + 1] = Piece(one.start, end, said), Piece(end, one.end, "", "spaces")
        if said:
            break
    return NormalizedText(text, tuple(pieces))


def read_run(
    text: str,
    language: str | None,
    settings: Settings,
    said: Mapping[str, Say],
    inside: tuple[bool, bool] = (False, False),
) -> NormalizedText:
    """Read the plain text of a run, or a part of that text.

    inside: whether words come before the text, and whether words come after it; spaces beside such words are kept.
    """
    if language == DAY_FIRST:
        language, settings = "en", replace(settings, day_first=True)
    words = text.strip()
    first = len(text) - len(text.lstrip())
    pieces = [replace(one, start=one.start + first, end=one.end + first) for one in _read(words, language, settings)]
    if said:
        pieces = list(_with_words(pieces, said, language, settings))
    ends = ((0, first, inside[0]), (first + len(words), len(text), inside[1]))
    before, after = ([Piece(low, high, " " * blank, "spaces")] if high > low else [] for low, high, blank in ends)
    return NormalizedText(text, (*before, *pieces, *after))


def _read(text: str, language: str | None, settings: Settings) -> list[Piece]:
    pieces = [Piece(0, len(text), text)] if text else []
    for _ in range(_MOST_PASSES):
        plain = "".join(piece.spoken for piece in pieces)
        stripped = strip_markup(plain, settings)
        free = "".join(piece.spoken for piece in stripped)
        said = list(_read_plain(free, language, settings))
        changed = [one for one in (*stripped, *said) if one.rule]
        if not changed:
            break
        spoken = "".join(piece.spoken for piece in said)
        pieces = _compose(pieces, _compose(stripped, said))
        if not (any(_runs_on(free, piece) for piece in said) or _ODD.search(spoken)):
            break
        settings = replace(settings, lexicon=NO_WORDS)  # the lexicon applies in the first pass only
    return pieces


def _with_words(
    pieces: list[Piece], said: Mapping[str, Say], language: str | None, settings: Settings
) -> Iterator[Piece]:
    spoken = "".join(piece.spoken for piece in pieces)
    if said.keys().isdisjoint(spoken):
        yield from pieces
        return
    told = {sign: code for start, end, code in segments(spoken, language) for sign in spoken[start:end]}
    other = language or "en"
    at, last = 0, ""
    for piece in pieces:
        start, words = piece.start, ""
        for place, sign in enumerate(piece.spoken, piece.start):
            at += 1
            if (what := said.get(sign)) is None:
                words += sign
                continue
            own = _glue(
                (last + words)[-1:],
                _in_words(what, other if told[sign] in settings.unread else told[sign], settings),
                spoken[at : at + 1],
                "say-as",
            )
            if piece.rule is not None:
                words += own
                continue
            if words:
                yield Piece(start, place, words)
            yield Piece(place, place + 1, own, "say-as")
            start, words, last = place + 1, "", own[-1:]
        if start < piece.end:
            yield Piece(start, piece.end, words, piece.rule)
        last = words[-1:] or last


def _voice(language: str, settings: Settings) -> Verbalizer | None:
    return load_verbalizer(language, True) if settings.day_first and language == "en" else load_verbalizer(language)


def _in_words(what: Say, language: str, settings: Settings) -> str:
    if not (voice := _voice(language, settings)):
        return " ".join(what.content) if what.how == "spell" else what.content
    said = put_in_words(what, voice)
    return read(what.content, language, settings).spoken if said is None else said


def _runs_on(text: str, piece: Piece) -> bool:
    if piece.rule is None:
        return False
    alone = not piece.start or _OPENS.match(text[piece.start - 1])
    return not (alone and (piece.end == len(text) or _CLOSES.match(text[piece.end])))


def _read_plain(text: str, language: str | None, settings: Settings) -> Iterator[Piece]:
    at, last = 0, ""
    for start, end, told in segments(text, language):
        voice = _voice(language or "en" if told in settings.unread else told, settings)
        if not voice:
            continue
        grammar = load_grammar(voice)
        for place, found in _scan(grammar, text, start, end, settings.marks):
            stop, said, rule = found
            if place > at:
                yield Piece(at, place, text[at:place])
                last = text[place - 1]
            glued = _glue(last, said, text[stop : stop + 1], rule)
            yield Piece(place, stop, glued, rule)
            at, last = stop, glued[-1:] or last
    if at < len(text):
        yield Piece(at, len(text), text[at:])


def segments(text: str, language: str | None) -> Iterator[tuple[int, int, str]]:
    """Split a text into parts of one language: sentences, and three or more Latin words in an East Asian sentence."""
    before = language
    for sentence in _SENTENCE.finditer(text):
        start, end = sentence.span()
        if start == end:
            continue
        written = sentence[0]
        told = _script(written, language)
        few = sum(len(word) > 1 for word in _LATIN_WORD.findall(written)) < 3
        if not told and language in _TIGHT and few:
            told = language
        if not told:
            told = detect_sentence_language(_ADDRESS.sub(" ", written), before if few or before not in _TIGHT else None)
            told = told if any(map(str.isalpha, written)) else language or before or told
            yield start, end, told
            before = told
            continue
        before = told
        at = start
        for run in _LATIN_RUN.finditer(text, start, end):
            words = _LATIN_WORD.findall(run[0])
            if len(words) >= 3 and sum(map(str.islower, words)) >= 2:  # a sentence is longer than the name of a product
                yield at, run.start(), told
                yield run.start(), run.end(), detect_sentence_language(run[0], "en")
                at = run.end()
        yield at, end, told


def _script(written: str, language: str | None) -> str | None:
    """Return the language that the script shows, "und" for an unsupported script, or None for Latin or Cyrillic."""
    if _KANA.search(written):
        return "ja"
    if _HANGUL.search(written):
        return "ko"
    if _HAN.search(written):
        cantonese = language == "yue" or len(_CANTONESE.findall(written)) > 1
        return "yue" if cantonese and load_verbalizer("yue") else "ja" if language == "ja" else "zh"
    if not _WORD.search(written):
        wide = _WIDE_MARK.search(written)
        return "und" if _OTHER.search(written) else (language if language in ("ja", "yue") else "zh") if wide else None
    return None


@cache
def _candidate(grammar: Grammar, marks: frozenset[str]) -> Match:
    locale = grammar.voice.locale
    signs = {
        *_SIGNS,
        *(key[0] for key in (*locale.signs, *locale.currencies) if not (key[0].isalpha() or key[0].isdecimal())),
    }
    inner = "".join(regex.escape(sign) for sign in sorted(signs) if sign not in " .:")
    tag = any_of(marks)
    return compiled(
        rf"(?P<tag>{tag}|<\|[^|<>]{{1,40}}\|>)|(?P<digit>(?<!\d)\d)|(?P<letter>{_LETTER})"
        rf"|(?P<sign>[{inner}Ⅰ-Ⅿⅰ-ⅿ]|(?<![^\s(=<>])\.(?=\d)|(?<=率)\.(?=\d)|(?<![\w:])::|(?<!\S)\.\.?(?=/\w)|(?<!\w)['’‘](?=\d0s))"
    )


def _scan(
    grammar: Grammar, text: str, start: int, end: int, marks: frozenset[str]
) -> Iterator[tuple[int, tuple[int, str, str]]]:
    candidate, at = _candidate(grammar, marks), start
    while at < end and (found := candidate.search(text, at, end)):
        at, kind = found.start(), found.lastgroup
        if kind == "tag":
            at = found.end()
            continue
        word = _PLAIN_WORD.match(text, at, end) if kind == "letter" else None
        small = word[0].lower() if word else ""
        if word and small not in grammar.heads and not small.endswith(grammar.endings):
            at = word.end()
            continue
        spoken = _try(_grammar_at(grammar, text, at) if kind != "letter" else grammar, text, at, end, kind)
        if spoken and spoken[0] > at:
            yield at, spoken
            at = spoken[0]
        elif kind == "letter":
            at = _WORD_REST.match(text, at).end()
        else:
            at += 1


def _try(grammar: Grammar, text: str, at: int, end: int, kind: str) -> Found:
    place = Cursor(grammar, text, at, end)
    if kind == "digit":
        if long := place.match(_LONG_NUMBER):  # Python does not convert more than 4,300 digits to a number
            return long.end(), grammar.voice.one_by_one("".join(filter(str.isdecimal, long[0]))), "digits"
        if told := classes.read_span(place):
            return told if told[0] <= end else None
    for name, pattern, say in grammar.own[kind]:
        if (found := place.match(pattern)) and (said := say(grammar.voice, found)) is not None:
            return found.end(), said, name
    if found := place.match(grammar.idioms):
        return found.end(), grammar.voice.locale.idioms[found[0].lower()], "idiom"
    if kind == "letter" and (told := classes.read_named_date(place)):
        return told
    if kind == "letter" and (found := place.match(grammar.abbreviations)):
        ends = found[0][-1] == "." and not place.after(found.end())  # the full stop also ends the sentence
        return found.end() - ends, grammar.voice.locale.abbreviations[found[0]], "abbreviation"
    for reader in BY_FIRST[kind]:
        if told := reader(place):
            return told if told[0] <= end else None
    return None


def _grammar_at(grammar: Grammar, text: str, at: int) -> Grammar:
    own = _FREQUENT.get(grammar.voice.locale.language, frozenset())
    found = _LAST_WORD.search(text, max(0, at - 14), at)
    if not found or found[1].isupper() or (word := found[1].lower()) in own:
        return grammar
    # Switch to English only: a frequent word of French ("le") may be Italian or Spanish as well.
    other = [language for language, words in _FREQUENT.items() if word in words]
    # In Chinese, a word such as "in" is English, unless the number behind it has a Chinese word: "born in 1998年".
    cue = grammar.voice.locale.language in _TIGHT and word in _CUES and not _COUNTED.match(text, at)
    voice = load_verbalizer("en") if other == ["en"] or cue else None
    return load_grammar(voice) if voice else grammar


def _glue(before: str, said: str, after: str, rule: str) -> str:
    """Add a space on each side where the words would touch letters, and drop a space that would stand beside a space.

    Korean has a space between a bare number and its counter ("세 개"), and none before a particle ("오 퍼센트입니다").
    """
    if before in ("", " "):
        said = said.lstrip(" ")
    if after in ("", " "):
        said = said.rstrip(" ")
    if not said:
        return said
    left = " " if (before == ")" or _GLUED.match(before)) and _GLUED.match(said[0]) else ""
    right = " " if (after == "(" or _GLUED.match(after)) and _GLUED.match(said[-1]) else ""
    left = "" if _HANGUL.match(before) else left
    if (
        _HANGUL.match(after)
        and _HANGUL.match(said[-1])
        and (rule not in ("number", "range") or after in "을를은는이가의로과와에여")
    ):
        right = ""
    return f"{left}{said}{right}"


def _compose(first: list[Piece], second: list[Piece]) -> list[Piece]:
    """Combine two passes into pieces of the original text; `second` are pieces of the joined `spoken` of `first`."""
    offsets = [0, *accumulate(len(piece.spoken) for piece in first)]

    def original(at: int, index: int) -> int:
        inside = at - offsets[index]
        piece = first[index]
        return piece.start if not inside else piece.start + inside if piece.rule is None else piece.end

    def silent(at: int) -> list[Piece]:
        return [*first[bisect_left(offsets, at) : bisect_right(offsets, at) - 1]]

    pieces: list[Piece] = []
    for piece in second:
        inner = offsets[bisect_right(offsets, piece.start) : bisect_left(offsets, piece.end)] if not piece.rule else ()
        for low, high in pairwise([piece.start, *dict.fromkeys(inner), piece.end]):
            pieces += silent(low)
            index, last = bisect_right(offsets, low) - 1, bisect_left(offsets, high)
            start = original(low, index)
            end = first[last - 1].end if offsets[last] == high else original(high, last - 1)
            said = piece.spoken[low - piece.start : high - piece.start] if piece.rule is None else piece.spoken
            rule = piece.rule or first[index].rule
            if start < end or not pieces:
                pieces.append(Piece(start, end, said, rule))
            else:  # the characters belong to the piece before this piece
                before = pieces[-1]
                pieces[-1] = Piece(before.start, before.end, before.spoken + said, before.rule or rule)
    return pieces + silent(offsets[-1])
