"""Detects which of nine languages a text is in: by its script, and in Latin script by its words and their endings."""

from __future__ import annotations

import html
import unicodedata
from collections import defaultdict
from typing import Literal, get_args

import regex

from vivavoce_textnorm.grammar import Match, compiled

Language = Literal["zh", "en", "ja", "ko", "de", "es", "fr", "it", "ru"]
DAY_FIRST = "en-GB"
"""English with the day first in dates: 3/4/2026 is the third of April."""
_DAY_FIRST = frozenset(("gb", "uk", "au", "nz", "ie", "in", "za", "sg", "hk", "my", "ke", "ng"))

_CHINESE = regex.compile("[\u4e00-\u9fff]")
_SPEAKABLE = regex.compile(r"[\p{L}\p{N}]")

# Letters and frequent words of each language, without words that are also English or parts of names (la, von, du).
_FREQUENT: dict[Language, str] = {
    "en": """the and of to is are with for that this it you have not from by be at they we he she his my your their our
        had would could can there which what when who how does did were been if or but him them its these said""",
    "de": """der das und ist nicht ich wir sie ihr mit zu für auf dem den des ein eine einen einem einer wie oder aber
        auch sich sind haben habe wird werden wurde kann muss nach bei zum zur über noch nur uhr um dass wenn als es
        aus vom bis seit durch diese dieser sehr mehr heute dann hier alle kein keine mein meine sein bitte ä ö ü ß""",
    "es": """de el en los las al que una por para está es se su lo más pero muy como cuando este esta hay tiene tengo
        ser puede hoy usted también porque qué sobre entre cada nos ya hasta desde mi del con si todo ¿ ¡ ñ á í ó ú""",
    "fr": """de le les en est et un une dans que qu qui ce cet cette ces il elle nous vous ils je tu ne pas avec aux ou
        mais où être très ça ont sont chez au leur été des sur pour peut sera tous é ç œ è ê à â î ô û ù ë""",
    "it": """il lo gli un una di del al della dei delle che non con sono nel nella alle alla dal da più anche questo
        questa ore poi mi si ho se può essere viene tutti à è é ì ò ù""",
}
FREQUENT_WORDS = {language: frozenset(words.split()) for language, words in _FREQUENT.items()}
"""Language in Latin script → its letters and frequent words, which show that a text is in this language."""
_KNOWN = frozenset().union(*FREQUENT_WORDS.values())
# Ignored: capitalised words that begin names (Los Angeles), and short words in capitals, which may be acronyms.
_NO_EVIDENCE = regex.compile(r"Al|Del|Des|Les|Los|Las|\p{Lu}{1,3}")

# A single の is no evidence, because Chinese writes it as well; nor is a single Cyrillic letter, as in a formula.
_EVIDENCE = regex.compile(
    r"(?P<ja>(?!の(?!\p{Hiragana}))[\p{Hiragana}\p{Katakana}][\p{Hiragana}\p{Katakana}ー]*)|(?P<ko>\p{Hangul}+)"
    r"|(?P<ru>\p{Cyrillic}{2,})|(?P<zh>\p{Han}+)|(?P<question>[¿¡])|(?P<tag>\[\S{1,100}?\]|<\S{1,100}?>)|[\p{Latin}\p{M}]+"
)
# Frequent characters of Chinese that Japanese does not write.
_CHINESE_ALONE = regex.compile(
    "[你您她们們这這哪吗嗎呢吧啊说說没沒还个么麼很让为从对过时见买卖钱话问间门开关东车长头发听现经动欢请谁样岁块]"
)


def with_country(code: str, tag: str) -> str:
    """Return the code, or `DAY_FIRST` for English if the tag's country writes the day first, as in en-au."""
    return code if code != "en" or _DAY_FIRST.isdisjoint(tag.lower().split("-")) else DAY_FIRST


def contains_chinese(text: str) -> bool:
    """Return whether a text counts as Chinese: it has a character of U+4E00–9FFF (kana and hangul do not count)."""
    return _CHINESE.search(text) is not None


def is_speakable(text: str) -> bool:
    """Return whether the text has at least one letter or number.

    Text without punctuation may not be speakable either: an emoji has no letter or number.
    """
    return _SPEAKABLE.search(text) is not None


def detect_language(text: str, before: Language | None = None) -> Language:
    """Detect the language of a text. before: the language of the text before it, for a text that shows no language.

    Kana, hangul or Cyrillic words decide the language if they are at least as many as the frequent English words, and
    more than the Chinese words. A language in Latin script needs two frequent words (or a frequent word and a letter
    with a mark), and two more for each frequent English word. Any other text with a Chinese character is Chinese.
    """
    met: defaultdict[str, set[str]] = defaultdict(set)
    text = html.unescape(text)  # else "le" in &le; would count as a French word
    for match in _EVIDENCE.finditer(unicodedata.normalize("NFC", text)):
        if not _NO_EVIDENCE.fullmatch(match[0]):
            met[match.lastgroup or "latin"].add(match[0].lower())
    shown = met["latin"].union(met["question"], *(met["latin"] - _KNOWN))
    found = {language: shown & words for language, words in FREQUENT_WORDS.items()}
    if "è" in met["latin"]:  # "is" in Italian, a letter in French
        found["fr"].discard("è")
    english, chinese = len(found.pop("en")), set(_CHINESE_ALONE.findall("".join(met["zh"])))
    rivals: dict[Language, set[str]] = {"ja": chinese, "ko": met["zh"], "ru": met["zh"]}
    for script in rivals:
        if len(met[script]) >= max(min(2, 1 + english), english, len(rivals[script]) + 1):
            return script
    if contains_chinese(text):
        return "ja" if before == "ja" and not chinese else "zh"
    latin = max(found, key=lambda one: len(found[one]))
    if len(found[latin]) >= 2 + 2 * english and (met["question"] or max(map(len, found[latin])) > 1):
        return latin
    return before if before not in (None, "zh") and not english else "en"


# Used for single sentences: language → pattern of its words' endings, and further frequent words.
_OF_A_SENTENCE = {
    "en": (
        r".*(?:ing|ed|ly|th|gh|ck|ys?|ght|ow|ers?|ts|ks|ll|oo\w|ee\w)",
        """i an on in me it's as so do was than more all about after also just only very new day good time people
        over into please out up now see here dear sold paid read between call add buy size large small hour hours
        minutes days years miles""",
    ),
    "de": (
        r".*(?:en|er|ung|ich|sch|cht|tz|ß\w*|kt|hl|ig|eit|in|nd|lt|rt|st)|\w*(?:sch|ei|ie|ck|ü|ö|ä)\w+",
        """im am dein bin war hat gibt geht kostet jahr jahre tage herr frau grad prozent etwa unter vor schon
        wieder immer etwas viel viele zwischen sowie gegen ohne ihm ihn uns euch mich dich seite nummer straße
        danke guten tag kam kommt waren laut siehe er an""",
    ),
    "es": (
        r".*(?:os|as|[ií]a|ción|ciones|dad|ar|er|ir|ó|aron|ieron|an|illo|ero|é)",
        """la son fue era han he estoy año años día días hora horas calle página hola gracias buenos señor señora
        tu sin menos dos tres otro otra hacia según donde quien cuesta siglo unas unos iba pesa mide y yo tú él
        compré hace o al del doy""",
    ),
    "fr": (
        r".*(?:ez|eux|aux|tion|ent|aient|ait|ée?s?|eau|oir|eur|ais|ant|ie|que|re|le|ns)|\w*(?:ou|oi|eu)\w*",
        """la du mes mon ma ta sa ses nos vos leurs fait va avait était ans jours heures rue bonjour merci monsieur
        madame sans moins deux trois autre entre vers selon siècle coûte prix si voir appelez compte mort né
        lisez ville tél y j""",
    ),
    "it": (
        r".*(?:[^s]i|ardo|ivo|zione|ità|are|ere|ire|gli|che|ato|ata|uto|ano|llo|tto|zzo|cce|nte|mo|ro|la|lo)",
        """la suo sua suoi tuo nostro ha hanno era stato anni giorni via ciao grazie signor signora senza meno due
        tre altro altra tra fra verso secondo secolo costa prezzo gradi ed ad circa oggi ieri domani dopo prima
        dell nell all dall sull nei sui dai ai chiama vedi scelga paga vive abita ci sta va fa nato le pesa misura
        usa arriva e è o i""",
    ),
}
_WORD = compiled(r"(?<![\p{L}\p{N}])[\p{Latin}\p{M}]+")
_ACRONYM = compiled(r"\p{Lu}{2,}")
# Words that show no language: articles that begin names in any language (Le Mans), the letters of "i.e.", which are
# Italian words, and German words that English has, too ("am" after an hour or "I", and "War" in names).
_SHOWS_NONE = compiled(
    r"(?<!\p{L})(?:(?:Le|La|Les|El|Los|Las|Il|De|Des|Del|Di|Da|Du|San|Santa) \p{Lu}\p{Ll}+|\p{L}\.(?:\s?\p{L}\.)+"
    r"|(?:(?<=\d ?)|(?<=(?<!\p{L})I ))am|(?<=\p{Lu}\p{Ll}+ )War|War(?= (?:\p{Lu}|\d)))(?!\p{Ll})"
)
_LETTER, _SHORT, _ENDING, _BEFORE = 0.4, 0.6, 0.35, 1.2  # weights beside a frequent word's 1


def _marks_of(language: Language, ending: str, words: str) -> tuple[set[str], set[str], Match]:
    frequent = FREQUENT_WORDS[language]
    letters = {word for word in frequent if len(word) == 1 and not word.isascii()}
    return {*(frequent - letters), *words.split()}, letters, compiled(ending)


# Language → its frequent words, its letters, and the pattern of its endings.
_MARKS: dict[str, tuple[set[str], set[str], Match]] = {
    language: _marks_of(language, *_OF_A_SENTENCE[language]) for language in FREQUENT_WORDS
}


def detect_sentence_language(text: str, before: str | None) -> str:
    """Detect the language of one sentence as `detect_language` does, but a single Latin word or ending may decide it.

    before: the language of the sentence before it, or of the request; it has an advantage over the others.
    """
    known = next((one for one in get_args(Language) if one == before), None)
    detected = detect_language(text, known)
    if detected not in _MARKS:
        return detected
    shown = _SHOWS_NONE.sub(" ", text)
    words = {word.lower() for word in _WORD.findall(shown) if not _ACRONYM.fullmatch(word)}
    written = {letter for word in words if len(word) > 1 for letter in word}
    best, most = (before, 0.0) if before in _MARKS else ("en", 0.5)
    for language, (frequent, letters, ending) in _MARKS.items():
        count = sum(1 if len(word) > 1 else _SHORT for word in words & frequent)
        count += _LETTER * len(written & letters) + _BEFORE * (language == before)
        count += _ENDING * sum(len(word) > 3 and bool(ending.fullmatch(word)) for word in words)
        if count > most:
            best, most = language, count
    return best or "en"
